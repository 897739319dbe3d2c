"""On the CPU, a row gives the same bits by itself and in any batch.

BLAS computes the products of the input in an order of summation that depends on the number of rows.
So the input and its weights have few significant bits here, which makes these products exact.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import treadle

STEPS, BATCH, INPUTS = 6, 13, 5


def few_digits(t: Tensor) -> Tensor:
    return (4 * t).round() / 4


def rows(layer: torch.nn.RNNBase, x: Tensor, h: Tensor) -> list[Tensor]:
    """The output, and the gradient of h0 for a loss with different weights for each step."""
    h = h.detach().requires_grad_()
    states = h if isinstance(layer, torch.nn.GRU) else (h, torch.ones_like(h))
    output = layer(x, states)[0]
    weights = torch.linspace(0, 1, STEPS, dtype=x.dtype).view(-1, 1, 1)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), h)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [3, 16, 33, 64, 130])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "LLTM"])
def test_a_row_has_its_bits_in_any_batch(cell: str, hidden: int, dtype: torch.dtype) -> None:
    layer = getattr(treadle.nn, cell)(INPUTS, hidden, dtype=dtype)
    layer.weight_ih_l0.data.copy_(few_digits(layer.weight_ih_l0.data))
    x = few_digits(torch.randn(STEPS, BATCH, INPUTS, dtype=dtype))
    h = torch.randn(1, BATCH, hidden, dtype=dtype)
    together = rows(layer, x, h)
    for count in (1, 2, 3, 4, 5, 6, 8):
        parts = zip(x.split(count, 1), h.split(count, 1), strict=True)
        apart = zip(*(rows(layer, *part) for part in parts), strict=True)
        for whole, found in zip(together, apart, strict=True):
            assert torch.equal(torch.cat(found, 1), whole), count
