"""vmap, autocast, compile and export of the sine layer."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.sine_linear.cases import sine_arguments
from tests.support.cases import DEVICES
from tests.support.compare import same_bits
from tests.support.inputs import HALVES, Make, batched
from tests.support.rule import within_rule
from treadle import reference

SUBSETS = [s for n in range(1, 4) for s in itertools.combinations(range(3), n)]
EACH = [
    pytest.param(device, dtype, id=f"{device}-{dtype}") for device in DEVICES for dtype in HALVES
]
each = pytest.mark.parametrize(("device", "dtype"), EACH)
Function = Callable[..., Any]


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def batched_layer(
    subset: tuple[int, ...], lead: tuple[int, ...], bias: bool, device: str
) -> tuple[list[Any], tuple[Any, ...]]:
    make = Make(f"vmap {subset} {lead}", device, torch.float64)
    return batched(list(sine_arguments(make, lead, (3, 4), bias=bias).args[:3]), subset)


def loss(f: Function) -> Function:
    return lambda *a: f(*a, 1.3).square().sum()


def pushed(f: Function) -> Function:
    def run(*a: Tensor | None) -> Any:
        there = [i for i, t in enumerate(a) if t is not None]

        def of_tensors(*t: Tensor) -> Any:
            return f(*(t[there.index(i)] if i in there else None for i in range(3)), 1.3)

        given = tuple(a[i] for i in there)
        return jvp(of_tensors, given, tuple(t.cos() for t in given))

    return run


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "forward": lambda f: lambda *a: f(*a, 1.3),
    "grad": lambda f: grad(loss(f), (0, 1)),
    "jvp": pushed,
    "grad of grad": lambda f: grad(
        lambda *a: sum(g.sin().sum() for g in grad(loss(f), (0, 1))(*a)), (0, 1)
    ),
    "hessian": lambda f: hessian(loss(f), (0, 1)),
}


@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("name", ["forward", "grad", "jvp"])
def test_vmap_refuses_what_a_call_refuses(subset: tuple[int, ...], name: str) -> None:
    """A leading batch dimension must not turn a row into a layer, or a number into a row."""
    good = (4, 3), (5, 3), (5,)
    for place, shape in [(0, ()), (1, (3,)), (1, ()), (1, (2, 5, 3)), (2, ()), (2, (5, 1))]:
        rows: list[Any] = [
            torch.ones(shape if i == place else s).double() for i, s in enumerate(good)
        ]
        if place != 2 and 2 not in subset:
            rows[2] = None  # so that no other argument is wrong
        stacked, in_dims = batched(rows, subset)
        for f, arguments in (
            (TRANSFORMS[name](treadle.sine_linear), rows),
            (vmap(TRANSFORMS[name](treadle.sine_linear), in_dims), stacked),
        ):
            with pytest.raises(RuntimeError, match="^sine_linear.*: .* must have shape "):
                f(*arguments)


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_vmap_of_every_subset(
    subset: tuple[int, ...], lead: tuple[int, ...], bias: bool, device: str
) -> None:
    args, in_dims = batched_layer(subset, lead, bias, device)
    if all(d is None for d in in_dims):
        return
    for transform in TRANSFORMS.values():
        close(*(vmap(transform(f), in_dims)(*args) for f in (treadle.sine_linear,
                                                             reference.sine_linear)))  # fmt: skip


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inner", SUBSETS, ids=str)
@pytest.mark.parametrize("outer", SUBSETS, ids=str)
def test_nested_vmap(inner: tuple[int, ...], outer: tuple[int, ...], device: str) -> None:
    make = Make(f"nested {inner} {outer}", device, torch.float64)
    args = list(sine_arguments(make, (2,), (3, 4)).args[:3])
    for subset in (inner, outer):
        for i in subset:
            args[i] = torch.stack([args[i], args[i] * -0.5])
    dims = [tuple(0 if i in s else None for i in range(3)) for s in (inner, outer)]
    for transform in ("forward", "grad"):
        change = TRANSFORMS[transform]
        close(*(vmap(vmap(change(f), dims[0]), dims[1])(*args)
                for f in (treadle.sine_linear, reference.sine_linear)))  # fmt: skip


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_vmap_is_one_call(subset: tuple[int, ...]) -> None:
    """Batched inputs become rows; batched weights become N layers."""
    args = list(sine_arguments(Make("one", "cpu", torch.float64), (2,), (3, 4)).args[:3])
    for i in subset:
        args[i] = torch.stack([args[i]] * 5)
    seen = []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f.namespace == "treadle":
                seen.append([tuple(a.shape) for a in args[:2]])
            return f(*args, **(kwargs or {}))

    with Shapes():
        in_dims = tuple(0 if i in subset else None for i in range(3))
        vmap(TRANSFORMS["forward"](treadle.sine_linear), in_dims)(*args)
    assert seen == [[(5, 2, 3), (4, 3) if subset == (0,) else (5, 4, 3)]]


@each
def test_autocast_runs_in_the_lower_precision(device: str, dtype: torch.dtype) -> None:
    """The bits equal those of a call in that precision, and gradients are float32. As with linear,
    float64 is not cast."""
    call = sine_arguments(Make("autocast", device, torch.float32), (9,), (7, 8))
    expected = call.map(lambda t: t.to(dtype)).run(treadle.sine_linear)
    with torch.autocast(device, dtype):
        assert torch.equal(call.run(treadle.sine_linear), expected)
        mixed = call.with_args({1: call.args[1].to(dtype)})
        assert torch.equal(mixed.run(treadle.sine_linear), expected)
        double = call.map(Tensor.double)
        assert double.run(treadle.sine_linear).dtype == torch.float64
        assert torch.equal(vmap(lambda x: treadle.sine_linear(x, *call.args[1:]))(call.args[0]),
                           expected)  # fmt: skip
    runs = []
    for function, given in (
        (treadle.sine_linear, call),
        (reference.sine_linear, double),
        (reference.sine_linear, call),
    ):
        leaves = given.map(lambda t: t.detach().requires_grad_())
        with torch.autocast(device, dtype, enabled=given is call):
            y = leaves.run(function)
        value = y.double().square().sum()
        runs.append([y.detach(), *torch.autograd.grad(value, leaves.args[:3])])
    for n, (ours, truth, composition) in enumerate(zip(*runs, strict=True)):
        if n > 0:
            assert ours.dtype == torch.float32
            ours, composition = ours.to(dtype), composition.to(dtype)
        within_rule(ours, truth, composition, gradient=n > 0, what=str(n))


class Net(torch.nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        first = sine_arguments(Make("net", device, torch.float32), (), (2, 8)).args
        second = sine_arguments(Make("next", device, torch.float32), (), (8, 8)).args
        self.layers = torch.nn.ParameterList([*first[1:3], *second[1:3]])

    def forward(self, x: Tensor) -> Tensor:
        w, b, v, c = self.layers
        return treadle.sine_linear(treadle.sine_linear(x, w, b, 30.0), v, c, 3.0)


@pytest.mark.parametrize("device", DEVICES)
def test_export_save_load(device: str) -> None:
    net = Net(device)
    x = Make("x", device, torch.float32)(5, 2)
    rows = {"x": {0: torch.export.Dim("rows", min=2)}}
    program = torch.export.export(net, (x,), dynamic_shapes=rows)
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert called.count("treadle.sine_linear.default") == 2
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows_now in (2, 5, 33):
        x = Make("x", device, torch.float32)(rows_now, 2)
        same_bits(loaded(x), net(x))
    loaded(x).sum().backward()
    net(x).sum().backward()
    for name, parameter in net.named_parameters():
        same_bits(loaded.get_parameter(name).grad, parameter.grad)


@pytest.mark.usefixtures("fresh_compile")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inductor(dtype: torch.dtype, device: str) -> None:
    net = Net(device).to(dtype)
    compiled = torch.compile(net, fullgraph=True)
    for rows in (5, 9):
        found = []
        for f in (compiled, net):
            x = Make("x", device, torch.float32)(rows, 2).to(dtype).requires_grad_()
            y = f(x)
            found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, *net.layers])])
        torch.testing.assert_close(*found)


@pytest.mark.usefixtures("fresh_compile")
def test_compile_of_second_derivatives() -> None:
    """One graph contains a Laplacian computed by torch.func, and its gradients with respect to the
    weights."""
    net = Net("cpu").double()

    def laplacian(p: list[Tensor], x: Tensor) -> Tensor:
        def at(point: Tensor) -> Tensor:
            h = treadle.sine_linear(point, p[0], p[1], 3.0)
            return treadle.sine_linear(h, p[2], p[3], 3.0).sum()

        return vmap(lambda point: hessian(at)(point).diagonal().sum())(x).square().sum()

    x = Make("x", "cpu", torch.float64)(4, 2)
    parameters = [p.detach() for p in net.layers]
    run = grad(laplacian)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    close(compiled(parameters, x), run(parameters, x))


@pytest.mark.usefixtures("fresh_compile")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_autograd_of_an_eikonal_step(dynamic: bool) -> None:
    """Tests the second backward pass, in which slopes send gradients to the layers' Nodes."""
    net = Net("cpu").double()
    x = Make("x", "cpu", torch.float64)(4, 2)

    def step(compiler: Any) -> list[Tensor]:
        points = x.detach().requires_grad_()
        y = net(points)
        (first,) = torch.autograd.grad(y.sum(), points, create_graph=True)
        value = (first.norm(dim=1) - 1).square().sum() + y.sin().sum()
        if compiler is None:
            value.backward()
        else:
            with torch._dynamo.compiled_autograd._enable(compiler, dynamic=dynamic):
                value.backward()
        grads = [p.grad for p in net.parameters()]
        net.zero_grad()
        return grads

    def compiler(graph: Any) -> Any:
        return torch.compile(graph, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    close(step(compiler), step(None))


@pytest.mark.parametrize("omega", [30.0, torch.tensor(30.0), 30, np.float32(30), np.int64(30)])
def test_omega_is_a_number(omega: Any) -> None:
    x, w = torch.ones(4, 3), torch.ones(5, 3)
    assert torch.equal(treadle.sine_linear(x, w, None, omega), treadle.sine_linear(x, w, None, 30))
    words = "^sine_linear: omega must be a number, .* got a tensor that requires grad$"
    with pytest.raises(TypeError, match=words):
        treadle.sine_linear(x, w, None, torch.nn.Parameter(torch.tensor(2.0)))
    for wrong, got in (
        (torch.ones(3), r"a tensor of shape \[3\]"),
        ("30", "str"),
        (30j, "complex"),
    ):
        with pytest.raises(TypeError, match=f"^sine_linear: omega must be a number, got {got}$"):
            treadle.sine_linear(x, w, None, wrong)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="^sine_linear: weight must have shape"):
        treadle.sine_linear(x, w.T, None, np.float32(30))  # type: ignore[arg-type]
    layer = treadle.nn.SineLinear(3, 5)
    layer.omega_0 = torch.nn.Parameter(torch.tensor(2.0))
    with pytest.raises(TypeError, match=words):
        layer(x)
