"""SineLinear and Siren: the sine layer and networks of it, as modules."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from ..sine_linear import sine_linear
from ._check import check_bool, check_count, check_omega
from ._tracers import refuse_script

__all__ = ["Siren", "SineLinear"]

# Names of layers in other implementations, and ours.
_NAMES = (
    (re.compile(r"layers\.(\d+)\.(weight|bias)"), r"net.\1.\2"),
    (re.compile(r"net\.net\.(\d+)\.0\.(weight|bias)"), r"net.\1.\2"),
)


class SineLinear(nn.Module):
    """sin(omega_0 * (x Wᵀ + b)), the layer of a SIREN, called like :class:`torch.nn.Linear`.

    See :func:`treadle.sine_linear` for the op. Weights are drawn so that phases keep one
    distribution through layers of any number (V. Sitzmann and others: Implicit neural
    representations with periodic activation functions. NeurIPS 2020).

    Args:
        in_features: I, the number of features of an input.
        out_features: O, the number of features of an output.
        bias: False leaves the bias out.
        is_first: the input is coordinates (in ±1), not another layer's sines.
        omega_0: the factor of x Wᵀ + b, in radians.
        device: where the parameters are made; ``"meta"`` makes them without memory.
        dtype: of the parameters: float64, float32, float16 or bfloat16.

    Attributes:
        weight: [O, I], drawn from the uniform distribution over ±1/I if ``is_first``, else over
            ±sqrt(6/I)/\\|omega_0\\|.
        bias: [O] or None, drawn as that of :class:`torch.nn.Linear`, over ±1/sqrt(I).

    A ``state_dict`` of the paper's layer, whose parameters are in a module named ``linear``, loads
    unchanged.

    Raises:
        TypeError, ValueError: an argument is not as above; ``omega_0`` must be finite, and 0 only
            if ``is_first``.

    Example::

        layer = treadle.nn.SineLinear(2, 256, is_first=True)
        y = layer(coordinates)      # [..., 2] -> [..., 256]
    """

    __prepare_scriptable__ = refuse_script

    in_features: int
    out_features: int
    is_first: bool
    omega_0: float
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        is_first: bool = False,
        omega_0: float = 30.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_count("SineLinear", "in_features", in_features)
        self.out_features = check_count("SineLinear", "out_features", out_features)
        self.is_first = check_bool("SineLinear", "is_first", is_first)
        self.omega_0 = check_omega("SineLinear", "omega_0", omega_0, zero=is_first)
        shape = self.out_features, self.in_features
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if check_bool("SineLinear", "bias", bias):
            self.bias = nn.Parameter(torch.empty(self.out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as the class says."""
        _draw(self, 1 / self.in_features if self.is_first else None, self.omega_0)

    def forward(self, input: Tensor) -> Tensor:
        """Map the last dimension.

        Args:
            input: [..., I].

        Returns:
            [..., O], in the dtype of ``input`` (under autocast: the lower precision).

        Raises:
            RuntimeError: shapes, dtypes or devices do not go together;
                :func:`treadle.sine_linear` says how.
        """
        return sine_linear(input, self.weight, self.bias, self.omega_0)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}"
            + ("" if self.bias is not None else ", bias=False")
            + (", is_first=True" if self.is_first else "")
            + f", omega_0={self.omega_0:g}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **named: Any
    ) -> None:
        # The paper's layer contains an nn.Linear. The dictionary is load_state_dict's own copy.
        for name in ("weight", "bias"):
            _rename(state_dict, f"{prefix}linear.{name}", prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *args, **named)


