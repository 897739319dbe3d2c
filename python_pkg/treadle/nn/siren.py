"""Siren: a network of sine layers, as a module."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from ..jets import Jet
from ._cell_dicts import hooks_run
from ._check import (
    check_bool,
    check_count,
    check_dtype,
    check_omega,
    check_probability,
    check_rows,
)
from ._siren_jet import jet_of
from ._siren_names import rename_layers
from ._tracers import NotScripted
from .sine_linear import SineLinear, draw

__all__ = ["Siren"]


class Siren(NotScripted, nn.Module):
    """A network of sine layers from coordinates to values: the SIREN of Sitzmann and others, 2020.

    ``net`` has a first :class:`SineLinear`, ``hidden_layers`` more of them, and a last layer. The
    last layer is another :class:`SineLinear` or, if ``outermost_linear``, a
    :class:`torch.nn.Linear` with the same initialisation. The first seven arguments and the layers
    are those of the paper's code; ``bias``, ``final_activation`` and ``dropout`` are
    siren-pytorch's. The paper's network also returns a copy of the coordinates, and values can be
    differentiated with respect to that copy. This network returns only the values. To
    differentiate them, pass coordinates that require grad.

    Args:
        in_features: the number of coordinates of a point; they should be within ±1.
        hidden_features: the width of every layer but the last.
        hidden_layers: the number of layers between the first and the last, 0 or more.
        out_features: the number of values at a point.
        outermost_linear: make the last layer linear, so that values are not bounded by ±1.
        first_omega_0: omega_0 of the first layer. With a larger value, the net learns finer detail
            first.
        hidden_omega_0: omega_0 of all other layers.
        device: where the parameters are created; ``"meta"`` creates them without memory.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.
        bias: whether the layers have biases.
        final_activation: a module applied to the values; requires ``outermost_linear``.
        dropout: the probability of dropping an element of a layer's output in training. The last
            layer's output is never dropped.

    State dicts of the paper's networks and of siren-pytorch load unchanged into a net of the same
    widths and omegas. :meth:`to_paper_state_dict` and :meth:`to_siren_pytorch_state_dict` convert
    back.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Example::

        net = treadle.nn.Siren(2, 256, 3, 1, outermost_linear=True)
        x = torch.rand(1000, 2).mul(2).sub(1).requires_grad_()
        value = net(x)              # [1000, 2] -> [1000, 1]
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    """

    in_features: int
    out_features: int
    net: nn.Sequential

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        hidden_layers: int,
        out_features: int,
        outermost_linear: bool = False,
        first_omega_0: float = 30.0,
        hidden_omega_0: float = 30.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        final_activation: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_features = check_count("Siren", "in_features", in_features)
        self.out_features = check_count("Siren", "out_features", out_features)
        hidden = check_count("Siren", "hidden_features", hidden_features)
        between = check_count("Siren", "hidden_layers", hidden_layers, least=0)
        first_omega_0 = check_omega("Siren", "first_omega_0", first_omega_0, zero=True)
        omega = check_omega("Siren", "hidden_omega_0", hidden_omega_0)
        linear = check_bool("Siren", "outermost_linear", outermost_linear)
        _check_activation(final_activation, linear)
        probability = check_probability("Siren", "dropout", dropout)
        check_dtype("Siren", dtype)
        made: dict[str, Any] = {
            "bias": check_bool("Siren", "bias", bias),
            "device": device,
            "dtype": dtype,
        }
        layers: list[nn.Module] = [
            SineLinear(self.in_features, hidden, is_first=True, omega_0=first_omega_0, **made)
        ]
        layers += [SineLinear(hidden, hidden, omega_0=omega, **made) for _ in range(between)]
        if linear:
            layers.append(nn.Linear(hidden, self.out_features, **made))
        else:
            layers.append(SineLinear(hidden, self.out_features, omega_0=omega, **made))
        self.net = nn.Sequential()
        for k, layer in enumerate(layers):
            self.net.add_module(str(k), layer)
            if probability and k < between + 1:
                self.net.add_module(f"dropout_{k}", nn.Dropout(probability))
        if final_activation is not None:
            self.net.add_module("activation", final_activation)
        self._hidden_omega_0 = omega
        self._draw_linear()

    def _layers(self) -> list[SineLinear | nn.Linear]:
        """The layers with weights, first to last; ``net`` also has dropout and an activation."""
        found: dict[str, Any] = self.net._modules
        return [layer for name, layer in found.items() if name.isdecimal()]

    def reset_parameters(self) -> None:
        """Draw all parameters again, like :class:`SineLinear`."""
        for layer in self._layers():
            if isinstance(layer, SineLinear):
                layer.reset_parameters()
        self._draw_linear()

    def _draw_linear(self) -> None:
        last = self._layers()[-1]
        if isinstance(last, nn.Linear):
            draw(last, None, self._hidden_omega_0)

    def forward(self, input: Tensor) -> Tensor:
        """Maps points [..., in_features] to values [..., out_features].

        Raises:
            TypeError, ValueError: ``input`` is not a tensor, or its shape is not as above.
            RuntimeError: dtypes or devices do not match; see :func:`treadle.sine_linear`.
        """
        first = self.net[0]
        if isinstance(first, SineLinear):
            # A hook may cast the input, for example for FSDP2's mixed precision. Then only the
            # layer checks the dtype.
            hooks = self.net._forward_pre_hooks or first._forward_pre_hooks
            # Reading first.weight would compute a parametrized weight a second time.
            weight = None if hooks else first._parameters.get("weight")
            check_rows("Siren", input, first.in_features, weight)
        output: Tensor = self.net(input)
        return output

    def jet(
        self,
        x: Tensor,
        gradient: bool = True,
        laplacian: bool = True,
        hessian_diagonal: bool = False,
    ) -> Jet:
        """Values at points and their derivatives with respect to x, in one forward pass.

        A loss of these derivatives needs only an ordinary backward pass, without ``create_graph``.
        So it needs less memory, and torch.compile supports it. Module hooks do not run.

        Args:
            x: [..., in_features]; it may require grad, but need not.
            gradient, laplacian, hessian_diagonal: which derivatives to compute.

        Returns:
            A :class:`treadle.Jet` ``(value, gradient, laplacian, hessian_diagonal)``, with shapes
            [..., O], [..., O, in_features], [..., O] and [..., O, in_features]. A part that was not
            requested is None.

        Raises:
            TypeError, ValueError, RuntimeError: ``x`` or a flag is not as above; see ``forward``.

        Example::

            u = net.jet(x)
            loss = (u.laplacian - f).square().mean()
        """
        return jet_of(self, x, gradient, laplacian, hessian_diagonal)

    def to_paper_state_dict(self, *, blocks: bool = False) -> dict[str, Tensor]:
        """The weights under the names of the paper's code, for ``load_state_dict`` of its networks.

        Args:
            blocks: False gives the names of the network in the notebook of the paper's code
                (``net.{k}.linear.weight``). True gives the names of ``SingleBVPNet`` in that code
                (``net.net.{k}.0.weight``), whose omega_0 is 30.

        Returns:
            Tensors that share memory with the parameters, like those of ``state_dict``.

        Raises:
            TypeError: ``blocks`` is not a bool.
            ValueError: the net has a final activation, which the paper's networks lack, or
                ``blocks`` is True and an omega_0 is not 30.
        """
        check_bool("Siren.to_paper_state_dict", "blocks", blocks)
        if "activation" in self.net._modules:
            kind = type(self.net.activation).__name__
            raise ValueError(
                f"Siren.to_paper_state_dict: final_activation must be None, got {kind}: the "
                "paper's networks have none"
            )
        names = []
        for k, layer in enumerate(self._layers()):
            if blocks and isinstance(layer, SineLinear) and layer.omega_0 != 30:
                raise ValueError(
                    "Siren.to_paper_state_dict: omega_0 must be 30 in every layer with blocks=True,"
                    f" got {layer.omega_0} in net.{k}"
                )
            sine = "linear." if isinstance(layer, SineLinear) else ""
            names.append(f"net.net.{k}.0." if blocks else f"net.{k}.{sine}")
        return self._weights(names)

    def to_siren_pytorch_state_dict(self) -> dict[str, Tensor]:
        """The weights under the names of siren-pytorch's ``SirenNet``, for its ``load_state_dict``.

        If the last layer is a sine layer, create ``SirenNet`` with
        ``final_activation=Sine(hidden_omega_0)``.

        Returns:
            Tensors that share memory with the parameters, like those of ``state_dict``.
        """
        last = len(self._layers()) - 1
        found = self._weights([*(f"layers.{k}." for k in range(last)), "last_layer."])
        if (activation := self.net._modules.get("activation")) is not None:
            found |= activation.state_dict(prefix="last_layer.activation.")
        return found

    def _weights(self, prefixes: list[str]) -> dict[str, Tensor]:
        """All weights and biases by name. ``prefixes`` has the prefix of each layer's names."""
        found = {}
        for prefix, layer in zip(prefixes, self._layers(), strict=True):
            found[f"{prefix}weight"] = layer.weight.detach()
            if layer.bias is not None:
                found[f"{prefix}bias"] = layer.bias.detach()
        return found

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *args: Any
    ) -> None:
        with hooks_run(self, state_dict, prefix, metadata, *args):
            # state_dict is a copy from which the layers load, so it may be changed.
            last = len(self._layers()) - 1
            weight = f"{prefix}net.{last}.weight"
            # In the paper's code, only the names of sine layers contain `linear`.
            paper = any(
                re.match(rf"{re.escape(prefix)}net\.\d+\.linear\.", key) for key in state_dict
            )
            if paper and isinstance(self._layers()[-1], SineLinear) and weight in state_dict:
                args[-1].append(
                    "Siren: outermost_linear must be True for this state dict, got False: "
                    f"{weight} belongs to a linear layer"
                )
            rename_layers(state_dict, prefix, last)
            super()._load_from_state_dict(state_dict, prefix, metadata, *args)


def _check_activation(activation: object, linear: bool) -> None:
    if activation is None:
        return
    if not isinstance(activation, nn.Module):
        raise TypeError(
            "Siren: final_activation must be a torch.nn.Module or None, "
            f"got {type(activation).__name__}"
        )
    if not linear:
        raise ValueError(
            "Siren: outermost_linear must be True if final_activation is given, got False"
        )
