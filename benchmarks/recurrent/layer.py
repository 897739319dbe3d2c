"""Times whole layers: lltm against nn.LSTM and a loop of lltm_cell, packed against padded batches,
and lstm, gru and rnn_tanh against torch's layers with the same parameters.

Shapes: T steps, B rows, I inputs, H hidden units. Times are wall times of the whole call. For
lltm, nn.LSTM is only a yardstick, because it computes something else: it has four gates, and LLTM
has three. `us_per_step_and_gate` makes the two comparable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, both, calls
from benchmarks.harness.timing import Wall
from benchmarks.recurrent import layer_memory
from benchmarks.recurrent.layer_calls import (
    LOOP,
    LSTM,
    MANY_ROWS,
    RNNS,
    STEPS,
    TORCHS,
    Shape,
    arguments,
    cell_arguments,
    check,
    check_torch,
    layer,
    loop,
    lstm_arguments,
    packed_arguments,
    packed_layer,
    plain_layer,
    set_tf32,
    torch_layer,
)

PADDED, RECOMPUTE, LSTM_PACKED = "padded", "recompute=True", f"{LSTM}, packed"
SMALL = "treadle, c0 = 0"
GATES = {OURS: 3, LOOP: 3, RECOMPUTE: 3, PADDED: 3, SMALL: 3, LSTM: 4, LSTM_PACKED: 4}
# c0, and a bias that is added to the gates i and o. With these values, the derivatives of
# activations in float32 are subnormal or nearly so.
SATURATED = {"c0 = 42": (42.0, 0.0), "gates 80": (0.0, 80.0)}
CPU_SIZES = ((1, 100, 64, 128), (32, 50, 128, 256), (8, 200, 16, 64))  # B, T, I, H
# More sizes on the CPU for the layers that torch has, too.
CPU_SIZES_OF_TORCHS = (
    *((1, 1, 128, 128), (16, 1, 256, 256), (1, 500, 512, 512), (16, 100, 512, 512)),
    *((64, 100, 256, 256), (256, 30, 32, 128), (64, 20, 1024, 1024), (1024, 10, 16, 16)),
)
CUDA_SIZES = ((64, 512, 512), (16, 256, 1024), (256, 256, 1024))  # B, T, H; I is H
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Kind:
    """The layer, shape and mode that one row times."""

    shape: Shape
    dtype: torch.dtype
    backward: bool
    threads: int | None = None
    tf32: bool = False
    cell: str = "lltm"

    @property
    def gates(self) -> int:
        return 4 if self.cell == "lstm" else 1 if self.cell in RNNS else 3

    @property
    def digits(self) -> str:
        return dtype_name(self.dtype) + (", tf32" if self.tf32 else "")

    @property
    def mode(self) -> str:
        return "training" if self.backward else "inference"


def plans(settings: Settings) -> Iterator[Plan]:
    kinds = list(_cpu(settings) if settings.device == "cpu" else _cuda(settings))
    for kind in kinds:
        yield Plan(_key(settings, kind), partial(layer_case, settings, kind))
    for cell in (*TORCHS, "rnn_tanh"):
        for kind in (*kinds, *_cpu_of_torchs(settings)):
            own = replace(kind, cell=cell)
            yield Plan(_key(settings, own), partial(cell_case, settings, own))
    packed = CPU_SIZES[1] if settings.device == "cpu" else CUDA_SIZES[0]
    for kind in kinds:
        first = kind.dtype == (torch.float32 if settings.device == "cpu" else torch.bfloat16)
        if kind.shape == Shape.of(packed, settings.quick) and first:
            yield Plan(_key(settings, kind, ", packed"), partial(packed_case, settings, kind))
    for kind in kinds:
        sizes = Shape.of(CPU_SIZES[1], settings.quick)
        if settings.device == "cpu" and kind.shape == sizes and kind.backward:
            for name in SATURATED:
                key = _key(settings, kind, f", {name}")
                yield Plan(key, partial(saturated_case, settings, kind, name))
    yield from layer_memory.plans(settings)


def _cpu(settings: Settings) -> Iterator[Kind]:
    for count in settings.threads:
        for sizes in CPU_SIZES:
            for backward in (False, True):
                shape = Shape.of(sizes, settings.quick)
                yield Kind(shape, torch.float32, backward, threads=count)


def _cpu_of_torchs(settings: Settings) -> Iterator[Kind]:
    if settings.device == "cpu" and not settings.quick:
        for count, sizes, backward in product(settings.threads, CPU_SIZES_OF_TORCHS, (False, True)):
            yield Kind(Shape.of(sizes, quick=False), torch.float32, backward, threads=count)


def _cuda(settings: Settings) -> Iterator[Kind]:
    shapes = [Shape.of(sizes, settings.quick) for sizes in CUDA_SIZES]
    for shape in shapes:
        for dtype in DTYPES:
            for backward in (False, True):
                yield Kind(shape, dtype, backward)
    for backward in (False, True):
        yield Kind(shapes[1], torch.float32, backward, tf32=True)


def _key(settings: Settings, kind: Kind, more: str = "") -> str:
    clock = "wall" if kind.threads is None else f"{kind.threads} threads"
    cell = "" if kind.cell == "lltm" else f"{kind.cell}/"
    what = f"{cell}{kind.shape.name}{more}/{kind.digits}/{kind.mode}"
    return f"{settings.device}/layer/{what}/{clock}"


def timer(settings: Settings) -> Wall:
    if settings.device == "cuda":
        return settings.wall(seconds=0.2, warmup=0.02, rounds=(5, 51))
    return settings.wall(seconds=0.3, rounds=(5, 101))


def facts(settings: Settings, kind: Kind, more: str = "") -> dict[str, Any]:
    shape = kind.shape
    threads = f", {kind.threads} thr" if kind.threads else ""
    cell = "" if kind.cell == "lltm" else f"{kind.cell} "
    return {
        "group": f"{kind.cell} layer{more}, {settings.device.upper()}",
        "label": f"{cell}{shape.name}{more} {kind.digits} {kind.mode}{threads}",
        "dtype": dtype_name(kind.dtype),
        "tf32": kind.tf32,
        "shape": [shape.b, shape.t, shape.i, shape.h],
        "steps": shape.t,
        "gates": GATES
        if kind.cell == "lltm"
        else dict.fromkeys((OURS, baseline(kind)), kind.gates),
        "flop": 2 * shape.t * shape.b * kind.gates * shape.h * (shape.h + shape.i),
    }


def at_most(share: float, name: str, text: str = "") -> Target:
    return Target(text or f"at most {share:g} × {name}", lambda medians: share * medians[name])


def target_of(settings: Settings, dtype: torch.dtype) -> Target:
    half = at_most(0.5, LOOP)
    if settings.device == "cpu":
        return both(half, at_most(1, LSTM, f"at most {LSTM}"))
    if dtype == torch.bfloat16:
        return both(half, at_most(1 / 0.9, LSTM, f"at least 0.9 × {LSTM}'s speed"))
    return half


def layer_case(settings: Settings, kind: Kind) -> Case:
    set_tf32(kind.tf32)
    args = arguments(kind.shape, settings.device, kind.dtype, kind.backward)
    op = torch.ops.treadle.lltm.input
    lstm, own = torch_layer("lstm", kind.backward), lstm_arguments(args)
    yardsticks = {LSTM: calls(lstm, [own])}
    if kind.backward:
        yardsticks[RECOMPUTE] = calls(layer(op, recompute=True), [args])
    return Case(
        op="lltm",
        functions={OURS: layer(op, kind.backward), LOOP: loop},
        inputs=[args],
        timer=timer(settings),
        yardsticks=yardsticks,
        target=target_of(settings, kind.dtype),
        check=partial(check, args=args),
        check_yardsticks={LSTM: partial(check_torch, lstm, own, "lstm")},
        threads=kind.threads,
        facts=facts(settings, kind),
    )


def baseline(kind: Kind) -> str:
    return f"nn.{kind.cell.split('_')[0].upper()}"


def cell_case(settings: Settings, kind: Kind) -> Case:
    """A case of our layer against torch's. The check also compares the results of the two."""
    set_tf32(kind.tf32)
    args = cell_arguments(kind.cell, kind.shape, settings.device, kind.dtype, kind.backward)
    states = 2 if kind.cell == "lstm" else 1
    ours = layer(getattr(torch.ops.treadle, kind.cell).input, kind.backward, states=states)
    torchs = torch_layer(kind.cell, kind.backward)
    # Both layers may compute products of few rows without TF32, so enough steps are compared to
    # have MANY_ROWS rows.
    steps = max(STEPS, -(-MANY_ROWS // kind.shape.b)) if kind.tf32 else STEPS
    return Case(
        op=kind.cell,
        functions={OURS: ours, baseline(kind): torchs},
        inputs=[args],
        timer=timer(settings),
        target=at_most(1.05 if settings.device == "cpu" else 1, baseline(kind)),
        check=partial(
            check,
            args=args,
            plain=plain_layer(kind.cell, kind.dtype, kind.backward),
            steps=steps,
            op=kind.cell,
        ),
        check_baseline=partial(check_torch, args=args, cell=kind.cell),
        threads=kind.threads,
        facts=facts(settings, kind),
    )


def packed_case(settings: Settings, kind: Kind) -> Case:
    set_tf32(False)
    padded = arguments(kind.shape, settings.device, kind.dtype, kind.backward)
    args = packed_arguments(kind.shape, padded)
    ops, lstm = torch.ops.treadle.lltm, packed_layer(torch.lstm, kind.backward)
    own = lstm_arguments(args)
    return Case(
        op="lltm",
        functions={OURS: packed_layer(ops.data, kind.backward)},
        inputs=[args],
        timer=timer(settings),
        yardsticks={
            PADDED: calls(layer(ops.input, kind.backward), [padded]),
            LSTM_PACKED: calls(lstm, [own]),
        },
        target=at_most(0.65, PADDED),
        check=partial(check, args=args),
        check_yardsticks={LSTM_PACKED: partial(check_torch, lstm, own, "lstm", plain=lstm)},
        threads=kind.threads,
        facts=facts(settings, kind, ", packed"),
    )


def saturated_case(settings: Settings, kind: Kind, name: str) -> Case:
    """Training with saturated states; the yardstick is training with c0 = 0 and small gates."""
    args = arguments(kind.shape, settings.device, kind.dtype, kind.backward)
    x, h0, c0, weight_ih, weight_hh, bias = args
    cell, gates = SATURATED[name]
    far_bias = bias.detach().clone()
    far_bias[: 2 * kind.shape.h] += gates
    far_bias.requires_grad_(kind.backward)
    far = (x, h0, torch.full_like(c0, cell), weight_ih, weight_hh, far_bias)
    op = layer(torch.ops.treadle.lltm.input, kind.backward)
    small = (x, h0, torch.zeros_like(c0), weight_ih, weight_hh, bias)
    return Case(
        op="lltm",
        functions={OURS: op},
        inputs=[far],
        timer=timer(settings),
        yardsticks={SMALL: calls(op, [small])},
        target=at_most(1.2, SMALL),
        check=partial(check, args=far),
        threads=kind.threads,
        facts=facts(settings, kind, f", {name}"),
    )
