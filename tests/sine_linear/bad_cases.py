"""Arguments that sine_linear and sine_linear_slope must reject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.sine_linear.cases import sine_arguments
from tests.support.inputs import Bad, Make, elsewhere, of_dtype, without_storage

NAMES = ("input", "weight", "bias")
LEAD, I, O = (2,), 3, 4  # noqa: E741
SHAPES = {"input": (2, 3), "weight": (4, 3), "bias": (4,)}


def layer(make: Make, layers: tuple[int, ...] = (), **replaced: Tensor) -> Any:
    """Calls sine_linear with valid arguments, except for those in ``replaced``."""
    call = sine_arguments(make, LEAD, (I, O), layers=layers)
    return call.with_args({NAMES.index(n): t for n, t in replaced.items()}).run(treadle.sine_linear)


def shapes() -> list[Bad]:
    op, found = "sine_linear", []
    for shape in ((4, 2), (3,), (), (1, 1, 4, 3)):
        found.append(
            Bad(
                f"{op} weight {list(shape)}",
                lambda m, shape=shape: layer(m, weight=m(*shape)),
                f"{op}: weight must have shape [O, I] with I = 3, got {list(shape)}",
            )
        )
    for shape in ((3,), (1,), (1, 4), ()):
        found.append(
            Bad(
                f"{op} bias {list(shape)}",
                lambda m, shape=shape: layer(m, bias=m(*shape)),
                f"{op}: bias must have shape [O] = [4], got {list(shape)}",
            )
        )
    found += [
        Bad(
            f"{op} input of no dimension",
            lambda m: layer(m, input=m()),
            f"{op}: input must have shape [..., I], got []",
        ),
        Bad(
            f"{op} input wider than weight",
            lambda m: layer(m, input=m(2, 5)),
            f"{op}: weight must have shape [O, I] with I = 5, got [4, 3]",
        ),
    ]
    return found


def many_layers() -> list[Bad]:
    op, n = "sine_linear", (2,)
    rule = "must have shape [O, I], or [N, O, I] for N layers, with N = 2 and I = 3, got "
    return [
        Bad(
            f"{op} N weight",
            lambda m: layer(m, n, weight=m(3, 4, 3)),
            f"{op}: weight {rule}[3, 4, 3]",
        ),
        Bad(
            f"{op} N weight's width",
            lambda m: layer(m, n, weight=m(2, 4, 5)),
            f"{op}: weight {rule}[2, 4, 5]",
        ),
        Bad(
            f"{op} N bias",
            lambda m: layer(m, n, bias=m(4)),
            f"{op}: bias must have shape [N, O] = [2, 4], got [4]",
        ),
        Bad(
            f"{op} N input",
            lambda m: layer(m, n, input=m(3)),
            f"{op}: input must have shape [N, ..., I] for N layers, got [3]",
        ),
    ]


def dtypes_and_memory() -> list[Bad]:
    op, found = "sine_linear", []
    for name in ("weight", "bias"):
        shape = SHAPES[name]
        found += [
            Bad(
                f"{op} {name} dtype",
                lambda m, n=name, s=shape: layer(m, **{n: of_dtype(m, torch.float16, *s)}),
                f"{op}: {name} must have the dtype of input, float32, got float16",
            ),
            Bad(
                f"{op} {name} device",
                lambda m, n=name, s=shape: layer(m, **{n: elsewhere(m, *s)}),
                f"{op}: {name} must be on the device of input, {{device}}, got {{other}}",
            ),
        ]
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2):
        name = str(dtype).removeprefix("torch.")
        found.append(
            Bad(
                f"{op} {name}",
                lambda m, dtype=dtype: (
                    sine_arguments(m, LEAD, (I, O))
                    .map(lambda t: of_dtype(m, dtype, *t.shape))
                    .run(treadle.sine_linear)
                ),
                f"{op}: input must have dtype float16, bfloat16, float32 or float64, got "
                + ("Float8_e5m2" if "float8" in name else name),
            )
        )
    for name, shape in SHAPES.items():
        size = 4 * torch.Size(shape).numel()
        found.append(
            Bad(
                f"{op} {name} storage",
                lambda m, n=name, s=shape: layer(m, **{n: without_storage(m(*s))}),
                f"{op}: {name} must have a storage of at least {size} bytes, got 0 bytes",
                ("cpu", "cuda"),
            )
        )
    found.append(
        Bad(
            f"{op} sparse",
            lambda m: layer(m, weight=m(4, 3).to_sparse()),
            f"{op}: tensors must be dense and on a CPU or CUDA device, got a Sparse tensor of "
            "float32 on {device}",
            ("cpu", "cuda"),
            NotImplementedError,
        )
    )
    return found


def slope(make: Make, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Calls sine_linear_slope with valid arguments that ``change`` has modified."""
    call = sine_arguments(make, LEAD, (I, O))
    shape = (*LEAD, O)
    values: dict[str, Any] = {
        "grad": make(*shape),
        "factor": make(*shape),
        **dict(zip(NAMES, call.args, strict=False)),
        "output": make(*shape),
        "phase": make(*shape, dtype=torch.int16),
        "omega": 2.0,
        "order": 1,
    }
    change(values)
    return torch.ops.treadle.sine_linear_slope(*values.values())


def slope_rules() -> list[Bad]:
    op, found = "sine_linear_slope", []
    for name in ("grad", "factor", "output", "phase"):
        size = 16 if name == "phase" else 32
        dtype = "have dtype int16" if name == "phase" else "have the dtype of input, float32"
        found += [
            Bad(
                f"{op} {name} shape",
                lambda m, n=name: slope(m, lambda v: v.update({n: v[n][:1]})),
                f"{op}: {name} must have shape [..., O] = [2, 4], got [1, 4]",
            ),
            Bad(
                f"{op} {name} dtype",
                lambda m, n=name: slope(m, lambda v: v.update({n: v[n].double()})),
                f"{op}: {name} must {dtype}, got float64",
            ),
            Bad(
                f"{op} {name} device",
                lambda m, n=name: slope(
                    m, lambda v: v.update({n: elsewhere(m, 2, 4).to(v[n].dtype)})
                ),
                f"{op}: {name} must be on the device of input, {{device}}, got {{other}}",
            ),
            Bad(
                f"{op} {name} storage",
                lambda m, n=name: slope(m, lambda v: without_storage(v[n])),
                f"{op}: {name} must have a storage of at least {size} bytes, got 0 bytes",
                ("cpu", "cuda"),
            ),
        ]
    found += [
        Bad(
            f"{op} without output",
            lambda m: slope(m, lambda v: v.update(output=None)),
            f"{op}: output must be given for float32, got none",
        ),
        Bad(
            f"{op} order",
            lambda m: slope(m, lambda v: v.update(order=0)),
            f"{op}: order must be 1 or more, got 0",
        ),
        Bad(
            f"{op} weight",
            lambda m: slope(m, lambda v: v.update(weight=m(4, 2))),
            f"{op}: weight must have shape [O, I] with I = 3, got [4, 2]",
        ),
    ]
    return found


def sine_linear_bad() -> list[Bad]:
    return [
        *shapes(),
        *many_layers(),
        *dtypes_and_memory(),
        *slope_rules(),
    ]
