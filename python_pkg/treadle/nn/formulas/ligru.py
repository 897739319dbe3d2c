"""LiGRU: layers of the light GRU, whose candidate state is computed with relu."""

from __future__ import annotations

from typing import Any

import torch

from ..._formula.cell import Cell
from ..recurrent import Recurrent

__all__ = ["LIGRU_CELL", "LiGRU"]


def _ligru(a: Any, z: Any, h: Any) -> Any:
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


LIGRU_CELL = Cell("LiGRU", gates=("a", "z"), forward=_ligru)


class LiGRU(Recurrent):
    """Layers of the light GRU, with the interface of :class:`torch.nn.GRU`.

    Let a and z be the two blocks of ``W_ih x + b_ih + W_hh h + b_hh``. Then a step is::

        z = sigmoid(z)
        h = z * h + (1 - z) * relu(a)

    relu does not bound h. The paper also applies batch norm to the products of x. This layer does
    not.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.GRU.
        recompute: save less for the backward pass, which then recomputes the rest.

    Parameters: those of :class:`treadle.nn.Recurrent`, with blocks of H rows in the order a, z.
    SpeechBrain's layers have the same order.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Ravanelli, Brakel, Omologo and Bengio, "Light gated recurrent units for speech
    recognition", 2018.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(LIGRU_CELL, *args, **kwargs)
