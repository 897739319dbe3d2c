"""Tests the vmap rules of ops: every subset of batched arguments, any dimension, nested vmap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.support.cases import DEVICES
from tests.support.forms import FORMS, INPLACE
from tests.support.inputs import Make, batched, outputs
from treadle import reference

pytestmark = pytest.mark.usefixtures("no_slow_vmap")

N = 3
SUBSETS = [s for n in range(1, 6) for s in itertools.combinations(range(5), n)]
BIASES = ("[3H]", "[1, 3H]", "None")


def batched_cell(
    subset: tuple[int, ...], bias: str, device: str
) -> tuple[list[Any], tuple[Any, ...]]:
    make = Make(f"vmap {subset}", device, torch.float64)
    return batched(list(cell_arguments(make, (2, 3, 4), bias=bias).args), subset)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_every_subset_of_the_cell(subset: tuple[int, ...], bias: str, device: str) -> None:
    args, in_dims = batched_cell(subset, bias, device)
    if all(d is None for d in in_dims):
        return
    tensors = tuple(i for i in range(5) if args[i] is not None)

    def loss(f: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda *a: sum((r.sin() * (n + 2)).sum() for n, r in enumerate(f(*a)))

    def pushed(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*a: Any) -> Any:
            given = tuple(a[i] for i in tensors)

            def of_tensors(*t: Tensor) -> Any:
                return f(*(t[tensors.index(i)] if i in tensors else None for i in range(5)))

            return jvp(of_tensors, given, tuple(t.cos() for t in given))

        return run

    for transform in (
        lambda f: f,
        lambda f: grad(loss(f), tensors),
        pushed,
        lambda f: grad(lambda *a: sum(g.sin().sum() for g in grad(loss(f), tensors)(*a)), tensors),
    ):
        ours = vmap(transform(treadle.lltm_cell), in_dims)(*args)
        theirs = vmap(transform(reference.lltm_cell), in_dims)(*args)
        close(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inner", [(0,), (1,), (2,), (0, 3, 4), (1, 2), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("outer", [(0,), (1,), (4,), (0, 3), (0, 1, 2, 3, 4)], ids=str)
def test_nested(inner: tuple[int, ...], outer: tuple[int, ...], device: str) -> None:
    make = Make(f"nested {inner} {outer}", device, torch.float64)
    args = list(cell_arguments(make, (2, 3, 4)).args)
    for subset in (inner, outer):
        for i in subset:
            args[i] = torch.stack([args[i], args[i] * -0.5])
    dims = [tuple(0 if i in s else None for i in range(5)) for s in (inner, outer)]

    def both(f: Callable[..., Any]) -> Any:
        return vmap(vmap(f, dims[0]), dims[1])(*args)

    close(both(treadle.lltm_cell), both(reference.lltm_cell))


@pytest.mark.parametrize(
    "in_dims", [(0, 0), (1, 1), (-1, 0), (0, None), (None, 1), (2, 1)], ids=str
)
def test_elementwise_dimensions(in_dims: tuple[int | None, int | None]) -> None:
    make = Make("dims", "cpu", torch.float64)
    x, y = make(N, N, N), make(N, N)
    first = in_dims[0] if in_dims[0] is not None else 0

    def nested(f: Callable[[Tensor], Tensor]) -> Tensor:
        return vmap(vmap(vmap(f), 1))(x)

    for form in FORMS.values():
        ours, theirs = form.new, form.reference
        if form.reads_y:
            if form.variant == "row":
                continue  # a 0-dim sample has no rows
            close(vmap(ours, in_dims)(x, y), vmap(theirs, in_dims)(x, y))
            close(vmap(ours, in_dims, -1)(x, y), vmap(theirs, in_dims, -1)(x, y))
        else:
            mine, plain = (lambda t, f=f: f(t, t) for f in (ours, theirs))
            close(vmap(mine, first)(x), vmap(plain, first)(x))
            close(nested(mine), nested(plain))


@pytest.mark.parametrize("dtypes", itertools.product(
    (torch.float16, torch.float32, torch.float64, torch.int32), repeat=2), ids=str)  # fmt: skip
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("shapes", [((4,), ()), ((), (4,)), ((), ())], ids=str)
def test_a_batched_0_dim_tensor_does_not_promote(
    shapes: Any, in_dims: Any, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """Inside vmap the tensor is 0-dim. Outside, the batch dimension makes it 1-dim."""
    make = Make("promotion", "cpu", torch.float32)
    x, y = (
        make(*(() if in_dim is None else (N,)), *shape, dtype=dtype)
        for shape, in_dim, dtype in zip(shapes, in_dims, dtypes, strict=True)
    )
    ours = vmap(treadle.vector_add, in_dims)(x, y)
    theirs = vmap(torch.add, in_dims)(x, y)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_in_place(device: str) -> None:
    make = Make("in place", device, torch.float64)
    x, y = make(N, 4, 5), make(N, 5)
    for form in INPLACE.values():
        for in_dims in ((0, 0), (0, None)) if form.reads_y else ((0, None),):
            other = y if in_dims[1] == 0 else y[0]
            written, expected = x.clone(), x.clone()
            result = vmap(form.inplace, in_dims)(written, other)
            close(result, vmap(form.torch_inplace, in_dims)(expected, other))
            close(written, expected)
    with pytest.raises(RuntimeError, match="must be batched by vmap if another is"):
        vmap(treadle.vector_add_, (None, 0))(x[0, 0].clone(), y)


class Shapes(TorchDispatchMode):
    """Records the shapes of the arguments that our kernels receive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f.namespace == "treadle":
            shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
            self.seen.append((str(f), shapes))
        return f(*args, **(kwargs or {}))


