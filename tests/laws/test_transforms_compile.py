"""Tests torch.compile without graph breaks: static and dynamic sizes, gradients, writes, no
recompiles.

Most tests use aot_eager, which traces what inductor would compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, hessian, jvp, vmap

import treadle
from tests.recurrent.support.layer_cases import CELLS, TRACED_CELLS
from tests.support.cases import DEVICES, OPS, sized_call
from tests.support.forms import INPLACE, OUT
from tests.support.inputs import Call, Make, Op, outputs, requiring_grad
from treadle.nn import LLTMCell
from treadle.nn.formulas import CELLS as FORMULAS

pytestmark = pytest.mark.usefixtures("fresh_compile")

CELL_SIZES = ((3, 5, 4), (2, 7, 6), (9, 3, 8), (5, 4, 10))
# The first sizes are traced. Their T must differ from the number of directions, which is 2.
LAYER_SIZES = ((3, 4, 5, 6), (2, 3, 7, 5), (6, 5, 3, 4), (4, 7, 6, 3))
# The layers whose cells stand for all others in these tests; a formula is one of them.
LAYERS = {
    f"recurrent_layer {cell}" for cell in (*TRACED_CELLS, "lstm resets", FORMULAS["SLSTM"].key)
}
NAMES = [name for name, op in OPS.items() if not op.is_layer or name in LAYERS]
# Layers take seconds to trace, so they run only with dynamic sizes, which cover the static case.
# One test runs every cell that has an op of its own.
EACH_WAY = [(name, dynamic) for name in NAMES for dynamic in (False, True) if name not in LAYERS]
EACH_WAY += [(name, True) for name in sorted(LAYERS | {f"recurrent_layer {c}" for c in CELLS})]
# Second derivatives are compiled for one op of each kind. Those of layers are loops over these ops.
HESSIANS = ("sine", "snake", "lltm_cell", "sine_linear")
SHAPES = ((4, 6), (5, 7), (8, 3), (2, 9))


def call_of(op: Op, size: int, device: str, dtype: torch.dtype = torch.float64) -> Call:
    make = Make(f"compile {size}", device, dtype)
    call = sized_call(
        op, make, shape=SHAPES[size], cell=CELL_SIZES[size], layer=LAYER_SIZES[size], directions=2
    )
    return call.with_args({1: make(SHAPES[size][1])}) if op.name == "vector_add" else call


def run_with_gradients(function: Callable[..., Any], op: Op, call: Call) -> list[Tensor]:
    call = requiring_grad(op, call)
    results = outputs(call.run(function))
    leaves = [call.args[i] for i in op.leaves(call)]
    grads = torch.autograd.grad(sum((r.sin()).sum() for r in results), leaves)
    return [r.detach() for r in results] + list(grads)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "dynamic"), EACH_WAY)
def test_forward_and_backward(name: str, dynamic: bool, device: str) -> None:
    op = OPS[name]
    compiled = torch.compile(op.function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for size in (0, 1):
        call = call_of(op, size, device)
        close(outputs(call.run(compiled)), outputs(call.run(op.function)))
        close(run_with_gradients(compiled, op, call), run_with_gradients(op.function, op, call))


@pytest.mark.parametrize("name", NAMES)
def test_no_recompiles_over_sizes(name: str) -> None:
    """All sizes use the graph of the first size, without gradients and with them."""
    op = OPS[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(op.function, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for size in range(4):
        call = call_of(op, size, "cpu")
        close(outputs(call.run(compiled)), outputs(call.run(op.function)))
        counts.append(counter.frame_count)
    for size in range(4):
        run_with_gradients(compiled, op, call_of(op, size, "cpu"))
        counts.append(counter.frame_count)
    assert counts[0] > 0 and counts[:4] == [counts[0]] * 4
    assert counts[4] > counts[0] and counts[4:] == [counts[4]] * 4


def test_a_recompile_is_noticed() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(treadle.sine, fullgraph=True, dynamic=False, backend=counter)
    counts = []
    for shape in SHAPES:
        compiled(torch.ones(shape))
        counts.append(counter.frame_count)
    assert counts == [1, 2, 3, 4]


@pytest.mark.parametrize("device", DEVICES)
def test_inductor(device: str) -> None:
    """Compiles several ops in one graph with inductor."""

    def step(x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Tensor:
        x = treadle.vector_add(treadle.sine(x), treadle.scale(x, 0.5), alpha=2)
        h, c = treadle.lltm_cell(x, weights, bias, h, c)
        return (h * c.tanh()).sum(1)

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    op = OPS["lltm_cell"]
    for size in (0, 1):
        call = call_of(op, size, device)
        close(run_with_gradients(compiled, op, call), run_with_gradients(step, op, call))


WRITES: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    *(form.inplace for form in INPLACE.values()),
    # Parameters are views of larger tensors, so out must not partly overlap them.
    *(
        lambda x, y, form=form: form.out(x, x if form.op.parameters else y, y)
        for form in OUT.values()
    ),
)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writing(backend: str) -> None:
    """Ops write into arguments and into tensors made in the graph; views see the change."""
    make = Make("write", "cpu", torch.float64)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = []
        for write in WRITES:
            fresh, other = x + 1, y.clone()
            view = fresh[1:]
            write(fresh, other)
            made.append(view * other[1:])
        for write in WRITES:
            write(x, y)
        return (*made, x.sum())

    x, y = make(4, 6), make(4, 6)
    expected_x, expected_y = x.clone(), y.clone()
    expected = function(expected_x, expected_y)
    close(torch.compile(function, fullgraph=True, backend=backend)(x, y), expected)
    close((x, y), (expected_x, expected_y))


@pytest.mark.parametrize("name", INPLACE)
def test_writing_with_gradients(name: str) -> None:
    write = INPLACE[name].inplace

    def function(x: Tensor, y: Tensor) -> Tensor:
        base = x * 2
        write(base[1:], y[1:])
        return base.cos()

    make = Make("write", "cpu", torch.float64)
    results = []
    for f in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        x, y = make(4, 6).requires_grad_(), make(4, 6).requires_grad_()
        make = Make("write", "cpu", torch.float64)
        out = f(x, y)
        results.append((out, *torch.autograd.grad(out.sum(), (x, y), allow_unused=True)))
    for ours, expected in zip(*results, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None:
            close(ours, expected)


@pytest.mark.parametrize("name", NAMES)
def test_transforms_inside(name: str) -> None:
    op = OPS[name]
    call = call_of(op, 0, "cpu")
    leaves = op.leaves(call)
    tensors = tuple(call.args[i] for i in leaves)

    def of(*t: Tensor) -> Tensor:
        results = outputs(call.with_args(dict(zip(leaves, t, strict=True))).run(op.function))
        return sum(r.sin().sum() for r in results)

    positions = tuple(range(len(leaves)))
    transforms: list[Callable[..., Any]] = [
        lambda *t: grad(of, positions)(*t),
        lambda *t: jvp(of, t, tuple(x.cos() for x in t)),
        lambda *t: vmap(grad(of, positions))(*(torch.stack([x, x * 2]) for x in t)),
    ]
    if name in HESSIANS:
        transforms.append(lambda *t: hessian(of)(*t))
    for transform in transforms:
        torch._dynamo.reset()
        compiled = torch.compile(transform, fullgraph=True, backend="aot_eager")
        close(compiled(*tensors), transform(*tensors))


@pytest.fixture
def compiled_autograd() -> Iterator[None]:
    with torch._dynamo.config.patch(compiled_autograd=True):
        yield


@pytest.mark.parametrize(("name", "dynamic"), EACH_WAY)
def test_compiled_autograd(name: str, dynamic: bool) -> None:
    op = OPS[name]

    def compiler(graph: Any) -> Any:
        return torch.compile(graph, fullgraph=True, dynamic=dynamic, backend="aot_eager")

    for size in range(1 + dynamic):
        call = call_of(op, size, "cpu")
        expected = run_with_gradients(op.function, op, call)
        with torch._dynamo.compiled_autograd._enable(compiler, dynamic=dynamic):
            got = requiring_grad(op, call)
            results = outputs(got.run(op.function))
            sum((r.sin()).sum() for r in results).backward()
        grads = [got.args[i].grad for i in op.leaves(got)]
        close(list(results) + grads, expected)


@pytest.mark.usefixtures("compiled_autograd")
def test_compiled_autograd_of_a_compiled_step() -> None:
    torch.manual_seed(0)
    cell = LLTMCell(4, 3, dtype=torch.float64)
    rows = torch.randn(5, 2, 4, dtype=torch.float64)

    def step(rows: Tensor) -> Tensor:
        state = None
        for row in rows:
            state = cell(treadle.sine(row), state)
        loss = state[0].square().sum()
        loss.backward()
        return loss.detach()

    expected = step(rows)
    grads = [p.grad.clone() for p in cell.parameters()]
    cell.zero_grad()
    close(torch.compile(step, backend="aot_eager")(rows), expected)
    close([p.grad for p in cell.parameters()], grads)


def test_a_graph_break_is_noticed() -> None:
    def breaks(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return treadle.sine(x)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(breaks, fullgraph=True, backend="aot_eager")(torch.ones(3))
