"""FlopCounterMode counts as many FLOPs for an op as for its reference, and the correct number for a
module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import treadle
from tests.support.cases import OPS
from tests.support.inputs import Call, Case, Op, outputs, requiring_grad

Run = Callable[[], Any]


def flops(run: Run) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        run()
    return counter.get_total_flops()


def backward(values: Any) -> None:
    found = [y for y in outputs(values) if y.requires_grad]
    torch.autograd.backward(found, [torch.ones_like(y) for y in found])


def both(op: Op, call: Call) -> list[tuple[int, int]]:
    """Returns the FLOPs of the op and its reference, for a forward pass without gradients, then for
    forward and backward together."""
    plain = call.map(lambda t: t.detach())
    return [
        (flops(lambda: plain.run(function)), flops(lambda: backward(call.run(function))))  # noqa: B023
        for function in (op.function, op.reference)
    ]


def chosen() -> list[Any]:
    """Returns all cases of elementwise ops, cells and sine layers, and those cases of recurrent
    layers whose matrix products differ."""
    words = ("B2 I2 H2", "T1 B3", "lengths 3,3,1", "no bias", "no directions T3", "some, rows")
    return [
        pytest.param(op, case, id=case.id)
        for op in OPS.values()
        for case in op.cases
        if not case.big and (not op.is_layer or any(word in case.id for word in words))
        if "recompute" not in case.id
    ]


@pytest.mark.parametrize(("op", "case"), chosen())
def test_as_the_reference(op: Op, case: Case) -> None:
    ours, reference = both(op, requiring_grad(op, case.call()))
    assert ours == reference
    assert op.elementwise or op.name == "affine_scan" or 0 in sizes(case) or ours[0] > 0


def sizes(case: Case) -> list[int]:
    return [n for t in case.call().args if isinstance(t, Tensor) for n in t.shape]


def each_subset() -> list[Any]:
    # lltm is left out: its reference multiplies h and input in one product, whereas our op computes
    # only the requested part.
    names = ("sine_linear", "recurrent_layer lstm", "recurrent_layer gru")
    return [
        pytest.param(OPS[name], i, id=f"{name} {i}")
        for name in names
        for i in OPS[name].differentiable
    ]


@pytest.mark.parametrize(("op", "position"), each_subset())
def test_of_one_gradient(op: Op, position: int) -> None:
    """For layers, the gradient of h0 is always requested, because without it torch skips a product
    in the first step."""
    case = next(case for case in op.cases if 0 not in sizes(case) and not case.big)
    wanted = sorted({position, 2} if op.is_layer else {position})
    ours, reference = both(op, requiring_grad(op, case.call(), wanted))
    assert ours == reference


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.is_layer])
def test_recompute(name: str) -> None:
    op = OPS[name]
    case = next(case for case in op.cases if "recompute" in case.id and not case.big)
    (forward, all_passes), reference = both(op, requiring_grad(op, case.call()))
    assert (forward, all_passes - forward) == reference


def sines(x: Tensor, weights: list[Tensor]) -> Tensor:
    for w in weights:
        x = treadle.sine_linear(x, w, None, 30.0)
    return x


def plain_sines(x: Tensor, weights: list[Tensor]) -> Tensor:
    for w in weights:
        x = torch.sin(30.0 * nn.functional.linear(x, w))
    return x


def of_gradient(net: Callable[..., Tensor], x: Tensor, weights: list[Tensor]) -> Tensor:
    (slope,) = torch.autograd.grad(net(x, weights).sum(), x, create_graph=True)
    return slope.square().sum()


def of_laplacian(net: Callable[..., Tensor], x: Tensor, weights: list[Tensor]) -> Tensor:
    (slope,) = torch.autograd.grad(net(x, weights).sum(), x, create_graph=True)
    second = (torch.autograd.grad(s.sum(), x, create_graph=True)[0] for s in slope.unbind(-1))
    return torch.stack(list(second)).square().sum()


@pytest.mark.parametrize("loss", [of_gradient, of_laplacian])
def test_losses_of_derivatives(loss: Callable[..., Tensor]) -> None:
    weights = [torch.rand(*shape, requires_grad=True) for shape in ((8, 3), (8, 8), (1, 8))]
    x = torch.rand(7, 3, requires_grad=True)
    ours, plain = (
        flops(lambda: loss(net, x, weights).backward())  # noqa: B023
        for net in (sines, plain_sines)
    )
    assert ours == plain > 0


def test_modules() -> None:
    """Compares with FLOPs counted by hand. The input requires no gradient."""
    x, t, b, i, h = torch.rand(5, 3, 4), 5, 3, 4, 6
    sine = treadle.nn.SineLinear(i, h)
    assert flops(lambda: backward(sine(x))) == 2 * 2 * t * b * i * h
    assert flops(lambda: backward(nn.Linear(i, h)(x))) == 2 * 2 * t * b * i * h
    cell = treadle.nn.LLTMCell(i, h)
    assert flops(lambda: backward(cell(x[0]))) == 2 * 2 * b * 3 * h * (i + h)
    kinds = {treadle.nn.LLTM: 3, treadle.nn.LSTM: 4, treadle.nn.GRU: 3, treadle.nn.RNN: 1}
    for cells, gates in kinds.items():
        layers = cells(i, h, num_layers=2, bidirectional=True)
        forward = [2 * t * b * 2 * gates * h * n for n in (i, h, 2 * h, h)]
        # Every product has two gradients except the first, whose input requires none.
        assert flops(lambda: layers(x)) == sum(forward)  # noqa: B023
        assert flops(lambda: backward(layers(x)[0])) == 3 * sum(forward) - forward[0]  # noqa: B023
        with torch.inference_mode():
            assert flops(lambda: layers(x)) == sum(forward)  # noqa: B023
