"""The symbols on which a user's formula runs, and the functions of torch that accept them.

Arithmetic on symbols adds nodes to the formula's graph, and so do calls of these functions.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .graph import ARITHMETIC, COMPARISONS, Graph, Node


class Value:
    """A symbol for a value of a formula. It takes the place of a tensor [B, H]."""

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
        return where(_condition("&", self), _condition("&", other), 0.0) > 0

    def __or__(self, other: Any) -> Value:
        return where(_condition("|", self), 1.0, _condition("|", other)) > 0

    def __invert__(self) -> Value:
        return call("eq", _condition("~", self), 0)

    def __bool__(self) -> bool:
        raise TypeError(
            "a formula must not branch on its values, which are symbols: use "
            "torch.where(condition, a, b)"
        )

    def __float__(self) -> float:
        raise TypeError(
            "a formula's arguments are symbols, not numbers: use functions of torch, not of math"
        )

    def _not_pointwise(self, *_: Any) -> Value:
        raise TypeError(f"a formula computes each unit from its own values; {KNOWN}")

    __getitem__ = __matmul__ = __rmatmul__ = __rpow__ = __mod__ = __floordiv__ = _not_pointwise

    def __getattr__(self, name: str) -> Any:
        # A method such as x.sigmoid() does the same as torch.sigmoid(x).
        function = OF_TORCH.get(name)
        if name == "where":  # a.where(condition, b)
            return lambda condition, other: where(condition, self, other)
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
            raise TypeError("a formula must use only its own values, got another formula's")
        return value.node
    if not _is_number(value):
        hint = (
            ": name learned values in Cell's argument values" if isinstance(value, Tensor) else ""
        )
        raise TypeError(
            f"a formula may use only its arguments and numbers, got {_kind(value)}{hint}"
        )
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"a formula's numbers must be finite, got {value}")
    return graph.const(float(value))


def call(op: str, *values: Any) -> Value:
    graph = next((value.graph for value in values if isinstance(value, Value)), None)
    if graph is None:
        raise TypeError(f"{op}: one operand must be a value of the formula, got {values}")
    if op in ARITHMETIC and all(map(_is_condition, values)):
        raise TypeError(f"{op}: comparisons are combined by & and |, not by arithmetic")
    _refuse_functions()
    return Value(graph, graph.call(op, *(lift(graph, value) for value in values)))


def _refuse_functions() -> None:
    """Raises if the formula runs an autograd.Function, whose backward pass would be ignored."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != f"{__package__}.cell":
        if frame.f_globals.get("__name__") == torch.autograd.function.__name__:
            raise TypeError(
                "a formula cannot call an autograd.Function, whose backward would be ignored: use "
                "torch's pointwise operations"
            )
        frame = frame.f_back  # type: ignore[assignment]


def where(condition: Any, input: Any, other: Any) -> Value:
    a, b = input, other
    if not _is_condition(condition):
        raise TypeError("torch.where: condition must be a comparison of a formula's values")
    graph = condition.graph
    return Value(graph, graph.where(condition.node, lift(graph, a), lift(graph, b)))


def _is_condition(value: Any) -> bool:
    return isinstance(value, Value) and value.node.op in COMPARISONS


def _condition(operator: str, value: Any) -> Value:
    if not _is_condition(value):
        raise TypeError(f"{operator} takes comparisons of a formula's values")
    return value  # type: ignore[no-any-return]


def _power(input: Any, exponent: Any) -> Value:
    if not isinstance(input, Value):
        raise TypeError("the base of a power must be a value of the formula")
    known = _is_number(exponent) and math.isfinite(exponent)
    if known and exponent == 0.5:
        return call("sqrt", input)
    if not known or exponent != int(exponent):
        raise TypeError(f"a formula's exponents must be integers or 0.5, got {_kind(exponent)}")
    count = abs(int(exponent))
    if not 1 <= count <= 8:
        raise ValueError(f"a formula's exponents must be from -8 to 8 and not 0, got {exponent}")
    # A negative power is computed as a power of the reciprocal. In this form, its derivatives
    # overflow only where torch's derivatives overflow too.
    base = input if exponent > 0 else call("div", 1.0, input)
    found = base
    for _ in range(count - 1):
        found = call("mul", found, base)
    return found


