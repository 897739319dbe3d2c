"""Inputs of every op. A case builds the arguments of one call, with equal values on every device.

``OPS`` maps an op's name to its functions and good inputs. ``BAD`` lists calls that must raise, and
their messages. Tests of invariants use both, so adding a new op here is enough to test it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.elementwise import cases as elementwise_cases
from tests.elementwise import snake_cases
from tests.recurrent.support import cell_cases as lltm_cases
from tests.recurrent.support import formula_cases, layer_cases, reset_cases, scan_cases
from tests.sine_linear import cases as sine_linear_cases
from tests.sine_linear_jet import cases as jet_cases
from tests.support.inputs import (
    DEVICES,
    FLOATING,
    GPU,
    HALVES,
    INTEGERS,
    Call,
    Case,
    Make,
    Op,
    outputs,
    requiring_grad,
)

__all__ = [
    "DEVICES",
    "ELEMENTWISE",
    "FLOATING",
    "GPU",
    "HALVES",
    "INTEGERS",
    "OPS",
    "Call",
    "Case",
    "Make",
    "Op",
    "each_case",
    "outputs",
    "requiring_grad",
    "sized_call",
]

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        *elementwise_cases.ops(),
        *snake_cases.ops(),
        *sine_linear_cases.ops(),
        *jet_cases.ops(),
        *lltm_cases.ops(),
        *layer_cases.ops(),
        *formula_cases.ops(),
        *reset_cases.ops(),
        *scan_cases.ops(),
    )
}

ELEMENTWISE = tuple(name for name, op in OPS.items() if op.elementwise)


def sized_call(
    op: Op,
    make: Make,
    *,
    shape: tuple[int, ...],
    cell: tuple[int, int, int],
    layer: tuple[int, int, int, int],
    **options: Any,
) -> Call:
    """A call with sizes that a test chooses: ``shape`` for an elementwise op; ``cell`` for the
    cell, the sine layer and its jets (B, I, H) and for a scan (steps, rows, columns); ``layer``
    (T, B, I, H) and ``options`` for the recurrent layer."""
    if op.name == "sine_linear":
        return sine_linear_cases.sine_arguments(make, cell[:1], cell[1:])
    if op.name == "sine_linear_jet":
        # The jet has 7 parts. No other size may be 7, because torch.compile would use one symbol
        # for both sizes.
        return jet_cases.jet_arguments(make, cell[:1], cell[1:], coordinates=5)
    if op.name == "affine_scan":
        return scan_cases.scan_arguments(make, cell)
    if op.name == "lltm_cell":
        return lltm_cases.cell_arguments(make, cell)
    if op.is_layer:
        cell_name = op.name.split()[1]
        if op.name.endswith("resets"):
            given = {"starts": "rows", "marks": "some", "cell": cell_name}
            return reset_cases.reset_arguments(make, layer, **given, **options)
        return layer_cases.layer_arguments(make, layer, cell=cell_name, **options)
    return op.like_first_case(make, *shape)


def each_case(
    *names: str, dtypes: tuple[torch.dtype, ...] = FLOATING, big: bool = True
) -> list[Any]:
    """Parameters (op, case, dtype) for pytest, for the named ops or for all ops."""
    return [
        pytest.param(op, case, dtype, id=f"{case.id}-{str(dtype).removeprefix('torch.')}")
        for op in (OPS[name] for name in (names or OPS))
        for case in op.cases
        if big or not case.big
        for dtype in case.dtypes
        if dtype in dtypes
    ]
