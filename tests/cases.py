"""Inputs of every op. A case builds one call's arguments, of equal values on every device.

``OPS`` maps an op's name to its functions and good inputs, ``BAD`` lists what must raise, and with
which message. A law takes what it needs from here, and a new op is tested by adding it here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import elementwise_cases, lltm_cases
from .inputs import (
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
]

OPS: dict[str, Op] = {op.name: op for op in (*elementwise_cases.ops(), *lltm_cases.ops())}

ELEMENTWISE = ("vector_add", "scale", "sine", "sine_backward", "cosine", "cosine_backward")


def each_case(
    *names: str, dtypes: tuple[torch.dtype, ...] = FLOATING, big: bool = True
) -> list[Any]:
    """Parameters (op, case, dtype) for pytest: of the named ops, or of all."""
    return [
        pytest.param(op, case, dtype, id=f"{case.id}-{str(dtype).removeprefix('torch.')}")
        for op in (OPS[name] for name in (names or OPS))
        for case in op.cases
        if big or not case.big
        for dtype in case.dtypes
        if dtype in dtypes
    ]
