"""Arguments that sine_linear_jet and its backward must reject."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tests.sine_linear_jet.cases import jet_arguments
from tests.support.inputs import Bad, Make, elsewhere, of_dtype, without_storage

LEAD, I, O = (2,), 3, 4  # noqa: E741
NAMES = ("jet", "weight", "bias", "omega", "coordinates", "second")
SHAPES = {"jet": (4, 2, 3), "weight": (4, 3), "bias": (4,)}
op = "sine_linear_jet"


def layer(make: Make, **replaced: Any) -> Any:
    """Calls sine_linear_jet with valid arguments, except for those in ``replaced``."""
    call = jet_arguments(make, LEAD, (I, O))
    call = call.with_args({NAMES.index(n): value for n, value in replaced.items()})
    return call.run(torch.ops.treadle.sine_linear_jet)


def jets() -> list[Bad]:
    """Shapes of jet that do not fit `coordinates` and `second`."""
    rule = f"{op}: jet must have shape [P, ..., I] with P = "
    given = "for coordinates = {} and second = {}, got {}"
    cases: tuple[tuple[tuple[int, ...], int, str, int], ...] = (
        ((3, 2, 3), 2, "laplacian", 4),
        ((5, 2, 3), 2, "laplacian", 4),
        ((4, 2, 3), 2, "none", 3),
        ((4, 2, 3), 2, "hessian_diagonal", 5),
        ((4, 2, 3), 3, "laplacian", 5),
        ((4,), 2, "laplacian", 4),
        ((), 2, "laplacian", 4),
        ((0, 2, 3), 1, "none", 2),
    )
    found = []
    for shape, d, second, p in cases:

        def run(m: Make, shape: Any = shape, d: int = d, second: str = second) -> Any:
            return layer(m, jet=m(*shape), coordinates=d, second=second)

        message = f"{rule}{p} {given.format(d, second, list(shape))}"
        found.append(Bad(f"{op} {list(shape)} d{d} {second}", run, message))
    return found


def numbers() -> list[Bad]:
    found = [
        Bad(
            f"{op} coordinates {d}",
            lambda m, d=d: layer(m, coordinates=d),
            f"{op}: coordinates must be 1 or more, got {d}",
        )
        for d in (0, -2)
    ]
    found.append(
        Bad(
            f"{op} second",
            lambda m: layer(m, second="hessian"),
            f"{op}: second must be none, laplacian or hessian_diagonal, got hessian",
        )
    )
    for omega, name in (
        (0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (1e-50, "1e-50"),
        (1e50, "1e+50"),
    ):
        found.append(
            Bad(
                f"{op} omega {name}",
                lambda m, omega=omega: layer(m, omega=omega),
                f"{op}: omega must be finite and not 0 in float32, got {name}",
            )
        )
    found.append(
        Bad(
            f"{op} omega 0 of doubles",
            lambda m: (
                jet_arguments(m, LEAD, (I, O))
                .with_args({3: 0.0})
                .map(lambda t: t.double())
                .run(torch.ops.treadle.sine_linear_jet)
            ),
            f"{op}: omega must be finite and not 0, got 0",
        )
    )
    return found


def shapes() -> list[Bad]:
    found = [
        Bad(
            f"{op} weight {list(shape)}",
            lambda m, shape=shape: layer(m, weight=m(*shape)),
            f"{op}: weight must have shape [O, I] with I = 3, got {list(shape)}",
        )
        for shape in ((4, 2), (3,), (), (2, 4, 3))
    ]
    return found + [
        Bad(
            f"{op} bias {list(shape)}",
            lambda m, shape=shape: layer(m, bias=m(*shape)),
            f"{op}: bias must have shape [O] = [4], got {list(shape)}",
        )
        for shape in ((3,), (1, 4), ())
    ]


def dtypes_and_memory() -> list[Bad]:
    found = []
    for name in ("weight", "bias"):
        shape = SHAPES[name]
        found += [
            Bad(
                f"{op} {name} dtype",
                lambda m, n=name, s=shape: layer(m, **{n: of_dtype(m, torch.float16, *s)}),
                f"{op}: {name} must have the dtype of jet, float32, got float16",
            ),
            Bad(
                f"{op} {name} device",
                lambda m, n=name, s=shape: layer(m, **{n: elsewhere(m, *s)}),
                f"{op}: {name} must be on the device of jet, {{device}}, got {{other}}",
            ),
        ]
    for dtype in (torch.int64, torch.bool, torch.complex64):
        name = str(dtype).removeprefix("torch.")
        found.append(
            Bad(
                f"{op} {name}",
                lambda m, dtype=dtype: layer(m, jet=of_dtype(m, dtype, 4, 2, 3)),
                f"{op}: jet must have dtype float16, bfloat16, float32 or float64, got {name}",
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
    return found


def backward(make: Make, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Calls sine_linear_jet_backward with valid arguments that ``change`` has modified."""
    jet, weight, bias, *numbers = jet_arguments(make, LEAD, (I, O)).args
    values: dict[str, Any] = {
        "grad": make(4, 2, 4),
        "jet": jet,
        "weight": weight,
        "bias": bias,
        "output": make(4, 2, 4),
        "phase": make(2, 4, dtype=torch.int16),
        **dict(zip(NAMES[3:], numbers, strict=True)),
    }
    change(values)
    return torch.ops.treadle.sine_linear_jet_backward(*values.values(), [True] * 3)


def backward_rules() -> list[Bad]:
    op, found = "sine_linear_jet_backward", []
    for name in ("grad", "output", "phase"):
        shape = (2, 4) if name == "phase" else (4, 2, 4)
        letters = "[..., O]" if name == "phase" else "[P, ..., O]"
        size = 16 if name == "phase" else 128
        rule = "have dtype int16" if name == "phase" else "have the dtype of jet, float32"
        found += [
            Bad(
                f"{op} {name} shape",
                lambda m, n=name: backward(m, lambda v: v.update({n: v[n][..., :1, :]})),
                f"{op}: {name} must have shape {letters} = {list(shape)}, got "
                f"{[*shape[:-2], 1, 4]}",
            ),
            Bad(
                f"{op} {name} dtype",
                lambda m, n=name: backward(m, lambda v: v.update({n: v[n].double()})),
                f"{op}: {name} must {rule}, got float64",
            ),
            Bad(
                f"{op} {name} device",
                lambda m, n=name, s=shape: backward(
                    m, lambda v: v.update({n: elsewhere(m, *s).to(v[n].dtype)})
                ),
                f"{op}: {name} must be on the device of jet, {{device}}, got {{other}}",
            ),
            Bad(
                f"{op} {name} storage",
                lambda m, n=name: backward(m, lambda v: without_storage(v[n])),
                f"{op}: {name} must have a storage of at least {size} bytes, got 0 bytes",
                ("cpu", "cuda"),
            ),
        ]
    found.append(
        Bad(
            f"{op} jet",
            lambda m: backward(m, lambda v: v.update(second="none")),
            f"{op}: jet must have shape [P, ..., I] with P = 3 for coordinates = 2 and second = "
            "none, got [4, 2, 3]",
        )
    )
    return found


def sine_linear_jet_bad() -> list[Bad]:
    return [*jets(), *numbers(), *shapes(), *dtypes_and_memory(), *backward_rules()]
