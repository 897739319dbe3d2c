"""recurrent_layer with extreme values: saturated gates, large candidates, rows of very different
lengths, NaN and inf."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import BLOCKS, EACH_CELL, GATES, layer_arguments
from tests.support.cases import DEVICES, FLOATING, OPS
from tests.support.inputs import Make
from tests.support.rule import obeys
from treadle import reference

CANDIDATES = slice(14, 21)  # the candidate's rows of weight_ih for H 7, in every cell with gates


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_saturated_gates_and_large_candidates(cell: str, dtype: torch.dtype, device: str) -> None:
    """Tests gates of about 10 to 100, where sigmoid is near 0 or 1, and candidates of up to 1e4."""
    make = Make("extremes", device, dtype)
    state = torch.float32 if dtype.itemsize == 2 else None
    call = layer_arguments(make, (3, 4, 5, 7), cell=cell, directions=2, state=state)
    x, _, _, _, weight_ih, *_ = call.args
    x.mul_(10)
    if GATES[cell] > 1:
        weight_ih[:, CANDIDATES].mul_(300)
    gates = torch.einsum("tbi,dgi->tbdg", x.double(), weight_ih.double()).abs()
    assert gates[..., :14].max() > 15 and (GATES[cell] == 1 or 2e3 < gates.max() < 2e4)
    obeys(OPS[f"recurrent_layer {cell}"], call)


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
def test_lengths_that_differ_a_thousandfold(cell: str, device: str) -> None:
    make = Make("lengths", device, torch.float64)
    lengths = (2000, 1999, 2, 2, 1)
    sizes = torch.tensor([sum(n > t for n in lengths) for t in range(lengths[0])])
    x, h0, c0 = make(sum(lengths), 2), make(2, 5, 3), make(2, 5, 3)
    # Recurrent weights are small. With larger ones, 2000 steps would diverge from any reference.
    width = 3 * BLOCKS[cell]
    weights = make(2, width, 2), make(2, width, 3, by=0.2), make(2, width)

    def run(function: object) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in (x, h0, c0, *weights)]
        results = function(leaves[0], sizes, *leaves[1:], None, cell=cell)  # type: ignore[operator]
        total = sum((t * t).mean() for t in results)
        return [*results, *torch.autograd.grad(total, leaves)]

    ours, theirs = run(torch.ops.treadle.recurrent_layer), run(reference.recurrent_layer)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_relu_as_torchs_where_values_are_not_finite(dtype: torch.dtype, device: str) -> None:
    """relu passes NaN on, and blocks an infinite gradient where its output is 0."""
    ours = treadle.nn.RNN(3, 4, nonlinearity="relu", device=device, dtype=dtype)
    theirs = torch.nn.RNN(3, 4, nonlinearity="relu", device=device, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 8, 3, device=device, dtype=dtype)
    x[1, 0, 0], x[1, 1, 0], x[1, 2, 0] = float("nan"), float("inf"), -float("inf")
    grad = torch.ones(5, 8, 4, device=device, dtype=dtype)
    grad[3, 4] = float("inf")
    kinds = []
    for layer in (ours, theirs):
        given = x.clone().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            output, _ = layer(given)
            found = torch.autograd.grad(output, given, grad)[0]
        kinds.append([(t.isnan(), t.isinf(), t == 0) for t in (output.detach(), found)])
    for a, b in zip(*kinds, strict=True):
        assert all(map(torch.equal, a, b))
