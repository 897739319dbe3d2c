"""LLTMCell: one step of the LLTM as a module; and `zeros`, the initial states of an LLTM."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._check.tensors import check_dense, check_tensor
from ..recurrent import lltm_cell
from ._cell_dicts import cell_from_layer, hooks_run, wrong_cell
from ._check import check_count, check_dtype, check_features, check_hx, check_same_dtype
from ._tracers import NotScripted, differs, fx_leaf

__all__ = ["LLTMCell"]


class LLTMCell(NotScripted, nn.Module):
    """One step of the LLTM, an LSTM without a forget gate, called like :class:`torch.nn.LSTMCell`.

    See :func:`treadle.lltm_cell` for the formula. ``h`` is bounded by ±1. ``c`` accumulates over
    the steps and is never scaled down, so keep it in float32 for long sequences.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state and of the cell state.
        bias: whether the cell has a bias.
        device: where the parameters are created; ``"meta"`` creates them without memory.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Attributes:
        weights: [3H, H+I], with rows for i, o and z, in this order; columns for h come first, then
            those for the input.
        bias: [3H] or None.

    Both are drawn from the uniform distribution over ±1/sqrt(H). A ``state_dict`` of the LLTM in
    PyTorch's tutorial on C++ extensions loads unchanged: its names are the same, and its [1, 3H]
    bias is reshaped. A cell and an :class:`LLTM` of one layer in one direction also load each
    other's ``state_dict``.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Example::

        cell = treadle.nn.LLTMCell(8, 64)
        hx = None
        for row in rows:        # [T, B, 8]
            hx = cell(row, hx)
        h, c = hx               # [B, 64] each
    """

    input_size: int
    hidden_size: int
    weights: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_count("LLTMCell", "input_size", input_size, least=0)
        self.hidden_size = check_count("LLTMCell", "hidden_size", hidden_size, least=0)
        check_dtype("LLTMCell", dtype)
        rows, columns = 3 * self.hidden_size, self.hidden_size + self.input_size
        self.weights = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(rows, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters again, uniformly over ±1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Take one step.

        Args:
            input: [B, I], or [I] without a batch.
            hx: ``(h, c)`` from the previous step, each [B, H] (or [H]). With half-precision inputs,
                ``c`` may be float32, and then ``new_cell`` is as well. If None, the states start as
                zeros in the dtype of ``input``; under autocast, ``c`` starts in at least float32.

        Returns:
            ``(new_h, new_cell)``, each [B, H] (or [H]): ``new_h`` in the dtype of ``input``
            (under autocast: the lower precision), ``new_cell`` in the dtype of ``c``.

        Raises:
            ValueError, TypeError: a shape, or ``hx``, is not as above.
            RuntimeError: dtypes or devices do not match; see :func:`treadle.lltm_cell`.
        """
        if not isinstance(input, Tensor):
            leaf = fx_leaf(self, input, hx)
            if leaf is not None:
                return leaf
            check_tensor("LLTMCell", "input", input)
        check_dense("LLTMCell", "input", input)
        check_features("LLTMCell", "[B, I]", input)
        if input.dim() not in (1, 2) or differs(input.size(-1), self.input_size):
            raise ValueError(
                f"LLTMCell: input must have shape [B, I] or [I] with I = {self.input_size}, "
                f"got {list(input.shape)}"
            )
        weights = self.weights
        check_same_dtype("LLTMCell", "input", input, weights)
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            h, c = zeros(input, shape)
        else:
            letters = "[B, H]" if input.dim() == 2 else "[H]"
            h, c = check_hx("LLTMCell", ("h", "c"), hx, letters, shape)
        if input.dim() == 2:
            return lltm_cell(input, weights, self.bias, h, c)
        new_h, new_cell = lltm_cell(
            input.unsqueeze(0), weights, self.bias, h.unsqueeze(0), c.unsqueeze(0)
        )
        return new_h.squeeze(0), new_cell.squeeze(0)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + (
            "" if self.bias is not None else ", bias=False"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *args: Any
    ) -> None:
        # The dictionary is a copy made by load_state_dict, so it may be changed.
        with hooks_run(self, state_dict, prefix, metadata, *args):
            why = wrong_cell("LLTMCell", "LLTM", state_dict, prefix, metadata)
            why = why or cell_from_layer(state_dict, prefix)
            if why:
                args[-1].append(why)
                return
            # The tutorial's bias is [1, 3H].
            bias = state_dict.get(prefix + "bias")
            if isinstance(bias, Tensor) and bias.dim() == 2 and bias.size(0) == 1:
                state_dict[prefix + "bias"] = bias.flatten()
            super()._load_from_state_dict(state_dict, prefix, metadata, *args)


def zeros(input: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The initial ``(h, c)`` if the caller gives none."""
    h = input.new_zeros(shape)  # a DTensor if input is one
    kind = input.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return h, h
    # Under autocast the ops keep the dtype of c, so c keeps the dtype of its initial value.
    return h, h.to(torch.promote_types(input.dtype, torch.float32))
