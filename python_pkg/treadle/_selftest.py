"""Runs every op on every device beside ``treadle.reference``: the self-test of the report.

Arguments are made from the schemas, so an elementwise op needs no line here. An op whose shapes
depend on each other lists them in ``SHAPES``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treadle import reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "lltm_cell": {
        "input": (5, 7),
        "weights": (3 * 9, 9 + 7),
        "bias": (3 * 9,),
        "old_h": (5, 9),
        "old_cell": (5, 9),
    },
}
DEFAULT_SHAPE = (33, 65)


@dataclass(frozen=True)
class Result:
    """One op on one device in one dtype: the largest error of results and gradients."""

    op: str
    device: str
    dtype: str
    error: float
    limit: float
    message: str = ""

    @property
    def ok(self) -> bool:
        return not self.message and self.error <= self.limit


def op_names() -> list[str]:
    """Every op of the dispatcher's namespace, with its overload: "scale", "scale.out", "scale_"."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.split("::")[1] for name in names if name.startswith("treadle::"))


def overload(name: str) -> torch._ops.OpOverload:
    packet, _, suffix = name.partition(".")
    found: torch._ops.OpOverload = getattr(
        getattr(torch.ops.treadle, packet), suffix.split(".")[0] or "default"
    )
    return found


def run(devices: list[str]) -> Iterator[Result]:
    """Test every op that has a twin in ``treadle.reference``, on each of ``devices``."""
    for name in op_names():
        twin = name.partition(".")[0].rstrip("_")
        if not hasattr(reference, twin):
            continue
        for device in devices:
            for dtype in DTYPES:
                label = str(dtype).removeprefix("torch.")
                try:
                    error, limit = _measure(name, twin, device, dtype)
                    yield Result(name, device, label, error, limit)
                except Exception as problem:
                    # Whatever an op raises is what the report is for.
                    yield Result(name, device, label, float("nan"), 0.0, str(problem))


def _arguments(op: torch._ops.OpOverload, twin: str) -> tuple[list[Any], dict[str, Any]]:
    """Float64 arguments on the CPU, positional and by keyword; `out` is left out."""
    generator = torch.Generator().manual_seed(7)
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.name == "out":
            continue
        value: Any = 1.5
        if "Tensor" in str(argument.type):
            shape = SHAPES.get(twin, {}).get(argument.name, DEFAULT_SHAPE)
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    return positional, keyword


def _call(function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Results, then gradients, of an op or of its twin with these arguments."""
    args = [a.clone() if isinstance(a, Tensor) else a for a in args]
    if not isinstance(function, torch._ops.OpOverload):
        leaves = _leaves(name, args)
        return _with_gradients(function(*args, **kwargs), leaves)
    if name.partition(".")[0].endswith("_"):
        function(*args, **kwargs)
        return [args[0]]
    if function._overloadname == "out":
        out = torch.empty_like(args[0])
        function(*args, **kwargs, out=out)
        return [out]
    leaves = _leaves(name, args)
    return _with_gradients(function(*args, **kwargs), leaves)


def _leaves(name: str, args: list[Any]) -> list[Tensor]:
    if name.partition(".")[0].endswith("_") or name.endswith(".out"):
        return []
    return [a.requires_grad_() for a in args if isinstance(a, Tensor)]


def _with_gradients(results: Any, leaves: list[Tensor]) -> list[Tensor]:
    outputs: list[Tensor] = [results] if isinstance(results, Tensor) else list(results)
    if not leaves:
        return outputs
    generator = torch.Generator().manual_seed(8)
    cotangents = [
        torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs
    ]
    gradients = torch.autograd.grad(outputs, leaves, cotangents)
    return [*(o.detach() for o in outputs), *gradients]


def _measure(name: str, twin: str, device: str, dtype: torch.dtype) -> tuple[float, float]:
    """The error that comes nearest to its limit, and that limit.

    The limit is three times the error of the plain PyTorch composition in the same dtype, and
    eight roundings of the largest value.
    """
    op = overload(name)
    args, kwargs = _arguments(op, twin)
    rounded = [a.to(dtype) if isinstance(a, Tensor) else a for a in args]
    here = [a.to(device) if isinstance(a, Tensor) else a for a in rounded]
    exact = [a.double() if isinstance(a, Tensor) else a for a in rounded]
    formula = getattr(reference, twin)
    truths = _call(formula, name, exact, kwargs)
    plain = _call(formula, name, here, kwargs)
    got = _call(op, name, here, kwargs)
    worst = (0.0, 1.0)
    for value, other, truth in zip(got, plain, truths, strict=True):
        error = float((value.double().cpu() - truth).abs().max())
        room = 3 * float((other.double().cpu() - truth).abs().max())
        limit = room + 8 * torch.finfo(dtype).eps * float(truth.abs().max())
        if not error / limit < worst[0] / worst[1]:
            worst = (error, limit)
    return worst
