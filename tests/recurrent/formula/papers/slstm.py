"""A layer of sLSTM as a loop over the steps, by equations (8) to (12) of the xLSTM paper. They do
not contain the stabilizer m, because m cancels in c / n, and therefore in all gradients."""

from __future__ import annotations

import torch
from torch import Tensor

import treadle


def run(layer: treadle.nn.Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output [T, B, H] for x [T, B, I], and the last states [B, H], starting from zeros."""
    width, own, found = layer.hidden_size, layer.weight_hh_l0.shape[1], []
    h = c = n = x.new_zeros(x.shape[1], width)
    for row in x:
        of_h = [
            h[:, head : head + own] @ layer.weight_hh_l0[gate * width + head :][:own].T
            for gate in range(4)
            for head in range(0, width, own)
        ]
        gates = row @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0
        i, f, z, o = (gates + torch.cat(of_h, -1)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        found.append(h)
    return torch.stack(found), (h, c, n)
