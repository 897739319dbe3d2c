"""Times the overhead of a call on tiny tensors, for torch.ops.treadle.* and for treadle.*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import treadle
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, calls, ours
from benchmarks.harness.timing import Calls
from tests.support.cases import OPS as CASES

ELEMENTS = 8
FACTOR = 1.5
# Every elementwise op that has a twin in torch.
TWINS: dict[str, Callable[..., Any]] = {
    name: op.torch_function for name, op in CASES.items() if op.elementwise and op.torch_function
}
OPS = tuple(TWINS)


def arguments(op: str, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    return {"vector_add": (x, y), "scale": (x, FACTOR)}.get(op, (x,))


def twin_name(op: str) -> str:
    return f"torch.{TWINS[op].__name__}"


def plans(settings: Settings) -> Iterator[Plan]:
    for op in OPS:
        for backward in (False, True):
            what = "forward + backward" if backward else "no grad"
            yield Plan(
                f"{settings.device}/overhead/{op}/{what}",
                partial(dispatcher_case, settings, op, backward),
            )
    for op in OPS:
        yield Plan(f"{settings.device}/overhead/treadle.{op}", partial(front_case, settings, op))


def _facts(device: str, label: str) -> dict[str, Any]:
    return {"group": f"call overhead, {device}", "label": label, "shape": [ELEMENTS]}


def dispatcher_case(settings: Settings, op: str, backward: bool) -> Case:
    """Times torch.ops.treadle.<op>.default against torch.add and against torch's op in TWINS."""

    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(  # type: ignore[return-value]
            torch.randn(ELEMENTS, device=settings.device, requires_grad=backward) for _ in range(2)
        )

    functions = {OURS: ours(op), twin_name(op): TWINS[op]}
    yardsticks: dict[str, Calls] = {}
    if op != "vector_add":
        yardsticks["torch.add"] = calls(torch.add, [pair()])
    target = None
    if settings.device == "cuda":
        target = Target("at most 1.10 × torch.add", lambda medians: 1.10 * medians["torch.add"])
    elif not backward:
        target = Target("at most torch.add + 1 µs", lambda medians: medians["torch.add"] + 1.0)
    label = f"{op}, {'forward + backward' if backward else 'no grad'}"
    return Case(
        op=op,
        functions=functions,
        inputs=[arguments(op, *pair())],
        timer=settings.wall(),
        yardsticks=yardsticks,
        target=target,
        facts=_facts(settings.device, label),
    )


def front_case(settings: Settings, op: str) -> Case:
    """Times treadle.<op> against the op that it calls."""
    x, y = (torch.randn(ELEMENTS, device=settings.device) for _ in range(2))
    args = arguments(op, x, y)
    target = None
    if settings.device == "cuda":
        target = Target("at most torch.ops + 0.4 µs", lambda medians: medians["torch.ops"] + 0.4)
    return Case(
        op=op,
        functions={OURS: getattr(treadle, op), "torch.ops": ours(op)},
        inputs=[args],
        timer=settings.wall(),
        target=target,
        facts=_facts(settings.device, f"treadle.{op}, no grad"),
    )
