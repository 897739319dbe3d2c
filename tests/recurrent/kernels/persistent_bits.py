"""recurrent_layer's persistent kernels (one launch for all steps) give the same bits in repeated
calls, while other streams and processes use the GPU, in CUDA graphs, and in reused memory. They
write only their results, and the host does not wait for them."""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels import persistent_steps as steps
from tests.recurrent.kernels.persistent_calls import DTYPES, Cases, Given, Sizes
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.support.layer_cases import Lengths
from tests.support.compare import attempt
from tests.support.inputs import HALVES
from tests.support.layouts import misaligned, padded_rows

HALF, BFLOAT = HALVES
LENGTHS = (6, 6, 5, 3, 3, 1)


def widest(algorithm: str, dtype: torch.dtype, *, dense: bool = True) -> int:
    return min(calls.most_hidden(algorithm, dtype, dense=dense), 1024)


def counter() -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=calls.DEVICE)


def equal(found: list[Tensor], expected: list[Tensor]) -> None:
    with Checks() as checks:
        checks.all_bits(found, expected, "result")


# ---- repeated calls


def repeated(
    algorithm: str, dtype: torch.dtype, size: Sizes, lengths: Lengths, directions: int = 2
) -> None:
    options: dict[str, Any] = {"lengths": lengths, "directions": directions, "features": 32}
    one = calls.given("repeats", dtype, size, **options)
    expected, total = calls.both(one, algorithm), counter()
    for _ in range(1000):
        calls.count_differing(calls.both(one, algorithm), expected, total)
    assert int(total) == 0, f"{int(total)} elements differ"
    assert bool(torch.stack([t.isfinite().all() for t in expected]).all())


def repeats(algorithm: str, dtype: str, which: str) -> Cases:
    kind = DTYPES[dtype]
    narrow = calls.fitting(algorithm, 33)
    sizes = {
        "small": (5, 3, narrow),
        "medium": (33, 17, 512),
        "wide": (17, 40, widest(algorithm, kind)),
    }
    yield which, partial(repeated, algorithm, kind, sizes[which], None)
    if which == "wide" and algorithm == "grid" and kind in HALVES:
        yield "widest", partial(repeated, algorithm, kind, (17, 40, 2048), None, 1)
    if which == "small":
        yield "packed", partial(repeated, algorithm, kind, (0, 0, narrow), LENGTHS)


def beside_others(algorithm: str, size: Sizes) -> None:
    """Runs four interleaved streams, each with its own inputs, while a matrix product occupies all
    multiprocessors."""
    given = [calls.given(f"stream {n}", BFLOAT, size, features=32) for n in range(4)]
    expected = [calls.both(one, algorithm) for one in given]
    totals = [counter() for _ in given]
    a, out = torch.randn(2, 8192, 8192, device=calls.DEVICE, dtype=BFLOAT)
    streams = [torch.cuda.Stream() for _ in given]
    filling = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(250):
        with torch.cuda.stream(filling):
            torch.mm(a, a, out=out)
        for stream, one, wanted, total in zip(streams, given, expected, totals, strict=True):
            with torch.cuda.stream(stream):
                calls.count_differing(calls.both(one, algorithm), wanted, total)
    torch.cuda.synchronize()
    assert [int(total) for total in totals] == [0] * 4


def streams(algorithm: str) -> Cases:
    yield "250 times", partial(beside_others, algorithm, (17, 17, 257))


def meet(folder: str, index: int) -> None:
    """Waits for the other process."""
    (Path(folder) / str(index)).touch()
    until = time.monotonic() + 40
    while not (Path(folder) / str(1 - index)).exists():
        assert time.monotonic() < until, "the other process did not start"
        time.sleep(0.01)


def beside_a_process(algorithm: str, folder: str, index: int) -> None:
    one = calls.given(f"process {index}", BFLOAT, (64, 33, 512))
    torch.cuda.synchronize()
    meet(folder, index)
    saved = calls.forward(one, algorithm)
    expected = [*saved, *calls.backward(one, saved, algorithm)]
    total = counter()
    for _ in range(200):
        calls.count_differing(calls.both(one, algorithm), expected, total)
    assert int(total) == 0, f"{int(total)} elements differ"
    with Checks() as checks:
        steps.check_forward(one, saved, checks, algorithm)
        steps.check_backward(one, saved, expected[4:], checks)


def together(algorithm: str, folder: str, index: int) -> Cases:
    yield "200 times", partial(beside_a_process, algorithm, folder, index)


# ---- graphs


