"""The self-test of ``python -m treadle``: compares every op with ``treadle.reference``.

Arguments are made from the schemas. Only ops whose arguments depend on each other need entries in
``ARGUMENTS``; elementwise ops need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treadle import reference
from treadle._check.tensors import dtype_name

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _layers(gates: int, biases: int, states: int) -> dict[str, dict[str, Any]]:
    """Arguments for both overloads of an op that is called like torch.lstm."""
    shared = {
        "hx": (2, 5, 9) if states == 1 else [(2, 5, 9)] * states,
        "params": [(gates * 9, 7), (gates * 9, 9), *[(gates * 9,)] * biases] * 2,
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": True,
    }
    packed = {"data": (5 + 3 + 3, 7), "batch_sizes": torch.tensor([5, 3, 3])}
    return {
        "input": {**shared, "input": (4, 5, 7), "batch_first": False},
        "data": {**shared, **packed},
    }


# For each argument, the shape of a tensor, a list of shapes, or a value.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "lltm_cell": {
        "input": (5, 7),
        "weights": (3 * 9, 9 + 7),
        "bias": (3 * 9,),
        "old_h": (5, 9),
        "old_cell": (5, 9),
    },
    "sine_linear": {"input": (5, 7), "weight": (9, 7), "bias": (9,)},
    "sine_linear_jet": {
        "jet": (4, 5, 7),
        "weight": (9, 7),
        "bias": (9,),
        "coordinates": 2,
        "second": "laplacian",
    },
    "recurrent_layer": {
        "input": (4, 5, 7),
        "batch_sizes": None,
        "h0": (2, 5, 9),
        "c0": (2, 5, 9),
        "weight_ih": (2, 3 * 9, 7),
        "weight_hh": (2, 3 * 9, 9),
        "bias_ih": (2, 3 * 9),
        "bias_hh": None,
        "cell": "lltm",
    },
}
_SIZES = {"lltm": (3, 1, 2), "lstm": (4, 2, 2), "gru": (3, 2, 1)}
_SIZES |= {"rnn_tanh": (1, 2, 1), "rnn_relu": (1, 2, 1)}
for _name, _sizes in _SIZES.items():
    for _form, _given in _layers(*_sizes).items():
        ARGUMENTS |= {f"{_name}.{_form}": _given, f"{_name}.{_form}_cells": _given}
for _form in ("snake", "snake.out", "snake_"):
    # eps keeps beta away from 0.
    ARGUMENTS[_form] = {"x": (5, 9, 65), "alpha": (9,), "beta": (9,), "eps": 6.0}
DEFAULT_SHAPE = (33, 65)


@dataclass(frozen=True)
class Result:
    """The test of one op on one device in one dtype: its error, and the error that is allowed."""

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
    """Every op in torch.ops.treadle, with its overload: "scale", "scale.out", "scale_"."""
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
                label = dtype_name(dtype)
                try:
                    with _exact_float32():
                        error, limit = _measure(name, twin, device, dtype)
                    yield Result(name, device, label, error, limit)
                except Exception as problem:
                    # The report shows any error that an op raises.
                    yield Result(name, device, label, float("nan"), 0.0, str(problem))


@contextmanager
def _exact_float32() -> Iterator[None]:
    """Turns off TF32 in recurrent layers. By default, torch's setting for cuDNN allows it there."""
    before = torch.backends.cudnn.allow_tf32
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_allow_tf32(before)


def _map(change: Callable[[Tensor], Tensor], args: Any) -> Any:
    """Applies ``change`` to every floating-point tensor among the arguments, also in lists."""
    if isinstance(args, list):
        return [_map(change, a) for a in args]
    return change(args) if isinstance(args, Tensor) and args.is_floating_point() else args


def _arguments(op: torch._ops.OpOverload, name: str) -> tuple[list[Any], dict[str, Any]]:
    """Float64 arguments on the CPU, positional and by keyword, without `out`."""
    generator = torch.Generator().manual_seed(7)
    known = ARGUMENTS.get(name, {})
    positional: list[Any] = []
    keyword: dict[str, Any] = {}

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(shape) for shape in value]
        shaped = isinstance(value, tuple)
        return torch.randn(value, generator=generator, dtype=torch.float64) if shaped else value

    for argument in op._schema.arguments:
        number = str(argument.type) in ("number", "float")
        made_up = not argument.kwarg_only or number
        if argument.name == "out" or not (made_up or argument.name in known):
            continue
        value = made(known.get(argument.name, 1.5 if number else DEFAULT_SHAPE))
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    return positional, keyword


def _call(function: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Results, then gradients, of an op or of its twin with these arguments."""
    args = _map(Tensor.clone, args)
    if not isinstance(function, torch._ops.OpOverload):
        if name.endswith("_cells"):
            kwargs = kwargs | {"return_cells": True}
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
    found: list[Tensor] = []

    def collect(t: Tensor) -> Tensor:
        found.append(t.requires_grad_())
        return t

    _map(collect, args)
    return found


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
    """The error that is closest to its limit, and that limit.

    The limit is three times the error of the plain PyTorch composition in the same dtype, plus the
    largest value times 16 eps.
    """
    op = overload(name)
    args, kwargs = _arguments(op, name)
    rounded = _map(lambda t: t.to(dtype), args)
    here = _map(lambda t: t.to(device), rounded)
    exact = _map(Tensor.double, rounded)
    formula = getattr(reference, twin)
    truths = _call(formula, name, exact, kwargs)
    plain = _call(formula, name, here, kwargs)
    got = _call(op, name, here, kwargs)
    worst = (0.0, 1.0)
    for value, other, truth in zip(got, plain, truths, strict=True):
        error = float((value.double().cpu() - truth).abs().max())
        room = 3 * float((other.double().cpu() - truth).abs().max())
        limit = room + 16 * torch.finfo(dtype).eps * float(truth.abs().max())
        if not error / limit < worst[0] / worst[1]:
            worst = (error, limit)
    return worst
