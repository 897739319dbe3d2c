"""Inputs of snake: every layout of an elementwise op with parameters of its channels, with and
without beta; rows as audio decoders have them; numbers for eps, and phases far out."""

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
    """Of both signs, and not near 0."""
    t = make(channels, by=0.2, to=to)
    return t + torch.where(t > 0.1, 1, -1).to(t.dtype)


def with_parameters(
    make: Make, x: Tensor, *, beta: bool = True, one: str = "", eps: float = 0.0, far: float = 1.0
) -> Call:
    """one: which of the two have one element. far: what alpha is multiplied by."""
    alpha, other = (
        parameter(make, 1 if name in one.split() else channels_of(x)) for name in ("alpha", "beta")
    )
    return Call((x, alpha * far, other if beta else None), {"eps": eps})


# x, and how it is stored: sizes around a vector, a warp and a block of a row; a batch that is
# divided; one channel.
SHAPES: tuple[tuple[int, ...], ...] = (
    (2, 3, 7),
    (2, 5, 16),
    (3, 1, 40),
    (1, 4, 33),
    (70, 9),
    (70, 300, 2),
    (3, 4, 255),
    (2, 3, 8200),
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
    for one in ("alpha", "beta", "alpha beta"):
        add(f"one {one}", (2, 3, 7), one=one)
    for layout in (transposed, strided, misaligned):
        add(f"rows, {layout.__name__}", (2, 3, 300), to=layout)
    add("alpha alone, one", (3, 5, 4), beta=False, one="alpha", eps=0.25)
    add("channels_last of images", (2, 40, 3, 4), to=channels_last)
    wide = tuple(dtype for dtype in FLOATING if dtype != torch.float16)
    add("far", (2, 3, 70), far=3e6, dtypes=wide)
    add("some far", (2, 3, 70), far=1e5, dtypes=wide)
    return tuple(found)


def _big(shape: tuple[int, ...]) -> bool:
    return torch.Size(shape).numel() > 200


def element(y: Tensor, at: int) -> Tensor:
    """[1], a view: what makes the form of an op must not run a kernel."""
    return y[(at,) * y.dim()].reshape(1) if y.numel() else y.new_ones(1)


def backward_calls(make: Make) -> Iterator[tuple[Any, ...]]:
    """What snake_backward is called with."""
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 7), (5,))
    for shape, beta in itertools.product(shapes, (True, False)):
        x, *parameters = with_parameters(make, make(*shape), beta=beta).args
        yield make(*shape), x, *parameters, 0.25, [True] * 3


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
                "beta": lambda y: Call((element(y, 0), element(y, -1)), {"eps": 9.0}),
            },
            parameters=True,
        ),
    )
