"""A layer of the minimal gated unit as a loop over the steps."""

from __future__ import annotations

import torch
from torch import Tensor

import treadle


def run(layer: treadle.nn.Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output [T, B, H] for x [T, B, I], and the last states [B, H], starting from zeros."""
    h, found = x.new_zeros(x.shape[1], layer.hidden_size), []
    for row in x:
        x_f, x_n = (row @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(2, -1)
        h_n, h_f = (h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(2, -1)
        f = torch.sigmoid(x_f + h_f)
        h = (1 - f) * h + f * torch.tanh(x_n + f * h_n)
        found.append(h)
    return torch.stack(found), (h,)
