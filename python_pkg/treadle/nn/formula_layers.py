"""Layers whose cells are formulas (treadle.Cell): LiGRU and MGU."""

from __future__ import annotations

from typing import Any

import torch

from .._formula.cell import Cell
from .recurrent import Recurrent

__all__ = ["LiGRU", "MGU"]


def _ligru(a: Any, z: Any, h: Any) -> Any:
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


def _mgu(n_h: Any, f: Any, n_x: Any, h: Any) -> Any:
    f = torch.sigmoid(f)
    return h + f * (torch.tanh(n_x + f * n_h) - h)


LIGRU_CELL = Cell("LiGRU", gates=("a", "z"), forward=_ligru)
MGU_CELL = Cell("MGU", gates=("n_h", "f", "n_x"), only_state="n_h", only_input="n_x", forward=_mgu)


class LiGRU(Recurrent):
    """Layers of the light GRU, with the interface of :class:`torch.nn.GRU`.

    A step, with a and z two blocks of ``W_ih x + b_ih + W_hh h + b_hh``::

        z = sigmoid(z)
        h = z * h + (1 - z) * relu(a)

    relu does not bound h. The paper normalizes the products of x by batch norm.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as torch.nn.GRU.
        recompute: keep less for the backward pass, which then recomputes it.

    Parameters: those of :class:`treadle.nn.Recurrent`, with blocks of H rows in the order a, z.
    SpeechBrain's layers have the same order.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Ravanelli, Brakel, Omologo and Bengio, "Light gated recurrent units for speech
    recognition", 2018.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(LIGRU_CELL, *args, **kwargs)


class MGU(Recurrent):
    """Layers of the minimal gated unit, with the interface of :class:`torch.nn.GRU`.

    A step, with ``x_f, x_n = W_ih x + b_ih`` and ``h_n, h_f = W_hh h + b_hh``::

        f = sigmoid(x_f + h_f)
        h = (1 - f) * h + f * tanh(x_n + f * h_n)

    The paper multiplies h by f before its product. Here f multiplies the product, as in torch's
    GRU, so that a step has one product of h.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as torch.nn.GRU.
        recompute: keep less for the backward pass, which then recomputes it.

    Parameters: those of :class:`treadle.nn.Recurrent`, with blocks of H rows in the order f, n in
    ``weight_ih`` and n, f in ``weight_hh``.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Zhou, Wu, Zhang and Zhou, "Minimal gated unit for recurrent neural networks", 2016.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(MGU_CELL, *args, **kwargs)
