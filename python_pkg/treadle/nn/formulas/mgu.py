"""MGU: layers of the minimal gated unit."""

from __future__ import annotations

from typing import Any

import torch

from ..._formula.cell import Cell
from ..recurrent import Recurrent

__all__ = ["MGU_CELL", "MGU"]


def _mgu(n_h: Any, f: Any, n_x: Any, h: Any) -> Any:
    f = torch.sigmoid(f)
    return h + f * (torch.tanh(n_x + f * n_h) - h)


MGU_CELL = Cell("MGU", gates=("n_h", "f", "n_x"), only_state="n_h", only_input="n_x", forward=_mgu)


class MGU(Recurrent):
    """Layers of the minimal gated unit, with the interface of :class:`torch.nn.GRU`.

    Let ``x_f, x_n = W_ih x + b_ih`` and ``h_n, h_f = W_hh h + b_hh``. Then a step is::

        f = sigmoid(x_f + h_f)
        h = (1 - f) * h + f * tanh(x_n + f * h_n)

    The paper multiplies h by f, and the result by the weight. This layer multiplies the product of
    h and the weight by f, just as torch's GRU does with r. So a step needs only one matrix
    product of h.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.GRU.
        recompute: save less for the backward pass, which then recomputes the rest.

    Parameters: those of :class:`treadle.nn.Recurrent`, with blocks of H rows in the order f, n in
    ``weight_ih`` and n, f in ``weight_hh``.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Zhou, Wu, Zhang and Zhou, "Minimal gated unit for recurrent neural networks", 2016.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(MGU_CELL, *args, **kwargs)
