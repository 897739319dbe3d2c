"""The reference for jets: derivatives of networks that torch.func computes point by point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from treadle.nn import SineLinear, Siren


def by_autograd(function: Callable[[Tensor], Tensor], x: Tensor) -> treadle.Jet:
    """The jet, with all parts, at points [..., d] of a function that maps one point [d] to [O]."""
    points = x.reshape(-1, x.shape[-1])

    def each(transform: Any) -> Tensor:
        return torch.func.vmap(transform(function))(points)

    value = torch.func.vmap(function)(points)
    gradient = each(torch.func.jacrev)
    diagonal = each(torch.func.hessian).diagonal(dim1=-2, dim2=-1)
    lead, outputs = x.shape[:-1], value.shape[-1]
    return treadle.Jet(
        value.reshape(*lead, outputs),
        gradient.reshape(*lead, outputs, x.shape[-1]),
        diagonal.sum(-1).reshape(*lead, outputs),
        diagonal.reshape(*lead, outputs, x.shape[-1]),
    )


def same(actual: treadle.Jet, expected: treadle.Jet, tolerance: float = 1e-9) -> None:
    """Compares the parts that ``actual`` has."""
    assert isinstance(actual, treadle.Jet)
    for name, one, other in zip(actual._fields, actual, expected, strict=True):
        if one is not None:
            scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
            torch.testing.assert_close(
                one, other, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
            )


def siren(inputs: int = 2, *, dtype: torch.dtype = torch.float64, **options: Any) -> Siren:
    """A small network with phases of order one, so that every part is of order one."""
    torch.manual_seed(0)
    sizes = {"hidden_features": 12, "hidden_layers": 2, "out_features": 3, **options}
    given = {"outermost_linear": True, "first_omega_0": 4.0, "hidden_omega_0": 2.5}
    return Siren(inputs, dtype=dtype, **{**given, **sizes})


def points(count: int = 7, inputs: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.rand(count, inputs, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return drawn.to(dtype)


def layer(inputs: int, outputs: int, **options: Any) -> SineLinear:
    torch.manual_seed(inputs + outputs)
    return SineLinear(inputs, outputs, omega_0=2.0, dtype=torch.float64, **options)
