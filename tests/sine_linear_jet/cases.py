"""Inputs of sine_linear_jet: coordinates, kinds of second derivatives, widths, strides, omega."""

from __future__ import annotations

from typing import Any

import torch

from tests.support import layouts
from tests.support.inputs import FLOATING, Call, Case, Make, Op
from tests.support.layouts import expanded, misaligned, padded_rows, strided, transposed
from treadle import reference

SECONDS = ("none", "laplacian", "hessian_diagonal")
OMEGA = 1.7
# Leading dimensions, I, O, coordinates. They include odd sizes, widths that are not multiples of a
# vector's width, and empty tensors.
SIZES: tuple[tuple[tuple[int, ...], int, int, int], ...] = (
    ((), 5, 3, 2),
    ((2,), 2, 3, 1),
    ((3,), 4, 2, 3),
    ((4,), 0, 3, 2),
    ((4,), 5, 0, 2),
    ((0,), 5, 3, 2),
    ((2, 3), 3, 5, 2),
    ((2,), 5, 4, 8),
    ((1,), 3, 2, 11),
    ((90,), 33, 31, 3),
    ((130,), 64, 96, 2),
)


def parts(coordinates: int, second: str) -> int:
    """P, the number of parts."""
    return 1 + coordinates + (0, 1, coordinates)[SECONDS.index(second)]


def jet_arguments(
    make: Make,
    lead: tuple[int, ...],
    sizes: tuple[int, int],
    *,
    coordinates: int = 2,
    second: str = "laplacian",
    omega: float = OMEGA,
    bias: bool = True,
    to: dict[str, layouts.Layout] | None = None,
) -> Call:
    """Arguments for sizes I and O. Weights are scaled as in SIREN, so phases are of order one for
    any width."""
    i, o = sizes
    layout = to or {}
    fan_in = max(1, i) ** -0.5 / max(1.0, abs(omega) / 3)
    return Call(
        (
            make(parts(coordinates, second), *lead, i, to=layout.get("jet")),
            make(o, i, by=fan_in, to=layout.get("weight")),
            make(o, by=0.1, to=layout.get("bias")) if bias else None,
            omega,
            coordinates,
            second,
        )
    )


def jet_cases() -> tuple[Case, ...]:
    found: list[Case] = []

    def add(name: str, lead: tuple[int, ...], sizes: tuple[int, int], **options: Any) -> None:
        def build(make: Make) -> Call:
            return jet_arguments(make, lead, sizes, **options)

        big = sum(t.numel() for t in build(Make(name, "meta", torch.float64)).args[:2]) > 200
        found.append(Case(f"sine_linear_jet {name}", build, FLOATING, big=big))

    for lead, i, o, d in SIZES:
        for second in SECONDS:
            name = f"{list(lead)} I{i} O{o} d{d} {second}"
            add(name, lead, (i, o), coordinates=d, second=second)
    for second in SECONDS:
        add(f"no bias {second}", (3,), (5, 4), second=second, bias=False)
        add(f"omega 30 {second}", (150,), (64, 33), second=second, omega=30.0)
    add("omega -2.5", (3,), (5, 4), omega=-2.5)
    for layout in (strided, transposed, padded_rows, misaligned):
        to = dict.fromkeys(("jet", "weight", "bias"), layout)
        add(layout.__name__, (2, 3), (5, 4), to=to)
        add(f"{layout.__name__} coordinates", (2, 3), (3, 4), to=to)
    add("expanded", (3, 2), (5, 4), to={"jet": expanded})
    return tuple(found)


def ops() -> tuple[Op, ...]:
    return (
        Op(
            "sine_linear_jet",
            torch.ops.treadle.sine_linear_jet,
            reference.sine_linear_jet,
            ("sine_linear_jet",),
            (0, 1, 2),
            jet_cases(),
            saved=(0, 1, 2),
        ),
    )
