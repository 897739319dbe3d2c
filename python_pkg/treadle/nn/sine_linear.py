"""SineLinear: the sine layer as a module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..jets import Jet
from ..jets._parts import check_parts, pack, second_of
from ..sine_linear import sine_linear, sine_linear_jet
from ._cell_dicts import hooks_run
from ._check import check_bool, check_count, check_dtype, check_omega, check_rows
from ._siren_names import check_saved_omega, rename
from ._tracers import NotScripted

__all__ = ["SineLinear"]


class SineLinear(NotScripted, nn.Module):
    """sin(omega_0 * (x Wᵀ + b)), the layer of a SIREN, called like :class:`torch.nn.Linear`.

    See :func:`treadle.sine_linear` for the op. Weights are drawn so that phases have the same
    distribution in every layer of a deep network (V. Sitzmann and others: Implicit neural
    representations with periodic activation functions. NeurIPS 2020).

    Args:
        in_features: I, the number of features of an input.
        out_features: O, the number of features of an output.
        bias: whether the layer has a bias.
        is_first: whether the input is coordinates (within ±1) instead of another layer's output.
        omega_0: the factor of x Wᵀ + b. The product is in radians.
        device: where the parameters are created; ``"meta"`` creates them without memory.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Attributes:
        weight: [O, I], drawn from the uniform distribution over ±1/I if ``is_first``, else over
            ±sqrt(6/I)/\\|omega_0\\|.
        bias: [O] or None, drawn like that of :class:`torch.nn.Linear`, over ±1/sqrt(I).

    A ``state_dict`` also has omega_0 as extra state, a tensor of one number. Loading raises if this
    number differs from the layer's omega_0. State dicts without omega_0 load as well. So do those
    of the paper's layer, whose parameters are in a module named ``linear``.

    Raises:
        TypeError, ValueError: an argument is not as above; ``omega_0`` must be finite, and 0 only
            if ``is_first``.

    Example::

        layer = treadle.nn.SineLinear(2, 256, is_first=True)
        y = layer(coordinates)      # [..., 2] -> [..., 256]
    """

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
        check_dtype("SineLinear", dtype)
        shape = self.out_features, self.in_features
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if check_bool("SineLinear", "bias", bias):
            self.bias = nn.Parameter(torch.empty(self.out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again, from the distributions above."""
        draw(self, 1 / self.in_features if self.is_first else None, self.omega_0)

    def forward(self, input: Tensor) -> Tensor:
        """Applies the layer to the last dimension.

        Args:
            input: [..., I].

        Returns:
            [..., O], in the dtype of ``input`` (under autocast: the lower precision).

        Raises:
            TypeError, ValueError: ``input`` is not a tensor, or its shape is not as above.
            RuntimeError: dtypes or devices do not match; see :func:`treadle.sine_linear`.
        """
        weight = self.weight
        check_rows("SineLinear", input, weight.shape[-1], weight)
        return sine_linear(input, weight, self.bias, self.omega_0)

    def jet(self, jet: Jet) -> Jet:
        """Computes the jet of the layer's output from the jet of its input.

        Hooks of the module do not run, because they belong to ``forward``.

        Args:
            jet: the :class:`treadle.Jet` of coordinates, or one that a previous layer returned. Its
                value is [..., I].

        Returns:
            A jet whose value is [..., O]. It has the same parts as ``jet``.

        Raises:
            TypeError, ValueError, RuntimeError: ``jet`` is not a jet, its parts do not match, or
                its value is not a valid input of the layer.
        """
        check_parts("SineLinear.jet", jet, Jet)
        weight = self.weight
        check_rows("SineLinear.jet", jet.value, weight.shape[-1], weight, "jet.value")
        count, second = jet.gradient.shape[-1], second_of(jet)  # type: ignore[union-attr]
        return jet._like(sine_linear_jet(pack(jet), weight, self.bias, self.omega_0, count, second))

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}"
            + ("" if self.bias is not None else ", bias=False")
            + (", is_first=True" if self.is_first else "")
            + f", omega_0={self.omega_0:g}"
        )

    def get_extra_state(self) -> Tensor:
        """omega_0 for a state dict, as a tensor, because safetensors stores only tensors."""
        return torch.tensor(self.omega_0, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Checks omega_0, because weights trained with another value would give wrong results.

        Raises:
            TypeError, ValueError: ``state`` is not a number, or differs from ``omega_0``.
        """
        check_saved_omega(state, self.omega_0)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *args: Any
    ) -> None:
        _strict, missing_keys, _unexpected_keys, error_msgs = args
        # The paper's layer contains an nn.Linear. state_dict is a copy, so it may be changed.
        key = f"{prefix}_extra_state"
        with hooks_run(self, state_dict, prefix, metadata, *args):
            for name in ("weight", "bias"):
                rename(state_dict, f"{prefix}linear.{name}", prefix + name)
            if key in state_dict:
                # load_state_dict raises this error together with its other errors.
                try:
                    self.set_extra_state(state_dict.pop(key))
                except (TypeError, ValueError) as wrong:
                    text = f"to load the weights regardless, remove the entry {key!r}"
                    error_msgs.append(f"{wrong}; {text}")
            super()._load_from_state_dict(state_dict, prefix, metadata, *args)
        # State dicts of older versions and of other implementations have no extra state.
        if key in missing_keys:
            missing_keys.remove(key)


def draw(layer: SineLinear | nn.Linear, bound: float | None, omega: float) -> None:
    """Draws weights uniformly from ±bound, and the bias like nn.Linear. If ``bound`` is None, the
    bound of a hidden layer is used."""
    fan_in = layer.in_features
    if bound is None:
        bound = math.sqrt(6 / fan_in) / abs(omega)
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
