"""vmap, autocast, opcheck and compilation of jets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.library import opcheck

from tests.sine_linear_jet.cases import SECONDS, jet_arguments
from tests.support.cases import DEVICES, OPS
from tests.support.compare import same_bits
from tests.support.inputs import HALVES, Make, batched, requiring_grad
from tests.support.rule import within_rule
from treadle import reference

OP = OPS["sine_linear_jet"]
ops = torch.ops.treadle
SUBSETS = [s for n in range(1, 4) for s in itertools.combinations(range(3), n)]
Function = Callable[..., Any]


def jet_ops(device: str, second: str) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls of each overload: the op and its arguments."""
    call = jet_arguments(Make("opcheck", device, torch.float32), (3,), (5, 4), second=second)
    output, phase = ops.sine_linear_jet_forward(*call.args)
    kept = (*call.args[:3], output, phase, *call.args[3:])
    return [
        (ops.sine_linear_jet.default, call.args, {}),
        (ops.sine_linear_jet_forward.default, call.args, {}),
        *(
            (ops.sine_linear_jet_backward.default, (torch.ones_like(output), *kept, mask), {})
            for mask in ([True] * 3, [False, True, False])
        ),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("second", SECONDS)
def test_opcheck(second: str, wants_grad: bool, device: str) -> None:
    for op, args, kwargs in jet_ops(device, second):
        if wants_grad:
            args = tuple(
                t.detach().requires_grad_()
                if isinstance(t, Tensor) and t.is_floating_point()
                else t
                for t in args
            )
        opcheck(op, args, kwargs)


def loss(f: Function) -> Function:
    return lambda *a: f(*a).square().sum()


def pushed(f: Function) -> Function:
    def run(*a: Tensor) -> Any:
        return jvp(f, a, tuple(t.cos() for t in a))

    return run


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "forward": lambda f: f,
    "grad of weights": lambda f: grad(loss(f), (0, 1)),
    "grad of jets": lambda f: grad(loss(f)),
    "jvp": pushed,
    "grad of grad": lambda f: grad(
        lambda *a: sum(g.sin().sum() for g in grad(loss(f), (0, 1))(*a)), (0, 1)
    ),
}


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("subset", SUBSETS, ids=str)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_vmap_of_every_subset(name: str, subset: tuple[int, ...], device: str) -> None:
    for second, lead in zip(SECONDS, ((), (2,), (2, 2)), strict=True):
        make = Make(f"vmap {subset} {second}", device, torch.float64)
        call = jet_arguments(make, lead, (3, 4), second=second)
        args, in_dims = batched(list(call.args[:3]), subset)
        found = []
        for function in (OP.function, OP.reference):

            def of_tensors(*t: Tensor, f: Function = function) -> Tensor:
                return f(*t, *call.args[3:])  # noqa: B023

            found.append(vmap(TRANSFORMS[name](of_tensors), in_dims)(*args))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
@pytest.mark.parametrize("name", ["forward", "grad of weights"])
def test_vmap_of_no_samples(name: str, subset: tuple[int, ...]) -> None:
    call = jet_arguments(Make("no samples", "cpu", torch.float64), (2,), (3, 4))
    args, in_dims = batched(list(call.args[:3]), subset)
    none = [t if d is None else t.narrow(d, 0, 0) for t, d in zip(args, in_dims, strict=True)]
    found = []
    for function in (OP.function, OP.reference):
        run = TRANSFORMS[name](lambda *t, f=function: f(*t, *call.args[3:]))
        found.append(vmap(run, in_dims)(*none))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("position, shape", [(0, (4,)), (0, ()), (1, (3,)), (1, (2, 4, 3))])
