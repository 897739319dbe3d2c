"""LSTMCell, GRUCell and RNNCell: torch.nn's cells on treadle's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ._cell_front import GRU_CELL, LSTM_CELL, RNN_CELL, TorchCell
from ._methods import Replaceable

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class LSTMCell(TorchCell, nn.LSTMCell, metaclass=Replaceable):
    """:class:`torch.nn.LSTMCell` on treadle's kernels.

    This is a subclass of torch's cell, with the same parameters, initialisation, ``state_dict``,
    arguments, results and errors. :func:`treadle.nn.replace` gives its forward pass to the cells of
    an existing model. Double backward, forward mode and vmap work on every device. If all steps of
    the input are known in advance, :class:`treadle.nn.LSTM` runs them in one call.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state and of the cell state.
        bias: whether the cell has its two biases.
        device: where the parameters are created.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Raises:
        The errors of torch.nn.LSTMCell; RuntimeError: ``dtype`` is none of these.

    Example::

        cell = treadle.nn.LSTMCell(8, 64)
        hx = None
        for row in rows:        # [T, B, 8]
            hx = cell(row, hx)
        h, c = hx               # [B, 64] each
    """

    _front = LSTM_CELL

    if TYPE_CHECKING:

        def forward(
            self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
        ) -> tuple[Tensor, Tensor]: ...


class GRUCell(TorchCell, nn.GRUCell, metaclass=Replaceable):
    """:class:`torch.nn.GRUCell` on treadle's kernels.

    This is a subclass of torch's cell, with the same parameters, initialisation, ``state_dict``,
    arguments, results and errors. :func:`treadle.nn.replace` gives its forward pass to the cells of
    an existing model. Double backward, forward mode and vmap work on every device. If all steps of
    the input are known in advance, :class:`treadle.nn.GRU` runs them in one call.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state.
        bias: whether the cell has its two biases.
        device: where the parameters are created.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Raises:
        The errors of torch.nn.GRUCell; RuntimeError: ``dtype`` is none of these.

    Example::

        cell = treadle.nn.GRUCell(8, 64)
        h = None
        for row in rows:        # [T, B, 8]
            h = cell(row, h)    # [B, 64]
    """

    _front = GRU_CELL

    if TYPE_CHECKING:

        def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor: ...


class RNNCell(TorchCell, nn.RNNCell, metaclass=Replaceable):
    """:class:`torch.nn.RNNCell` on treadle's kernels.

    This is a subclass of torch's cell, with the same parameters, initialisation, ``state_dict``,
    arguments, results and errors. :func:`treadle.nn.replace` gives its forward pass to the cells of
    an existing model. Double backward, forward mode and vmap work on every device. If all steps of
    the input are known in advance, :class:`treadle.nn.RNN` runs them in one call.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state.
        bias: whether the cell has its two biases.
        nonlinearity: "tanh" or "relu".
        device: where the parameters are created.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Raises:
        The errors of torch.nn.RNNCell; RuntimeError: ``dtype`` is none of these.

    Example::

        cell = treadle.nn.RNNCell(8, 64)
        h = None
        for row in rows:        # [T, B, 8]
            h = cell(row, h)    # [B, 64]
    """

    _front = RNN_CELL

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, nonlinearity=nonlinearity)

    if TYPE_CHECKING:

        def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor: ...
