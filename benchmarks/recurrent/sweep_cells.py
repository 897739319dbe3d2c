"""Times LSTM, GRU and RNN on CUDA, against torch's layers and with each algorithm.

The shapes are those of sweep.py, and others for GPUs other than sm_90 and for many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from benchmarks.harness.cases import OURS, Case, Plan, Settings
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer_calls import (
    RNNS,
    TORCHS,
    cell_arguments,
    check,
    plain_layer,
    set_tf32,
)
from benchmarks.recurrent.sweep import (
    BF16,
    DENSE,
    EFFORT,
    FP16,
    FP32,
    SHAPES,
    Sizes,
    Sweep,
    algorithm_calls,
    beside_best,
    beside_lstm,
    case,
    facts,
    kinds,
    plan,
    steps_at_most,
)
from benchmarks.recurrent.sweep_calls import chosen

# The size of a policy for thousands of simulated robots. WIDE_TARGETS are in µs per step in half
# types, for inference and training.
ROBOTS: Sizes = (8000, 24, 256)
NAME_OF_ROBOTS = "8000,24,256"
WIDE_TARGETS = {"lltm": (20.0, 72.0), "gru": (24.0, 80.0), "lstm": (27.0, 90.0)}
# The layers that are timed for GPUs other than sm_90 (docs/other_gpus.md).
OTHER_GPUS: tuple[Sizes, ...] = (
    *((1, 512, 128), (16, 512, 128), (64, 200, 128), (16, 512, 256), (128, 128, 256)),
    *((256, 365, 256), (16, 512, 512), (64, 512, 512)),
    *((16, 256, 1024), (64, 256, 1024), (256, 256, 1024)),
)
EACH = (BF16, FP16, FP32)
RELU: tuple[Sizes, ...] = ((16, 512, 512), (64, 256, 1024))  # rnn_relu is as fast as rnn_tanh
WIDE: tuple[Sizes, ...] = tuple(
    (b, 24, h) for b, h in product((512, 2048, 8192, 16384), (64, 128, 256, 512))
)


def cells(settings: Settings) -> Iterator[Plan]:
    for cell in TORCHS:
        for kind in kinds(settings, SHAPES, EACH, DENSE, cell):
            yield plan("sweep_cells", cells_case, settings, kind)


def rnns(settings: Settings) -> Iterator[Plan]:
    for cell in RNNS:
        for kind in kinds(settings, SHAPES if cell == "rnn_tanh" else RELU, EACH, DENSE, cell):
            yield plan("sweep_rnn", partial(cells_case, suite="sweep_rnn"), settings, kind)


def other_gpus(settings: Settings) -> Iterator[Plan]:
    for cell in TORCHS:
        for kind in kinds(settings, OTHER_GPUS, EACH, DENSE, cell):
            build = partial(cells_case, suite="sweep_other_gpus")
            yield plan("sweep_other_gpus", build, settings, kind)


def cell_algorithms(settings: Settings) -> Iterator[Plan]:
    for cell in TORCHS:
        for kind in kinds(settings, SHAPES, (BF16, FP32), DENSE, cell):
            if not kind.tf32:
                yield plan("sweep_cell_algorithms", cell_algorithms_case, settings, kind)


def wide(settings: Settings) -> Iterator[Plan]:
    for cell in WIDE_TARGETS:
        for kind in kinds(settings, (ROBOTS,), (BF16, FP16), DENSE, cell):
            yield plan("sweep_wide", wide_case, settings, kind)
    for cell in TORCHS:
        for kind in kinds(settings, (ROBOTS, *WIDE), (BF16, FP32), DENSE, cell):
            # In float32, only TF32 is timed, because torch allows TF32 in layers by default.
            half = kind.dtype == BF16
            if kind.tf32 or (half and kind.shape.name != NAME_OF_ROBOTS):
                yield plan("sweep_wide", wide_case, settings, kind)


SUITES: dict[str, Callable[[Settings], Iterator[Plan]]] = {
    "sweep_cells": cells,
    "sweep_rnn": rnns,
    "sweep_other_gpus": other_gpus,
    "sweep_wide": wide,
    "sweep_cell_algorithms": cell_algorithms,
}


def cells_case(settings: Settings, kind: Sweep, suite: str = "sweep_cells") -> Case:
    """A case of our layer against torch's layer."""
    sample, seconds, rounds = EFFORT[suite]
    made = layer.cell_case(settings, kind)
    made.timer = settings.wall(sample, seconds=seconds, warmup=0.02, rounds=rounds)
    made.facts = facts(settings, suite, kind)
    if settings.device == "cuda":
        made.facts["algorithm"] = chosen(made.functions[OURS], made.inputs[0])
    return made


def cell_algorithms_case(settings: Settings, kind: Sweep) -> Case:
    """Times the planner's choice and each algorithm that the shape allows."""
    set_tf32(False)
    args = cell_arguments(kind.cell, kind.shape, settings.device, kind.dtype, kind.backward)
    functions, target = algorithm_calls(kind.cell), beside_best()
    made = case(settings, "sweep_cell_algorithms", kind, functions, args, {}, target)
    made.op, made.check = (
        kind.cell,
        partial(check, args=args, plain=plain_layer(kind.cell, kind.dtype, kind.backward)),
    )
    return made


def wide_case(settings: Settings, kind: Sweep) -> Case:
    """Times LSTM and GRU against torch's layers, and LLTM, which torch lacks, against nn.LSTM."""
    target = steps_at_most(kind, WIDE_TARGETS[kind.cell][kind.backward])
    if kind.cell == "lltm":
        return beside_lstm(settings, "sweep_wide", kind, target)
    made = cells_case(settings, kind, "sweep_wide")
    if kind.shape.name == NAME_OF_ROBOTS and kind.dtype != FP32:
        made.target = target
    return made
