"""recurrent_layer under vmap (every subset of batched arguments, nested, packed), under
torch.compile, and in half types: cases that only sequences and packed batches have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    CELLS,
    EACH_CELL,
    Lengths,
    batch_sizes,
    layer,
    layer_arguments,
    layer_reference,
)
from tests.support.cases import DEVICES
from tests.support.inputs import HALVES, Call, Make

Function = Callable[..., Any]
N = 3
SIZES = (2, 2, 3, 4)  # T, B, I, H
# Subsets of a call's tensors. LLTM is tested with all subsets, other cells with those of 1, 2 or
# all tensors.
SUBSETS = [
    (cell, subset)
    for cell in CELLS
    for count in (len(ARGUMENTS[cell]),)
    for n in (range(1, 7) if cell == "lltm" else (1, 2, count))
    for subset in itertools.combinations(range(count), n)
]
ROWS = (0, 1, 2)  # indices of the tensors with rows: input, h0, c0
FORMS: dict[str, dict[str, Any]] = {
    "dense": {},
    "packed in two": {"directions": 2, "lengths": (2, 1)},
    "no bias": {"bias": False},
}


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def of_tensors(function: Function, call: Call, **options: Any) -> Function:
    """The call as a function of its tensors only."""
    positions = [i for i in ARGUMENTS[call.kwargs["cell"]] if call.args[i] is not None]
    return lambda *t: call.with_args(dict(zip(positions, t, strict=True))).run(
        lambda *a, **k: function(*a, **k, **options)
    )


def tensors_of(call: Call) -> list[Tensor]:
    return [t for t in call.args if isinstance(t, Tensor)]


def batched(call: Call, subset: tuple[int, ...]) -> tuple[list[Tensor], tuple[int | None, ...]]:
    """The call's tensors and in_dims. Tensors of the subset get a vmap dimension at various
    positions."""
    tensors = tensors_of(call)
    in_dims: list[int | None] = [None] * len(tensors)
    for i in subset:
        if i >= len(tensors):
            continue
        in_dims[i] = i % (tensors[i].dim() + 1)
        tensors[i] = torch.stack([tensors[i] * k for k in (1.0, -0.5, 0.25)], in_dims[i])
    return tensors, tuple(in_dims)


def biases(rest: list[Tensor]) -> list[Tensor | None]:
    """The arguments after lengths, with None for missing biases."""
    return [*rest, *[None] * (6 - len(rest))]


def loss(f: Function) -> Function:
    return lambda *a: sum((r.sin() * (n + 2)).sum() for n, r in enumerate(f(*a)))


def tuple_of(functions: Iterable[Function]) -> Function:
    """The results of separate calls."""
    each = tuple(functions)
    return lambda *a: tuple(f(*a) for f in each)


def transforms(count: int) -> tuple[Callable[[Function], Function], ...]:
    every = tuple(range(count))
    return (
        lambda f: f,
        lambda f: grad(loss(f), every),
        lambda f: grad(loss(f), ROWS),
        lambda f: tuple_of(grad(loss(f), (one,)) for one in range(3, count)),
        lambda f: lambda *a: jvp(f, a, tuple(t.cos() for t in a)),
        lambda f: grad(lambda *a: sum(g.sin().sum() for g in grad(loss(f), every)(*a)), every),
    )


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("cell", "subset"), SUBSETS, ids=str)
def test_vmap_of_every_subset(cell: str, subset: tuple[int, ...], form: str, device: str) -> None:
    make = Make(f"vmap {subset}", device, torch.float64)
    call = layer_arguments(make, SIZES, cell=cell, **FORMS[form])
    tensors, in_dims = batched(call, subset)
    if all(d is None for d in in_dims):
        return
    recompute = len(subset) % 2 == 0
    for transform in transforms(len(tensors)):
        ours = transform(of_tensors(layer, call, recompute=recompute))
        theirs = transform(of_tensors(layer_reference, call))
        close(vmap(ours, in_dims)(*tensors), vmap(theirs, in_dims)(*tensors))


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [None, (2, 1)], ids=str)
@pytest.mark.parametrize("inner", [(0,), (3,), (0, 1, 2), (1, 5), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("outer", [(0,), (2,), (4,), (0, 1, 2), (0, 3)], ids=str)
def test_nested_vmap(
    inner: tuple[int, ...], outer: tuple[int, ...], lengths: Lengths, device: str
) -> None:
    make = Make(f"nested {inner} {outer}", device, torch.float64)
    call = layer_arguments(make, SIZES, directions=2, lengths=lengths)
    tensors = tensors_of(call)
    for subset in (inner, outer):
        for i in subset:
            tensors[i] = torch.stack([tensors[i], tensors[i] * -0.5])
    dims = [tuple(0 if i in s else None for i in range(6)) for s in (inner, outer)]

    def both(f: Function) -> Any:
        return vmap(vmap(of_tensors(f, call), dims[0]), dims[1])(*tensors)

    close(both(layer), both(layer_reference))


class Shapes(TorchDispatchMode):
    """Records the names of treadle's ops, and the shape of the first 3-D argument of each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f.namespace == "treadle":
            three_d = [tuple(a.shape) for a in args if isinstance(a, Tensor) and a.dim() == 3]
            self.seen.append((f._opname, three_d[0]))
        return f(*args, **(kwargs or {}))


