"""Calls that must raise, with their error texts. Each breaks one rule of an op, on all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.elementwise.snake_bad_cases import snake_bad
from tests.recurrent.support.cell_bad_cases import cell_bad
from tests.recurrent.support.layer_bad_cases import layer_bad
from tests.recurrent.support.lists_bad_cases import lists_bad
from tests.recurrent.support.scan_bad_cases import scan_bad
from tests.sine_linear.bad_backward import sine_linear_backward_bad
from tests.sine_linear.bad_cases import sine_linear_bad
from tests.sine_linear_jet.bad_cases import sine_linear_jet_bad
from tests.support.bad_writes import elementwise, halves_of_nine, integers_refused, writing
from tests.support.cases import OPS
from tests.support.inputs import Bad, Make, Op, elsewhere, of_dtype, without_storage


def scale_bad() -> list[Bad]:
    return [
        *elementwise("scale", lambda m, x: treadle.scale(x, 2), "x", "x"),
        *writing(
            "scale",
            lambda m, x, out: treadle.scale(x, 2, out=out),
            lambda m, x: treadle.scale_(x, 1.5),
            "x",
        ),
        integers_refused("scale", lambda m, x: treadle.scale_(x, 1.5), "x"),
        bool_refused("scale", lambda m, x: treadle.scale(x, True)),
        Bad(
            "scale complex factor",
            lambda m: treadle.scale(m(4), 1j),
            "scale: factor must be a real number, got a complex one",
        ),
    ]


def add_bad() -> list[Bad]:
    whole, add, add_ = "a + alpha * b", treadle.vector_add, treadle.vector_add_
    return [
        *elementwise("vector_add", lambda m, a: add(a, a), "a", whole),
        *writing(
            "vector_add",
            lambda m, a, out: add(a, m(*a.shape), out=out),
            lambda m, a: add_(a, m(*a.shape)),
            "a",
        ),
        integers_refused("vector_add", lambda m, a: add_(a, m(*a.shape)), "a"),
        Bad(
            "vector_add bool",
            lambda m: add(of_dtype(m, torch.bool, 4), of_dtype(m, torch.bool, 4)),
            f"vector_add: {whole} must give a result of an integer or floating-point dtype, "
            "got bool",
        ),
        Bad(
            "vector_add complex b",
            lambda m: add(m(4), 2j),
            "vector_add: b must be a tensor or a real number, got a complex one",
        ),
        Bad(
            "vector_add complex alpha",
            lambda m: add(m(4), m(4), alpha=2j),
            "vector_add: alpha must be a real number, got a complex one",
        ),
        Bad(
            "vector_add alpha of integers",
            lambda m: add(m(4, dtype=torch.int16), m(4, dtype=torch.int16), alpha=0.5),
            "vector_add: alpha must be an integer where the result is int16, got a "
            "floating-point number",
        ),
        Bad(
            "vector_add alpha too large",
            lambda m: add(m(4, dtype=torch.int8), 1, alpha=300),
            "vector_add: alpha must fit into int8, got 300",
        ),
        Bad(
            "vector_add shapes",
            lambda m: add(m(2, 3), m(4)),
            "vector_add: b must have a shape that broadcasts with that of a, [2, 3], got [4]",
        ),
        Bad(
            "vector_add_ shape",
            lambda m: add_(m(3), m(2, 3)),
            "vector_add_: a must have the shape of the result, [2, 3], got [3]",
        ),
        Bad(
            "vector_add device",
            lambda m: add(m(4), elsewhere(m, 4)),
            "vector_add: b must be on the device of a, {device}, got {other}",
        ),
        Bad(
            "vector_add b overlaps",
            lambda m: add_((pair := halves_of_nine(m))[0], pair[1]),
            "vector_add_: a must be b or share no memory with it, got one that partly overlaps it",
        ),
        Bad(
            "vector_add b storage",
            lambda m: add(m(4), without_storage(m(4))),
            "vector_add: b must have a storage of at least 16 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
    ]


def bool_refused(op: str, call: Callable[..., Any]) -> Bad:
    """A call, with bool arguments, of an op that returns integers for integers."""
    return Bad(
        f"{op} bool",
        lambda m: call(m, of_dtype(m, torch.bool, 4)),
        f"{op}: x must give a result of an integer or floating-point dtype, got bool",
    )


def is_of_one_tensor(op: Op) -> bool:
    return op.elementwise and op.has_out and f"{op.name}_backward" in OPS


def of_one_tensor_bad(model: Op) -> list[Bad]:
    """Bad calls of an elementwise op of one tensor, and of its backward."""
    op, backward = model.name, getattr(torch.ops.treadle, f"{model.name}_backward")

    def call(m: Make, x: Tensor, **out: Tensor) -> Any:
        return model.function(x, **out)

    def inplace(m: Make, x: Tensor) -> Any:
        assert model.inplace is not None
        return model.inplace(x)

    return [
        *elementwise(op, call, "x", "x"),
        *writing(op, call, inplace, "x"),
        bool_refused(op, call) if model.keeps_integers else integers_refused(op, inplace, "x"),
        Bad(
            f"{op}_backward integers",
            lambda m: backward(m(4), m(4, dtype=torch.int32)),
            f"{op}_backward: x must have a floating-point dtype, got int32",
        ),
        Bad(
            f"{op}_backward dtypes",
            lambda m: backward(m(4, dtype=torch.float16), m(4)),
            f"{op}_backward: grad must have the dtype of x, float32, got float16",
        ),
        Bad(
            f"{op}_backward device",
            lambda m: backward(elsewhere(m, 4), m(4)),
            f"{op}_backward: grad must be on the device of x, {{device}}, got {{other}}",
        ),
        Bad(
            f"{op}_backward shapes",
            lambda m: backward(m(3), m(4)),
            f"{op}_backward: grad must have a shape that broadcasts with that of x, [4], got [3]",
        ),
    ]


BAD: tuple[Bad, ...] = (
    *scale_bad(),
    *add_bad(),
    *(bad for op in OPS.values() if is_of_one_tensor(op) for bad in of_one_tensor_bad(op)),
    *snake_bad(),
    *sine_linear_bad(),
    *sine_linear_backward_bad(),
    *sine_linear_jet_bad(),
    *cell_bad(),
    *layer_bad(),
    *lists_bad(),
    *scan_bad(),
)