def captured(algorithm: str, one: Given, train: bool, recompute: bool) -> None:
    """Captures the first call; replays with other values must equal eager calls."""
    run = calls.training(one, algorithm, recompute)
    if not train:
        run = partial(calls.inference, one, algorithm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for n in range(10):
        draw = calls.Draw(f"replay {n}", torch.float32)
        with torch.no_grad():
            for t in (one.input, one.h0, one.c0):
                t.copy_(draw(*t.shape))
            one.weight_hh.mul_(-1)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [t.clone() for t in results]
        equal(replayed, run())
        assert bool(torch.stack([t.isfinite().all() & t.any() for t in replayed]).all())


def capture(algorithm: str, form: str, mode: str) -> Cases:
    """In the first case, the captured call is treadle's first call in the process. Before it, only
    cuBLAS and autograd's threads are initialised."""
    lengths = LENGTHS if form == "packed" else None
    for dtype, recompute in itertools.product(calls.dtypes_of(algorithm), (False, True)):
        w = torch.randn(7, 7, device=calls.DEVICE, dtype=dtype, requires_grad=True)
        (torch.randn(9, 7, device=calls.DEVICE, dtype=dtype) @ w).sum().backward()
        one = calls.given("capture", dtype, (6, 17, 96), lengths=lengths, features=32)
        torch.cuda.synchronize()
        name = f"{dtype} recompute {recompute}"
        yield name, partial(captured, algorithm, one, mode == "training", recompute)


# ---- memory


def fill_freed_memory(value: int) -> None:
    """Fills the memory that the allocator will return next with this 16-bit value."""
    held = []
    for size in (256, 2048, 16_384, 131_072, 400_000, 4 << 20, 32 << 20):
        held += [
            torch.full((size,), value, dtype=torch.int16, device=calls.DEVICE)
            for _ in range(48 if size < 1 << 20 else 4)
        ]


# 0.5 and 1 in both half types, 0, several NaNs, and the largest finite numbers. In float32, two
# copies of a pattern form a number.
PATTERNS = (0x3F00, 0x3800, 0x3F80, 0x3C00, 0, -1, 0x7FFF, 0x7FC0, 0x7E00, 0x7F7F, 0x7BFF)


def recycle(algorithm: str, dtype: torch.dtype, h: int, lengths: Lengths) -> None:
    given = [
        calls.given(f"recycled {n}", dtype, (6, 19, h), lengths=lengths, features=32)
        for n in range(2)
    ]
    torch.cuda.empty_cache()
    expected = [calls.both(one, algorithm) for one in given]
    # Calls reuse the memory of earlier calls, unchanged or overwritten with a pattern.
    for pattern in (None, *PATTERNS):
        for one, wanted in zip(given, expected, strict=True):
            if pattern is not None:
                fill_freed_memory(pattern)
            equal(calls.both(one, algorithm), wanted)
            equal(calls.inference(one, algorithm), wanted[:3])


def recycled(algorithm: str) -> Cases:
    for dtype, n, lengths in itertools.product(
        calls.dtypes_of(algorithm), range(3), (None, LENGTHS)
    ):
        h = (33, 257, widest(algorithm, dtype, dense=lengths is None))[n]
        yield f"{dtype} H{h} {lengths}", partial(recycle, algorithm, dtype, h, lengths)


def bytes_of(t: Tensor) -> Tensor:
    """All bytes of the tensor's storage, including those around the tensor."""
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


def guard(results: list[Tensor]) -> list[Tensor]:
    """Fills memory and frees every second tensor, so that results of these sizes get memory between
    the returned tensors."""
    sizes = {t.numel() * t.element_size() for t in results}
    sizes |= {1 << n for n in range(9, 22)}
    held = [
        torch.full((size,), 0x5A, dtype=torch.uint8, device=calls.DEVICE)
        for size in sorted(sizes)
        for _ in range(24)
    ]
    kept = held[::2]
    del held
    return kept


def untouched(algorithm: str, dtype: torch.dtype, h: int, lengths: Lengths) -> None:
    dense = calls.given("memory", dtype, (6, 19, h), lengths=lengths, features=9)
    for layout in (padded_rows, misaligned):
        one = dense.map(layout)
        before = [bytes_of(t).clone() for t in one.tensors]
        expected = calls.both(one, algorithm)
        kept = guard(expected)
        equal(calls.both(one, algorithm), expected)
        with Checks() as checks:
            around = [bytes_of(t) for t in one.tensors]
            checks.all_bits(around, before, "argument, or what lies beside it")
            for t in kept:
                checks.no(t != 0x5A, "memory beside a result", t, t)


def memory(algorithm: str) -> Cases:
    for dtype, n, lengths in itertools.product(
        calls.dtypes_of(algorithm), range(5), (None, LENGTHS)
    ):
        h = (1, 33, 100, 257, widest(algorithm, dtype, dense=False) - 1)[n]
        yield f"{dtype} H{h} {lengths}", partial(untouched, algorithm, dtype, h, lengths)


# ---- the host does not wait


def not_waiting(algorithm: str, dtype: torch.dtype, lengths: Lengths, recompute: bool) -> None:
    one = calls.given("waits", dtype, (6, 17, 65), lengths=lengths, features=32)
    run = calls.training(one, algorithm, recompute)
    expected = run()
    run()  # fills the allocator's cache for the next call
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, error = attempt(lambda: torch.ones(1, device=calls.DEVICE).item())
        assert "synchroniz" in str(error), error
        # The call must return before the GPU's sleep of about half a second ends.
        torch.cuda._sleep(1_000_000_000)
        slept = torch.cuda.Event()
        slept.record()
        found = run()
        assert not slept.query(), "the call waited for the GPU"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    equal(found, expected)


def waits(algorithm: str) -> Cases:
    of_both = (HALF, False), (BFLOAT, True)
    alone = [(t, r) for t in calls.dtypes_of(algorithm) if t not in HALVES for r in (False, True)]
    for lengths, (dtype, recompute) in itertools.product((None, LENGTHS), (*of_both, *alone)):
        name = f"{dtype} {lengths} recompute {recompute}"
        yield name, partial(not_waiting, algorithm, dtype, lengths, recompute)


GROUPS = {
    "repeats": repeats,
    "streams": streams,
    "together": together,
    "capture": capture,
    "recycled": recycled,
    "memory": memory,
    "waits": waits,
}
