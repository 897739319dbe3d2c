"""Tests of snake besides those in tests/laws: special values, large phases, mixed dtypes, vmap,
sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.elementwise.snake_cases import parameter, with_parameters
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import (
    DEVICES,
    FLOATING,
    GPU,
    HALVES,
    INTEGERS,
    Case,
    Make,
    requiring_grad,
)
from treadle import reference

N = 3


def spread(*values: float, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x [1, C, 1], alpha [C] and beta [C]. Each channel holds one triple of the values;
    together they hold all triples."""
    table = torch.tensor(list(itertools.product(values, repeat=3)), dtype=dtype, device=device)
    x, alpha, beta = table.unbind(1)
    return x.view(1, -1, 1), alpha, beta


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("eps", [None, 0.0, 1e-9])
def test_special_values(eps: float | None, dtype: torch.dtype, device: str) -> None:
    """inf, NaN and the signs of 0 are those of the composition."""
    inf = float("inf")
    values = (0.0, -0.0, 0.5, -2.0, inf, -inf, torch.nan)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for has_beta in (True, False):
        # Subnormal numbers are tested only in the limit form. In other forms snake multiplies by
        # the inverse of the divisor, which would be inf, whereas the composition divides.
        limit = not has_beta and eps is None
        tiny = (-torch.finfo(dtype).smallest_normal / 4,) if limit else ()
        x, *rest = spread(*values, *tiny, dtype=dtype, device=device)[: 3 if has_beta else 2]
        ours = treadle.snake(x, *rest, eps=eps)
        # The composition runs in the dtype in which snake computes, because 1e-9 is 0 in float16.
        plain = reference.snake(x.to(wide), *(p.to(wide) for p in rest), eps=eps).to(dtype)
        torch.testing.assert_close(ours, plain, equal_nan=True, rtol=2e-2, atol=0)
        assert torch.equal(ours.signbit() | ours.isnan(), plain.signbit() | plain.isnan())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("by", [1e-3, 1.0, 1e3, 1e6, 1e20])
def test_phases_of_any_size(by: float, dtype: torch.dtype, device: str) -> None:
    """The phase alpha x is rounded to float32. Results are accurate for this rounded phase, however
    large it is."""
    make = Make("phases", device, dtype)
    x, beta = make(2, 3, 500), parameter(make, 3)
    alpha = make(3, dtype=torch.float32, by=by)
    if dtype != torch.float32:
        alpha = alpha.clamp(-6e4, 6e4).to(dtype) if dtype == torch.float16 else alpha.to(dtype)
    phase = (x.float() * alpha.float()[:, None]).double()
    truth = x.double() + phase.sin().square() / beta.double()[:, None]
    ours = treadle.snake(x, alpha, beta)
    # Allows for rounding of the result and of sin² / beta, which is float32 for half types.
    eps = torch.finfo(dtype).eps
    own = eps * (4 if dtype == torch.float32 else 1 / 16)
    bound = 0.51 * eps * truth.abs() + own * (truth - x.double()).abs()
    assert bool(((ours.double() - truth).abs() <= bound).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_bits_do_not_go_by_neighbours(dtype: torch.dtype, device: str) -> None:
    """An element's result and gradient do not depend on large phases next to it."""
    make = Make("neighbours", device, dtype)
    x, cotangent = make(1, 1, 40_000, by=3.0), make(1, 1, 40_000)
    alpha = torch.full((1,), 1000.0, dtype=dtype, device=device)
    beside = x.clone()
    beside[..., ::8] = 6e4  # every eighth element has a phase of 6e7
    for apart in (False, True):  # if true, each element has its own parameter
        parameter = alpha.expand(x.numel()).contiguous() if apart else alpha
        shape = (1, x.numel()) if apart else x.shape
        near, far = (
            [
                treadle.snake(t.view(shape), parameter, eps=1.0),
                torch.ops.treadle.snake_backward(
                    cotangent.view(shape), t.view(shape), parameter, None, 1.0, [True, False, False]
                )[0],
            ]
            for t in (x, beside)
        )
        for a, b in zip(near, far, strict=True):
            same_bits(*(t.view(-1, 8)[:, 1:].contiguous() for t in (a, b)))


@pytest.mark.parametrize("device", DEVICES)
def test_integers_and_mixtures(device: str) -> None:
    make = Make("mixtures", device, torch.float32)
    dtypes = (torch.bool, *INTEGERS, *FLOATING)
    for x_dtype, dtype in itertools.product(dtypes, dtypes[1:]):
        x = torch.tensor([[3, 1, 0], [1, 2, 5]], device=device).to(x_dtype)
        alpha = torch.tensor([1, 2, 3], device=device).to(dtype)
        ours, plain = treadle.snake(x, alpha, eps=0.5), reference.snake(x, alpha, eps=0.5)
        assert ours.dtype == plain.dtype, (x_dtype, dtype)
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-2)
    for x_dtype, dtype in ((torch.float16, torch.float32), (torch.float32, torch.bfloat16)):
        x = make(2, 3, 5, dtype=x_dtype).requires_grad_()
        alpha = parameter(Make("alpha", device, dtype), 3).requires_grad_()
        found = torch.autograd.grad(treadle.snake(x, alpha).sum(), (x, alpha))
        wide = [t.detach().double().requires_grad_() for t in (x, alpha)]
        wanted = torch.autograd.grad(reference.snake(*wide).sum(), wide)
        for ours, leaf, true in zip(found, (x, alpha), wanted, strict=True):
            assert ours.dtype == leaf.dtype
            torch.testing.assert_close(ours, true.to(leaf.dtype))


