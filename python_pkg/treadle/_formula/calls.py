"""Runs a user's formula on symbols, and records the graph: arithmetic, and torch's functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import Graph, Node

Number = int, float


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

    def __bool__(self) -> bool:
        raise TypeError(
            "a formula has no branches, because it runs for every unit: use torch.where(condition, "
            "a, b)"
        )

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


def lift(graph: Graph, value: Any) -> Node:
    if isinstance(value, Value):
        if value.graph is not graph:
            raise TypeError("a formula's values must be those of its own call")
        return value.node
    if isinstance(value, bool) or not isinstance(value, Number):
        raise TypeError(
            f"a formula takes its arguments and numbers, got {type(value).__name__}"
            + (": what is learned must come through a gate" if isinstance(value, Tensor) else "")
        )
    if not math.isfinite(value):
        raise ValueError(f"a formula's numbers must be finite, got {value}")
    return graph.const(float(value))


def call(op: str, *values: Any) -> Value:
    graph = next(value.graph for value in values if isinstance(value, Value))
    return Value(graph, graph.call(op, *(lift(graph, value) for value in values)))


def where(condition: Any, a: Any, b: Any) -> Value:
    if not isinstance(condition, Value) or condition.node.op not in ("gt", "ge", "eq"):
        raise TypeError("torch.where takes a comparison of a formula's values first")
    graph = condition.graph
    return Value(graph, graph.where(condition.node, lift(graph, a), lift(graph, b)))


def _power(x: Value, exponent: Any) -> Value:
    if exponent == 0.5:
        return call("sqrt", x)
    if isinstance(exponent, bool) or not isinstance(exponent, Number) or exponent != int(exponent):
        raise TypeError(f"a formula's exponents are integers or 0.5, got {exponent!r}")
    count = abs(int(exponent))
    if not 1 <= count <= 8:
        raise ValueError(f"a formula's exponents are from -8 to 8 and not 0, got {exponent}")
    found = x
    for _ in range(count - 1):
        found = found * x
    return found if exponent > 0 else 1.0 / found


# NaN stays NaN in all of these.


def relu(x: Any) -> Value:
    return where(x <= 0, 0.0, x)


def maximum(a: Any, b: Any) -> Value:
    # At a tie torch gives half of the gradient to each.
    return where(a > b, a, where(b > a, b, a * 0.5 + b * 0.5))


def minimum(a: Any, b: Any) -> Value:
    return -maximum(-a, -b) if isinstance(a, Value) else -maximum(-b, -a)


def clamp(x: Any, min: Any = None, max: Any = None) -> Value:
    # On the boundary torch gives the gradient to x.
    found = x if min is None else where(x >= min, x, where(x < min, min, x))
    return found if max is None else where(found <= max, found, where(found > max, max, found))


def elu(x: Any, alpha: float = 1.0) -> Value:
    below = call("expm1", where(x > 0, 0.0, x))
    return where(x > 0, x, alpha * below)


def softplus(x: Any) -> Value:
    positive = where(x > 0, x, 0.0)
    return positive + call("log1p", call("exp", -abs(x)))


def logsigmoid(x: Any) -> Value:
    return -softplus(-x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Value:
    return where(x > 0, x, negative_slope * x)


def silu(x: Any) -> Value:
    return call("mul", x, call("sigmoid", x))


def gelu(x: Any) -> Value:
    half = call("mul", 0.5, x)
    return half * (1.0 + call("erf", call("mul", x, 1 / math.sqrt(2))))


def square(x: Any) -> Value:
    return call("mul", x, x)


def hardtanh(x: Any) -> Value:
    return clamp(x, -1.0, 1.0)


def hardsigmoid(x: Any) -> Value:
    return clamp(x + 3.0, 0.0, 6.0) * (1 / 6)


def _unary(op: str) -> Callable[..., Value]:
    return lambda x: call(op, x)


METHODS: dict[str, Callable[..., Value]] = {
    **{op: _unary(op) for op in ("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "sqrt")},
    **{op: _unary(op) for op in ("sin", "cos", "erf", "abs", "neg")},
    **{f.__name__: f for f in (relu, maximum, minimum, clamp, square)},
}
FUNCTIONS: dict[Any, Callable[..., Value]] = {
    **{getattr(torch, name): function for name, function in METHODS.items()},
    torch.where: where,
    torch.add: lambda a, b: call("add", a, b),
    torch.sub: lambda a, b: call("sub", a, b),
    torch.mul: lambda a, b: call("mul", a, b),
    torch.div: lambda a, b: call("div", a, b),
    torch.pow: _power,
    F.relu: relu,
    F.sigmoid: METHODS["sigmoid"],
    F.tanh: METHODS["tanh"],
    F.elu: elu,
    F.softplus: softplus,
    F.logsigmoid: logsigmoid,
    F.leaky_relu: leaky_relu,
    F.silu: silu,
    F.gelu: gelu,
    F.hardtanh: hardtanh,
    F.hardsigmoid: hardsigmoid,
}
KNOWN = "it may use + - * / ** and comparisons, " + ", ".join(
    f"torch.{name}" for name in sorted([*METHODS, "where"])
)
