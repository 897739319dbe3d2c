"""Siren.jet: a packed jet through the layers of a Siren, unpacked once, in the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _jet_parts as parts
from ..jets import Jet
from ..sine_linear import sine_linear_jet
from ._check import check_bool, check_rows
from .sine_linear import SineLinear


def jet_of(siren: Any, x: Tensor, gradient: bool, laplacian: bool, diagonal: bool) -> Jet:
    """See :meth:`treadle.nn.Siren.jet`."""
    flags = {"gradient": gradient, "laplacian": laplacian, "hessian_diagonal": diagonal}
    for name, flag in flags.items():
        check_bool("Siren.jet", name, flag)
    layers = siren.net._modules
    # Not as an attribute: a parametrization would compute it twice.
    check_rows("Siren.jet", x, siren.in_features, layers["0"]._parameters.get("weight"), "x")
    parts.check_coordinates("Siren.jet", "x", x)
    if not (gradient or laplacian or diagonal):
        return Jet(siren(x))
    count, second = x.shape[-1], parts.second_named(laplacian, diagonal)
    if second == parts.NONE and siren.out_features < count and not _exporting():
        return Jet(*_pulled_back(siren, x))
    packed = parts.of_coordinates(x, parts.identity(x), second)
    for layer in layers.values():
        packed = _through(layer, packed, count, second)
    value, slope, bend, bends = parts.unpack(packed, count, laplacian, diagonal)
    return Jet(value, slope if gradient else None, bend, bends)


def _exporting() -> bool:
    """torch.export has no torch.func."""
    return torch.compiler.is_exporting()


def _pulled_back(siren: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gradient in reverse, a product a layer for each output.

    A jet takes one for each coordinate. torch.compile traces torch.func.vjp as a part of the
    forward pass, so that no derivative of a derivative is left to it.
    """
    vjp: Any = torch.func.vjp

    def values(x: Tensor) -> Tensor:
        # Without hooks, of which some, as FlopCounterMode's, fail where autograd runs within.
        for layer in siren.net._modules.values():
            x = layer.forward(x)
        return x

    value, pull = vjp(values, x)
    rows = []
    for k in range(siren.out_features):
        along = torch.zeros_like(value)
        along[..., k] = 1
        rows.append(pull(along)[0])
    return value, torch.stack(rows, dim=-2)


def _through(layer: Any, packed: Tensor, count: int, second: str) -> Tensor:
    # By what it computes: a subclass may compute something else, and a parametrized one does not.
    forward = type(layer).forward
    if forward is SineLinear.forward:
        return sine_linear_jet(packed, layer.weight, layer.bias, layer.omega_0, count, second)
    if forward is nn.Linear.forward:
        return parts.linear(packed, layer.weight, layer.bias)
    if forward is nn.Dropout.forward:
        return parts.dropout(packed, layer.p) if layer.training else packed
    return parts.mapped(layer.forward, *packed.split_with_sizes(parts.sizes(count, second)))
