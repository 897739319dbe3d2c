"""LSTM and GRU over the shapes of sweep.py, on CUDA: beside torch's, and by each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.harness.cases import OURS, Case, Plan, Settings
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer_calls import (
    TORCHS,
    cell_arguments,
    check,
    set_tf32,
    torch_layer,
)
from benchmarks.recurrent.sweep import (
    BF16,
    DENSE,
    EFFORT,
    FP16,
    FP32,
    SHAPES,
    Sweep,
    algorithm_calls,
    beside_best,
    case,
    facts,
    kinds,
    plan,
)
from benchmarks.recurrent.sweep_calls import chosen


def cells(settings: Settings) -> Iterator[Plan]:
    for cell in TORCHS:
        for kind in kinds(settings, SHAPES, (BF16, FP16, FP32), DENSE, cell):
            yield plan("sweep_cells", cells_case, settings, kind)


def cell_algorithms(settings: Settings) -> Iterator[Plan]:
    for cell in TORCHS:
        for kind in kinds(settings, SHAPES, (BF16, FP32), DENSE, cell):
            if not kind.tf32:
                yield plan("sweep_cell_algorithms", cell_algorithms_case, settings, kind)


SUITES: dict[str, Callable[[Settings], Iterator[Plan]]] = {
    "sweep_cells": cells,
    "sweep_cell_algorithms": cell_algorithms,
}


def cells_case(settings: Settings, kind: Sweep) -> Case:
    """Beside torch's own."""
    sample, seconds, rounds = EFFORT["sweep_cells"]
    made = layer.cell_case(settings, kind)
    made.timer = settings.wall(sample, seconds=seconds, warmup=0.02, rounds=rounds)
    made.facts = facts(settings, "sweep_cells", kind)
    if settings.device == "cuda":
        made.facts["algorithm"] = chosen(made.functions[OURS], made.inputs[0])
    return made


def cell_algorithms_case(settings: Settings, kind: Sweep) -> Case:
    """The planner's choice beside each algorithm that the shape allows."""
    set_tf32(False)
    args = cell_arguments(kind.cell, kind.shape, settings.device, kind.dtype, kind.backward)
    functions, bar = algorithm_calls(kind.cell), beside_best()
    made = case(settings, "sweep_cell_algorithms", kind, functions, args, {}, bar)
    made.op, made.check = (
        kind.cell,
        partial(check, args=args, plain=torch_layer(kind.cell, kind.backward)),
    )
    return made