def test_vmap_refuses_what_a_call_refuses(position: int, shape: tuple[int, ...]) -> None:
    """A batch dimension must not turn a row into a jet, or a vector into a weight."""
    args = list(jet_arguments(Make("refused", "cpu", torch.float64), (2,), (3, 4)).args)
    args[position] = torch.ones(shape, dtype=torch.float64)
    words = "^sine_linear_jet: .* must have shape "
    with pytest.raises(RuntimeError, match=words):
        OP.function(*args)
    stacked, in_dims = batched(args[:3], (position,))
    with pytest.raises(RuntimeError, match=words):
        vmap(lambda *t: OP.function(*t, *args[3:]), in_dims)(*stacked)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_runs_in_the_lower_precision(dtype: torch.dtype, device: str) -> None:
    """The bits are those of a call in that dtype. Gradients are float32, and do not change if
    backward runs inside autocast."""
    call = jet_arguments(Make("autocast", device, torch.float32), (9,), (7, 8))
    with torch.autocast(device, dtype):
        y = call.run(OP.function)
    same_bits(y, call.map(lambda t: t.to(dtype)).run(OP.function))
    found = []
    for backward_within in (False, True):
        given = requiring_grad(OP, call)
        with torch.autocast(device, dtype):
            total = given.run(OP.function).float().square().sum()
            if backward_within:
                found.append(torch.autograd.grad(total, given.args[:3]))
        if not backward_within:
            found.append(torch.autograd.grad(total, given.args[:3]))
    assert all(g.dtype == torch.float32 for g in found[0])
    for ours, expected in zip(*found, strict=True):
        same_bits(ours, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_second_derivatives_of_halves(dtype: torch.dtype, device: str) -> None:
    """Second derivatives are computed by a composition in float32, so they are at least as accurate
    as those of the composition in the half type."""
    call = jet_arguments(Make("second", device, dtype), (40,), (8, 16))
    found = []
    for function, to in (
        (OP.function, dtype),
        (OP.reference, torch.float64),
        (OP.reference, dtype),
    ):
        given = requiring_grad(OP, call.map(lambda t, to=to: t.to(to)))
        y = given.run(function)
        first = torch.autograd.grad(y.square().mean(), given.args[:3], create_graph=True)
        total = sum(g.double().square().sum() for g in first)
        found.append(torch.autograd.grad(total, given.args[:3]))
    for n, grads in enumerate(zip(*found, strict=True)):
        within_rule(*grads, gradient=True, what=str(n))


class Net(torch.nn.Module):
    """The Laplacian of a field of two layers."""

    def __init__(self, device: str) -> None:
        super().__init__()
        make = Make("net", device, torch.float64)
        shapes = ((8, 2), (8,), (8, 8), (8,))
        self.parameters_ = torch.nn.ParameterList([make(*s) for s in shapes])

    def forward(self, jet: Tensor) -> Tensor:
        w, b, v, c = self.parameters_
        jet = torch.ops.treadle.sine_linear_jet(jet, w, b, 1.5, 2, "laplacian")
        return torch.ops.treadle.sine_linear_jet(jet, v, c, 1.5, 2, "laplacian")[3]


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_of_the_laplacian_compiles_whole(device: str) -> None:
    """torch.compile compiles this loss, although it does not support double backward."""
    net = Net(device)
    jet = jet_arguments(Make("compile", device, torch.float64), (6,), (2, 8)).args[0]
    found = []
    for run in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        total = run(jet).square().mean()
        total.backward()
        found.append([total.detach(), *(p.grad.clone() for p in net.parameters())])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_export() -> None:
    net = Net("cpu")
    jet = jet_arguments(Make("export", "cpu", torch.float64), (6,), (2, 8)).args[0]
    points = torch.export.Dim("points", min=2)
    with torch.no_grad():
        program = torch.export.export(net, (jet,), dynamic_shapes=({1: points},))
        longer = torch.cat([jet, jet], 1)
        torch.testing.assert_close(program.module()(longer), net(longer), rtol=0, atol=0)


def test_the_reference_has_a_gradient_of_everything() -> None:
    """If these gradients were 0, comparisons with the reference would show nothing."""
    call = requiring_grad(OP, jet_arguments(Make("all", "cpu", torch.float64), (3,), (3, 4)))
    y = reference.sine_linear_jet(*call.args)
    found = torch.autograd.grad(y.square().sum(), call.args[:3])
    assert all(bool(g.abs().amax(-1).gt(0).all()) for g in found)
