"""torch.library.opcheck: schema, autograd registration, fake tensors, and AOTDispatcher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from .inputs import DEVICES, Call, Make
from .lltm_cases import cell_arguments

ops = torch.ops.treadle


def elementwise_calls(m: Make) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Every overload of the elementwise ops that returns a new tensor."""
    x, y, row = m(4, 6), m(4, 6), m(6)
    return [
        (ops.vector_add.default, (x, y), {}),
        (ops.vector_add.default, (x.t(), y.t()), {"alpha": 0.3}),
        (ops.vector_add.default, (x, row), {"alpha": -2}),
        (ops.vector_add.default, (x, m()), {}),
        (ops.vector_add.default, (m(0, 6), row), {}),
        (ops.vector_add.Scalar, (x, 2.5), {"alpha": 3}),
        (ops.scale.default, (x, 1.5), {}),
        (ops.scale.default, (x[:, ::2], 3), {}),
        (ops.scale.default, (m(0), 3), {}),
        (ops.sine.default, (x,), {}),
        (ops.sine.default, (m(2, 3, 4, 5).to(memory_format=torch.channels_last),), {}),
        (ops.sine_backward.default, (y, x), {}),
        (ops.sine_backward.default, (row, x), {}),
        (ops.cosine.default, (x,), {}),
        (ops.cosine.default, (m(2, 3, 4, 5).to(memory_format=torch.channels_last),), {}),
        (ops.cosine_backward.default, (y, x), {}),
        (ops.cosine_backward.default, (row, x), {}),
    ]


def writing_calls(m: Make) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    x, y = m(4, 6), m(4, 6)
    return [
        (ops.vector_add.out, (x, y), {"alpha": 2, "out": m(4, 6)}),
        (ops.vector_add_.default, (x, y), {}),
        (ops.vector_add_.default, (x, m(6)), {"alpha": 0.5}),
        (ops.vector_add_.Scalar, (x, 2.5), {}),
        (ops.scale.out, (x, 2), {"out": m(4, 6)}),
        (ops.scale_.default, (x, 2), {}),
        (ops.sine.out, (x,), {"out": m(4, 6)}),
        (ops.sine_.default, (x,), {}),
        (ops.cosine.out, (x,), {"out": m(4, 6)}),
        (ops.cosine_.default, (x,), {}),
    ]


def cell_calls(device: str) -> list[Call]:
    m = Make("opcheck", device, torch.float32)
    half = Make("opcheck", device, torch.bfloat16)
    return [
        cell_arguments(m, (3, 5, 4)),
        cell_arguments(m, (3, 5, 4), bias="None"),
        cell_arguments(m, (3, 5, 4), bias="[1, 3H]"),
        cell_arguments(m, (0, 5, 4)),
        cell_arguments(m, (3, 0, 4)),
        cell_arguments(m, (3, 5, 4), lead=(2,)),
        cell_arguments(half, (3, 5, 4), cell_dtype=torch.float32),
    ]


def cell_ops(call: Call) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    new_h, new_cell, gates = ops.lltm_cell_forward(*call.args)
    grads = (torch.ones_like(new_h), torch.ones_like(new_cell))
    mask = [argument is not None for argument in call.args]
    return [
        (ops.lltm_cell.default, call.args, {}),
        (ops.lltm_cell_forward.default, call.args, {}),
        (ops.lltm_cell_backward.default, (*grads, *call.args, new_cell, gates, mask), {}),
    ]


def with_grad(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
def test_elementwise(grad: bool, device: str) -> None:
    for op, args, kwargs in elementwise_calls(Make("opcheck", device, torch.float32)):
        opcheck(op, with_grad(args) if grad else args, kwargs)


@pytest.mark.parametrize("device", DEVICES)
def test_promotion(device: str) -> None:
    m = Make("opcheck", device, torch.float32)
    integers, halves = m(6, dtype=torch.int32), m(6, dtype=torch.float16)
    opcheck(ops.vector_add.default, (integers, halves))
    opcheck(ops.vector_add.default, with_grad((m(6), halves)))
    opcheck(ops.vector_add.Scalar, (integers, 2.5))
    opcheck(ops.scale.default, (integers, 0.5))
    opcheck(ops.scale.default, (integers > 0, 3))
    opcheck(ops.sine.default, (integers,))
    opcheck(ops.cosine.default, (integers,))


@pytest.mark.parametrize("device", DEVICES)
def test_writing(device: str) -> None:
    for op, args, kwargs in writing_calls(Make("opcheck", device, torch.float32)):
        opcheck(op, args, kwargs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("number", range(len(cell_calls("meta"))))
def test_cell(number: int, grad: bool, device: str) -> None:
    for op, args, kwargs in cell_ops(cell_calls(device)[number]):
        opcheck(op, with_grad(args) if grad else args, kwargs)


def test_every_op_is_here() -> None:
    make = Make("opcheck", "cpu", torch.float32)
    calls = [*elementwise_calls(make), *writing_calls(make), *cell_ops(cell_calls("cpu")[0])]
    tested = {str(call[0]) for call in calls}
    registered = {
        f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("treadle::")
    }
    assert tested == registered


def test_a_wrong_op_is_noticed() -> None:
    """A fake kernel of another shape, and an op that writes what its schema does not say.

    (Strides it does not compare: test_numbers does.)
    """
    with torch.library._scoped_library("treadle_planted", "DEF") as library:
        library.define("shape(Tensor x) -> Tensor")
        library.define("writes(Tensor x) -> Tensor")
        library.impl("shape", lambda x: x.clone(), "CPU")
        library.impl("shape", lambda x: torch.empty_like(x.t()), "Meta")
        library.impl("writes", lambda x: x.add_(1).clone(), "CPU")
        library.impl("writes", lambda x: torch.empty_like(x), "Meta")
        planted = torch.ops.treadle_planted
        with pytest.raises(Exception, match="[Ss]hape"):
            opcheck(planted.shape.default, (torch.randn(3, 4),))
        with pytest.raises(Exception, match="was mutated"):
            opcheck(planted.writes.default, (torch.randn(3, 4),))
