"""Inputs of snake: every layout of elementwise ops, with and without beta, eps and logscale; rows
like those of audio decoders; large phases; alpha at 0."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.elementwise.cases import elementwise_tensors
from tests.support.inputs import FLOATING, Call, Case, Make, Op
from tests.support.layouts import Layout, channels_last, misaligned, strided, transposed
from treadle import reference


def channels_of(x: Tensor) -> int:
    return x.shape[1] if x.dim() > 1 else 1


def parameter(make: Make, channels: int, to: Layout | None = None) -> Tensor:
    """Returns values of both signs that are not near 0."""
    t = make(channels, by=0.2, to=to)
    return t + torch.where(t > 0.1, 1, -1).to(t.dtype)


def with_parameters(
    make: Make,
    x: Tensor,
    *,
    beta: bool = True,
    one: str = "",
    eps: float | None = 0.0,
    far: float = 1.0,
    at_zero: bool = False,
    logscale: bool = False,
) -> Call:
    """one: which of alpha and beta have one element. far: a factor by which alpha is multiplied.
    at_zero: of every three alphas, one is 0, and one is so small that the square of its phase
    underflows in float64."""
    alpha, other = (
        parameter(make, 1 if name in one.split() else channels_of(x)) for name in ("alpha", "beta")
    )
    if at_zero:
        factors = torch.tensor([0.0, -1e-200, 1.0], dtype=torch.float64, device=alpha.device)
        count = torch.arange(alpha.numel(), device=alpha.device)
        alpha = alpha * factors[count % 3].to(alpha.dtype)
    options: dict[str, Any] = {"eps": eps, "logscale": True} if logscale else {"eps": eps}
    return Call((x, alpha * far, other if beta else None), options)


# Shapes of x: rows of about the size of a vector, a warp or a block; large batches; one channel.
SHAPES: tuple[tuple[int, ...], ...] = (
    (2, 3, 7),
    (2, 5, 16),
    (3, 1, 40),
    (1, 4, 33),
    (70, 9),
    (70, 300, 2),
    (3, 4, 255),
    (2, 3, 8200),
    (3, 1100),
    (1, 2, 5, 77),
    (2, 0, 3),
    (0, 3, 4),
    (3, 4, 0),
)


def snake_cases() -> tuple[Case, ...]:
    found: list[Case] = []

    def add(
        name: str,
        shape: tuple[int, ...],
        to: Layout | None = None,
        dtypes: tuple[torch.dtype, ...] = FLOATING,
        **options: Any,
    ) -> None:
        def build(make: Make) -> Call:
            return with_parameters(make, make(*shape, to=to), **options)

        found.append(Case(f"snake {name}", build, dtypes, big=_big(shape)))

    for name, tensor in elementwise_tensors():
        found.append(
            Case(
                f"snake {name}",
                lambda make, tensor=tensor: with_parameters(make, tensor(make)),
                FLOATING,
                big=name in ("parallel", "tail", "misaligned tail"),
            )
        )
    for shape in SHAPES:
        add(str(list(shape)), shape)
    add("alpha alone", (2, 3, 7), beta=False)
    add("eps", (2, 3, 7), eps=0.25)
    add("beta alone", (2, 3, 7), eps=None)
    for shape in ((2, 3, 7), (70, 9), (2, 3, 300), (2, 3, 8200)):
        add(f"limit {list(shape)}", shape, beta=False, eps=None)
    for shape in ((2, 3, 7), (2, 4, 3, 5), (2, 3, 300)):
        add(f"limit at 0, {list(shape)}", shape, beta=False, eps=None, at_zero=True)
        add(f"logscale {list(shape)}", shape, eps=0.25, logscale=True)
    add("limit at 0, images", (2, 40, 3, 4), to=channels_last, beta=False, eps=None, at_zero=True)
    add("limit, one", (3, 5, 4), beta=False, eps=None, one="alpha")
    add("logscale, alpha alone", (2, 3, 7), beta=False, eps=0.25, logscale=True)
    add("logscale, limit", (2, 3, 7), beta=False, eps=None, logscale=True)
    add("logscale, images", (2, 40, 3, 4), to=channels_last, eps=0.25, logscale=True)
    add("logscale, transposed", (2, 9, 10), to=transposed, eps=0.25, logscale=True)
    for one in ("alpha", "beta", "alpha beta"):
        add(f"one {one}", (2, 3, 7), one=one)
    for layout in (transposed, strided, misaligned):
        add(f"rows, {layout.__name__}", (2, 3, 300), to=layout)
    add("alpha alone, one", (3, 5, 4), beta=False, one="alpha", eps=0.25)
    add("channels_last of images", (2, 40, 3, 4), to=channels_last)
    wide = tuple(dtype for dtype in FLOATING if dtype != torch.float16)
    add("far", (2, 3, 70), far=3e6, dtypes=wide)
    add("some far", (2, 3, 70), far=1e5, dtypes=wide)
    add("limit, far", (2, 3, 70), far=3e6, dtypes=wide, beta=False, eps=None)
    return tuple(found)


def _big(shape: tuple[int, ...]) -> bool:
    return torch.Size(shape).numel() > 200


def element(y: Tensor, at: int) -> Tensor:
    """Returns a view of shape [1]. It is not a copy, because building a form of the op must not run
    a kernel."""
    return y[(at,) * y.dim()].reshape(1) if y.numel() else y.new_ones(1)


def backward_calls(make: Make) -> Iterator[Call]:
    """Yields the arguments of calls of snake_backward."""
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 7), (5,))
    forms: tuple[tuple[bool, float | None, bool], ...] = (
        (True, 0.25, False),
        (False, 0.25, False),
        (False, None, False),
        (True, 0.25, True),
    )
    for shape, (beta, eps, logscale) in itertools.product(shapes, forms):
        x, *parameters = with_parameters(make, make(*shape), beta=beta).args
        args = (make(*shape), x, *parameters, eps, [True] * 3)
        yield Call(args, {"logscale": logscale})


def ops() -> tuple[Op, ...]:
    return (
        Op(
            "snake",
            treadle.snake,
            reference.snake,
            ("snake",),
            (0, 1, 2),
            snake_cases(),
            treadle.snake_,
            has_out=True,
            saved=(0, 1, 2),
            rest={
                "": lambda y: Call((element(y, 0),), {"eps": 9.0}),
                "limit": lambda y: Call((element(y, 0),)),
                "beta": lambda y: Call((element(y, 0), element(y, -1)), {"eps": 9.0}),
            },
            parameters=True,
        ),
    )
