"""Times lltm over shapes, dtypes and forms on CUDA, in four suites.

As in layer.py, a time is that of a whole call, including the product with the input. Suites and
what they time:

    sweep_targets     shapes with targets in µs per step; float16 must be as fast as bfloat16
    sweep_shapes      many shapes; lltm must not be slower than nn.LSTM in the same dtype
    sweep_algorithms  the planner's choice and each algorithm that can be forced
    sweep_launch      a layer so tiny that only the call overhead matters

Shapes are B, T, H, and I is H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, calls
from benchmarks.harness.timing import Calls
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer import Kind, at_most
from benchmarks.recurrent.layer_calls import (
    LSTM,
    Args,
    Shape,
    lstm_arguments,
    set_tf32,
)
from benchmarks.recurrent.lltm_targets import LLTM_TARGETS, Sizes, lltm_target
from benchmarks.recurrent.sweep_calls import MODULES, Form, chosen, in_algorithm, module

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
SHAPES: tuple[Sizes, ...] = (
    *((1, 512, 512), (16, 512, 128), (16, 512, 256), (16, 512, 512), (16, 1024, 768)),
    *((16, 256, 1024), (64, 512, 512), (64, 1024, 768), (64, 256, 1024), (128, 512, 512)),
    *((128, 256, 1024), (256, 256, 1024), (64, 256, 2048)),
    # Odd and extreme sizes.
    *((17, 100, 257), (3, 200, 31), (50, 300, 1000), (1, 1000, 64), (200, 100, 96)),
    *((32, 4, 512), (8, 2, 128)),
)
DENSE = Form()
FORMS: dict[Form, tuple[Sizes, ...]] = {
    Form(", packed", packed=True): ((64, 512, 512), (16, 256, 1024)),
    Form(", 4 layers", layers=4): ((64, 512, 512), (16, 512, 256)),
    Form(", bidirectional", both=True): ((16, 512, 512), (64, 512, 512)),
}
ALGORITHMS = ("cluster", "grid", "tiles", "step")
TINY: Sizes = (1, 8, 32)
OF_AUTO, OF_BF16, OF_LSTM = 1.05, 1.05, 1.0
BF16_OURS, FP16_LSTM = f"{OURS}, bfloat16", f"{LSTM}, float16"


@dataclass(frozen=True)
class Sweep(Kind):
    """The layer, shape, mode and form that one row times."""

    form: Form = DENSE


def kinds(
    settings: Settings,
    shapes: tuple[Sizes, ...],
    dtypes: tuple[torch.dtype, ...],
    form: Form,
    cell: str = "lltm",
) -> Iterator[Sweep]:
    """Yields inference and training of all shapes; two shapes in a quick run, none on the CPU."""
    if settings.device == "cpu":
        return
    for sizes in shapes[:2] if settings.quick else shapes:
        shape = Shape.of(sizes, settings.quick)
        for dtype in dtypes:
            for tf32 in (False, True) if dtype == FP32 else (False,):
                for backward in (False, True):
                    yield Sweep(shape, dtype, backward, tf32=tf32, cell=cell, form=form)


def plan(
    suite: str, build: Callable[[Settings, Sweep], Case], settings: Settings, kind: Sweep
) -> Plan:
    return Plan(_key(suite, kind), partial(build, settings, kind))


def _key(suite: str, kind: Sweep) -> str:
    cell = "" if kind.cell == "lltm" else f"{kind.cell}/"
    return f"cuda/{suite}/{cell}{kind.shape.name}{kind.form.name}/{kind.digits}/{kind.mode}"


def targets(settings: Settings) -> Iterator[Plan]:
    every = dict.fromkeys(sizes for shapes in LLTM_TARGETS.values() for sizes in shapes)
    for kind in kinds(settings, tuple(every), (BF16, FP16, FP32), DENSE):
        if lltm_target(*row_of(kind)) is not None or beside_bf16(kind):
            yield plan("sweep_targets", targets_case, settings, kind)


def shapes(settings: Settings) -> Iterator[Plan]:
    for kind in kinds(settings, SHAPES, (BF16, FP16, FP32), DENSE):
        yield plan("sweep_shapes", shape_case, settings, kind)
    for form, sizes in FORMS.items():
        for kind in kinds(settings, sizes, (BF16, FP16), form):
            yield plan("sweep_shapes", shape_case, settings, kind)


def algorithms(settings: Settings) -> Iterator[Plan]:
    for kind in kinds(settings, SHAPES, (BF16, FP16), DENSE):
        yield plan("sweep_algorithms", algorithms_case, settings, kind)


def launch(settings: Settings) -> Iterator[Plan]:
    for kind in kinds(settings, (TINY,), (BF16, FP16, FP32), DENSE):
        if kind.tf32:
            continue
        for front, build in (("op", tiny_case), ("module", module_case)):
            key = f"{_key('sweep_launch', kind)}/{front}"
            yield Plan(key, partial(build, settings, kind))


SUITES: dict[str, Callable[[Settings], Iterator[Plan]]] = {
    "sweep_targets": targets,
    "sweep_shapes": shapes,
    "sweep_algorithms": algorithms,
    "sweep_launch": launch,
}
# Seconds per sample. In a long sample, the time to fill the launch queue and to wait at the end,
# about 60 us, is negligible, as in a program that keeps the queue full. Tiny calls do not need long
# samples, because they measure only the host's overhead.
LONG_SAMPLE, SHORT_SAMPLE = 16e-3, 2e-3
# Seconds per sample, seconds per candidate, and the minimum and maximum number of rounds. All are
# small, because there are hundreds of rows, and some calls take 0.1 s.
EFFORT = {
    "sweep_targets": (LONG_SAMPLE, 0.12, (5, 51)),
    "sweep_shapes": (LONG_SAMPLE, 0.06, (3, 51)),
    "sweep_algorithms": (LONG_SAMPLE, 0.04, (5, 51)),
    "sweep_launch": (SHORT_SAMPLE, 0.1, (11, 101)),
    "sweep_cells": (LONG_SAMPLE, 0.06, (3, 51)),
    "sweep_rnn": (LONG_SAMPLE, 0.06, (3, 51)),
    "sweep_other_gpus": (LONG_SAMPLE, 0.06, (3, 51)),
    "sweep_wide": (LONG_SAMPLE, 0.04, (3, 51)),
    "sweep_cell_algorithms": (LONG_SAMPLE, 0.04, (5, 51)),
}
PARTS = {
    "sweep_targets": "µs a step",
    "sweep_shapes": "all shapes",
    "sweep_algorithms": "the planner's choice",
    "sweep_launch": "tiny calls",
    "sweep_cells": "all shapes",
    "sweep_rnn": "all shapes",
    "sweep_other_gpus": "other GPUs",
    "sweep_wide": "many rows",
    "sweep_cell_algorithms": "the planner's choice",
}


def facts(settings: Settings, suite: str, kind: Sweep) -> dict[str, Any]:
    own = layer.facts(settings, kind, kind.form.name)
    gates = own["gates"] | {FP16_LSTM: 4, BF16_OURS: 3}
    gates |= {algorithm_name(algorithm): kind.gates for algorithm in ALGORITHMS}
    by_dtype = ("sweep_shapes", "sweep_cells", "sweep_rnn", "sweep_wide")
    digits = f", {kind.digits}" if suite in by_dtype else ""
    return own | {
        "group": f"{kind.cell} layer sweep, {PARTS[suite]}{digits}, {settings.device.upper()}",
        "suite": suite,
        "what": f"{kind.shape.name}{kind.form.name}",
        "digits": kind.digits,
        "mode": kind.mode,
        "gates": gates,
    }


def case(
    settings: Settings,
    suite: str,
    kind: Sweep,
    functions: dict[str, Callable[..., Any]],
    args: Args,
    yardsticks: dict[str, Calls],
    target: Target,
    checks: dict[str, Callable[[], float]] | None = None,
) -> Case:
    sample, seconds, rounds = EFFORT[suite]
    own = facts(settings, suite, kind)
    if settings.device == "cuda":
        own["algorithm"] = chosen(functions[OURS], args)
    return Case(
        op="lltm",
        functions=functions,
        inputs=[args],
        timer=settings.wall(sample, seconds=seconds, warmup=0.02, rounds=rounds),
        yardsticks=yardsticks,
        target=target,
        check=kind.form.check(args),
        check_yardsticks=checks or {},
        facts=own,
    )


def beside_lstm(
    settings: Settings,
    suite: str,
    kind: Sweep,
    target: Target,
    more: dict[str, Calls] | None = None,
) -> Case:
    """A case of our layer, with nn.LSTM in the same dtype and `more` as yardsticks."""
    set_tf32(kind.tf32)
    args = kind.form.arguments(kind.shape, settings.device, kind.dtype, kind.backward)
    lstm, own = kind.form.call(torch.lstm, kind.backward), kind.form.lstm_arguments(args)
    yardsticks: dict[str, Calls] = {LSTM: calls(lstm, [own])}
    functions = {OURS: kind.form.ours(kind.backward)}
    checks = {LSTM: kind.form.check_lstm(lstm, own)}
    return case(settings, suite, kind, functions, args, yardsticks | (more or {}), target, checks)


def targets_case(settings: Settings, kind: Sweep) -> Case:
    shape, form = kind.shape, kind.form

    def inputs(dtype: torch.dtype) -> Args:
        return form.arguments(shape, settings.device, dtype, kind.backward)

    most = lltm_target(*row_of(kind))
    if most is None:
        more = {BF16_OURS: calls(form.ours(kind.backward), [inputs(BF16)])}
        return beside_lstm(settings, "sweep_targets", kind, at_most(OF_BF16, BF16_OURS), more)
    made = beside_lstm(settings, "sweep_targets", kind, steps_at_most(kind, most))
    if kind.dtype == BF16:
        lstm, own = form.call(torch.lstm, kind.backward), lstm_arguments(inputs(FP16))
        made.yardsticks = {**made.yardsticks, FP16_LSTM: calls(lstm, [own])}
        made.check_yardsticks = {
            **made.check_yardsticks,
            FP16_LSTM: form.check_lstm(lstm, own),
        }
    return made


def row_of(kind: Sweep) -> tuple[str, str, bool]:
    return kind.shape.name, kind.digits, kind.backward


def beside_bf16(kind: Sweep) -> bool:
    return (
        kind.dtype == FP16 and lltm_target(kind.shape.name, "bfloat16", kind.backward) is not None
    )


def steps_at_most(kind: Sweep, most: float) -> Target:
    return Target(f"at most {most:g} µs a step", lambda _: most * kind.shape.t)


def shape_case(settings: Settings, kind: Sweep) -> Case:
    return beside_lstm(settings, "sweep_shapes", kind, at_most(OF_LSTM, LSTM))


def tiny_case(settings: Settings, kind: Sweep) -> Case:
    made = beside_lstm(settings, "sweep_launch", kind, at_most(OF_LSTM, LSTM))
    return called(made, "op")


def module_case(settings: Settings, kind: Sweep) -> Case:
    set_tf32(kind.tf32)
    (ours, args), (lstm, lstm_args) = (
        module(net, kind.shape, settings.device, kind.dtype, kind.backward) for net in MODULES
    )
    yardsticks: dict[str, Calls] = {LSTM: calls(lstm, [lstm_args])}
    target, checks = at_most(OF_LSTM, LSTM), {LSTM: DENSE.check_lstm(lstm, lstm_args)}
    made = case(settings, "sweep_launch", kind, {OURS: ours}, args, yardsticks, target, checks)
    return called(made, "module")


def called(made: Case, front: str) -> Case:
    made.facts |= {"front": front, "label": f"{made.facts['label']} {front}"}
    return made


def algorithm_name(algorithm: str) -> str:
    return f"algorithm {algorithm}"


def algorithms_case(settings: Settings, kind: Sweep) -> Case:
    """Times each algorithm. If one cannot run this shape on this chip, the row's notes say why."""
    set_tf32(False)
    args = kind.form.arguments(kind.shape, settings.device, kind.dtype, kind.backward)
    return case(
        settings, "sweep_algorithms", kind, algorithm_calls("lltm"), args, {}, beside_best()
    )


def algorithm_calls(cell: str) -> dict[str, Callable[..., Any]]:
    forced = {algorithm_name(each): in_algorithm(each, cell) for each in ALGORITHMS}
    return {OURS: in_algorithm("auto", cell)} | forced


def beside_best() -> Target:
    return Target(f"at most {OF_AUTO:g} × the best algorithm", partial(of_best, OF_AUTO))


def of_best(share: float, medians: dict[str, float]) -> float:
    forced = [time for name, time in medians.items() if name != OURS]
    if not forced:
        raise KeyError("no algorithm can be forced here, so there is no target")
    return share * min(forced)
