"""Times sine_linear, one layer of a SIREN, against plain PyTorch and torch.compile.

On CUDA it measures the device time of large batches and the wall time of a small one. On the CPU it
measures wall times. The weights are drawn as in a SIREN, and the inputs are sines, like the outputs
of a previous layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness import baselines
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, both, fastest_of, ours
from benchmarks.recurrent.cell import COMPILED, PLAIN, what
from benchmarks.recurrent.layer_calls import set_tf32
from treadle import reference

OMEGA = 30.0
ROWS, WIDTHS = 1 << 18, (128, 256, 512, 1024)
SMALL_ROWS, SMALL_WIDTH = 1024, 256
CPU_ROWS, CPU_WIDTHS = 4096, (64, 256)
AUTOTUNED = "torch.compile, max-autotune"
# Above this width, in float32 without TF32, tuning takes minutes and still selects cuBLAS.
MOST_TUNED = 256
UNTUNED = f"{AUTOTUNED} left out: tuning takes minutes, and cuBLAS was twice as fast at width 512"
# Targets relative to the speed of the faster mode of torch.compile. The second is for half types,
# forward and backward, up to width HALF_WIDTH.
OF_COMPILED, OF_COMPILED_HALF, HALF_WIDTH = 0.97, 1.3, 256
OF_PLAIN, OF_PLAIN_SMALL, OF_PLAIN_CPU = 1.3, 1.5, 1.1


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        for count in settings.threads:
            for width in CPU_WIDTHS:
                key = f"cpu/sine_linear/{CPU_ROWS},{width}/float32/{what(True)}/{count} threads"
                yield Plan(key, partial(cpu_case, settings, width, count))
        return
    for width in WIDTHS[:1] if settings.quick else WIDTHS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for tf32 in (False, True) if dtype == torch.float32 else (False,):
                for backward in (False, True):
                    digits = dtype_name(dtype) + (", tf32" if tf32 else "")
                    key = f"cuda/sine_linear/2^18,{width}/{digits}/{what(backward)}"
                    build = partial(device_case, settings, width, dtype, tf32, backward)
                    yield Plan(key, build, on_any_gpu=True)
    for dtype in (torch.float32, torch.bfloat16):
        key = f"cuda/sine_linear/{SMALL_ROWS},{SMALL_WIDTH}/{dtype_name(dtype)}/{what(True)}/wall"
        yield Plan(key, partial(wall_case, settings, dtype))


def arguments(
    rows: int, width: int, device: str, dtype: torch.dtype, backward: bool
) -> tuple[Any, ...]:
    """input [rows, width], weight [width, width], bias [width], omega."""

    def uniform(bound: float, *shape: int) -> Tensor:
        return (torch.rand(shape, device=device) * 2 - 1) * bound

    x = torch.sin(3 * torch.randn(rows, width, device=device))
    made = x, uniform((6 / width) ** 0.5 / OMEGA, width, width), uniform(width**-0.5, width)
    return *(t.to(dtype).requires_grad_(backward) for t in made), OMEGA


def functions(settings: Settings, tuned: bool) -> dict[str, Callable[..., Any]]:
    found = {OURS: ours("sine_linear"), PLAIN: reference.sine_linear}
    if settings.device == "cuda" and not settings.quick:
        found[COMPILED] = baselines.compiled(reference.sine_linear)
    if COMPILED in found and tuned:
        # CUDA graphs are off: they only save launch overhead, which device time does not include.
        found[AUTOTUNED] = torch.compile(
            reference.sine_linear,
            fullgraph=True,
            dynamic=False,
            mode="max-autotune-no-cudagraphs",
        )
    return found


def facts(rows: int, width: int, digits: str, backward: bool, group: str) -> dict[str, Any]:
    return {
        "group": f"sine_linear, {group}",
        "label": f"{rows},{width} {digits} {what(backward)}",
        "dtype": digits.partition(",")[0],
        "shape": [rows, width, width],
        "flop": 2 * rows * width * width * (3 if backward else 1),
    }


def faster_than(name: str, share: float) -> Target:
    return Target(f"at least {share:g} × the {name}'s speed", lambda medians: medians[name] / share)


def device_case(
    settings: Settings, width: int, dtype: torch.dtype, tf32: bool, backward: bool
) -> Case:
    set_tf32(tf32)
    rows = 1 << 10 if settings.quick else ROWS
    half = dtype != torch.float32 and backward and width <= HALF_WIDTH
    tuned = dtype != torch.float32 or tf32 or width <= MOST_TUNED
    share = OF_COMPILED_HALF if half else OF_COMPILED
    compiled = fastest_of(COMPILED, AUTOTUNED)
    text = f"at least {share:g} × the faster compiler's speed"
    return Case(
        op="sine_linear",
        functions=functions(settings, tuned),
        inputs=[arguments(rows, width, "cuda", dtype, backward)],
        timer=settings.device_time(seconds=0.2),
        notes=[] if tuned else [UNTUNED],
        target=both(Target(text, lambda m: compiled(m) / share), faster_than(PLAIN, OF_PLAIN)),
        facts=facts(
            rows,
            width,
            dtype_name(dtype) + (", tf32" if tf32 else ""),
            backward,
            "device time, CUDA",
        ),
    )


def wall_case(settings: Settings, dtype: torch.dtype) -> Case:
    set_tf32(False)
    return Case(
        op="sine_linear",
        functions={OURS: ours("sine_linear"), PLAIN: reference.sine_linear},
        inputs=[arguments(SMALL_ROWS, SMALL_WIDTH, "cuda", dtype, backward=True)],
        timer=settings.wall(),
        target=faster_than(PLAIN, OF_PLAIN_SMALL),
        facts=facts(SMALL_ROWS, SMALL_WIDTH, dtype_name(dtype), True, "wall time, CUDA"),
    )


def cpu_case(settings: Settings, width: int, count: int) -> Case:
    rows = 64 if settings.quick else CPU_ROWS
    found = facts(rows, width, "float32", True, "CPU")
    found["label"] += f", {count} thr"
    return Case(
        op="sine_linear",
        functions={OURS: ours("sine_linear"), PLAIN: reference.sine_linear},
        inputs=[arguments(rows, width, "cpu", torch.float32, backward=True)],
        timer=settings.wall(),
        target=faster_than(PLAIN, OF_PLAIN_CPU),
        threads=count,
        facts=found,
    )