@pytest.mark.parametrize("subset", [(0,), (3, 4), (0, 3, 4), (1,), (0, 1, 2, 3, 4)], ids=str)
def test_one_kernel_call_and_rows_fold(subset: tuple[int, ...]) -> None:
    """If only rows are batched, one call computes one larger cell. Otherwise it computes N
    cells."""
    make = Make("fold", "cpu", torch.float64)
    args = list(cell_arguments(make, (2, 3, 4)).args)
    for i in subset:
        args[i] = torch.stack([args[i]] * N)
    with Shapes() as shapes, torch.no_grad():
        vmap(treadle.lltm_cell, tuple(0 if i in subset else None for i in range(5)))(*args)
    assert len(shapes.seen) == 1
    rows = set(subset) <= {0, 3, 4}
    assert shapes.seen[0][1][0] == ((2 * N, 3) if rows else (N, 2, 3))
    assert shapes.seen[0][1][1] == ((12, 7) if rows else (N, 12, 7))


def test_chunks() -> None:
    make = Make("odd", "cpu", torch.float64)
    x = make(5, 4)
    close(vmap(treadle.sine, chunk_size=2)(x), x.sin())
    args = [torch.stack([a] * 5) for a in cell_arguments(make, (2, 3, 4)).args]
    close(
        vmap(treadle.lltm_cell, chunk_size=2)(*args), vmap(reference.lltm_cell, chunk_size=2)(*args)
    )


def test_an_op_without_a_rule_is_noticed() -> None:
    with torch.library._scoped_library("treadle_planted", "DEF") as library:
        library.define("bare(Tensor x) -> Tensor")
        library.impl("bare", lambda x: x.sin(), "CPU")
        with pytest.raises(RuntimeError, match="fallback"):
            vmap(torch.ops.treadle_planted.bare)(torch.randn(3, 4))


def test_results_are_tensors_of_the_right_rank() -> None:
    args = cell_arguments(Make("rank", "cpu", torch.float64), (2, 3, 4)).args
    ranks = []

    def run(x: Tensor) -> Tensor:
        results = outputs(treadle.lltm_cell(x, *args[1:]))
        ranks.extend(r.dim() for r in results)
        return results[0]

    vmap(run)(torch.stack([args[0]] * N))
    assert ranks == [2, 2]