class Siren(nn.Module):
    """A network of sines from coordinates to values: the SIREN of Sitzmann and others, 2020.

    ``net`` is a first :class:`SineLinear`, ``hidden_layers`` more of them, and a last layer: a
    :class:`SineLinear` or, if ``outermost_linear``, a :class:`torch.nn.Linear` initialised like
    one. Arguments and layers are those of the paper's code. The paper's network also returns a copy
    of the coordinates to differentiate by; this one returns only the values, so pass coordinates
    that require grad.

    Args:
        in_features: how many coordinates a point has; they should lie in ±1.
        hidden_features: the width of every layer but the last.
        hidden_layers: how many layers lie between the first and the last, 0 or more.
        out_features: how many values a point has.
        outermost_linear: make the last layer linear, so that values are not bounded by ±1.
        first_omega_0: omega_0 of the first layer: the larger, the finer the detail learnt first.
        hidden_omega_0: omega_0 of all other layers.
        device: where the parameters are made; ``"meta"`` makes them without memory.
        dtype: of the parameters: float64, float32, float16 or bfloat16.

    State dicts of the paper's networks and of siren-pytorch load unchanged into a net
    of the same widths and omegas.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Example::

        net = treadle.nn.Siren(2, 256, 3, 1, outermost_linear=True)
        x = torch.rand(1000, 2).mul(2).sub(1).requires_grad_()
        value = net(x)              # [1000, 2] -> [1000, 1]
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    """

    __prepare_scriptable__ = refuse_script

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
    ) -> None:
        super().__init__()
        self.in_features = check_count("Siren", "in_features", in_features)
        self.out_features = check_count("Siren", "out_features", out_features)
        hidden = check_count("Siren", "hidden_features", hidden_features)
        between = check_count("Siren", "hidden_layers", hidden_layers, least=0)
        first_omega_0 = check_omega("Siren", "first_omega_0", first_omega_0, zero=True)
        omega = check_omega("Siren", "hidden_omega_0", hidden_omega_0)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        layers: list[nn.Module] = [
            SineLinear(self.in_features, hidden, is_first=True, omega_0=first_omega_0, **made)
        ]
        layers += [SineLinear(hidden, hidden, omega_0=omega, **made) for _ in range(between)]
        if check_bool("Siren", "outermost_linear", outermost_linear):
            last: nn.Module = nn.Linear(hidden, self.out_features, **made)
        else:
            last = SineLinear(hidden, self.out_features, omega_0=omega, **made)
        self.net = nn.Sequential(*layers, last)
        self._hidden_omega_0 = omega
        self._draw_linear()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as :class:`SineLinear` does."""
        for layer in self.net:
            if isinstance(layer, SineLinear):
                layer.reset_parameters()
        self._draw_linear()

    def _draw_linear(self) -> None:
        if isinstance(self.net[-1], nn.Linear):
            _draw(self.net[-1], None, self._hidden_omega_0)

    def forward(self, input: Tensor) -> Tensor:
        """The values at points: [..., in_features] to [..., out_features].

        Raises:
            RuntimeError: shapes, dtypes or devices do not go together;
                :func:`treadle.sine_linear` says how.
        """
        output: Tensor = self.net(input)
        return output

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # The dictionary is load_state_dict's own copy, which the layers load from.
        last = f"{prefix}net.{len(self.net) - 1}."
        # In the paper's names `linear` is only in layers with a sine.
        paper = any(re.match(rf"{re.escape(prefix)}net\.\d+\.linear\.", key) for key in state_dict)
        if paper and isinstance(self.net[-1], SineLinear) and f"{last}weight" in state_dict:
            error_msgs.append(
                f"Siren: outermost_linear must be True for these, got False: {last}weight is that "
                "of a linear layer"
            )
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key[len(prefix) :]
            for pattern, ours in _NAMES:
                if match := pattern.fullmatch(name):
                    _rename(state_dict, key, prefix + match.expand(ours))
            if name in ("last_layer.weight", "last_layer.bias"):
                _rename(state_dict, key, last + name.partition(".")[2])
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )


def _draw(layer: SineLinear | nn.Linear, bound: float | None, omega: float) -> None:
    """Draw weights from ±bound (None: that of a hidden layer), the bias as nn.Linear does."""
    fan_in = layer.in_features
    if bound is None:
        bound = math.sqrt(6 / fan_in) / abs(omega)
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))


def _rename(state_dict: dict[str, Any], old: str, new: str) -> None:
    # If both names are present, load_state_dict reports one as unexpected.
    if old in state_dict and new not in state_dict:
        state_dict[new] = state_dict.pop(old)
