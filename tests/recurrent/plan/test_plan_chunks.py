"""The number of steps in a chunk. The input products of all steps of a chunk are computed at
once."""

from __future__ import annotations

from typing import Any

from tests.recurrent.plan.test_plan import BINDINGS, MEGABYTE, Sizes, all_sizes, plan


def chunk_of(sizes: Sizes, **device: Any) -> int:
    chunk: int = plan(sizes, forced="step", **device).steps_per_chunk
    return chunk


@BINDINGS
def test_chunks_grow_with_the_cache_and_shrink_with_the_step() -> None:
    for sizes in all_sizes():
        steps, batch, hidden, element = sizes
        chunks = [chunk_of(sizes, l2_bytes=n * MEGABYTE) for n in range(0, 257, 8)]
        assert chunks == sorted(chunks)
        for wider in ((steps, 2 * batch, hidden, element), (steps, batch, 2 * hidden, element)):
            assert chunk_of(wider) <= chunk_of(sizes)
        longer = (2 * steps, batch, hidden, element)
        assert chunk_of(longer) >= chunk_of(sizes)


@BINDINGS
def test_a_chunk_holds_what_the_cache_does() -> None:
    # A step needs 3 * 512 * 4 bytes * 64 rows; 64 steps need 24 MB.
    assert plan((512, 64, 512, 4), l2_bytes=48 * MEGABYTE, tf32=True).steps_per_chunk == 64
    assert plan((512, 64, 512, 2), l2_bytes=48 * MEGABYTE).steps_per_chunk == 64
    assert plan((512, 64, 512, 8), l2_bytes=48 * MEGABYTE).steps_per_chunk == 32
    # Without a cache, a chunk has 1024 rows.
    assert plan((512, 64, 512, 2), l2_bytes=0).steps_per_chunk == 16
    assert plan((5, 64, 512, 2), l2_bytes=0).steps_per_chunk == 5


@BINDINGS
def test_exact_products_of_steps_fill_many_waves() -> None:
    """In float32 without TF32, a chunk of "step" has 8192 rows, or products of 128 MiB."""
    assert chunk_of((512, 64, 512, 4), l2_bytes=0) == 128
    assert chunk_of((512, 64, 512, 4), l2_bytes=0, tf32=True) == 16
    assert plan((512, 64, 512, 4), l2_bytes=0, forced="grid").steps_per_chunk == 16
    assert chunk_of((64, 64, 512, 4), l2_bytes=0) == 64
    assert chunk_of((512, 64, 4096, 4), l2_bytes=0) == 43  # 2730 rows have 128 MiB
    assert chunk_of((512, 64, 1 << 20, 4), l2_bytes=0) == 16
