"""Cells that are defined by formulas, for tests. Some of them are also built into treadle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import treadle
from treadle import Cell
from treadle.nn.formulas import CELLS


def lstm(i: Any, f: Any, g: Any, o: Any, c: Any) -> Any:
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(n_h: Any, r: Any, z: Any, n_x: Any, h: Any) -> Any:
    n, z = torch.tanh(n_x + torch.sigmoid(r) * n_h), torch.sigmoid(z)
    return (1 - z) * n + z * h


def ligru(a: Any, z: Any, h: Any) -> Any:
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


def fast(a: Any, h: Any) -> Any:
    """A cell with one gate, whose new h is not affine in h."""
    return torch.tanh(a + 0.1 * torch.sin(h))


def coupled(f: Any, g: Any, o: Any, c: Any) -> Any:
    """Like an LSTM, but with 1 - f as the input gate, and with another output."""
    f = torch.sigmoid(f)
    c = f * c + (1 - f) * F.silu(g)
    return torch.sigmoid(o + 0.2 * c) * c, c


def decaying(a: Any, h: Any, decay: Any) -> Any:
    """A cell without states besides h, but with a learned value."""
    keep = torch.sigmoid(decay)
    return keep * h + (1 - keep) * torch.tanh(a)


LSTM = Cell("lstm", gates=("i", "f", "g", "o"), states=("c",), forward=lstm)
GRU = Cell("gru", gates=("n_h", "r", "z", "n_x"), only_state="n_h", only_input="n_x", forward=gru)
LIGRU = Cell("ligru", gates=("a", "z"), forward=ligru)
FAST = Cell("fast", gates=("a",), forward=fast)
SLSTM = CELLS["SLSTM"]
COUPLED = Cell("coupled", gates=("f", "g", "o"), states=("c",), forward=coupled)
DECAYING = Cell("decaying", gates=("a",), values=("decay",), forward=decaying)
PEEPHOLE = CELLS["PeepholeLSTM"]
EACH = (LSTM, GRU, LIGRU, FAST, COUPLED, SLSTM, DECAYING, PEEPHOLE)


def with_weights_of(layer: Any, cell: Cell) -> treadle.nn.Recurrent:
    """A treadle.nn.Recurrent of ``cell`` with the weights of ``layer``, a treadle.nn.LSTM or GRU.
    The GRU's weights have the gates in torch's order r, z, n."""
    arguments = layer.input_size, layer.hidden_size, layer.num_layers
    options = {
        name: getattr(layer, name) for name in ("bias", "batch_first", "dropout", "bidirectional")
    }
    weight = layer.weight_ih_l0
    own = treadle.nn.Recurrent(
        cell, *arguments, **options, device=weight.device, dtype=weight.dtype
    )
    state = layer.state_dict()
    if cell is GRU:
        for name, value in state.items():
            r, z, n = value.chunk(3)
            state[name] = torch.cat([n, r, z] if "_hh" in name else [r, z, n])
    own.load_state_dict(state)
    return own
