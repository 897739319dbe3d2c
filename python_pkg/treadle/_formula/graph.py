"""A formula as a graph of values, and the graph's derivatives in reverse and forward mode.

A node is immutable, and equal nodes are one object (``Graph.node``), so a common subexpression is
computed once. The operations of nodes are those of the programs that
kernels/recurrent/formula/cells.h describes. All other functions that a formula may call are
composed of these operations (``calls.py``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}
COMPARISONS = ("gt", "ge", "eq")


@dataclass(frozen=True, eq=False)
class Node:
    """A value: the result of ``op`` on the operands ``args``. ``number`` is a constant's value."""

    op: str
    args: tuple[Node, ...] = ()
    number: float = 0.0


@dataclass
class Graph:
    """Makes nodes. A seed is an input in which the results are linear, such as an incoming
    gradient. ``mul`` treats factors that depend on a seed specially."""

    nodes: dict[tuple[str, tuple[int, ...], str], Node] = field(default_factory=dict)
    seeds: set[int] = field(default_factory=set)  # ids of nodes that depend on a seed

    def node(self, op: str, *args: Node, number: float = 0.0) -> Node:
        key = (op, tuple(map(id, args)), float(number).hex())
        if key not in self.nodes:
            made = self.nodes[key] = Node(op, args, float(number))
            if any(id(arg) in self.seeds for arg in args):
                self.seeds.add(id(made))
        return self.nodes[key]

    def const(self, number: float) -> Node:
        return self.node("const", number=number)

    def input(self, seed: bool = False) -> Node:
        made = self.node("input", number=len(self.nodes))  # the number makes it a new node
        if seed:
            self.seeds.add(id(made))
        return made

    # ---- operations; one that changes nothing, such as adding 0, makes no node

    def add(self, a: Node, b: Node) -> Node:
        if is_number(a, 0):
            return b
        if is_number(b, 0):
            return a
        return self._folded("add", a, b)

    def sub(self, a: Node, b: Node) -> Node:
        if is_number(b, 0):
            return a
        return self.neg(b) if is_number(a, 0) else self._folded("sub", a, b)

    def neg(self, a: Node) -> Node:
        return a.args[0] if a.op == "neg" else self._folded("neg", a)

    def mul(self, a: Node, b: Node) -> Node:
        if is_number(a, 0) or is_number(b, 0):  # in derivatives 0 times anything, even inf, is 0
            return self.const(0)
        if is_number(a, 1):
            return b
        if is_number(b, 1):
            return a
        # Factors that do not depend on a seed are multiplied first, because they are known before
        # the gradient arrives: (seed * x) * y becomes seed * (x * y).
        for seed, other in ((a, b), (b, a)):
            if id(seed) in self.seeds and id(other) not in self.seeds and seed.op == "mul":
                inner, factor = seed.args
                if id(inner) in self.seeds and id(factor) not in self.seeds:
                    return self.mul(inner, self.mul(factor, other))
        if id(b) in self.seeds and id(a) not in self.seeds:
            a, b = b, a
        return self._folded("mul", a, b)

    def div(self, a: Node, b: Node) -> Node:
        return a if is_number(b, 1) else self._folded("div", a, b)

    def call(self, op: str, *args: Node) -> Node:
        """An operation that the formula itself contains. Derivatives use the methods above, which
        simplify more. For example, they replace a product with 0 by 0."""
        if op == "mul" and is_number(args[0], 1):
            return args[1]
        if op in ("mul", "div") and is_number(args[1], 1):
            return args[0]
        if op == "neg":
            return self.neg(*args)
        # A sum with 0 is kept, because -0 + 0 is 0.
        return self._folded(op, *args) if op in ARITHMETIC else self.node(op, *args)

    def where(self, condition: Node, a: Node, b: Node) -> Node:
        return a if a is b else self.node("where", condition, a, b)

    def _folded(self, op: str, *args: Node) -> Node:
        if all(arg.op == "const" for arg in args):
            x = [arg.number for arg in args]
            if op == "neg":
                return self.const(-x[0])
            if op != "div" or x[1] != 0:
                found = ARITHMETIC[op](*x)
                if math.isfinite(found):
                    return self.const(found)
        return self.node(op, *args)

    # ---- derivatives

    def partials(self, node: Node) -> list[Node | None]:
        """The derivative with respect to each operand; None where it is zero everywhere."""
        args, one = node.args, self.const(1)
        if node.op == "add":
            return [one, one]
        if node.op == "sub":
            return [one, self.const(-1)]
        if node.op == "mul":
            return [args[1], args[0]]
        if node.op == "div":
            return [self.div(one, args[1]), self.neg(self.div(node, args[1]))]
        if node.op == "neg":
            return [self.const(-1)]
        if node.op in (*COMPARISONS, "const", "input"):
            return [None] * len(args)
        return [self._slope(node, args[0])]

    def _slope(self, node: Node, x: Node) -> Node:
        one, two = self.const(1), self.const(2)
        if node.op == "sigmoid":  # not s (1 - s), which is 0 where s rounds to 1
            return self.mul(node, self.node("sigmoid", self.neg(x)))
        if node.op == "tanh":
            return self.node("tanh_slope", x)
        if node.op == "tanh_slope":
            return self.mul(self.neg(self.mul(two, self.node("tanh", x))), node)
        if node.op == "exp":
            return node
        if node.op == "expm1":
            return self.node("exp", x)
        if node.op == "log":
            return self.div(one, x)
        if node.op == "log1p":
            return self.div(one, self.add(one, x))
        if node.op == "sqrt":
            return self.div(self.const(0.5), node)
        if node.op == "sin":
            return self.node("cos", x)
        if node.op == "cos":
            return self.neg(self.node("sin", x))
        if node.op == "erf":
            gauss = self.node("exp", self.neg(self.mul(x, x)))
            return self.mul(self.const(2 / math.sqrt(math.pi)), gauss)
        assert node.op == "abs", node.op
        zero = self.const(0)
        return self.sub(self.node("gt", x, zero), self.node("gt", zero, x))

    def gradients(
        self, results: Sequence[Node], grads: Sequence[Node], inputs: Sequence[Node]
    ) -> list[Node]:
        """The gradients of ``inputs``, in reverse mode, given the gradients of ``results``."""
        total: dict[int, Node] = {}

        def give(node: Node, grad: Node) -> None:
            total[id(node)] = self.add(total[id(node)], grad) if id(node) in total else grad

        for result, given in zip(results, grads, strict=True):
            give(result, given)
        for node in reversed(ordered(results)):
            grad = total.get(id(node))
            if grad is None or node.op in ("const", "input"):
                continue
            if node.op == "where":
                condition, a, b = node.args
                give(a, self.where(condition, grad, self.const(0)))
                give(b, self.where(condition, self.const(0), grad))
                continue
            for arg, slope in zip(node.args, self.partials(node), strict=True):
                if slope is not None:
                    give(arg, self.mul(grad, slope))
        return [total.get(id(node), self.const(0)) for node in inputs]

    def tangents(
        self, results: Sequence[Node], inputs: Sequence[Node], given: Sequence[Node]
    ) -> list[Node]:
        """The tangents of ``results``, in forward mode, given the tangents of ``inputs``."""
        zero = self.const(0)
        found: dict[int, Node] = {
            id(node): tangent for node, tangent in zip(inputs, given, strict=True)
        }
        for node in ordered(results):
            if id(node) in found:
                continue
            if node.op == "where":
                condition, a, b = node.args
                found[id(node)] = self.where(condition, found[id(a)], found[id(b)])
                continue
            value = zero
            for arg, slope in zip(node.args, self.partials(node), strict=True):
                if slope is not None:
                    value = self.add(value, self.mul(found[id(arg)], slope))
            found[id(node)] = value
        return [found[id(result)] for result in results]


