"""Times treadle.nn.LSTM with projections against torch.nn.LSTM with the same parameters.

A row is the wall time of a call of the module, with I = H. The call starts from zeros or from given
states. The first shape is that of an RNN-T encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import treadle
from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target
from benchmarks.harness.verify import verify, verify_baseline
from benchmarks.recurrent.layer_calls import set_tf32
from treadle import reference

SUITE = "projections"
TORCHS = "nn.LSTM"
RNN_T = (64, 100, 640, 320)  # B, T, H, P
SIZES = {
    "cuda": (
        RNN_T,
        (16, 100, 640, 320),
        (64, 100, 512, 128),
        (64, 100, 1024, 512),
        (16, 100, 2048, 640),
        (64, 1, 640, 320),
    ),
    "cpu": (
        (1, 100, 64, 32),
        (16, 100, 128, 64),
        (16, 20, 256, 128),
        (1, 20, 640, 320),
        (1, 1, 640, 320),
    ),
}
DTYPES = {
    "cuda": (torch.bfloat16, torch.float16, torch.float32),
    "cpu": (torch.float32, torch.bfloat16),
}
QUICK = ((2, 3, 8, 4),)
FACTORS = {True: 1 / 3, False: 1.0}  # limit / torch's time, for RNN-T in bfloat16 and for others


@dataclass(frozen=True)
class Kind:
    sizes: tuple[int, int, int, int]
    dtype: torch.dtype
    given: bool
    backward: bool

    @property
    def name(self) -> str:
        start = ", hx" if self.given else ""
        sizes = ",".join(map(str, self.sizes))
        return f"{sizes}{start}/{dtype_name(self.dtype)}/{self.mode}"

    @property
    def mode(self) -> str:
        return "training" if self.backward else "inference"


def plans(settings: Settings) -> Iterator[Plan]:
    device = settings.device
    sizes = QUICK if settings.quick else SIZES[device]
    for each in product(sizes, DTYPES[device], (False, True), (False, True)):
        kind = Kind(*each)
        yield Plan(f"{device}/{SUITE}/{kind.name}", partial(case, settings, kind))


def case(settings: Settings, kind: Kind) -> Case:
    device = settings.device
    set_tf32(False)
    modules = [
        cls(kind.sizes[2], kind.sizes[2], proj_size=kind.sizes[3], device=device, dtype=kind.dtype)
        for cls in (treadle.nn.LSTM, nn.LSTM)
    ]
    for name, parameter in modules[1].named_parameters():
        setattr(modules[0], name, parameter)
    args = arguments(kind, modules[1])
    factor = 1.05 if device == "cpu" else FACTORS[kind.dtype == torch.bfloat16 and is_rnn_t(kind)]
    return Case(
        op="lstm",
        functions={
            name: called(m, kind.given) for name, m in zip((OURS, TORCHS), modules, strict=True)
        },
        inputs=[args],
        timer=settings.wall(2e-3 if device == "cpu" else 5e-3),
        target=Target(f"at most {factor:.3g} × {TORCHS}", lambda medians: factor * medians[TORCHS]),
        check=partial(verify, op="lstm", args=args, plain=plain(kind.given)),
        check_baseline=partial(verify_baseline, op="lstm", args=args, plain=plain(kind.given)),
        threads=1 if device == "cpu" else None,
        facts={
            "suite": SUITE,
            "group": f"lstm with projections, {dtype_name(kind.dtype)}, {device.upper()}",
            "label": kind.name,
            "dtype": dtype_name(kind.dtype),
            "shape": list(kind.sizes),
            "mode": kind.mode,
        },
    )


def is_rnn_t(kind: Kind) -> bool:
    return kind.sizes == RNN_T and not kind.given


def arguments(kind: Kind, layer: nn.Module) -> tuple[Tensor, ...]:
    """The input, the states if they are given, and the parameters. If `backward`, all of them
    require grad."""
    rows, steps, hidden, projection = kind.sizes
    for parameter in layer.parameters():
        parameter.requires_grad_(kind.backward)
    like = next(layer.parameters())
    shapes = [(steps, rows, hidden)]
    if kind.given:
        shapes += [(1, rows, projection), (1, rows, hidden)]
    made = [torch.randn(shape, dtype=kind.dtype, device=like.device) for shape in shapes]
    return (*(t.requires_grad_(kind.backward) for t in made), *layer.parameters())


def called(layer: Callable[..., Any], given: bool) -> Callable[..., Any]:
    """The module as a function of arguments that end with its own parameters."""

    def call(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        output, states = layer(x, (rest[0], rest[1]) if given else None)
        return output, *states

    return call


def plain(given: bool) -> Callable[..., tuple[Tensor, ...]]:
    """The module's formula, computed step by step."""

    def loop(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *parameters, weight_hr = rest[-5:]
        if given:
            h, c = (state[0] for state in rest[:2])
        else:
            h, c = (x.new_zeros(x.size(1), size) for size in weight_hr.shape)
        found = []
        for row in x:
            m, c = reference.lstm_cell(row, *parameters, h, c)
            h = m @ weight_hr.mT
            found.append(h)
        return torch.stack(found), h[None], c[None]

    return loop
