"""Times LSTM and GRU on batches as in reinforcement learning: episodes begin in the middle of rows.

Shapes are B, T, H, and I is H. A row resets at 3 % of its steps, as in long episodes, or at half of
its steps. The first baseline is torch's layer on rows that are split, padded, packed and rejoined,
as in TorchRL. The second is a loop over torch's cell with masks. For one size, the third is
TorchRL's Triton kernels (rl_triton.py). As in layer.py, a time is that of a whole call. The target
is relative to our own time without resets. The suite `rl_shapes` times only treadle, over the
shapes of sweep.py up to H 512.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.harness.cases import OURS, Case, Plan, Settings, calls
from benchmarks.recurrent import layer, rl_calls, rl_triton
from benchmarks.recurrent.layer import Kind, at_most
from benchmarks.recurrent.layer_calls import Shape, cell_arguments, check, set_tf32
from benchmarks.recurrent.layer_calls import layer as without_resets
from benchmarks.recurrent.sweep import EFFORT, SHAPES

SUITE, COST_SUITE = "rl", "rl_shapes"
WIDEST, FEWEST_STEPS = 512, 4  # rl_calls marks step 3
SIZES = {  # B, T, H
    "cuda": ((128, 128, 256), (32, 64, 128), (512, 32, 64)),
    "cpu": ((32, 64, 128), (64, 32, 64)),
}
DTYPES = (torch.float32, torch.bfloat16)
SHARES = (0.03, 0.5)
CELLS = ("gru", "lstm")
NONE, PADDED = "treadle without resets", "cut, padded, packed"
TRITON = "TorchRL's Triton"
OF_NONE = 1.05


@dataclass(frozen=True)
class Episodes(Kind):
    """The layer, shape and mode that one row times, and the fraction of steps that reset."""

    share: float = 0.0

    @property
    def resets(self) -> str:
        return f"resets {self.share:.0%}"


def plans(settings: Settings) -> Iterator[Plan]:
    for kind in _kinds(settings, SIZES[settings.device]):
        yield Plan(_key(settings, SUITE, kind), partial(case, settings, kind))


def cost_plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cuda":
        shapes = [(b, t, h) for b, t, h in SHAPES if h <= WIDEST and t >= FEWEST_STEPS]
        for kind in _kinds(settings, shapes):
            yield Plan(_key(settings, COST_SUITE, kind), partial(cost_case, settings, kind))


SUITES: dict[str, Callable[[Settings], Iterator[Plan]]] = {SUITE: plans, COST_SUITE: cost_plans}


def _kinds(settings: Settings, shapes: Iterable[tuple[int, int, int]]) -> Iterator[Episodes]:
    threads = settings.threads[-1] if settings.device == "cpu" else None
    for cell, sizes, dtype in product(CELLS, shapes, DTYPES):
        shape = Shape.of(sizes, settings.quick)
        for share, backward in product(SHARES, (False, True)):
            yield Episodes(shape, dtype, backward, threads, cell=cell, share=share)


def _key(settings: Settings, suite: str, kind: Episodes) -> str:
    what = f"{kind.cell}/{kind.shape.name}/{kind.digits}/{kind.resets}/{kind.mode}"
    return f"{settings.device}/{suite}/{what}"


def loop_of(kind: Episodes) -> str:
    return f"loop of nn.{kind.cell.upper()}Cell"


def padded_of(kind: Episodes) -> str:
    return f"nn.{kind.cell.upper()}, {PADDED}"


def facts(settings: Settings, kind: Episodes) -> dict[str, Any]:
    names = (OURS, NONE, padded_of(kind), loop_of(kind), TRITON)
    return layer.facts(settings, kind) | {
        "suite": SUITE,
        "group": f"{kind.cell} layer with resets, {settings.device.upper()}",
        "label": f"{kind.cell} {kind.shape.name} {kind.digits} {kind.resets} {kind.mode}",
        "what": kind.shape.name,
        "digits": kind.digits,
        "mode": kind.mode,
        "resets": kind.resets,
        "gates": dict.fromkeys(names, kind.gates),
    }


def case(settings: Settings, kind: Episodes) -> Case:
    set_tf32(False)
    args = cell_arguments(kind.cell, kind.shape, settings.device, kind.dtype, kind.backward)
    marks = rl_calls.marks_of(kind.shape, kind.share, settings.device)
    padded = rl_calls.padded(kind.cell, kind.backward, marks)
    loop = rl_calls.loop(kind.cell, marks)
    # In float32, cuBLAS is less accurate in the product of all steps than in that of one step, so
    # the check compares with a layer that also computes the product of all steps at once.
    at_once = settings.device == "cuda" and kind.dtype == torch.float32
    plain = without_resets(
        getattr(torch.ops.treadle, kind.cell).input,
        kind.backward,
        states=rl_calls.STATES[kind.cell],
    )
    functions = {
        OURS: rl_calls.with_resets(kind.cell, kind.backward, marks),
        padded_of(kind): padded,
        loop_of(kind): loop,
    }
    notes, known = [], facts(settings, kind)
    if settings.device == "cuda" and (kind.shape, kind.dtype) == (rl_triton.TUNED, rl_triton.DTYPE):
        if rl_triton.theirs is None:
            notes = [f"{TRITON} left out: {rl_triton.WHY_NOT}"]
        else:
            functions[TRITON] = rl_triton.triton(kind.cell, marks)
            known["torchrl"] = rl_triton.VERSION
    return Case(
        op=kind.cell,
        functions=functions,
        inputs=[args],
        timer=layer.timer(settings),
        yardsticks={NONE: calls(plain, [args])},
        target=at_most(OF_NONE, NONE),
        check=partial(check, args=args, plain=padded if at_once else loop),
        threads=kind.threads,
        facts=known,
        notes=notes,
    )


def cost_case(settings: Settings, kind: Episodes) -> Case:
    """A case without baselines, which would take far too long for the shapes of sweep.py."""
    made = case(settings, kind)
    sample, seconds, rounds = EFFORT["sweep_cells"]
    made.functions = {OURS: made.functions[OURS]}
    made.timer = settings.wall(sample, seconds=seconds, warmup=0.02, rounds=rounds)
    made.notes = []
    made.facts |= {"suite": COST_SUITE, "gates": dict.fromkeys((OURS, NONE), kind.gates)}
    return made