def is_affine(result: Node, x: Node, slope: Node) -> bool:
    """Whether ``result`` is affine in the input ``x``. ``slope`` is the result's derivative with
    respect to ``x``."""
    needs_x = {id(x)}
    for node in ordered([result]):
        if any(id(arg) in needs_x for arg in node.args):
            if node.op in COMPARISONS:  # result is piecewise
                return False
            needs_x.add(id(node))
    return x not in ordered([slope])


def is_number(node: Node, number: float) -> bool:
    return node.op == "const" and node.number == number


def ordered(results: Iterable[Node], known: Container[int] = ()) -> list[Node]:
    """All nodes that ``results`` depend on, each after its operands. Nodes whose ids are in
    ``known``, and what only they depend on, are left out."""
    done: dict[int, Node] = {}
    stack = [(node, False) for node in reversed(list(results))]
    while stack:
        node, ready = stack.pop()
        if id(node) in done or id(node) in known:
            continue
        if ready:
            done[id(node)] = node
        else:
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return list(done.values())


def program(inputs: Sequence[Node], results: Sequence[Node]) -> str:
    """The graph as the text of a program, which kernels/recurrent/formula/cells.h describes."""
    number = {id(node): k for k, node in enumerate(inputs)}
    lines: list[str] = []
    for node in ordered(results):
        if id(node) in number:
            continue
        assert node.op != "input"
        words = [str(number[id(arg)]) for arg in node.args]
        number[id(node)] = len(inputs) + len(lines)
        if node.op == "const":
            words = [repr(node.number)]
        lines.append(" ".join([node.op, *words]))
    return "\n".join([*lines, " ".join(["out", *(str(number[id(node)]) for node in results)])])
