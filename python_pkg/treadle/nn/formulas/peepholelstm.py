"""PeepholeLSTM: layers of the LSTM whose gates also read the cell state."""

from __future__ import annotations

from typing import Any

import torch

from ..._formula.cell import Cell
from ..recurrent import Recurrent

__all__ = ["PEEPHOLELSTM_CELL", "PeepholeLSTM"]


def _peephole_lstm(
    i: Any, f: Any, g: Any, o: Any, c: Any, weight_ci: Any, weight_cf: Any, weight_co: Any
) -> Any:
    i, f = torch.sigmoid(i + weight_ci * c), torch.sigmoid(f + weight_cf * c)
    c = f * c + i * torch.tanh(g)
    return torch.sigmoid(o + weight_co * c) * torch.tanh(c), c


PEEPHOLELSTM_CELL = Cell(
    "PeepholeLSTM",
    gates=("i", "f", "g", "o"),
    states=("c",),
    values=("weight_ci", "weight_cf", "weight_co"),
    forward=_peephole_lstm,
)


class PeepholeLSTM(Recurrent):
    """Layers of the LSTM with peephole connections, with the interface of :class:`torch.nn.LSTM`.

    Let i, f, g and o be the four blocks of ``W_ih x + b_ih + W_hh h + b_hh``. Then a step is::

        i = sigmoid(i + weight_ci * c)
        f = sigmoid(f + weight_cf * c)
        c = f * c + i * tanh(g)
        h = sigmoid(o + weight_co * c) * tanh(c)

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.LSTM.
        recompute: save less for the backward pass, which then recomputes the rest.

    Parameters: those of torch.nn.LSTM, and ``weight_ci_l0``, ``weight_cf_l0`` and ``weight_co_l0``,
    each [H], for each layer and direction.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Gers and Schmidhuber, "Recurrent nets that time and count", 2000; in the form of Graves,
    "Generating sequences with recurrent neural networks", 2013, equations (7) to (11).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(PEEPHOLELSTM_CELL, *args, **kwargs)
