"""SLSTM: layers of xLSTM's sLSTM, in its stabilized form."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..._formula.cell import Cell
from ..recurrent import Recurrent

__all__ = ["SLSTM_CELL", "SLSTM"]


def _slstm(i: Any, f: Any, z: Any, o: Any, c: Any, n: Any, m: Any) -> Any:
    kept = F.logsigmoid(f) + m
    m = torch.where(n == 0, i, torch.maximum(i, kept))
    i, f = torch.exp(i - m), torch.exp(torch.clamp(kept - m, max=0.0))  # not inf where n is 0
    c, n = f * c + i * torch.tanh(z), f * n + i
    return torch.sigmoid(o) * (c / n), c, n, m


SLSTM_CELL = Cell("SLSTM", gates=("i", "f", "z", "o"), states=("c", "n", "m"), forward=_slstm)


class SLSTM(Recurrent):
    """Layers of xLSTM's sLSTM, with the interface of :class:`torch.nn.LSTM` and four states.

    Let i, f, z and o be the four blocks of ``W_ih x + b_ih + W_hh h + b_hh``. Then a step, in the
    paper's stabilized form with the sigmoid forget gate, is::

        m' = max(log(sigmoid(f)) + m, i)        (but i where n is 0, as before the first step)
        i = exp(i - m')
        f = exp(min(log(sigmoid(f)) + m - m', 0))
        c = f * c + i * tanh(z)
        n = f * n + i
        h = sigmoid(o) * c / n

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.LSTM.
        num_heads: the number of heads, a divisor of hidden_size. A hidden unit reads only the h of
            its own head, so ``weight_hh_l0`` is [4 H, H / num_heads].
        recompute: save less for the backward pass, which then recomputes the rest.

    A call takes and returns the states (h, c, n, m), each [num_layers * D, B, H].

    Parameters: those of :class:`treadle.nn.Recurrent`, with blocks of H rows in the order i, f, z,
    o.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: Beck et al., "xLSTM: Extended long short-term memory", 2024, appendix A.2.
    """

    _groups = "num_heads"

    def __init__(self, *args: Any, num_heads: int = 1, **kwargs: Any) -> None:
        if "groups" in kwargs:
            raise TypeError("SLSTM: groups must not be given: pass num_heads instead")
        super().__init__(SLSTM_CELL, *args, groups=num_heads, **kwargs)
