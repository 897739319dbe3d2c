"""LLTM and LLTMCell on the CPU take no longer with saturated gates and cell states than with small
ones.

Saturated values have slopes near 0, whose products are subnormal. Each such product would take
about 150 cycles, and a call would take 10 to 40 times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.inputs import FLOATING, Make
from tests.support.threads import threads
from treadle import reference

T, B, I, H = 8, 32, 64, 160  # noqa: E741
ROUNDS = 50
# c0, and the bias of gates i and o. Gates are closed or open, or have slopes that are normal
# numbers but have subnormal products.
SINGLE = [(42.0, 0.0), (-30.0, 0.0), (60.0, 0.0), (0.0, -41.0), (0.0, -87.5), (0.0, 80.0)]
DOUBLE = [(355.0, 0.0), (-340.0, 0.0), (0.0, -355.0), (0.0, -708.6), (0.0, 700.0)]
Step = Callable[[], None]


def module(make: Make, kind: type[torch.nn.Module], gates: float, **more: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    found = kind(I, H, **more).to(make.dtype)
    bias = next(p for name, p in found.named_parameters() if name.startswith("bias"))
    bias.data.view(-1)[: 2 * H] = gates
    return found


def of_layer(make: Make, c0: float, gates: float, **more: bool) -> Step:
    dtype, layer = make.dtype, module(make, treadle.nn.LLTM, gates, **more)
    x, grad = make(T, B, I), make(T, B, H, by=1e-3)
    state = torch.zeros(1, B, H, dtype=dtype), torch.full((1, B, H), c0, dtype=dtype)
    return lambda: layer(x, state)[0].backward(grad)


def of_cell(make: Make, c0: float, gates: float) -> Step:
    dtype, cell = make.dtype, module(make, treadle.nn.LLTMCell, gates)
    x, grad = make(T, B, I), make(T, B, H, by=1e-3)

    def steps() -> None:
        h, c = torch.zeros(B, H, dtype=dtype), torch.full((B, H), c0, dtype=dtype)
        outputs = []
        for t in range(T):
            h, c = cell(x[t], (h, c))
            outputs.append(h)
        torch.stack(outputs).backward(grad)

    return steps


def of_processor(step: Step) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


def slowest(small: Step, others: list[Step]) -> float:
    """The largest ratio of a call's time to that of `small`. Each call's ratio is the smallest of
    at most ROUNDS measurements.

    Other processes may use most of the processor for a while, so both CPU times of a ratio are
    measured in the same round.
    """
    least = [float("inf")] * len(others)
    for _ in range(ROUNDS):
        own = of_processor(small)
        least = [
            min(best, of_processor(step) / own) for best, step in zip(least, others, strict=True)
        ]
        if max(least) < 2:
            break
    return max(least)


@pytest.mark.parametrize("count", [1, 2], ids=["1_thread", "2_threads"])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("kind", ["layer", "recompute", "cell"])
def test_saturated_takes_no_longer(kind: str, dtype: torch.dtype, count: int) -> None:
    make = Make("saturated", "cpu", dtype)

    def step(c0: float, gates: float) -> Step:
        if kind == "cell":
            return of_cell(make, c0, gates)
        return of_layer(make, c0, gates, recompute=kind == "recompute")

    with threads(count):
        small = step(0.0, 0.0)
        others = [step(*at) for at in (DOUBLE if dtype == torch.float64 else SINGLE)]
        assert slowest(small, others) < 2


@pytest.mark.parametrize("count", [1, 2], ids=["1_thread", "2_threads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tiny", ["x", "h0", "c0", "grad"])
@pytest.mark.parametrize("kind", ["layer", "cell"])
def test_subnormals_count_as_zero(kind: str, tiny: str, dtype: torch.dtype, count: int) -> None:
    """Subnormals are flushed in every thread and product, even on processors that do not compute
    them more slowly."""
    value, weight = (1e-40, 1e20) if dtype == torch.float32 else (1e-310, 1e200)

    def of(name: str, *shape: int) -> Tensor:
        full = torch.full(shape, value if name == tiny else 0.0, dtype=dtype)
        return full.requires_grad_() if name != "grad" else full

    def large(*shape: int) -> Tensor:
        return torch.full(shape, weight, dtype=dtype)

    x, h0, c0 = of("x", T, B, I), of("h0", 1, B, H), of("c0", 1, B, H)
    with threads(count):
        if kind == "layer":
            weights, flags = (
                [large(3 * H, I), large(3 * H, H)],
                (False, 1, 0.0, False, False, False),
            )
            output, _, c = treadle.lltm(x, (h0, c0), weights, *flags)
            output.backward(of("grad", T, B, H))
        else:
            output, c = treadle.lltm_cell(x[0], large(3 * H, H + I), None, h0[0], c0[0])
            output.backward(of("grad", B, H))
    found = [output, c, *(t.grad for t in (x, h0, c0))]
    assert not any(t is None or bool(t.any()) for t in found)


@pytest.mark.parametrize("count", [1, 2], ids=["1_thread", "2_threads"])
def test_the_mode_of_every_thread_is_as_before(count: int) -> None:
    make = Make("mode", "cpu", torch.float32)
    tiny = torch.full((1 << 20,), 1e-40)
    with threads(count):
        for step in (of_layer(make, 42.0, 0.0), of_cell(make, 42.0, 0.0)):
            step()
            assert bool((tiny * 0.5).all()), "subnormal numbers have become 0"
            torch.set_flush_denormal(True)
            try:
                step()
                assert not bool((tiny[:8] * 0.5).any()), "the caller's own mode is lost"
            finally:
                torch.set_flush_denormal(False)


def test_halves_below_the_normal_range_count() -> None:
    """Values of 2^-24 to 2^-14, which are subnormal in float16, are not flushed."""
    make = Make("halves", "cpu", torch.float16)
    args = [make(B, I), make(3 * H, H + I), make(3 * H), make(B, H), make(B, H)]
    small: list[Tensor] = [args[0] * 2**-18, args[1] * 2**-4, args[2] * 0, args[3] * 2**-18]
    small.append(args[4] * 2**-18)
    assert all(0 < float(t.abs().max()) < 2**-14 for t in (small[0], *small[3:]))
    exact = reference.lltm_cell(*(t.double() for t in small))
    for ours, truth in zip(treadle.lltm_cell(*small), exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=0, atol=2**-24)
        assert float(truth.abs().max()) > 2**-18