@pytest.mark.parametrize("subset", [(0,), (1, 2), (0, 1, 2), (3,), (0, 1, 2, 3, 4, 5)], ids=str)
def test_rows_fold_into_one_call(subset: tuple[int, ...]) -> None:
    """vmap folds mapped rows into the batch of one call, also for their gradients, but not for
    gradients of weights."""
    call = layer_arguments(Make("fold", "cpu", torch.float64), SIZES)
    tensors = tensors_of(call)
    for i in subset:
        tensors[i] = torch.stack([tensors[i]] * N)
    dims = tuple(0 if i in subset else None for i in range(6))
    function = of_tensors(layer, call)
    for positions, folds in ((ROWS, True), ((0, 3), False)):
        with Shapes() as shapes:
            vmap(grad(loss(function), positions), dims)(*tensors)
        by_rows = set(subset) <= set(ROWS)
        one, many = [(2, 2 * N, 3)], [(2, 2, 3)] * N
        forward = [s for name, s in shapes.seen if name == "recurrent_layer_forward"]
        assert forward == (one if by_rows else many)
        backward = [s[:2] for name, s in shapes.seen if name == "recurrent_layer_backward"]
        assert len(backward) == (1 if by_rows and folds else N)


@pytest.mark.parametrize("lengths", [None, (2, 1)], ids=str)
@pytest.mark.parametrize("subset", [(0,), (3,), (0, 1, 2, 3, 4, 5)], ids=str)
def test_a_batch_of_nothing(subset: tuple[int, ...], lengths: Lengths) -> None:
    call = layer_arguments(Make("none", "cpu", torch.float64), SIZES, lengths=lengths)
    tensors = tensors_of(call)
    dims = tuple(0 if i in subset else None for i in range(6))
    shapes = [t.shape for t in of_tensors(layer, call)(*tensors)]
    for i in subset:
        tensors[i] = tensors[i].new_empty(0, *tensors[i].shape)
    results = vmap(of_tensors(layer, call), dims)(*tensors)
    assert [t.shape for t in results] == [(0, *s) for s in shapes]

    def grads_of(*t: Tensor) -> Any:
        results, pull = vjp(of_tensors(layer, call), *t)
        return pull(tuple(r.cos() for r in results))

    grads = vmap(grads_of, dims)(*tensors)
    singles = [t.shape[1:] if i in subset else t.shape for i, t in enumerate(tensors)]
    assert [g.shape for g in grads] == [(0, *s) for s in singles]


@pytest.mark.parametrize("op", ["recurrent_layer", "recurrent_layer_forward"])
def test_a_batch_of_sizes_is_refused(op: str) -> None:
    call = layer_arguments(Make("sizes", "cpu", torch.float64), SIZES, lengths=(2, 1))
    function = getattr(torch.ops.treadle, op)
    sizes = torch.tensor([[2, 1], [2, 1]])
    words = "batch_sizes must be the same for every sample of vmap, got a batch of them"
    with pytest.raises(RuntimeError, match=f"^recurrent_layer: {words}"):
        vmap(lambda s: call.with_args({1: s}).run(function))(sizes)


@EACH_CELL
@pytest.mark.usefixtures("fresh_compile")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
def test_compile_packed(recompute: bool, device: str, cell: str) -> None:
    """One graph serves packed batches of any lengths, with their gradients."""
    counter = CompileCounterWithBackend("aot_eager")
    op = torch.compile(
        torch.ops.treadle.recurrent_layer.default, fullgraph=True, dynamic=True, backend=counter
    )
    for lengths in ((5, 3, 2, 1), (7, 7, 7, 4, 2), (4, 3, 3)):
        make = Make(f"compile {lengths}", device, torch.float64)
        call = layer_arguments(make, (0, 0, 6, 9), cell=cell, directions=2, lengths=lengths)
        found = []
        for function in (op, torch.ops.treadle.recurrent_layer.default):
            leaves = [t.detach().requires_grad_() for t in tensors_of(call)]
            sizes = batch_sizes(lengths)
            results = function(
                leaves[0], sizes, *biases(leaves[1:]), **call.kwargs, recompute=recompute
            )
            total = loss(lambda results=results: results)()
            found.append([*results, *torch.autograd.grad(total, leaves)])
        close(found[0], found[1])
    assert counter.frame_count == 1


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", [None, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_tangents_and_second_derivatives_of_halves(
    dtype: torch.dtype, state: torch.dtype | None, device: str, cell: str
) -> None:
    """Gradients have the dtype of their tensors but are computed in float32."""
    make = Make("halves", device, dtype)
    options: dict[str, Any] = {"directions": 2, "lengths": (3, 2, 2), "state": state}
    call = layer_arguments(make, (3, 3, 4, 5), cell=cell, **options)
    tensors = tuple(tensors_of(call))
    every = tuple(range(len(tensors)))

    def second(f: Function) -> Function:
        def of_gradients(*t: Tensor) -> Tensor:
            results = grad(loss(f), every)(*t)
            return sum(g.double().square().sum() / 64 for g in results)  # keeps the sum below 65504

        return lambda *t: grad(of_gradients, every)(*t)

    def pushed(f: Function) -> Function:
        return lambda *t: jvp(f, t, tuple(x.cos() for x in t))[1]

    for transform in (pushed, second):
        ours = transform(of_tensors(layer, call))(*tensors)
        doubles = call.map(Tensor.double)
        truth = transform(of_tensors(layer_reference, doubles))(*tensors_of(doubles))
        models = tensors if transform is second else call.run(layer)
        assert [t.dtype for t in ours] == [t.dtype for t in models]
        for found, exact in zip(ours, truth, strict=True):
            error = (found.double() - exact).abs().max()
            assert error <= 8 * torch.finfo(dtype).eps * exact.abs().max()
