"""The formula of a treadle.Cell as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._formula.compiler import Source
from .._formula.graph import COMPARISONS, Node, ordered
from ._graph import Ops, Value, constant

__all__ = ["formula_step"]

_NODES = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "neg": "Neg",
    "abs": "Abs",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "erf": "Erf",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
}


def _expm1(op: Ops, x: Value, dtype: Any) -> Value:
    # exp(x) - 1 = tanh(x / 2) (exp(x) + 1), without a difference of nearly equal numbers.
    half = op.Mul(x, constant(0.5, dtype))
    return op.Mul(op.Tanh(half), op.Add(op.Exp(x), constant(1.0, dtype)))


def _log1p(op: Ops, x: Value, dtype: Any) -> Value:
    # The quotient corrects log(u) for the rounding of u. Where u is 1, it would be 0 / 0, and where
    # x is infinite, inf / inf.
    one = constant(1.0, dtype)
    u = op.Add(one, x)
    log = op.Log(u)
    corrected = op.Mul(log, op.Div(x, op.Sub(u, one)))
    return op.Where(op.Equal(u, one), x, op.Where(op.Equal(u, x), log, corrected))


_COMPOSED: dict[str, Callable[[Ops, Value, Any], Value]] = {"expm1": _expm1, "log1p": _log1p}


def formula_step(
    source: Source, op: Ops, of_input: Value, of_state: Value, c: Value, dtype: Any
) -> tuple[Value, Value]:
    """h and c after one step.

    ``of_input`` [B, G_i H] and ``of_state`` [B, G_h H] are the products with input and state, and
    ``c`` is [B, K H]. ``reference._cells.formula_cell`` explains G_i, G_h and K.
    """
    gates, input_gates, state_gates, parts = source.counts

    def split(value: Value, count: int) -> list[Value]:
        return [value] if count == 1 else list(op.Split(value, axis=-1, num_outputs=count))

    # Gates without a product with the input come first; gates without a product with h come last.
    of_inputs = [None] * (gates - input_gates) + split(of_input, input_gates)
    of_states = split(of_state, state_gates) + [None] * (gates - state_gates)
    sums = [
        x if h is None else h if x is None else op.Add(x, h)
        for x, h in zip(of_inputs, of_states, strict=True)
    ]
    states = split(c, parts)
    found = {id(node): value for node, value in zip(source.inputs, (*sums, *states), strict=True)}

    def number(node: Node) -> Value:
        value = found[id(node)]
        return op.Cast(value, to=dtype) if node.op in COMPARISONS else value

    for node in ordered(source.results, found):
        if node.op == "const":
            made = constant(node.number, dtype)
        elif node.op == "where":
            condition, a, b = node.args
            made = op.Where(found[id(condition)], number(a), number(b))
        elif node.op in _COMPOSED:
            made = _COMPOSED[node.op](op, number(node.args[0]), dtype)
        else:
            made = getattr(op, _NODES[node.op])(*map(number, node.args))
        found[id(node)] = made

    def whole(node: Node) -> Value:
        """A result [B, H], even if the formula returns a number or one of its arguments."""
        varies = any(each.op == "input" for each in ordered([node]))
        value = number(node)
        return op.Identity(value) if varies else op.Expand(value, op.Shape(states[0]))

    new_h, *new_c = map(whole, source.results)
    return new_h, new_c[0] if parts == 1 else op.Concat(*new_c, axis=-1)
