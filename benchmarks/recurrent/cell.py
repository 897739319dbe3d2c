"""Times lltm_cell: on CUDA, the wall time of a small step and the device time of a large one; on
the CPU, wall times.

Shapes are B, I, H: batch, inputs, hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness import baselines
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, fastest_of, ours
from benchmarks.recurrent import tutorial
from treadle import reference

Sizes = tuple[int, int, int]  # B, I, H
SMALL: Sizes = (16, 32, 128)
LARGE: Sizes = (512, 1024, 1024)
CPU_SIZES: tuple[Sizes, ...] = ((16, 32, 128), (64, 128, 256), (1, 256, 512))
PLAIN, COMPILED, TUTORIAL = "composition", "torch.compile", "tutorial's way"
# More bytes than the L2 cache of any current GPU.
BEYOND_CACHE = 256 << 20


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        for count in settings.threads:
            for sizes in CPU_SIZES:
                for backward in (False, True):
                    key = f"cpu/cell/{name_of(sizes)}/{what(backward)}/{count} threads"
                    yield Plan(key, partial(cpu_case, settings, sizes, backward, count))
        return
    for backward in (True, False):
        key = f"cuda/cell/{name_of(SMALL)}/float32/{what(backward)}/wall"
        yield Plan(key, partial(wall_case, settings, backward))
    for dtype in (torch.float32, torch.bfloat16):
        for backward in (False, True):
            key = f"cuda/cell/{name_of(LARGE)}/{dtype_name(dtype)}/{what(backward)}/device"
            yield Plan(key, partial(device_case, settings, dtype, backward))


def name_of(sizes: Sizes) -> str:
    return ",".join(map(str, sizes))


def what(backward: bool) -> str:
    return "forward + backward" if backward else "forward"


def arguments(
    sizes: Sizes, device: str, dtype: torch.dtype, backward: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """input, weights, bias, old_h, old_cell. The weights are as large as those of a trained net."""
    b, i, h = sizes
    shapes = ((b, i), (3 * h, h + i), (3 * h,), (b, h), (b, h))
    made = [torch.randn(shape, device=device) for shape in shapes]
    made[1] *= (h + i) ** -0.5
    x, weights, bias, old_h, old_cell = (t.to(dtype).requires_grad_(backward) for t in made)
    return x, weights, bias, old_h, old_cell


def _facts(sizes: Sizes, dtype: torch.dtype, group: str, label: str) -> dict[str, Any]:
    b, i, h = sizes
    return {
        "group": group,
        "label": label,
        "dtype": dtype_name(dtype),
        "shape": list(sizes),
        "flop": 2 * b * 3 * h * (h + i),
    }


def products(args: tuple[Any, ...], backward: bool) -> Callable[[], Any]:
    """The matrix products of one step, which no fusion can avoid."""
    x, weights, bias, old_h, _ = (t.detach() for t in args)
    both = torch.cat([old_h, x], dim=1)
    forward = partial(torch.addmm, bias, both, weights.t())
    d_gates = torch.randn_like(forward())

    def all_three() -> tuple[Tensor, Tensor, Tensor]:
        return forward(), d_gates.t().mm(both), d_gates.mm(weights)

    return all_three if backward else forward


def cpu_case(settings: Settings, sizes: Sizes, backward: bool, count: int) -> Case:
    args = arguments(sizes, "cpu", torch.float32, backward)
    return Case(
        op="lltm_cell",
        functions={OURS: ours("lltm_cell"), PLAIN: reference.lltm_cell},
        inputs=[args],
        timer=settings.wall(),
        yardsticks={"products": [products(args, backward)]},
        target=Target(
            "at least 1.2 × the composition's speed", lambda medians: medians[PLAIN] / 1.2
        ),
        threads=count,
        facts=_facts(
            sizes,
            torch.float32,
            "lltm_cell, CPU",
            f"{name_of(sizes)} {what(backward)}, {count} thr",
        ),
    )


def _functions(settings: Settings, dtype: torch.dtype) -> tuple[dict[str, Any], list[str]]:
    """The cell and its baselines, and notes on missing or uncompiled baselines."""
    found: dict[str, Callable[..., Any]] = {OURS: ours("lltm_cell"), PLAIN: reference.lltm_cell}
    if settings.quick:
        return found, []
    found[COMPILED] = baselines.compiled(reference.lltm_cell)
    notes: list[str] = []
    if dtype in tutorial.DTYPES:
        found[TUTORIAL], note = tutorial.cell()
        notes += [note] if note else []
    else:
        notes.append(f"{TUTORIAL}: its kernels have no {dtype_name(dtype)}")
    return found, notes


def wall_case(settings: Settings, backward: bool) -> Case:
    functions, notes = _functions(settings, torch.float32)
    fastest = fastest_of(PLAIN, COMPILED, TUTORIAL)
    target = Target("at most 0.5 × the fastest baseline", lambda medians: 0.5 * fastest(medians))
    return Case(
        op="lltm_cell",
        functions=functions,
        inputs=[arguments(SMALL, "cuda", torch.float32, backward)],
        timer=settings.wall(5e-3),
        target=target if backward else None,
        notes=notes,
        facts=_facts(
            SMALL,
            torch.float32,
            "lltm_cell, wall time, CUDA",
            f"{name_of(SMALL)} float32 {what(backward)}",
        ),
    )


def device_case(settings: Settings, dtype: torch.dtype, backward: bool) -> Case:
    # TF32 would change the results, so it is off, as it is by default in torch.
    torch.backends.cuda.matmul.allow_tf32 = False
    sizes = SMALL if settings.quick else LARGE
    functions, notes = _functions(settings, dtype)
    bytes_each = sum(t.nbytes for t in arguments(sizes, "cuda", dtype, False))
    copies = 2 if settings.quick else max(2, -(-BEYOND_CACHE // bytes_each))
    inputs = [arguments(sizes, "cuda", dtype, backward) for _ in range(copies)]
    if backward:
        yardsticks = {"products": [products(args, backward) for args in inputs]}
    else:
        yardsticks = _yardsticks(sizes, inputs)
    return Case(
        op="lltm_cell",
        functions=functions,
        inputs=inputs,
        timer=settings.device_time(),
        yardsticks=yardsticks,
        target=None if backward else _target(dtype),
        notes=notes,
        facts=_facts(
            sizes,
            dtype,
            "lltm_cell, device time, CUDA",
            f"{name_of(sizes)} {dtype_name(dtype)} {what(backward)}",
        ),
    )


def _target(dtype: torch.dtype) -> Target:
    if dtype == torch.float32:
        return Target("at most 1.05 × addmm", lambda medians: 1.05 * medians["addmm"])
    return Target(
        "at most addmm + 1.3 × copy + launch",
        lambda medians: medians["addmm"] + 1.3 * medians["copy"] + medians["launch"],
    )


def _yardsticks(sizes: Sizes, inputs: list[Any]) -> dict[str, Any]:
    """The matrix product without the rest, a copy that moves as many bytes as the pointwise part,
    and an empty kernel."""
    b, _, h = sizes
    copies = []
    for *_, old_cell in inputs:
        # The pointwise kernel reads three gates and the cell, and writes h and the cell: six
        # arrays. The copy reads three arrays and writes three.
        source = torch.randn(3 * b * h, device="cuda").to(old_cell.dtype)
        copies.append(partial(torch.empty_like(source).copy_, source))
    # A kernel that waits for zero cycles does nothing.
    return {
        "addmm": [products(args, backward=False) for args in inputs],
        "copy": copies,
        "launch": [partial(torch.cuda._sleep, 0)],
    }
