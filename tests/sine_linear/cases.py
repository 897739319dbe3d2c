"""Inputs of sine_linear: leading dimensions, widths, missing bias, strides, values of omega."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.support import layouts
from tests.support.inputs import FLOATING, Call, Case, Make, Op
from tests.support.layouts import expanded, misaligned, padded_rows, strided, transposed
from treadle import reference

# Leading dimensions, I, O. They include coordinates, odd sizes, widths that are not multiples of a
# vector's width, and empty tensors.
SIZES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((), 5, 7),
    ((4,), 0, 3),
    ((4,), 5, 0),
    ((0,), 5, 3),
    ((2, 0), 2, 3),
    ((1,), 1, 1),
    ((5,), 1, 4),
    ((5,), 2, 3),
    ((2, 3), 3, 5),
    ((2, 1, 3), 4, 8),
    ((3,), 5, 4),
    ((17,), 31, 33),
    ((2, 9), 33, 31),
    ((300,), 3, 256),
    ((300,), 256, 31),
    ((200,), 72, 96),
    ((600,), 64, 256),
)
OMEGA = 1.7


def sine_arguments(
    make: Make,
    lead: tuple[int, ...],
    sizes: tuple[int, int],
    *,
    omega: float = OMEGA,
    bias: bool = True,
    layers: tuple[int, ...] = (),
    to: dict[str, layouts.Layout] | None = None,
) -> Call:
    """Arguments for sizes I and O. Weights are scaled as in SIREN, so phases are of order one for
    any width."""
    i, o = sizes
    layout = to or {}
    fan_in = max(1, i) ** -0.5 / max(1.0, abs(omega) / 3)
    return Call(
        (
            make(*layers, *lead, i, to=layout.get("input")),
            make(*layers, o, i, by=fan_in, to=layout.get("weight")),
            make(*layers, o, by=0.1, to=layout.get("bias")) if bias else None,
            omega,
        )
    )


def sine_reference(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    """The reference, which is applied to each layer if weight has a leading dimension."""
    if weight.dim() == 2:
        return reference.sine_linear(input, weight, bias, omega)
    rows = input.reshape(input.shape[0], math.prod(input.shape[1:-1]), input.shape[-1])
    z = rows @ weight.mT
    if bias is not None:
        z = z + bias[:, None]
    return torch.sin(omega * z).reshape(*input.shape[:-1], weight.shape[1])


def sine_cases() -> tuple[Case, ...]:
    found: list[Case] = []

    def add(name: str, lead: tuple[int, ...], sizes: tuple[int, int], **options: Any) -> None:
        def build(make: Make) -> Call:
            return sine_arguments(make, lead, sizes, **options)

        big = sum(t.numel() for t in build(Make(name, "meta", torch.float64)).args[:2]) > 200
        found.append(Case(f"sine_linear {name}", build, FLOATING, big=big))

    for lead, i, o in SIZES:
        add(f"{list(lead)} I{i} O{o}", lead, (i, o))
    for lead, i, o in (((3,), 3, 4), ((3,), 5, 4), ((600,), 64, 33)):
        add(f"no bias {list(lead)} I{i} O{o}", lead, (i, o), bias=False)
        add(f"omega 30 {list(lead)} I{i} O{o}", lead, (i, o), omega=30.0)
    for omega in (0.0, -2.5):
        add(f"omega {omega}", (3,), (5, 4), omega=omega)
    for layout in (strided, transposed, padded_rows, misaligned):
        to = dict.fromkeys(("input", "weight", "bias"), layout)
        add(f"{layout.__name__} coordinates", (2, 3), (3, 4), to=to)
        add(layout.__name__, (2, 3), (5, 4), to=to)
    add("expanded", (3, 2), (5, 4), to={"input": expanded})
    add("expanded coordinates", (3,), (2, 4), to={"input": expanded})
    for bias in (True, False):
        add(f"N 2, bias {bias}", (3,), (5, 4), bias=bias, layers=(2,))
    add("N 2 of vectors", (), (3, 4), layers=(2,))
    add("N 2, strided", (2, 2), (3, 4), layers=(2,), to={"input": strided, "weight": transposed})
    add("N 0", (3,), (5, 4), layers=(0,))
    return tuple(found)


def ops() -> tuple[Op, ...]:
    return (
        Op(
            "sine_linear",
            treadle.sine_linear,
            sine_reference,
            ("sine_linear",),
            (0, 1, 2),
            sine_cases(),
            saved=(0, 1, 2),
        ),
    )
