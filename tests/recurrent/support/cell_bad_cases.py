"""Calls for which lltm_cell and its backward op must raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.support.bad_arguments import (
    refused_dtypes,
    sparse,
    without_storages,
    wrong_devices,
    wrong_dtypes,
)
from tests.support.inputs import Bad, Call, Make, of_dtype

NAMES = ("input", "weights", "bias", "old_h", "old_cell")
B, I, H = SIZES = (3, 5, 4)  # noqa: E741
SHAPES = {
    "input": "[B, I]",
    "weights": "[3H, H+I] = [12, 9]",
    "bias": "[3H] = [12] or [1, 3H]",
    "old_h": "[B, H] = [3, 4]",
    "old_cell": "[B, H] = [3, 4]",
}


def cell(make: Make, **replaced: Tensor) -> Any:
    """Calls lltm_cell on valid arguments with some of them replaced."""
    call = cell_arguments(make, SIZES)
    return call.with_args({NAMES.index(n): t for n, t in replaced.items()}).run(treadle.lltm_cell)


def changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    """Calls lltm_cell on valid arguments with one of them changed."""
    call, index = cell_arguments(make, SIZES), NAMES.index(name)
    return call.with_args({index: change(call.args[index])}).run(treadle.lltm_cell)


def shapes() -> list[Bad]:
    wrong: dict[str, tuple[tuple[int, ...], ...]] = {
        "weights": ((12, 8), (11, 9), (108,), (1, 12, 9)),
        "bias": ((11,), (12, 1), (1, 11), (3, 12), ()),
        "old_h": ((2, 4), (1, 4)),
        "old_cell": ((2, 4), (1, 4), (3, 5), (4,), (1, 3, 4)),
    }
    found = [
        Bad(
            f"lltm_cell {name} {list(shape)}",
            lambda m, name=name, shape=shape: cell(m, **{name: m(*shape)}),
            f"lltm_cell: {name} must have shape {SHAPES[name]}, got {list(shape)}",
        )
        for name, shapes in wrong.items()
        for shape in shapes
    ]
    for shape in ((), (5,), (1, 1, 3, 5)):
        found.append(
            Bad(
                f"lltm_cell input {list(shape)}",
                lambda m, shape=shape: cell(m, input=m(*shape)),
                "lltm_cell: input must have shape [B, I], or [N, B, I] for N cells, got "
                f"{list(shape)}",
            )
        )
    found.append(
        Bad(
            "lltm_cell old_h of one dimension",
            lambda m: cell(m, old_h=m(4)),
            "lltm_cell: old_h must have shape [B, H], got [4]",
        )
    )
    found.append(
        Bad(
            "lltm_cell input wider than weights",
            lambda m: cell(m, input=m(3, 6)),
            "lltm_cell: weights must have shape [3H, H+I] = [12, 10], got [12, 9]",
        )
    )
    return found


def many_cells() -> list[Bad]:
    def run(m: Make, **replaced: Tensor) -> Any:
        call = cell_arguments(m, SIZES, lead=(2,))
        changed = {NAMES.index(n): t for n, t in replaced.items()}
        return call.with_args(changed).run(treadle.lltm_cell)

    return [
        Bad(
            "lltm_cell N weights",
            lambda m: run(m, weights=m(12, 9)),
            "lltm_cell: weights must have shape [N, 3H, H+I] = [2, 12, 9], got [12, 9]",
        ),
        Bad(
            "lltm_cell N bias",
            lambda m: run(m, bias=m(12)),
            "lltm_cell: bias must have shape [N, 3H] = [2, 12] or [N, 1, 3H], got [12]",
        ),
        Bad(
            "lltm_cell N old_h",
            lambda m: run(m, old_h=m(3, 4)),
            "lltm_cell: old_h must have shape [N, B, H], got [3, 4]",
        ),
        Bad(
            "lltm_cell N old_cell",
            lambda m: run(m, old_cell=m(1, 3, 4)),
            "lltm_cell: old_cell must have shape [N, B, H] = [2, 3, 4], got [1, 3, 4]",
        ),
    ]


def dtypes_and_devices() -> list[Bad]:
    def in_dtype(m: Make, dtype: torch.dtype) -> Any:
        call = cell_arguments(m, SIZES)
        return call.map(lambda t: of_dtype(m, dtype, *t.shape)).run(treadle.lltm_cell)

    like_input = dict.fromkeys(NAMES[1:], "input")
    return [
        *wrong_dtypes("lltm_cell", changed, like_input),
        *wrong_devices("lltm_cell", changed, like_input),
        *refused_dtypes("lltm_cell", in_dtype),
        Bad(
            "lltm_cell float64 cell beside halves",
            lambda m: cell_arguments(
                Make("", m.device, torch.float16), SIZES, cell_dtype=torch.float64
            ).run(treadle.lltm_cell),
            "lltm_cell: old_cell must have the dtype of input, float16, or float32, got float64",
        ),
    ]


def second_derivative(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    """The second derivative of lltm_cell, with an argument changed after the first derivative."""
    call = cell_arguments(make, SIZES)
    leaves = [t.detach().requires_grad_() for t in call.args]
    new_h, _ = treadle.lltm_cell(*leaves)
    grads = torch.autograd.grad((new_h * new_h).sum(), leaves, create_graph=True)
    change(leaves[NAMES.index(name)])
    return torch.autograd.grad(sum((g * g).sum() for g in grads), leaves)


def memory() -> list[Bad]:
    shapes = dict(zip(NAMES, ((B, I), (3 * H, H + I), (3 * H,), (B, H), (B, H)), strict=True))
    # A Node does not know the names of its saved tensors.
    node = "LltmCellBackwardBackward"
    later = [
        replace(
            bad,
            id=f"{bad.id} before a second derivative",
            message=re.sub("^.*(?= must)", f"{node}: a saved tensor", bad.message),
        )
        for bad in without_storages("lltm_cell", second_derivative, shapes)
    ]
    return [
        *later,
        *without_storages("lltm_cell", changed, shapes),
        *sparse("lltm_cell", changed, [name for name in NAMES if name != "bias"]),
    ]


def backward(make: Make, change: Callable[[dict[str, Tensor]], Any], dtype: Any = None) -> Any:
    """Calls lltm_cell_backward on valid arguments after ``change``."""
    call: Call = cell_arguments(make, SIZES)
    names = ("grad_h", "grad_cell", *NAMES, "new_cell", "gates")
    grads = (make(B, H), make(B, H))
    values = dict(zip(names, (*grads, *call.args, make(B, H), make(B, 3 * H)), strict=True))
    change(values)
    return torch.ops.treadle.lltm_cell_backward(*values.values(), [True] * 5)


def backward_changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    return backward(make, lambda values: values.update({name: change(values[name])}))


def backward_rules() -> list[Bad]:
    op, like_h = "lltm_cell_backward", "the same shape as old_h, [3, 4]"
    rules = {name: like_h for name in ("grad_h", "grad_cell", "new_cell")}
    rules["gates"] = "shape [..., B, 3H] = [3, 12]"
    like = {"grad_h": "input", "grad_cell": "old_cell", "new_cell": "old_cell", "gates": "input"}
    shapes = {name: (B, 3 * H if name == "gates" else H) for name in rules}
    wrong_shapes = [
        Bad(
            f"{op} {name} shape",
            lambda m, name=name: backward_changed(m, name, lambda _: m(2, 4)),
            f"{op}: {name} must have {rule}, got [2, 4]",
        )
        for name, rule in rules.items()
    ]
    return [
        *wrong_shapes,
        *wrong_dtypes(op, backward_changed, like),
        *without_storages(op, backward_changed, shapes),
        Bad(
            f"{op} weights",
            lambda m: backward_changed(m, "weights", lambda _: m(12, 8)),
            f"{op}: weights must have shape [3H, H+I] = [12, 9], got [12, 8]",
        ),
    ]


def cell_bad() -> list[Bad]:
    return [
        *shapes(),
        *many_cells(),
        *dtypes_and_devices(),
        *memory(),
        *backward_rules(),
    ]
