"""Jets in torch.compile, torch.export, AOTInductor and torch.func."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import treadle
from tests.laws.test_export import COMPILER
from tests.sine_linear.jets import by_autograd, points, same, siren
from tests.support.pages import snippets
from treadle.nn import SineLinear, Siren


class Own(nn.Module):
    """A residual network of scaled coordinates and a code, with a final tanh if ``bounded``."""

    def __init__(self, bounded: bool = True) -> None:
        super().__init__()
        self.bounded = bounded
        torch.manual_seed(5)
        made: dict[str, Any] = {"omega_0": 2.0, "dtype": torch.float64}
        self.first, self.second = SineLinear(3, 8, is_first=True, **made), SineLinear(8, 8, **made)
        self.last = nn.Linear(8, 1, dtype=torch.float64)
        self.latent = nn.Parameter(torch.rand(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> treadle.Jet:
        h = treadle.Jet.affine(x, 2.0, self.latent.squeeze())
        h = self.first.jet(treadle.Jet.cat([h, self.latent]))
        h = h + self.second.jet(self.latent * h) * h
        h = treadle.jet_linear(h, self.last.weight, self.last.bias)
        return h.map(torch.tanh) if self.bounded else h


class Poisson(nn.Module):
    """A training loss that depends on the Laplacian, the value and the gradient."""

    def __init__(self, net: Siren) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        u = self.net.jet(x)
        return (u.laplacian - 1).square().mean() + (u.value * u.gradient[..., 0]).mean()


def trained(net: Siren, loss: Any, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss(points(16 + step)).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


class Eikonal(Poisson):
    def forward(self, x: Tensor) -> Tensor:
        u = self.net.jet(x, laplacian=False)
        assert u.gradient is not None
        return (u.gradient.norm(dim=-1) - 1).square().mean()


ACTIVATED = {"final_activation": nn.Tanh(), "dropout": 0.2}


@pytest.mark.parametrize(
    "kind, options", [(Poisson, {}), (Poisson, ACTIVATED), (Eikonal, {"out_features": 1})]
)
def test_compiled_training(kind: type[Poisson], options: dict[str, Any]) -> None:
    """Trains on losses of Laplacian and gradient. Each step has a different number of points."""
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        net = siren(**options).eval()
        loss = kind(net)
        call = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
        found.append(trained(net, call))
    assert not torch.equal(found[0][0], siren(**options).net[0].weight)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_a_compiled_loss_of_the_gradient_takes_as_few_products() -> None:
    """The gradient is computed in reverse mode, as in eager mode, and not as a jet with a part per
    coordinate."""
    torch._dynamo.reset()
    backend = torch._dynamo.testing.EagerAndRecordGraphs()
    loss = Eikonal(siren(3, out_features=1))
    x = points(inputs=3)
    torch.testing.assert_close(torch.compile(loss, backend=backend, fullgraph=True)(x), loss(x))
    assert len(backend.graphs) == 1
    code = backend.graphs[0].code
    assert "sine_linear" in code and "sine_linear_jet" not in code, code


def test_compiled_networks_of_ones_own_take_and_give_jets() -> None:
    torch._dynamo.reset()
    net, x = Own(), points()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    found = []
    for call in (compiled, net):
        jet = call(x)
        assert isinstance(jet, treadle.Jet)
        loss = jet.value.sum() + jet.gradient.square().sum() + jet.laplacian.square().sum()
        found.append([*jet[:3], *torch.autograd.grad(loss, net.parameters())])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
    later = torch.compile(net.second.jet, backend="aot_eager", fullgraph=True)
    h = net.first.jet(treadle.Jet.cat([treadle.Jet.of(x), net.latent]))
    same(later(h), net.second.jet(h), 1e-12)


class Field(nn.Module):
    """Value and gradient of a trained field, for deployment."""

    def __init__(self, net: Siren) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient, _, _ = self.net.jet(x, laplacian=False)
        return value, gradient


ROWS = ({0: torch.export.Dim("rows", min=2, max=1 << 20)},)


@pytest.mark.parametrize("strict", [False, True])
def test_export_has_value_and_gradient_of_any_number_of_points(
    strict: bool, tmp_path: Path
) -> None:
    field = Field(siren())
    with torch.no_grad():
        program = torch.export.export(field, (points(),), dynamic_shapes=ROWS, strict=strict)
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("treadle.sine_linear_jet" in name for name in names) == 3, names
    torch.export.save(program, tmp_path / "field.pt2")
    loaded = torch.export.load(tmp_path / "field.pt2").module()
    for count in (2, 7, 33):
        for call in (program.module(), loaded):
            value, gradient = call(points(count))
            same(treadle.Jet(value, gradient), by_autograd(field.net, points(count)))


@pytest.mark.parametrize("bounded", [False, True])
def test_export_gives_a_jet(bounded: bool) -> None:
    net, x = Own(bounded), points()
    found = torch.export.export(net, (x,), strict=False).module()(x)
    assert isinstance(found, treadle.Jet) and found.hessian_diagonal is None
    same(found, net(x))


ACTIVATIONS: dict[str, nn.Module] = {
    "tanh": nn.Tanh(),
    "mixed": nn.Softmax(-1),
    "own parameters": nn.PReLU(3, dtype=torch.float64),
    "another shape": nn.Sequential(nn.Unflatten(-1, (1, 3)), nn.Softplus(), nn.Flatten(-2)),
}


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_export_of_a_final_activation(name: str, second: bool, tmp_path: Path) -> None:
    """The program accepts any number of points, has gradients, and loads without treadle's
    Python."""
    net = siren(final_activation=ACTIVATIONS[name])
    flags = {"laplacian": second, "hessian_diagonal": second}

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(part for part in self.net.jet(x, **flags) if part is not None)

    program = torch.export.export(Parts(), (points(),), dynamic_shapes=ROWS, strict=False)
    torch.export.save(program, tmp_path / "parts.pt2")
    loaded = torch.export.load(tmp_path / "parts.pt2").module()
    for count in (2, 9):
        x, found = points(count), []
        for call in (loaded, Parts()):
            parts = call(x)
            weight = dict(call.named_parameters())["net.net.1.weight"]
            (grad,) = torch.autograd.grad(parts[-1].square().sum(), weight)
            found.append((*parts, grad))
        torch.testing.assert_close(*found)


def test_a_strict_export_of_map_says_what_to_do() -> None:
    with pytest.raises(Exception, match="Jet.map: torch.export must have strict=False, got strict"):
        torch.export.export(Own(), (points(),), strict=True)


@COMPILER
@pytest.mark.timeout(600)
def test_aoti(tmp_path: Path) -> None:
    field = Field(siren(hidden_layers=1, dtype=torch.float32)).eval()
    with torch.no_grad():
        program = torch.export.export(
            field, (points(dtype=torch.float32),), dynamic_shapes=ROWS, strict=False
        )
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "field.pt2")
        )
    compiled = torch._inductor.aoti_load_package(path)
    for count in (2, 33):
        x = points(count, dtype=torch.float32)
        torch.testing.assert_close(compiled(x), field(x))


def test_func_transforms() -> None:
    """vmap over points, grad and jvp of functions that compute jets."""
    net, own, x = siren(), Own(), points()
    for call in (net.jet, own):
        # vmap does not support None as an output.
        found = torch.func.vmap(lambda p, c=call: tuple(c(p)[:3]))(x)
        same(treadle.Jet(*found), call(x), 1e-12)

    def bent(x: Tensor) -> Tensor:
        jet = own(x)
        return jet.laplacian.sum() + jet.gradient.square().sum()

    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(bent(given), given)
    torch.testing.assert_close(torch.func.grad(bent)(x), expected)
    direction = points(7).flip(0)
    _, along = torch.func.jvp(bent, (x,), (direction,))
    torch.testing.assert_close(along, (expected * direction).sum())
    per_point = torch.func.vmap(torch.func.grad(bent))(x)
    torch.testing.assert_close(per_point, expected)


def test_an_ensemble_of_nets_in_one_call() -> None:
    nets, x = [siren(), siren()], points()
    with torch.no_grad():
        nets[1].net[1].weight *= 0.5
    params, buffers = torch.func.stack_module_state(nets)
    field = Field(nets[0])

    def call(params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        named = {f"net.{name}": value for name, value in params.items()}
        return torch.func.functional_call(field, (named, buffers), (x,))  # type: ignore[no-any-return]

    values, gradients = torch.func.vmap(call, (0, None))(params, x)
    for k, net in enumerate(nets):
        same(treadle.Jet(values[k], gradients[k]), by_autograd(net, x))
    assert (values[0] - values[1]).abs().max() > 1e-3


def test_lines_of_the_page() -> None:
    """The code blocks of docs/jets.md run, one after another."""
    names: dict[str, Any] = {}
    blocks = [code for _, code in snippets("jets.md")]
    for code in blocks:
        exec(code, names)
    assert len(blocks) == 3
    assert names["bends"].shape == (1000, 1, 2) and names["net"].net[0].weight.grad is not None
    assert names["positive"].laplacian.shape == (1000, 1) and (names["positive"].value > 0).all()
    value, gradient = names["program"].module()(names["x"][:7])
    torch.testing.assert_close(gradient, names["net"].jet(names["x"][:7]).gradient)


class OfSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        return (treadle.Jet.of(x) / count * (1 / count) + count - 1 / count).value


def test_export_with_numbers_that_are_sizes() -> None:
    sizes = ({0: torch.export.Dim("n", min=2)},)
    program = torch.export.export(OfSizes(), (points(5),), dynamic_shapes=sizes).module()
    for count in (5, 9):
        torch.testing.assert_close(program(points(count)), OfSizes()(points(count)))


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_tracers(second: bool) -> None:
    net, x = siren(5), points(inputs=5)

    class Parts(Poisson):
        def forward(self, x: Tensor) -> Any:
            return self.net.jet(x, laplacian=second)[: 2 + second]

    module = Parts(net)
    for program in (torch.jit.trace(module, (x,)), make_fx(module)(x)):
        torch.testing.assert_close(program(x), module(x))
