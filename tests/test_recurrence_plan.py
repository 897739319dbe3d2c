"""How a recurrent layer is run: the planner, a pure function, asked about chips that are not here;
and the op's argument that forces a regime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from treadle import _build

from .compare import same_bits
from .inputs import DEVICES, Call, Make
from .lltm_layer_cases import TENSORS, layer, layer_arguments


def no_bindings() -> str | None:
    try:
        _build.bindings()
    except ImportError as error:
        return f"needs treadle._C: {error}"
    return None


BINDINGS = pytest.mark.skipif(no_bindings() is not None, reason=no_bindings() or "")
STEPS = (0, 1, 2, 257, 100_000)
BATCHES = (0, 1, 2, 17, 32, 33, 1024, 1025, 70_000)
HIDDEN = (0, 1, 33, 1024)
ELEMENTS = (2, 4, 8)  # bytes
MEGABYTE = 1 << 20
Sizes = tuple[int, int, int, int]


def plan(sizes: Sizes, cuda: bool = True, forced: str = "auto", **device: Any) -> Any:
    facts = {"multiprocessors": 132, "l2_bytes": 50 * MEGABYTE, "tf32": False} | device
    return _build.bindings().plan_recurrence(*sizes, cuda=cuda, forced=forced, **facts)


def all_sizes() -> Iterator[Sizes]:
    return itertools.product(STEPS, BATCHES, HIDDEN, ELEMENTS)


def step_bytes(sizes: Sizes) -> int:
    """Of a step's input product: half types are multiplied into float."""
    _, batch, hidden, element = sizes
    return 3 * hidden * batch * max(element, 4)


def bounded(sizes: Sizes, chunk: int, l2_bytes: int) -> None:
    """In steps, between one and all; in memory, half of the cache, or 1024 rows, or one step."""
    steps, batch, *_ = sizes
    assert 1 <= chunk <= max(steps, 1)
    rows = chunk * batch
    few = chunk == 1 or rows < 1024 + batch
    assert few or chunk * step_bytes(sizes) <= l2_bytes // 2


@BINDINGS
def test_every_chip() -> None:
    for sizes in all_sizes():
        batch, element = sizes[1], sizes[3]
        found = set()
        for multiprocessors in range(1, 161):
            tf32 = multiprocessors % 2 == 0
            one = plan(sizes, multiprocessors=multiprocessors, tf32=tf32)
            assert one.regime == "step" and "on the chip" in one.reason
            bounded(sizes, one.steps_per_chunk, 50 * MEGABYTE)
            assert one.transposed == (element == 4 and not tf32 and 1 < batch <= 32)
            found.add(one.steps_per_chunk)
        assert len(found) == 1  # of today's regime


@BINDINGS
def test_every_size_on_the_cpu() -> None:
    for sizes in all_sizes():
        one = plan(sizes, cuda=False, multiprocessors=0, l2_bytes=32 * MEGABYTE)
        assert one.regime == "rows" and "threads" in one.reason and not one.transposed
        bounded(sizes, one.steps_per_chunk, 32 * MEGABYTE)


@BINDINGS
def test_chunks_grow_with_the_cache_and_shrink_with_the_step() -> None:
    for sizes in all_sizes():
        steps, batch, hidden, element = sizes
        chunks = [plan(sizes, l2_bytes=n * MEGABYTE).steps_per_chunk for n in range(0, 257, 8)]
        assert chunks == sorted(chunks)
        for wider in ((steps, 2 * batch, hidden, element), (steps, batch, 2 * hidden, element)):
            assert plan(wider).steps_per_chunk <= plan(sizes).steps_per_chunk
        longer = (2 * steps, batch, hidden, element)
        assert plan(longer).steps_per_chunk >= plan(sizes).steps_per_chunk


@BINDINGS
def test_a_chunk_holds_what_the_cache_does() -> None:
    # 3 * 512 * 4 bytes * 64 rows a step: 64 steps are 24 MB.
    assert plan((512, 64, 512, 4), l2_bytes=48 * MEGABYTE).steps_per_chunk == 64
    assert plan((512, 64, 512, 2), l2_bytes=48 * MEGABYTE).steps_per_chunk == 64
    assert plan((512, 64, 512, 8), l2_bytes=48 * MEGABYTE).steps_per_chunk == 32
    # Without a cache, 1024 rows.
    assert plan((512, 64, 512, 4), l2_bytes=0).steps_per_chunk == 16
    assert plan((5, 64, 512, 4), l2_bytes=0).steps_per_chunk == 5


@BINDINGS
@pytest.mark.parametrize(
    ("cuda", "regime", "where"), [(True, "step", "CUDA"), (False, "rows", "the CPU")]
)
def test_forced_regimes(cuda: bool, regime: str, where: str) -> None:
    sizes = (512, 17, 33, 4)
    free, forced = plan(sizes, cuda), plan(sizes, cuda, forced=regime)
    assert forced.reason == "asked for" != free.reason
    for name in ("regime", "steps_per_chunk", "transposed"):
        assert getattr(forced, name) == getattr(free, name)
    for wrong in ({"step", "rows"} - {regime}) | {"", "Auto", "persistent"}:
        words = f"^lltm_layer: regime must be auto or {regime} on {where}, got {wrong}($|\n)"
        with pytest.raises(RuntimeError, match=words):
            plan(sizes, cuda, forced=wrong)


def run(call: Call, **options: Any) -> list[Tensor]:
    leaves = call.map(lambda t: t.detach().requires_grad_())
    results = layer(*leaves.args, **options)
    ones = [torch.ones_like(t) for t in results]
    return [*results, *torch.autograd.grad(results, [leaves.args[i] for i in TENSORS], ones)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [None, (3, 1)], ids=str)
def test_the_ops_argument(lengths: tuple[int, ...] | None, device: str) -> None:
    make = Make("regime", device, torch.float32)
    call = layer_arguments(make, (3, 2, 4, 5), directions=2, lengths=lengths)
    regime, other = ("rows", "step") if device == "cpu" else ("step", "rows")
    expected = run(call)
    for name in ("auto", regime):
        for ours, theirs in zip(run(call, regime=name), expected, strict=True):
            same_bits(ours, theirs, name)
    where = "the CPU" if device == "cpu" else "CUDA"
    for wrong in (other, "persistent"):
        words = f"^lltm_layer: regime must be auto or {regime} on {where}, got {wrong}($|\n)"
        for attempt in (lambda: layer(*call.args, regime=wrong), lambda: run(call, regime=wrong)):  # noqa: B023
            with pytest.raises(RuntimeError, match=words):
                attempt()
