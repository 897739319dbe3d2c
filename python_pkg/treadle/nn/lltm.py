"""LLTM: a module that runs whole sequences through layers of LLTM cells."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..recurrent import lltm
from ._cell_dicts import LLTM_VERSION, layer_from_cell
from ._check import check_bool, check_count, check_dtype, check_probability
from ._sequence import CellLayers, Front
from .lltm_cell import zeros

__all__ = ["LLTM"]


class _LLTMFront(Front):
    def rename_entries(self, layer: Any, state_dict: dict[str, Any], prefix: str) -> str | None:
        return layer_from_cell(layer, state_dict, prefix)

    def op_makes_zeros(self, input: Tensor) -> bool:
        kind = input.device.type
        lower = kind != "meta" and torch.is_autocast_enabled(kind)
        return not lower and super().op_makes_zeros(input)

    def zeros(self, input: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        # Under autocast the op keeps the dtype of c, so c keeps the dtype of its initial value.
        return zeros(input, shape)


class LLTM(CellLayers, nn.Module):
    """Layers of LLTM cells over whole sequences, called like :class:`torch.nn.LSTM`.

    See :func:`treadle.lltm_cell` for the formula of a step, and :func:`treadle.launch_info` for
    the kernels that ran on a GPU. ``h`` is bounded by ±1. ``c`` accumulates over the steps and is
    never scaled down, so pass a float32 ``c0`` for long sequences of half-precision inputs.

    LLTM is the cell of PyTorch's tutorial on C++ extensions: an LSTM without the forget gate. Its
    cell state c grows without bound on long sequences and during training. Once tanh(c) is ±1, h no
    longer depends on c, and one optimizer step can ruin the model. Use short sequences, and add a
    penalty on the last c to the loss, such as ``0.3 * c.abs().mean()``. For real models prefer
    :class:`treadle.nn.LSTM` or :class:`treadle.nn.GRU`, which learn better.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state and of the cell state.
        num_layers: the number of layers; each layer after the first reads the outputs of the
            previous one.
        bias: whether the layers have biases.
        batch_first: whether inputs and outputs are [B, T, ...] instead of [T, B, ...]. States are
            the same in both cases.
        dropout: the probability of dropping an element of a layer's output in training. The last
            layer's output is never dropped.
        bidirectional: whether a second direction reads each sequence from its end. D is 2 if True,
            else 1.
        device: where the parameters are created; ``"meta"`` creates them without memory.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.
        recompute: save less for the backward pass, which then recomputes the rest;
            :func:`treadle.lltm` lists the bytes.

    Attributes:
        weight_ih_l0: [3H, I] (later layers: [3H, D*H]), with rows for the gates i and o and the
            candidate z, in this order.
        weight_hh_l0: [3H, H].
        bias_l0: [3H], the only bias (torch.nn.LSTM has two). Absent if ``bias`` is False.

    Names of layer k end in ``_lk``, and in ``_lk_reverse`` for the second direction. All parameters
    are drawn from the uniform distribution over ±1/sqrt(H), and the module reads them at every
    call.

    Raises:
        TypeError, ValueError: an argument is not as above, or a size or ``num_layers`` is below 1.

    Example::

        layer = treadle.nn.LLTM(8, 64, num_layers=2)
        output, (h, c) = layer(rows)        # [T, B, 8] -> [T, B, 64], [2, B, 64] each

    A single layer in one direction and an :class:`LLTMCell` load each other's ``state_dict``. This
    code copies one direction of a layer of a larger module to a cell, and back::

        weights = torch.cat([layer.weight_hh_l0, layer.weight_ih_l0], dim=1)
        cell.load_state_dict({"weights": weights, "bias": layer.bias_l0})

        hh, ih = cell.weights.split([cell.hidden_size, cell.input_size], dim=1)
        layer.load_state_dict({"weight_ih_l0": ih, "weight_hh_l0": hh, "bias_l0": cell.bias})
    """

    _front = _LLTMFront("LLTM", ("h0", "c0"), lltm)
    _version = LLTM_VERSION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.input_size = check_count("LLTM", "input_size", input_size)
        self.hidden_size = check_count("LLTM", "hidden_size", hidden_size)
        self.num_layers = check_count("LLTM", "num_layers", num_layers)
        self.bias = check_bool("LLTM", "bias", bias)
        self.batch_first = check_bool("LLTM", "batch_first", batch_first)
        self.dropout = check_probability("LLTM", "dropout", dropout)
        self.bidirectional = check_bool("LLTM", "bidirectional", bidirectional)
        self.recompute = check_bool("LLTM", "recompute", recompute)
        check_dtype("LLTM", dtype)
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "LLTM: dropout acts between layers, so it needs num_layers greater than 1, "
                f"got dropout={self.dropout} and num_layers=1",
                stacklevel=2,
            )
        rows = 3 * self.hidden_size
        directions = ("", "_reverse") if self.bidirectional else ("",)
        self._all_weights = []
        for layer in range(self.num_layers):
            columns = self.hidden_size * len(directions) if layer else self.input_size
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns)}
            shapes["weight_hh"] = rows, self.hidden_size
            if self.bias:
                shapes["bias"] = (rows,)
            for direction in directions:
                names = [f"{name}_l{layer}{direction}" for name in shapes]
                self._all_weights.append(names)
                for name, shape in zip(names, shapes.values(), strict=True):
                    parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                    self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again, uniformly over ±1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as in :class:`torch.nn.LSTM`."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Do nothing; for compatibility with :class:`torch.nn.LSTM`."""

    def extra_repr(self) -> str:
        defaults = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "recompute": False,
        }
        given = {name: getattr(self, name) for name in defaults}
        words = [f"{name}={value}" for name, value in given.items() if value != defaults[name]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *words])