def _kind(value: Any) -> str:
    if isinstance(value, Value):
        return "a value of the formula"
    return repr(value) if value is None or _is_number(value) else type(value).__name__


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


# The functions below return NaN for NaN. Where a function is not differentiable, such as relu at 0,
# its derivative is the one that torch returns.


def relu(input: Any, inplace: bool = False) -> Value:
    x = _out_of_place("relu", input, inplace)
    return where(x <= 0, 0.0, x)


def maximum(input: Any, other: Any) -> Value:
    a, b = input, other
    # If a equals b, torch gives half of the gradient to each, and so does this sum. If a or b is
    # NaN, the sum is NaN.
    return where(a > b, a, where(b > a, b, a * 0.5 + b * 0.5))


def minimum(input: Any, other: Any) -> Value:
    a, b = input, other
    return where(a < b, a, where(b < a, b, a * 0.5 + b * 0.5))


def clamp(input: Any, min: Any = None, max: Any = None) -> Value:
    if min is None and max is None:
        raise ValueError("clamp: min or max must be given in a formula, got neither")
    found = input
    # At a bound, torch gives the gradient to the input. If a value is neither >= nor < the bound,
    # one of them is NaN, so their sum is NaN too.
    if min is not None:
        found = where(found >= min, found, where(found < min, min, found + min))
    if max is not None:
        found = where(found <= max, found, where(found > max, max, found + max))
    return found  # type: ignore[no-any-return]


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Value:
    x = _out_of_place("elu", input, inplace)
    below = call("expm1", where(x > 0, 0.0, x))
    return where(x > 0, x, alpha * below)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = call("mul", input, beta)
    large = scaled > threshold
    # Large values are replaced by zero, because their exponential would make the gradient NaN.
    return where(large, input, call("log1p", call("exp", where(large, 0.0, scaled))) / beta)


def logsigmoid(input: Any) -> Value:
    # log(1 + exp(x)) rounds to x from x = 40 on, even in float64.
    return -softplus(-input, threshold=40.0)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    x = _out_of_place("leaky_relu", input, inplace)
    return where(x > 0, x, negative_slope * x)


def silu(input: Any, inplace: bool = False) -> Value:
    x = _out_of_place("silu", input, inplace)
    return call("mul", x, call("sigmoid", x))


def gelu(input: Any, approximate: str = "none") -> Value:
    x = input
    half = call("mul", 0.5, x)
    if approximate == "tanh":
        cubic = call("mul", x, 1.0 + 0.044715 * (x * x))
        return half * (1.0 + call("tanh", cubic * math.sqrt(2 / math.pi)))
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return half * (1.0 + call("erf", call("mul", x, 1 / math.sqrt(2))))


def square(input: Any) -> Value:
    return call("mul", input, input)


def hardtanh(
    input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Value:
    x = _out_of_place("hardtanh", input, inplace)
    # At a bound, torch's gradient of hardtanh is zero, unlike that of clamp.
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


def hardsigmoid(input: Any, inplace: bool = False) -> Value:
    x = _out_of_place("hardsigmoid", input, inplace)
    return where(x <= -3.0, 0.0, where(x >= 3.0, 1.0, (x + 3.0) * (1 / 6)))


def _out_of_place(name: str, input: Any, inplace: bool) -> Any:
    if inplace:
        raise ValueError(f"{name}: inplace must be False in a formula, got True")
    return input


def _unary(op: str) -> Callable[..., Value]:
    return lambda input: call(op, input)


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
# The functions of torch that a formula given as text may call by name.
NAMES: dict[str, Any] = {name: getattr(F, name) for name in OF_F}
NAMES |= {name: getattr(torch, name) for name in OF_TORCH}
FUNCTIONS: dict[Any, Callable[..., Value]] = {
    **{getattr(torch, name): function for name, function in OF_TORCH.items()},
    **{getattr(F, name): function for name, function in OF_F.items()},
}
KNOWN = "a formula may use + - * / ** and comparisons, torch's " + ", ".join(sorted(NAMES))
