"""Runs a user's formula on symbols, and records the graph: arithmetic, and torch's functions."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import Graph, Node


class Value:
    """A value of a formula, in place of a tensor [B, H]."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node

    def __add__(self, other: Any) -> Value:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return call("div", other, self)

    def __neg__(self) -> Value:
        return call("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return call("abs", self)

    def __pow__(self, exponent: Any) -> Value:
        return _power(self, exponent)

    def __gt__(self, other: Any) -> Value:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return call("ge", self, other)

    def __lt__(self, other: Any) -> Value:
        return call("gt", other, self)

    def __le__(self, other: Any) -> Value:
        return call("ge", other, self)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return call("eq", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return call("eq", call("eq", self, other), 0)

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Value:
        return call("gt", call("mul", *_conditions("&", self, other)), 0)

    def __or__(self, other: Any) -> Value:
        return call("gt", call("add", *_conditions("|", self, other)), 0)

    def __invert__(self) -> Value:
        return call("eq", *_conditions("~", self), 0)

    def __bool__(self) -> bool:
        raise TypeError(
            "a formula has no branches, because it runs for every unit: use torch.where(condition, "
            "a, b)"
        )

    def __float__(self) -> float:
        raise TypeError("a formula's arguments are not numbers: use torch's functions, not math's")

    def _not_pointwise(self, *_: Any) -> Value:
        raise TypeError(f"a formula computes each unit from its own values; {KNOWN}")

    __getitem__ = __matmul__ = __rmatmul__ = __rpow__ = __mod__ = __floordiv__ = _not_pointwise

    def __getattr__(self, name: str) -> Any:
        # x.sigmoid() as torch.sigmoid(x).
        function = METHODS.get(name)
        if function is None:
            raise AttributeError(f"a formula's value has no {name!r}; {KNOWN}")
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Value:
        own = FUNCTIONS.get(func)
        if own is None:
            name = getattr(func, "__name__", str(func))
            raise TypeError(f"a formula cannot call {name}; {KNOWN}")
        return own(*args, **(kwargs or {}))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def lift(graph: Graph, value: Any) -> Node:
    if isinstance(value, Value):
        if value.graph is not graph:
            raise TypeError("a formula's values must be those of its own call")
        return value.node
    if not _is_number(value):
        kind = "None" if value is None else type(value).__name__
        raise TypeError(
            f"a formula takes its arguments and numbers, got {kind}"
            + (": what is learned must come through a gate" if isinstance(value, Tensor) else "")
        )
    if not math.isfinite(value):
        raise ValueError(f"a formula's numbers must be finite, got {value}")
    return graph.const(float(value))


def call(op: str, *values: Any) -> Value:
    graph = next(value.graph for value in values if isinstance(value, Value))
    return Value(graph, graph.call(op, *(lift(graph, value) for value in values)))


def where(condition: Any, input: Any, other: Any) -> Value:
    a, b = input, other
    if not _is_condition(condition):
        raise TypeError("torch.where takes a comparison of a formula's values first")
    graph = condition.graph
    return Value(graph, graph.where(condition.node, lift(graph, a), lift(graph, b)))


def _is_condition(value: Any) -> bool:
    return isinstance(value, Value) and value.node.op in ("gt", "ge", "eq")


def _conditions(operator: str, *values: Any) -> tuple[Any, ...]:
    if not all(map(_is_condition, values)):
        raise TypeError(f"{operator} takes comparisons of a formula's values")
    return values


def _power(input: Any, exponent: Any) -> Value:
    x = input
    if not isinstance(x, Value):
        raise TypeError("a formula's powers have a value of the formula as their base")
    if exponent == 0.5:
        return call("sqrt", x)
    if not _is_number(exponent) or exponent != int(exponent):
        raise TypeError(f"a formula's exponents are integers or 0.5, got {exponent!r}")
    count = abs(int(exponent))
    if not 1 <= count <= 8:
        raise ValueError(f"a formula's exponents are from -8 to 8 and not 0, got {exponent}")
    found = x
    for _ in range(count - 1):
        found = found * x
    return found if exponent > 0 else 1.0 / found


def add(input: Any, other: Any, *, alpha: float = 1) -> Value:
    return call("add", input, other if alpha == 1 else other * alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Value:
    return call("sub", input, other if alpha == 1 else other * alpha)


def mul(input: Any, other: Any) -> Value:
    return call("mul", input, other)


def div(input: Any, other: Any, *, rounding_mode: None = None) -> Value:
    if rounding_mode is not None:
        raise ValueError(f"div: rounding_mode must be None in a formula, got {rounding_mode!r}")
    return call("div", input, other)


# NaN stays NaN in all of these. Derivatives at kinks are torch's.


def relu(x: Any, inplace: bool = False) -> Value:
    _out_of_place("relu", inplace)
    return where(x <= 0, 0.0, x)


def maximum(input: Any, other: Any) -> Value:
    a, b = input, other
    # At a tie torch gives half of the gradient to each.
    return where(a > b, a, where(b > a, b, a * 0.5 + b * 0.5))


def minimum(input: Any, other: Any) -> Value:
    a, b = input, other
    return where(a < b, a, where(b < a, b, a * 0.5 + b * 0.5))


def clamp(x: Any, min: Any = None, max: Any = None) -> Value:
    # On the boundary torch gives the gradient to x.
    found = x if min is None else where(x >= min, x, where(x < min, min, x))
    return found if max is None else where(found <= max, found, where(found > max, max, found))


def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Value:
    _out_of_place("elu", inplace)
    below = call("expm1", where(x > 0, 0.0, x))
    return where(x > 0, x, alpha * below)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = call("mul", x, beta)
    return where(scaled > threshold, x, call("log1p", call("exp", scaled)) / beta)


def logsigmoid(x: Any) -> Value:
    # From 40 on the logarithm is x in float64, too.
    return -softplus(-x, threshold=40.0)


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    _out_of_place("leaky_relu", inplace)
    return where(x > 0, x, negative_slope * x)


def silu(x: Any, inplace: bool = False) -> Value:
    _out_of_place("silu", inplace)
    return call("mul", x, call("sigmoid", x))


def gelu(x: Any, approximate: str = "none") -> Value:
    half = call("mul", 0.5, x)
    if approximate == "tanh":
        cubic = call("mul", x, 1.0 + 0.044715 * (x * x))
        return half * (1.0 + call("tanh", cubic * math.sqrt(2 / math.pi)))
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return half * (1.0 + call("erf", call("mul", x, 1 / math.sqrt(2))))


def square(x: Any) -> Value:
    return call("mul", x, x)


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    _out_of_place("hardtanh", inplace)
    # On the boundary torch gives the gradient to nobody, unlike clamp's.
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


def hardsigmoid(x: Any, inplace: bool = False) -> Value:
    _out_of_place("hardsigmoid", inplace)
    return where(x <= -3.0, 0.0, where(x >= 3.0, 1.0, (x + 3.0) * (1 / 6)))


def _out_of_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(f"{name}: inplace must be False in a formula, got True")


def _unary(op: str) -> Callable[..., Value]:
    return lambda x: call(op, x)


METHODS: dict[str, Callable[..., Value]] = {
    **{op: _unary(op) for op in ("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "sqrt")},
    **{op: _unary(op) for op in ("sin", "cos", "erf", "abs", "neg")},
    **{f.__name__: f for f in (relu, maximum, minimum, clamp, square)},
}
OF_TORCH: dict[str, Callable[..., Value]] = {
    **METHODS,
    **{f.__name__: f for f in (add, sub, mul, div, where)},
    "pow": _power,
}
OF_F: dict[str, Callable[..., Value]] = {
    **{name: METHODS[name] for name in ("relu", "sigmoid", "tanh")},
    **{f.__name__: f for f in (elu, softplus, logsigmoid, leaky_relu, silu, gelu)},
    **{f.__name__: f for f in (hardtanh, hardsigmoid)},
}
# torch's functions by the names that a formula given as text may use.
NAMES: dict[str, Any] = {name: getattr(F, name) for name in OF_F}
NAMES |= {name: getattr(torch, name) for name in OF_TORCH}
FUNCTIONS: dict[Any, Callable[..., Value]] = {
    **{getattr(torch, name): function for name, function in OF_TORCH.items()},
    **{getattr(F, name): function for name, function in OF_F.items()},
}
KNOWN = "it may use + - * / ** and comparisons, torch's " + ", ".join(sorted(NAMES))
