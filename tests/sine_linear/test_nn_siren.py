"""SineLinear and Siren: PyTorch's conventions, and the initialisation of the SIREN paper."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal import common_modules

from tests.support.inputs import DEVICES, FLOATING, HALVES
from treadle.nn import SineLinear, Siren

B, I, O = 6, 5, 7  # noqa: E741


def composed(layer: SineLinear | nn.Linear, x: Tensor) -> Tensor:
    z = F.linear(x, layer.weight, layer.bias)
    return torch.sin(layer.omega_0 * z) if isinstance(layer, SineLinear) else z


def composed_siren(net: Siren, x: Tensor) -> Tensor:
    for layer in net.net:
        x = composed(layer, x)
    return x


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(I,), (B, I), (0, I), (2, 1, 3, I)])
def test_computes_the_composition(device: str, bias: bool, shape: tuple[int, ...]) -> None:
    for omega, first in ((30.0, False), (-3, False), (30, True), (0, True)):
        layer = SineLinear(I, O, bias, first, omega, device=device, dtype=torch.float64)
        x = torch.randn(shape, device=device, dtype=torch.float64)
        assert layer(x).shape == (*shape[:-1], O)
        same(layer(x), composed(layer, x))


@pytest.mark.parametrize("device", DEVICES)
def test_module_samples_of_linear(device: str) -> None:
    samples = common_modules.module_inputs_torch_nn_Linear(
        None, device, torch.float64, False, training=True
    )
    assert len(samples) >= 3
    for sample in samples:
        arguments = sample.constructor_input
        ours, theirs = (
            kind(*arguments.args, **arguments.kwargs, device=device, dtype=torch.float64)
            for kind in (SineLinear, nn.Linear)
        )
        theirs.load_state_dict(dict(ours.named_parameters()))
        given = sample.forward_input
        (x,) = (*given.args, *given.kwargs.values())
        same(ours(x), torch.sin(30 * theirs(x)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_outputs_have_the_dtype_of_the_input(device: str, dtype: torch.dtype) -> None:
    net = Siren(2, 8, 1, 3, outermost_linear=True, device=device, dtype=dtype)
    y = net(torch.rand(B, 2, device=device, dtype=dtype))
    assert (y.dtype, y.shape, y.device.type) == (dtype, (B, 3), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_lowers_the_precision(device: str, dtype: torch.dtype) -> None:
    layer = SineLinear(I, O, device=device)
    with torch.autocast(device, dtype):
        y = layer(torch.randn(B, I, device=device))
    assert y.dtype == dtype
    y.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("between", [0, 2])
def test_siren_is_its_layers(device: str, linear: bool, between: int) -> None:
    net = Siren(2, 16, between, 3, linear, 20.0, 10.0, device=device, dtype=torch.float64)
    assert len(net.net) == between + 2
    omegas = [layer.omega_0 for layer in net.net if isinstance(layer, SineLinear)]
    assert omegas == [20.0] + [10.0] * (between + (not linear))
    assert [getattr(layer, "is_first", False) for layer in net.net] == [True] + [False] * (
        between + 1
    )
    assert isinstance(net.net[-1], nn.Linear if linear else SineLinear)
    x = torch.rand(B, 2, device=device, dtype=torch.float64)
    same(net(x), composed_siren(net, x))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_a_laplacian(device: str) -> None:
    net = Siren(2, 12, 2, 1, True, device=device, dtype=torch.float64)
    found = []
    for call in (net, lambda x: composed_siren(net, x)):
        x = torch.linspace(-1, 1, 2 * B, device=device, dtype=torch.float64).reshape(B, 2)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        twice = [
            torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in (0, 1)
        ]
        laplacian = twice[0] + twice[1]
        leaves = [p for name, p in net.named_parameters() if name != "net.3.bias"]
        found.append([slope, laplacian, *torch.autograd.grad(laplacian.square().mean(), leaves)])
    assert all(t.abs().max() > 1e-6 for t in found[0])
    for ours, plain in zip(*found, strict=True):
        largest = float(plain.detach().abs().max())
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9 * largest)


def assert_uniform(tensor: Tensor, bound: float) -> None:
    """Weights nearly reach the bounds and have the standard deviation of a uniform distribution."""
    assert 0.97 * bound < tensor.max() <= bound and -bound <= tensor.min() < -0.97 * bound
    assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_layers_are_drawn_as_in_the_paper() -> None:
    torch.manual_seed(3)
    for omega in (30.0, -7.0):
        layer, first = (SineLinear(96, 512, is_first=f, omega_0=omega) for f in (False, True))
        assert_uniform(layer.weight, math.sqrt(6 / 96) / abs(omega))
        assert_uniform(first.weight, 1 / 96)
        for drawn in (layer, first):
            assert_uniform(drawn.bias, 1 / math.sqrt(96))
            assert [p.requires_grad for p in drawn.parameters()] == [True, True]
    net = Siren(2, 300, 1, 500, outermost_linear=True, hidden_omega_0=5.0)
    for _ in range(2):
        assert_uniform(net.net[0].weight, 1 / 2)
        for layer in net.net[1:]:
            assert_uniform(layer.weight, math.sqrt(6 / 300) / 5)
            assert_uniform(layer.bias, 1 / math.sqrt(300))
        before = copy.deepcopy(net.state_dict())
        net.reset_parameters()
        assert not any(torch.equal(drawn, before[name]) for name, drawn in net.named_parameters())


def test_phases_keep_their_distribution() -> None:
    """The initialisation keeps phases at about N(0, 1) in every hidden layer, however deep."""
    torch.manual_seed(0)
    net = Siren(2, 256, 4, 1)
    h = net.net[0](torch.rand(2000, 2) * 2 - 1)
    for layer in net.net[1:-1]:
        u = layer.omega_0 * F.linear(h, layer.weight, torch.zeros(256))
        assert 0.85 < u.std() < 1.15
        h = layer(h)


@pytest.mark.parametrize("kind", [SineLinear, Siren])
def test_a_seed_draws_the_same(kind: type[nn.Module]) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append((SineLinear(I, O) if kind is SineLinear else Siren(I, 8, 1, O)).state_dict())
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


def test_without_bias_there_is_no_parameter() -> None:
    layer = SineLinear(I, O, bias=False)
    assert layer.bias is None and list(layer.state_dict()) == ["weight", "_extra_state"]


def test_says_what_it_is() -> None:
    assert repr(SineLinear(2, 64)) == "SineLinear(2, 64, omega_0=30)"
    text = repr(SineLinear(2, 64, bias=False, is_first=True, omega_0=2.5))
    assert text == "SineLinear(2, 64, bias=False, is_first=True, omega_0=2.5)"
    assert "SineLinear(2, 8, is_first=True, omega_0=30)" in repr(Siren(2, 8, 1, 1))


@pytest.mark.parametrize("kind", [SineLinear, Siren])
def test_copies_and_files_keep_everything(kind: type[nn.Module]) -> None:
    def make() -> nn.Module:
        return SineLinear(2, O) if kind is SineLinear else Siren(2, 8, 2, O, True, 20.0, 10.0)

    module, loaded, file = make(), make(), io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = torch.rand(B, 2)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert repr(other) == repr(module)
        assert torch.equal(other(x), module(x))
        pairs = zip(other.parameters(), module.parameters(), strict=True)
        assert all(a.data_ptr() != b.data_ptr() for a, b in pairs)


def test_meta_device() -> None:
    with torch.device("meta"):
        inside = Siren(2, 8, 1, 1)
    net = Siren(2, 8, 1, 1, True, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta for p in (*inside.parameters(), *net.parameters()))
    y = net(torch.empty(B, 2, device="meta", dtype=torch.bfloat16))
    assert y.is_meta and y.shape == (B, 1) and y.dtype == torch.bfloat16
    net.to_empty(device="cpu").reset_parameters()
    assert net(torch.rand(B, 2).bfloat16()).isfinite().all()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic: bool) -> None:
    # NumPy integers as sizes must not break torch.compile.
    net = Siren(np.int64(2), np.int32(8), np.int8(1), 3, True, np.float32(20), 10).double()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (B, B + 3):
        x = torch.rand(rows, 2, dtype=torch.float64)
        same(compiled(x), net(x))
        leaves = list(net.parameters())
        grads = (torch.autograd.grad(f(x).square().sum(), leaves) for f in (compiled, net))
        same(*grads)


def test_an_ensemble_by_vmap() -> None:
    nets = [Siren(2, 8, 1, 1, dtype=torch.float64) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(nets)
    x = torch.rand(B, 2, dtype=torch.float64)

    def call(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(nets[0], (params, buffers), (x,))

    outs = torch.func.vmap(call)(params, buffers)
    for out, net in zip(outs, nets, strict=True):
        same(out, net(x))
