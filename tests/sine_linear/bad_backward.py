"""Arguments that the backward ops of sine_linear must reject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.sine_linear.bad_cases import LEAD, NAMES, I, O
from tests.sine_linear.cases import sine_arguments
from tests.support.inputs import Bad, Make, without_storage

ops = torch.ops.treadle


def arguments(make: Make, changed: dict[str, Any]) -> list[Any]:
    """Valid arguments of sine_linear_backward up to omega, with those in `changed` replaced."""
    call = sine_arguments(make, LEAD, (I, O))
    values = {
        "grad": make(*LEAD, O),
        **dict(zip(NAMES, call.args, strict=False)),
        "output": make(*LEAD, O),
        "phase": make(*LEAD, O, dtype=torch.int16),
        **changed,
    }
    return [*values.values(), 2.0]


def backward(make: Make, **changed: Any) -> Any:
    return ops.sine_linear_backward(*arguments(make, changed), [True] * 4)


def shared_rules(op: str, call: Callable[..., Any]) -> list[Bad]:
    """Bad calls of both ops of the first backward pass."""
    return [
        Bad(
            f"{op} grad",
            lambda m: call(m, grad=m(4)),
            f"{op}: grad must have shape [..., O] = [2, 4], got [4]",
        ),
        Bad(
            f"{op} without output",
            lambda m: call(m, output=None),
            f"{op}: output must be given for float32, got none",
        ),
    ]


def products_rules() -> list[Bad]:
    op, int16 = "sine_linear_backward", {"phase": torch.int16}
    return [
        *shared_rules(op, backward),
        *(
            Bad(
                f"{op} {n} storage",
                lambda m, n=n, s=s: backward(m, **{n: without_storage(m(*s, dtype=int16.get(n)))}),
                f"{op}: {n} must have a storage of at least {b} bytes, got 0 bytes",
                ("cpu", "cuda"),
            )
            for n, s, b in (("phase", (2, 4), 16), ("input", (2, 3), 24), ("weight", (4, 3), 48))
        ),
    ]


def backward_(make: Make, **changed: Any) -> Any:
    return ops.sine_linear_backward_(*arguments(make, changed), True)


def overlapping(make: Make) -> Any:
    both = make(3, 4)
    return backward_(make, grad=both[:2], output=both[1:])


def inplace_rules() -> list[Bad]:
    op = "sine_linear_backward_"
    return [
        *shared_rules(op, backward_),
        Bad(
            f"{op} grad strides",
            lambda m: backward_(m, grad=m(4, 2).t()),
            f"{op}: grad must be contiguous, got strides [1, 2]",
        ),
        Bad(
            f"{op} overlap",
            overlapping,
            f"{op}: grad must be output or share no memory with it, "
            "got one that partly overlaps it",
        ),
        Bad(
            f"{op} with a derivative",
            lambda m: backward_(m, weight=m(4, 3).requires_grad_()),
            f"{op}: grad must be used without autograd, got an argument that requires grad",
        ),
        *(
            Bad(
                f"{op} {n} storage",
                lambda m, n=n, t=t: backward_(m, **{n: without_storage(m(2, 4, dtype=t))}),
                f"{op}: {n} must have a storage of at least {b} bytes, got 0 bytes",
                ("cpu", "cuda"),
            )
            for n, t, b in (("grad", torch.float32, 32), ("phase", torch.int16, 16))
        ),
    ]


def slope_backward(make: Make, v: Tensor, **changed: Any) -> Any:
    call = sine_arguments(make, LEAD, (I, O))
    shape = (*LEAD, O)
    values = {
        "grad": make(*shape),
        "factor": None,
        **dict(zip(NAMES, call.args, strict=False)),
        "output": make(*shape),
        "phase": make(*shape, dtype=torch.int16),
        **changed,
    }
    run = torch.ops.treadle.sine_linear_slope_backward
    return run(v, *values.values(), 2.0, 1, [True, False, True])


def slope_backward_rules() -> list[Bad]:
    op = "sine_linear_slope_backward"
    return [
        Bad(
            f"{op} v shape",
            lambda m: slope_backward(m, m(1, 4)),
            f"{op}: v must have shape [..., O] = [2, 4], got [1, 4]",
        ),
        Bad(
            f"{op} v dtype",
            lambda m: slope_backward(m, m(2, 4, dtype=torch.float64)),
            f"{op}: v must have the dtype of input, float32, got float64",
        ),
        Bad(
            f"{op} v storage",
            lambda m: slope_backward(m, without_storage(m(2, 4))),
            f"{op}: v must have a storage of at least 32 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
        Bad(
            f"{op} grad",
            lambda m: slope_backward(m, m(2, 4), grad=m(4)),
            f"{op}: grad must have shape [..., O] = [2, 4], got [4]",
        ),
        Bad(
            f"{op} phase storage",
            lambda m: slope_backward(m, m(2, 4), phase=without_storage(m(2, 4, dtype=torch.int16))),
            f"{op}: phase must have a storage of at least 16 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
    ]


def sine_linear_backward_bad() -> list[Bad]:
    return [*products_rules(), *inplace_rules(), *slope_backward_rules()]