class Ops(TorchDispatchMode):
    """Records the names of all ops that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(f))
        return f(*args, **(kwargs or {}))


@pytest.mark.parametrize("logscale", [False, True])
@pytest.mark.parametrize("beta", [False, True])
def test_a_training_step_is_two_ops(beta: bool, logscale: bool) -> None:
    act = treadle.nn.Snake(3, beta=beta, logscale=logscale)
    x = Make("step", "cpu", torch.float32)(2, 3, 7).requires_grad_()
    with Ops() as ops:
        torch.autograd.grad(act(x), [x, *act.parameters()], x.detach())
    assert [name for name in ops.names if "detach" not in name] == [
        "treadle.snake.default",
        "treadle.snake_backward.default",
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", OPS["snake"].cases, ids=lambda case: case.id)
def test_gradients_that_have_derivatives_are_the_same(case: Case, device: str) -> None:
    """Gradients with create_graph, which a composition computes, match those of the fused backward.
    gradgradcheck cannot find a difference, because it always sets create_graph."""
    op = OPS["snake"]
    call = requiring_grad(op, case.call(device, torch.float64))
    leaves = [call.args[i] for i in op.leaves(call)]
    y = call.run(op.function)
    once, again = (
        torch.autograd.grad(y.square().sum(), leaves, create_graph=graph, retain_graph=True)
        for graph in (False, True)
    )
    assert all(g.requires_grad for g in again)
    torch.testing.assert_close([g.detach() for g in again], list(once))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 5, 20_000), (1, 1, 50_000), (900, 7), (4, 2, 100)], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_sums_of_many(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    """The errors of the parameters' gradients are about one rounding. The bits of the gradients do
    not depend on the number of threads."""
    make = Make("sums", device, dtype)
    x, alpha, beta = with_parameters(make, make(*shape)).args
    cotangent = make(*shape)
    run = lambda: torch.ops.treadle.snake_backward(  # noqa: E731
        cotangent, x, alpha, beta, 0.0, [True] * 3
    )
    threads = torch.get_num_threads()
    ours = run()
    torch.set_num_threads(3 - min(threads, 2))
    again = run()
    torch.set_num_threads(threads)
    for a, b in zip(ours, again, strict=True):
        same_bits(a, b)
    wide = [t.double().requires_grad_() for t in (x, alpha, beta)]
    truth = torch.autograd.grad(reference.snake(*wide), wide, cotangent.double())
    columns = x.numel() / alpha.numel()
    for found, true in zip(ours[1:], truth[1:], strict=True):
        eps = max(torch.finfo(dtype).eps, 1e-15)
        bound = eps * true.abs() + 8 * min(eps, 1e-6) * columns**0.5
        assert bool(((found.double() - true).abs() <= bound).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("in_dims", list(itertools.product((0, 1, None), (0, 1, None)))[:-1])
@pytest.mark.parametrize("shape", [(4, 5, 2), (2, 5), (6,), ()], ids=str)
def test_vmap(
    shape: tuple[int, ...], in_dims: tuple[int | None, int | None], beta: bool, device: str
) -> None:
    """Values and gradients under vmap over x, parameters or both, with one parameter or one per
    channel."""
    make = Make("vmap", device, torch.float64)
    of_x, of_alpha = in_dims
    if of_x == 1 and not shape:
        return
    channels = shape[1] if len(shape) > 1 else 1
    for one in {1, channels}:
        x = torch.stack([make(*shape)] * N if of_x is None else [make(*shape) for _ in range(N)])
        alpha = torch.stack([parameter(make, one)] + [parameter(make, one) for _ in range(N - 1)])
        args = [
            x[0] if of_x is None else x.movedim(0, of_x),
            alpha[0] if of_alpha is None else alpha.movedim(0, of_alpha),
        ]
        extra = [parameter(make, channels)] if beta else []

        def run(f: Callable[..., Tensor], *t: Tensor) -> Any:
            numbers = tuple(range(len(t)))
            return f(*t), grad(lambda *u: (f(*u) * 1.5).sin().sum(), numbers)(*t)

        dims = (*in_dims, *[None] * len(extra))
        ours = vmap(lambda *t: run(treadle.snake, *t), dims)(*args, *extra)
        theirs = vmap(lambda *t: run(reference.snake, *t), dims)(*args, *extra)
        torch.testing.assert_close(ours, theirs)

        def fused(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
            alpha, *others = parameters
            mask = [True, True, bool(others)]
            other = others[0] if others else None
            found = torch.ops.treadle.snake_backward(x.cos(), x, alpha, other, 0.0, mask)
            return tuple(g for g in found if g is not None)

        def plain(x: Tensor, *parameters: Tensor) -> Any:
            return vjp(reference.snake, x, *parameters)[1](x.cos())

        torch.testing.assert_close(
            vmap(fused, dims)(*args, *extra), vmap(plain, dims)(*args, *extra)
        )


def test_vmap_refuses_what_a_call_refuses() -> None:
    x = torch.ones(N, 2, 5)
    for alpha, of_alpha in ((torch.ones(N), 0), (torch.ones(5, 2), None)):
        with pytest.raises(RuntimeError, match=r"alpha must have shape \[C\] = \[5\] or \[1\]"):
            vmap(treadle.snake, (0, of_alpha))(x, alpha)
    with pytest.raises(RuntimeError, match="must be batched by vmap if another is"):
        vmap(treadle.snake_, (None, 0))(x[0], torch.ones(N, 5))


def test_arguments_are_named() -> None:
    x, alpha = torch.ones(2, 3), torch.ones(3)
    for args, name in (((1.0, alpha), "x"), ((x, 1.0), "alpha"), ((x, alpha, 1.0), "beta")):
        with pytest.raises(TypeError, match=f"^snake: {name} must be a tensor, got float$"):
            treadle.snake(*args)
        with pytest.raises(TypeError, match=f"^snake_: {name} must be a tensor, got float$"):
            treadle.snake_(*args)
    with pytest.raises(TypeError, match="^snake: eps must be a number, got str$"):
        treadle.snake(x, alpha, eps="1")  # type: ignore[arg-type]
    for op, name in ((treadle.snake, "snake"), (treadle.snake_, "snake_")):
        with pytest.raises(TypeError, match=f"^{name}: logscale must be a bool, got int$"):
            op(x, alpha, logscale=1)  # type: ignore[operator]
    with pytest.raises(TypeError, match="^snake: out must be a tensor, got int$"):
        treadle.snake(x, alpha, out=1)  # type: ignore[arg-type]
    same_bits(treadle.snake(x, alpha, eps=1), treadle.snake(x, alpha, eps=1.0))


@GPU
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("by", [1.0, 1e5])
def test_the_same_bits_on_cpu_and_cuda(by: float, dtype: torch.dtype) -> None:
    make = Make("bits", "cpu", dtype)
    for shape, zero in itertools.product(((3, 5, 1000), (3, 5, 1001), (7, 33)), (False, True)):
        x, alpha, beta = with_parameters(make, make(*shape), at_zero=zero).args
        if dtype != torch.float16:
            alpha = alpha * by
        for args, options in (
            ((x, alpha, beta), {"eps": 1e-9}),
            ((x, alpha), {}),
            ((x, make(alpha.numel(), by=9), beta * 3), {"logscale": True}),
        ):
            found = treadle.snake(*(t.cuda() for t in args), **options)
            same_bits(found.cpu(), treadle.snake(*args, **options))
