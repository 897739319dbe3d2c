"""Inputs of the elementwise ops: shapes, layouts, broadcasting, scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.support import layouts
from tests.support.inputs import FLOATING, INTEGERS, Call, Case, Make, Op
from tests.support.layouts import (
    channels_last,
    expanded,
    misaligned,
    padded_rows,
    strided,
    transposed,
)
from treadle import reference

REGISTERED = torch.ops.treadle
TRIG_ULPS = {torch.float64: 2.0, torch.float32: 1.6, torch.float16: 0.56, torch.bfloat16: 0.56}


def elementwise_tensors() -> Iterator[tuple[str, Callable[[Make], Tensor]]]:
    """Every shape and layout in which elementwise ops of one tensor are tested."""
    shapes = {
        "vector": (33,),
        "one": (1,),
        "0-dim": (),
        "empty": (0,),
        "empty rows": (3, 0, 5),
        "tail": (1027,),
        "matrix": (17, 33),
        "4-dim": (2, 5, 4, 3),
    }
    for name, shape in shapes.items():
        yield name, lambda make, shape=shape: make(*shape)
    for name, layout in layouts.LAYOUTS.items():
        if layout is not layouts.dense:
            yield name, lambda make, layout=layout: make(9, 33, to=layout)
    yield "expanded", lambda make: make(9, 33, to=expanded)
    yield "channels_last", lambda make: make(2, 5, 4, 3, to=channels_last)
    yield "permuted", lambda make: make(4, 5, 6).permute(1, 2, 0)
    yield "misaligned tail", lambda make: make(1027, to=misaligned)
    # This tensor is larger than the grain size of at::parallel_for.
    yield "parallel", lambda make: make(3, 40_003)


def unary_cases(
    op: str, arguments: Callable[[Make, Tensor], Call], dtypes: tuple[torch.dtype, ...]
) -> list[Case]:
    return [
        Case(
            f"{op} {name}",
            lambda make, tensor=tensor: arguments(make, tensor(make)),
            dtypes,
            big=name in ("parallel", "tail", "misaligned tail"),
        )
        for name, tensor in elementwise_tensors()
    ]


def pair_cases(op: str, dtypes: tuple[torch.dtype, ...], **kwargs: Any) -> list[Case]:
    """Returns pairs of tensors of one dtype: each layout with a dense tensor, and shapes that
    broadcast."""

    def pair(a: Callable[[Make], Tensor], b: Callable[[Make], Tensor]) -> Callable[[Make], Call]:
        return lambda make: Call((a(make), b(make)), kwargs)

    cases = [
        Case(
            f"{op} {name}",
            lambda make, t=tensor: Call((a := t(make), make(*a.shape)), kwargs),
            dtypes,
            big=name in ("parallel", "tail", "misaligned tail"),
        )
        for name, tensor in elementwise_tensors()
    ]
    pairs: dict[str, tuple[Callable[[Make], Tensor], Callable[[Make], Tensor]]] = {
        "row": (lambda m: m(7, 5), lambda m: m(5)),
        "column": (lambda m: m(7, 5), lambda m: m(7, 1)),
        "outer": (lambda m: m(7, 1), lambda m: m(1, 5)),
        "0-dim b": (lambda m: m(7, 5), lambda m: m()),
        "0-dim a": (lambda m: m(), lambda m: m(7, 5)),
        "rank 3 and 2": (lambda m: m(3, 1, 5), lambda m: m(4, 5, to=strided)),
        "empty and row": (lambda m: m(0, 5), lambda m: m(1, 5)),
        "both transposed": (lambda m: m(9, 6, to=transposed), lambda m: m(9, 6, to=transposed)),
        "two orders": (lambda m: m(9, 6, to=transposed), lambda m: m(9, 6, to=padded_rows)),
        "two orders, tiles": (lambda m: m(2, 35, 50, to=transposed), lambda m: m(2, 35, 50)),
        "both misaligned": (lambda m: m(67, to=misaligned), lambda m: m(67, to=misaligned)),
        "channels_last and channel": (
            lambda m: m(2, 5, 4, 3, to=channels_last),
            lambda m: m(5, 1, 1),
        ),
    }
    return cases + [Case(f"{op} {name}", pair(*ab), dtypes) for name, ab in pairs.items()]


def add_cases() -> tuple[Case, ...]:
    numbers = FLOATING + INTEGERS
    cases = pair_cases("vector_add", numbers)
    for alpha in (2, -3):
        cases.append(
            Case(
                f"vector_add alpha {alpha}",
                lambda m, alpha=alpha: Call((m(7, 5), m(7, 5)), {"alpha": alpha}),
                numbers,
            )
        )
    cases += [
        Case("vector_add alpha 0.3", lambda m: Call((m(67), m(67)), {"alpha": 0.3}), FLOATING),
        Case("vector_add number", lambda m: Call((m(7, 5), 3)), numbers),
        Case("vector_add number, strided", lambda m: Call((m(7, 5, to=strided), 3)), numbers),
        Case(
            "vector_add number, alpha",
            lambda m: Call((m(7, 5), -0.7), {"alpha": 1.9}),
            FLOATING,
        ),
    ]
    return tuple(cases)


def scale_cases() -> tuple[Case, ...]:
    cases = unary_cases("scale", lambda m, x: Call((x, 3)), FLOATING + INTEGERS)
    for factor in (-0.37, 0, 1e-3):
        cases.append(Case(f"scale by {factor}", lambda m, f=factor: Call((m(67), f)), FLOATING))
    return tuple(cases)


def op_of_one_tensor(
    name: str,
    dtypes: tuple[torch.dtype, ...],
    torch_function: Callable[..., Tensor] | None = None,
    torch_inplace: Callable[..., Tensor] | None = None,
    ulps: Mapping[torch.dtype, float] | None = None,
    wide: float = 30.0,
) -> tuple[Op, Op]:
    """The op and its backward op, found by name.

    dtypes: the dtypes of x, including integers if the op returns integers for them. torch_function,
    torch_inplace: torch's twins, if any. ulps: the largest error, or None if the bits equal
    torch's. wide: the scale of large arguments whose results do not overflow in any dtype.
    """
    cases = unary_cases(name, lambda m, x: Call((x,)), dtypes)
    cases.append(Case(f"{name} wide", lambda m: Call((m(1027, by=wide),)), FLOATING, big=True))
    backward = f"{name}_backward"
    return (
        Op(
            name,
            getattr(treadle, name),
            getattr(reference, name),
            (name,),
            (0,),
            tuple(cases),
            getattr(treadle, f"{name}_"),
            torch_inplace,
            has_out=True,
            saved=(0,),
            torch_function=torch_function,
            ulps=ulps,
            rest={"": lambda y: Call(())},
        ),
        Op(
            backward,
            getattr(REGISTERED, backward).default,
            getattr(reference, backward),
            (backward,),
            (0, 1),
            tuple(pair_cases(backward, FLOATING)),
            saved=(0, 1),
            rest={"": lambda y: Call((y,)), "row": lambda y: Call((y[0],))},
        ),
    )


def ops() -> tuple[Op, ...]:
    return (
        Op(
            "vector_add",
            treadle.vector_add,
            reference.vector_add,
            ("vector_add", "vector_add.Scalar"),
            (0, 1),
            add_cases(),
            treadle.vector_add_,
            Tensor.add_,
            has_out=True,
            torch_function=torch.add,
            rest={
                "": lambda y: Call((y,), {"alpha": 2}),
                "row": lambda y: Call((y[0],)),
                "number": lambda y: Call((1.5,)),
            },
        ),
        Op(
            "scale",
            treadle.scale,
            reference.scale,
            ("scale",),
            (0,),
            scale_cases(),
            treadle.scale_,
            Tensor.mul_,
            has_out=True,
            torch_function=torch.mul,
            rest={"": lambda y: Call((3,))},
        ),
        *op_of_one_tensor("sine", FLOATING, torch.sin, Tensor.sin_, TRIG_ULPS, 1e3),
        *op_of_one_tensor("cosine", FLOATING, torch.cos, Tensor.cos_, TRIG_ULPS, 1e3),
    )
