"""Layers whose cells are formulas (treadle.Cell): LiGRU, MGU and SLSTM."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .._formula.cell import Cell
from .recurrent import Recurrent

__all__ = ["LiGRU", "MGU", "SLSTM"]


def _ligru(a: Any, z: Any, h: Any) -> Any:
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


def _mgu(n_h: Any, f: Any, n_x: Any, h: Any) -> Any:
    f = torch.sigmoid(f)
    return h + f * (torch.tanh(n_x + f * n_h) - h)


def _slstm(i: Any, f: Any, z: Any, o: Any, c: Any, n: Any, m: Any) -> Any:
    kept = F.logsigmoid(f) + m
    m = torch.where(n == 0, i, torch.maximum(i, kept))
    i, f = torch.exp(i - m), torch.exp(torch.clamp(kept - m, max=0.0))  # not inf where n is 0
    c, n = f * c + i * torch.tanh(z), f * n + i
    return torch.sigmoid(o) * (c / n), c, n, m


LIGRU_CELL = Cell("LiGRU", gates=("a", "z"), forward=_ligru)
MGU_CELL = Cell("MGU", gates=("n_h", "f", "n_x"), only_state="n_h", only_input="n_x", forward=_mgu)

SLSTM_CELL = Cell("SLSTM", gates=("i", "f", "z", "o"), states=("c", "n", "m"), forward=_slstm)


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


class MGU(Recurrent):
    """Layers of the minimal gated unit, with the interface of :class:`torch.nn.GRU`.

    Let ``x_f, x_n = W_ih x + b_ih`` and ``h_n, h_f = W_hh h + b_hh``. Then a step is::

        f = sigmoid(x_f + h_f)
        h = (1 - f) * h + f * tanh(x_n + f * h_n)

    The paper multiplies h by f, and the result by the weight. This layer multiplies the product of
    h and the weight by f, just as torch's GRU multiplies it by r. So a step needs only one matrix
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
            raise TypeError("SLSTM: groups must not be given: num_heads is their number")
        super().__init__(SLSTM_CELL, *args, groups=num_heads, **kwargs)
