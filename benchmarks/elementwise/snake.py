"""Times snake at the size of an audio decoder, [16, 512, 8192], against plain PyTorch.

On CUDA it measures device times, on the CPU wall times of a smaller batch. It also times a copy of
x, for comparison. The baseline is the formula of DAC and BigVGAN,
x + sin(alpha x)^2 / (alpha + 1e-9), eager and, on CUDA, compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness import baselines
from benchmarks.harness.cases import (
    OURS,
    Case,
    Plan,
    Settings,
    Target,
    at_least,
    fastest_of,
    ours,
)
from benchmarks.recurrent.cell import COMPILED, PLAIN, what
from benchmarks.sine_linear.layer import AUTOTUNED
from treadle import reference

SHAPE, CPU_SHAPE = (16, 512, 8192), (2, 64, 8192)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OF_COPY, OF_COMPILED, OF_PLAIN_CPU = 0.95, 1.3, 1.3


def plans(settings: Settings) -> Iterator[Plan]:
    counts = settings.threads if settings.device == "cpu" else (None,)
    for count in counts:
        for dtype in DTYPES:
            for backward in (False, True):
                key = f"{settings.device}/elementwise/snake/{dtype_name(dtype)}/{what(backward)}"
                if count is not None:
                    key += f"/{count} threads"
                yield Plan(key, partial(case, settings, dtype, backward, count))


def arguments(
    shape: tuple[int, ...], device: str, dtype: torch.dtype, backward: bool
) -> tuple[Tensor, ...]:
    """x [N, C, T] and alpha [C]. No beta is passed, so snake divides by alpha."""
    made = torch.randn(shape, device=device), torch.rand(shape[1], device=device) + 0.5
    return tuple(t.to(dtype).requires_grad_(backward) for t in made)


def plain(x: Tensor, alpha: Tensor) -> Tensor:
    return reference.snake(x, alpha, eps=1e-9)


def functions(settings: Settings) -> dict[str, Callable[..., Any]]:
    found = {OURS: ours("snake"), PLAIN: plain}
    if settings.device == "cuda" and not settings.quick:
        found[COMPILED] = baselines.compiled(plain)
        mode = "max-autotune-no-cudagraphs"
        found[AUTOTUNED] = torch.compile(plain, fullgraph=True, dynamic=False, mode=mode)
    return found


def target_of(settings: Settings, backward: bool) -> Target | None:
    if settings.device == "cpu":
        return at_least(OF_PLAIN_CPU, PLAIN)
    if not backward:
        return at_least(OF_COPY, "copy")
    if settings.quick:
        return None
    compiled = fastest_of(COMPILED, AUTOTUNED)
    text = f"at least {OF_COMPILED:g} × the faster compiler's speed"
    return Target(text, lambda medians: compiled(medians) / OF_COMPILED)


def case(settings: Settings, dtype: torch.dtype, backward: bool, count: int | None) -> Case:
    shape = SHAPE if settings.device == "cuda" else CPU_SHAPE
    if settings.quick:
        shape = (2, 3, 64)
    args = arguments(shape, settings.device, dtype, backward)
    x = args[0].detach()
    copied = torch.empty_like(x)
    where = "CUDA" if count is None else f"CPU, {count} thread{'s' * (count > 1)}"
    return Case(
        op="snake",
        functions=functions(settings),
        inputs=[args],
        timer=settings.device_time(seconds=0.15) if settings.device == "cuda" else settings.brief(),
        yardsticks={"copy": [partial(copied.copy_, x)]},
        target=target_of(settings, backward),
        threads=count,
        facts={
            "group": f"snake, {where}",
            "label": f"{dtype_name(dtype)} {what(backward)}",
            "dtype": dtype_name(dtype),
            "shape": list(shape),
            # Forward reads x and writes y. Backward reads x and one gradient, and writes another.
            "bytes": (5 if backward else 2) * x.nbytes,
            "copy_bytes": 2 * x.nbytes,
        },
    )
