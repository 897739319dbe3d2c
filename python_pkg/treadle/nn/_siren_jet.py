"""Siren.jet: passes a packed jet through the layers of a Siren and unpacks it at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._torch import jagged
from ..jets import Jet
from ..jets import _parts as parts
from ..jets._map import exporting, mapped
from ..sine_linear import sine_linear_jet
from ._check import check_bool, check_rows
from ._siren_pull import composed, is_plain, pulled_back
from ._tracers import is_tracing
from .sine_linear import SineLinear


def jet_of(siren: Any, x: Tensor, gradient: bool, laplacian: bool, diagonal: bool) -> Jet:
    """See :meth:`treadle.nn.Siren.jet`."""
    flags = {"gradient": gradient, "laplacian": laplacian, "hessian_diagonal": diagonal}
    for name, flag in flags.items():
        check_bool("Siren.jet", name, flag)
    layers = siren.net._modules
    # The weight is read from _parameters, because reading the attribute would compute a
    # parametrized weight a second time.
    check_rows("Siren.jet", x, siren.in_features, layers["0"]._parameters.get("weight"), "x")
    if x.is_nested:
        return _of_jagged(siren, x, flags)
    parts.check_coordinates("Siren.jet", "x", x)
    if not (gradient or laplacian or diagonal):
        return Jet(siren(x))
    count, second = x.shape[-1], parts.second_named(laplacian, diagonal)
    traced = exporting() or is_tracing()
    if second == parts.NONE and siren.out_features < count and not traced:
        return Jet(*_pulled_back(siren, x))
    packed = parts.of_coordinates(x, parts.identity(x), second)
    for layer in layers.values():
        packed = _through(layer, packed, count, second)
    value, slope, bend, bends = parts.unpack(packed, count, laplacian, diagonal)
    return Jet(value, slope if gradient else None, bend, bends)


def _of_jagged(siren: Any, x: Any, flags: dict[str, bool]) -> Jet:
    """The jet at the points of all rows of a jagged x. Its parts are jagged too, [N, j, ...]."""
    jagged.check_rows("Siren.jet", "x", x)
    offsets, jet = x.offsets(), siren.jet(x.values(), **flags)
    nested = torch.nested.nested_tensor_from_jagged
    return Jet._make(part if part is None else nested(part, offsets) for part in jet)


def _pulled_back(siren: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gradient in reverse mode. Each layer then computes one product for each output of
    the net. In forward mode, which jets use, it would compute one for each coordinate."""
    layers = siren.net._modules.values()

    def values(x: Tensor) -> Tensor:
        # forward is called directly, so that no hooks run. Some hooks, such as FlopCounterMode's,
        # fail if autograd runs inside the module.
        for layer in layers:
            x = layer.forward(x)
        return x

    *sines, last = (layer for layer in layers if not _is_idle(layer))
    simple = all(type(layer).forward is SineLinear.forward for layer in sines)
    if simple and type(last).forward is nn.Linear.forward:
        params = [p for layer in (*sines, last) for p in (layer.weight, layer.bias)]
        # On GPUs, pulled_back was slower than composed.
        plain = x.device.type == "cpu" and is_plain(x, *params)
        if plain and not torch.is_autocast_enabled("cpu"):
            return pulled_back(x, [layer.omega_0 for layer in sines], params)
    return composed(values, x)


def _is_idle(layer: Any) -> bool:
    return type(layer).forward is nn.Dropout.forward and not layer.training


def _through(layer: Any, packed: Tensor, count: int, second: str) -> Tensor:
    # Functions are compared instead of classes. Some subclasses override forward, but those that
    # nn.utils.parametrize makes do not.
    forward = type(layer).forward
    if forward is SineLinear.forward:
        return sine_linear_jet(packed, layer.weight, layer.bias, layer.omega_0, count, second)
    if forward is nn.Linear.forward:
        return parts.linear(packed, layer.weight, layer.bias)
    if forward is nn.Dropout.forward:
        return parts.dropout(packed, layer.p) if layer.training else packed
    return mapped(layer.forward, *packed.split_with_sizes(parts.sizes(count, second)))
