"""A layer of the LSTM with peephole connections as a loop over the steps."""

from __future__ import annotations

import torch
from torch import Tensor

import treadle


def run(layer: treadle.nn.Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output [T, B, H] for x [T, B, I], and the last states [B, H], starting from zeros."""
    h = c = x.new_zeros(x.shape[1], layer.hidden_size)
    found = []
    for row in x:
        gates = row @ layer.weight_ih_l0.T + layer.bias_ih_l0
        i, f, g, o = (gates + h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(4, -1)
        i = torch.sigmoid(i + c * layer.weight_ci_l0)
        f = torch.sigmoid(f + c * layer.weight_cf_l0)
        c = f * c + i * torch.tanh(g)
        h = torch.sigmoid(o + c * layer.weight_co_l0) * torch.tanh(c)
        found.append(h)
    return torch.stack(found), (h, c)
