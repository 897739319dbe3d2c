"""Times treadle.nn.LSTMCell, GRUCell and RNNCell against torch's cells with the same parameters.

A row is a call of the module with I = H, forward or forward and backward. It measures wall time,
because a cell is called once per step, so the host limits the speed.
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
from treadle import reference

SUITE = "cells"
CELLS: dict[str, tuple[type[nn.RNNCellBase], type[nn.RNNCellBase]]] = {
    "lstm": (treadle.nn.LSTMCell, nn.LSTMCell),
    "gru": (treadle.nn.GRUCell, nn.GRUCell),
    "rnn": (treadle.nn.RNNCell, nn.RNNCell),
}
COMPILED, OF_COMPILED = "torch.compile", (16, 512)
DTYPES = {
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
    "cpu": (torch.float32, torch.bfloat16, torch.float16),
}
SIZES = {  # B, H
    "cuda": (*product((16,), (128, 256, 512, 1024)), (1, 512), (64, 512), (1024, 256)),
    "cpu": tuple(product((1, 16, 64), (16, 64, 128, 256, 512))),
}
QUICK = ((2, 8),)


@dataclass(frozen=True)
class Kind:
    cell: str
    rows: int
    hidden: int
    dtype: torch.dtype
    backward: bool

    @property
    def name(self) -> str:
        mode = "forward + backward" if self.backward else "forward"
        return f"{self.cell}/{self.rows},{self.hidden}/{dtype_name(self.dtype)}/{mode}"


def plans(settings: Settings) -> Iterator[Plan]:
    device = settings.device
    sizes = QUICK if settings.quick else SIZES[device]
    for cell, dtype, (rows, hidden), backward in product(
        CELLS, DTYPES[device], sizes, (False, True)
    ):
        kind = Kind(cell, rows, hidden, dtype, backward)
        yield Plan(f"{device}/{SUITE}/{kind.name}", partial(case, settings, kind))


def case(settings: Settings, kind: Kind) -> Case:
    device = settings.device
    ours, theirs = modules(kind, device)
    args = arguments(kind, theirs)
    functions = {OURS: called(ours), "torch's": called(theirs)}
    # Only one size is compiled, because a compilation takes longer than all other work of a row.
    if (kind.rows, kind.hidden) == OF_COMPILED and device == "cuda" and not settings.quick:
        functions[COMPILED] = called(torch.compile(theirs, dynamic=False))
    plain = {"lstm": lstm_step, "gru": gru_step, "rnn": rnn_step}[kind.cell]
    share, of = (0.8, "0.8 ×") if device == "cuda" else (1.05, "1.05 ×")
    judged = device == "cpu" or (kind.backward and kind.rows == 16)
    return Case(
        op=f"{kind.cell}_cell",
        functions=functions,
        inputs=[args],
        timer=settings.wall(2e-3 if device == "cpu" else 5e-3),
        target=Target(f"at most {of} torch's cell", lambda medians: share * medians["torch's"])
        if judged
        else None,
        check=partial(verify, op=f"{kind.cell}_cell", args=args, plain=plain),
        check_baseline=partial(verify_baseline, op=f"{kind.cell}_cell", args=args, plain=plain),
        threads=1 if device == "cpu" else None,
        facts={
            "suite": SUITE,
            "group": f"{kind.cell} cell, {dtype_name(kind.dtype)}, {device.upper()}",
            "label": kind.name,
            "dtype": dtype_name(kind.dtype),
            "shape": [kind.rows, kind.hidden],
            "mode": "forward + backward" if kind.backward else "forward",
        },
    )


def modules(kind: Kind, device: str) -> tuple[nn.Module, nn.Module]:
    ours, theirs = (
        cls(kind.hidden, kind.hidden, device=device, dtype=kind.dtype) for cls in CELLS[kind.cell]
    )
    for name, parameter in theirs.named_parameters():
        setattr(ours, name, parameter)
    return ours, theirs


def arguments(kind: Kind, cell: nn.Module) -> tuple[Tensor, ...]:
    """The input, the states and the cell's parameters. If `backward`, all of them require grad."""
    for parameter in cell.parameters():
        parameter.requires_grad_(kind.backward)
    like = next(cell.parameters())
    count = 3 if kind.cell == "lstm" else 2
    made = torch.randn(count, kind.rows, kind.hidden, dtype=kind.dtype, device=like.device)
    rows = [t.clone().requires_grad_(kind.backward) for t in made]
    return (*rows, *cell.parameters())


def called(cell: Callable[..., Any]) -> Callable[..., Any]:
    """The module as a function of arguments that end with its own parameters."""

    def call(x: Tensor, *rest: Tensor) -> Any:
        states = rest[:-4]
        return cell(x, tuple(states) if len(states) == 2 else states[0])

    return call


def lstm_step(x: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    return reference.lstm_cell(x, *parameters, h, c)


def gru_step(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
    return reference.gru_cell(x, *parameters, h, h)[0]


def rnn_step(x: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
    return reference.rnn_cell(x, *parameters, h, h)[0]
