"""What lltm_cell and its backward op must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle

from .inputs import Bad, Call, Make, elsewhere, of_dtype, without_storage
from .lltm_cases import cell_arguments

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
    """lltm_cell on good arguments, some replaced."""
    call = cell_arguments(make, SIZES)
    return call.with_args({NAMES.index(n): t for n, t in replaced.items()}).run(treadle.lltm_cell)


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
    found = []
    shapes = {"weights": (12, 9), "bias": (12,), "old_h": (3, 4), "old_cell": (3, 4)}
    for name, shape in shapes.items():
        found += [
            Bad(
                f"lltm_cell {name} dtype",
                lambda m, n=name, s=shape: cell(m, **{n: of_dtype(m, torch.float64, *s)}),
                f"lltm_cell: {name} must have the dtype of input, float32, got float64",
            ),
            Bad(
                f"lltm_cell {name} device",
                lambda m, n=name, s=shape: cell(m, **{n: elsewhere(m, *s)}),
                f"lltm_cell: {name} must be on the device of input, {{device}}, got {{other}}",
            ),
        ]
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2):
        name = str(dtype).removeprefix("torch.")
        found.append(
            Bad(
                f"lltm_cell {name}",
                lambda m, dtype=dtype: (
                    cell_arguments(m, SIZES)
                    .map(lambda t: of_dtype(m, dtype, *t.shape))
                    .run(treadle.lltm_cell)
                ),
                "lltm_cell: input must have dtype float16, bfloat16, float32 or float64, got "
                + ("Float8_e5m2" if "float8" in name else name),
            )
        )
    found.append(
        Bad(
            "lltm_cell float64 cell beside halves",
            lambda m: cell_arguments(
                Make("", m.device, torch.float16), SIZES, cell_dtype=torch.float64
            ).run(treadle.lltm_cell),
            "lltm_cell: old_cell must have the dtype of input, float16, or float32, got float64",
        )
    )
    return found


def memory() -> list[Bad]:
    found = []
    for name, count in {
        "input": 15,
        "weights": 108,
        "bias": 12,
        "old_h": 12,
        "old_cell": 12,
    }.items():
        index = NAMES.index(name)

        def run(m: Make, index: int = index) -> Any:
            call = cell_arguments(m, SIZES)
            without_storage(call.args[index])
            return call.run(treadle.lltm_cell)

        found.append(
            Bad(
                f"lltm_cell {name} storage",
                run,
                f"lltm_cell: {name} must lie inside its storage, {4 * count} bytes, got a storage "
                "of 0 bytes",
                ("cpu", "cuda"),
            )
        )
        if name in ("bias",):
            continue
        found.append(
            Bad(
                f"lltm_cell {name} sparse",
                lambda m, i=index: (
                    (call := cell_arguments(m, SIZES))
                    .with_args({i: call.args[i].to_sparse()})
                    .run(treadle.lltm_cell)
                ),
                "lltm_cell: tensors must be dense and on a CPU or CUDA device, got a Sparse tensor "
                "of float32 on {device}",
                ("cpu", "cuda"),
                NotImplementedError,
            )
        )
    return found


def backward(make: Make, change: Callable[[dict[str, Tensor]], Any], dtype: Any = None) -> Any:
    """lltm_cell_backward on good arguments after ``change``."""
    call: Call = cell_arguments(make, SIZES)
    names = ("grad_h", "grad_cell", *NAMES, "new_cell", "gates")
    grads = (make(B, H), make(B, H))
    values = dict(zip(names, (*grads, *call.args, make(B, H), make(B, 3 * H)), strict=True))
    change(values)
    return torch.ops.treadle.lltm_cell_backward(*values.values(), [True] * 5)


def backward_rules() -> list[Bad]:
    shape = {"grad_h": "that of old_h = [3, 4]", "grad_cell": "that of old_h = [3, 4]",
             "new_cell": "that of old_h = [3, 4]", "gates": "[..., B, 3H] = [3, 12]"}  # fmt: skip
    like = {"grad_h": "input", "grad_cell": "old_cell", "new_cell": "old_cell", "gates": "input"}
    op, found = "lltm_cell_backward", []
    for name in shape:
        size = 144 if name == "gates" else 48
        found += [
            Bad(
                f"{op} {name} shape",
                lambda m, n=name: backward(m, lambda v: v.update({n: m(2, 4)})),
                f"{op}: {name} must have shape {shape[name]}, got [2, 4]",
            ),
            Bad(
                f"{op} {name} dtype",
                lambda m, n=name: backward(m, lambda v: v.update({n: v[n].double()})),
                f"{op}: {name} must have the dtype of {like[name]}, float32, got float64",
            ),
            Bad(
                f"{op} {name} storage",
                lambda m, n=name: backward(m, lambda v: without_storage(v[n])),
                f"{op}: {name} must lie inside its storage, {size} bytes, got a storage of 0 bytes",
                ("cpu", "cuda"),
            ),
        ]
    found.append(
        Bad(
            f"{op} weights",
            lambda m: backward(m, lambda v: v.update(weights=m(12, 8))),
            f"{op}: weights must have shape [3H, H+I] = [12, 9], got [12, 8]",
        )
    )
    return found


def cell_bad() -> list[Bad]:
    return [
        *shapes(),
        *many_cells(),
        *dtypes_and_devices(),
        *memory(),
        *backward_rules(),
    ]
