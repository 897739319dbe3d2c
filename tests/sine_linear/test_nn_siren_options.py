"""Siren's options from siren-pytorch: networks without biases, dropout, a final activation."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.inputs import DEVICES
from treadle.nn import SineLinear, Siren

DROP = 0.4


def made(device: str = "cpu", **options: Any) -> Siren:
    given = {"bias": False, "final_activation": nn.Tanh(), "dropout": DROP, **options}
    torch.manual_seed(0)
    return Siren(2, 12, 1, 3, True, 5.0, 3.0, device=device, dtype=torch.float64, **given)


def points(device: str = "cpu") -> Tensor:
    return torch.rand(20, 2, device=device, dtype=torch.float64) * 2 - 1


def composed(net: Siren, x: Tensor) -> Tensor:
    """Dropout follows every layer except the last, and the activation follows the last one."""
    for layer in net.net.children():
        if isinstance(layer, SineLinear):
            x = F.dropout(torch.sin(layer.omega_0 * F.linear(x, layer.weight)), DROP, net.training)
    return torch.tanh(F.linear(x, net.net.get_submodule("2").weight))


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("training", [True, False])
def test_computes_the_composition(device: str, training: bool) -> None:
    net, x = made(device).train(training), points(device).requires_grad_()
    assert sum(1 for _ in net.parameters()) == 3
    found = []
    for call in (net, lambda x: composed(net, x)):
        torch.manual_seed(1)
        y = call(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        found.append([y, slope, bend, *torch.autograd.grad(bend.square().sum(), net.parameters())])
    assert all(t.abs().max() > 1e-6 for t in found[0])
    same(*found)


def test_what_is_not_asked_for_is_not_there() -> None:
    plain = Siren(2, 12, 1, 3, True)
    assert [name for name, _ in plain.net.named_children()] == ["0", "1", "2"]
    names = ["0", "dropout_0", "1", "dropout_1", "2", "activation"]
    assert [name for name, _ in made().net.named_children()] == names
    keys = ["net.0.weight", "net.0._extra_state", "net.1.weight", "net.1._extra_state"]
    assert list(made().state_dict()) == [*keys, "net.2.weight"]
    assert all(layer.bias is None for layer in made().net if hasattr(layer, "bias"))


def test_parameters_are_drawn_as_without_them() -> None:
    for _ in range(2):
        net = made(bias=True)
        net.reset_parameters()
        torch.manual_seed(0)
        plain = Siren(2, 12, 1, 3, True, 5.0, 3.0, dtype=torch.float64)
        plain.reset_parameters()
        assert all(map(torch.equal, net.parameters(), plain.parameters()))
        assert net.net[4].weight.abs().max() <= (6 / 12) ** 0.5 / 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic: bool) -> None:
    torch._dynamo.reset()  # other tests compiled the same class
    net = made()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for training in (True, False):
        net.train(training)
        for rows in (20, 11):
            x, found = points()[:rows], []
            for call in (compiled, net):
                torch.manual_seed(1)
                y = call(x)
                found.append([y, *torch.autograd.grad(y.square().sum(), net.parameters())])
            same(*found)


def test_transforms_and_copies() -> None:
    net, x = made().eval(), points()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(other) == repr(net) and torch.equal(other(x), net(x))
    hessian = torch.func.hessian(lambda x: net(x).sum())
    same(torch.func.vmap(hessian)(x), torch.stack([hessian(row) for row in x]))
    nets = [made(dropout=0.1 * k).eval() for k in (1, 2)]
    params, buffers = torch.func.stack_module_state(nets)

    def call(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(nets[0], (params, buffers), (x,))

    for out, one in zip(torch.func.vmap(call, (0, 0, None))(params, buffers, x), nets, strict=True):
        same(out, one(x))
    nets[0].train()
    drawn = torch.func.vmap(call, (0, 0, None), randomness="different")(params, buffers, x)
    assert not torch.equal(drawn[0], drawn[1])
    exported = torch.export.export(net, (x,)).module()
    same(exported(x), net(x))
