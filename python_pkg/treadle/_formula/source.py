"""Writes a formula as C++: the functors of a cell (kernels/recurrent/formula/functors.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import Node, ordered

COMPARISONS = {"gt": ">", "ge": ">=", "eq": "=="}
# Operations for which functors.h has a variant for slopes.
OF_SLOPES = ("div", "log1p")


class Writer:
    """Writes statements that compute nodes. ``known`` has the C++ expressions of nodes whose values
    the C++ code already has. ``slopes`` selects the operations' variants for slopes."""

    def __init__(
        self,
        known: dict[int, str],
        halves: frozenset[int] = frozenset(),
        slopes: bool = False,
    ) -> None:
        self.known = dict(known)
        self.halves = halves  # ids of nodes that call an approximation, such as tanh_of_halves
        self.slopes = slopes
        self.lines: list[str] = []

    def write(self, results: Sequence[Node]) -> list[str]:
        """Writes the statements that compute ``results``, and returns their expressions."""
        for node in ordered(results, self.known):
            self.known[id(node)] = self._statement(node)
        return [self._value(node) for node in results]

    def _statement(self, node: Node) -> str:
        if node.op == "const":
            return f"acc({node.number.hex()})"
        name = f"v{len(self.lines)}"
        kind = "bool" if node.op in COMPARISONS else "acc"
        self.lines.append(f"const {kind} {name} = {self._expression(node)};")
        return name

    def _expression(self, node: Node) -> str:
        args = [self._value(arg) for arg in node.args]
        if node.op in COMPARISONS:
            return f"{args[0]} {COMPARISONS[node.op]} {args[1]}"
        if node.op == "where":
            return f"select({self.known[id(node.args[0])]}, {args[1]}, {args[2]})"
        if node.op == "neg":
            return f"-{args[0]}"
        if node.op in ("add", "sub"):
            first, second = node.args
            if self._is_product(second):
                sign = "-" if node.op == "sub" else ""
                a, b = (self._value(arg) for arg in second.args)
                return f"op::fma({sign}{a}, {b}, {args[0]})"
            if self._is_product(first):
                sign = "-" if node.op == "sub" else ""
                a, b = (self._value(arg) for arg in first.args)
                return f"op::fma({a}, {b}, {sign}{args[1]})"
        suffix = "_of_halves" if id(node) in self.halves else ""
        if self.slopes and node.op in OF_SLOPES:
            suffix = "_of_slopes"
        return f"op::{node.op}{suffix}({', '.join(args)})"

    def _value(self, node: Node) -> str:
        name = self.known[id(node)]
        return f"acc({name})" if node.op in COMPARISONS else name

    def _is_product(self, node: Node) -> bool:
        # A product and the sum that contains it are written as an fma. If compilers chose where to
        # use an fma, the results of a layer could depend on the kernel that runs it.
        return node.op == "mul" and all(id(arg) in self.known for arg in node.args)


@dataclass(frozen=True)
class Formula:
    """A cell's formula and its derivatives, as nodes.

    c has a part for each state besides h. In a cell without such states, c is h. ``inputs`` are the
    gates, the parts of c, and the gradients of the results. ``forward`` has new h and the parts of
    new c. ``backward`` has the gradients of the gates and of the parts of c. ``keep`` is the factor
    of c in new c, or None if c has several parts or new c is not affine in c. ``seeds`` are the ids
    of nodes that depend on the gradients of the results.
    """

    # The number of gates, of gates that are computed from the input, of gates that are computed
    # from h, and of parts of c.
    counts: tuple[int, int, int, int]
    inputs: Sequence[Node]
    forward: Sequence[Node]
    backward: Sequence[Node]
    keep: Node | None
    seeds: frozenset[int]

    def functors(self) -> str:
        """The struct FormulaRecurrence in C++. The struct in kernels/math/cells/lltm.h has the same
        interface."""
        gates, input_gates, state_gates, parts = self.counts
        early = self._early()
        members = [
            f"    {'bool' if node.op in COMPARISONS else 'acc'} s{k};"
            for k, node in enumerate(early)
        ]
        return "\n".join(
            [
                "template <class acc, bool half>",
                f"struct FormulaRecurrence<acc, {', '.join(map(str, self.counts))}, half> {{",
                f"  static constexpr int kGates = {gates}, kInputGates = {input_gates},"
                f" kStateGates = {state_gates}, kCParts = {parts};",
                "  static constexpr HBound kHBound = HBound::kNone;",
                "  static constexpr bool kReadsNewCell = false;",
                "  static constexpr TREADLE_HD int weight_block(int gate) { return gate; }",
                "  using Gates = acc[kGates];",
                "  using C = CType<acc, kCParts>;",
                "  struct State { acc new_h; C new_cell; };",
                "  struct Gradients { acc gates[kGates]; C old_cell; };",
                "  struct Link { acc keep, add; };",
                "  struct Slopes {",
                *members,
                "  };",
                *self._forward(),
                *self._next(),
                *self._link(),
                *self._slopes(early),
                *self._backward(early),
                "};",
                "",
            ]
        )

    def _known(self) -> dict[int, str]:
        gates, parts = self.counts[0], self.counts[3]
        known = {id(node): f"g[{k}]" for k, node in enumerate(self.inputs[:gates])}
        of_c = self.inputs[gates : gates + parts]
        return known | {id(node): self._part("old_cell", k) for k, node in enumerate(of_c)}

    def _part(self, c: str, k: int) -> str:
        return c if self.counts[3] == 1 else f"{c}.value[{k}]"

    def _c(self, values: Sequence[str]) -> str:
        """The expression of a C (the type of c) with these parts."""
        return values[0] if len(values) == 1 else f"C{{{{{', '.join(values)}}}}}"

    def _early(self) -> list[Node]:
        """The nodes that do not depend on the gradients, and that the backward pass reads."""
        late = [node for node in ordered(self.backward) if id(node) in self.seeds]
        read = [arg for node in late for arg in node.args] + list(self.backward)
        found = {
            id(node): node for node in read if id(node) not in self.seeds and node.op != "const"
        }
        return list(found.values())

    def _forward(self) -> list[str]:
        # If h is rounded to a half type, sigmoid and tanh may be approximate. A tanh on which c
        # depends must not be, because an error in c would add up over the steps.
        of_c = {id(node) for node in ordered(self.forward[1:])}
        halves = frozenset(
            id(node)
            for node in ordered(self.forward)
            if node.op == "sigmoid" or (node.op == "tanh" and id(node) not in of_c)
        )
        lines = ["  static TREADLE_HD State forward(const Gates& g, const C& old_cell) {"]
        for half in (True, False):
            writer = Writer(self._known(), halves if half else frozenset())
            new_h, *new_c = writer.write(self.forward)
            lines.append(f"    if constexpr ({'half' if half else '!half'}) {{")
            lines += [f"      {line}" for line in writer.lines]
            lines += [f"      return {{{new_h}, {self._c(new_c)}}};", "    }"]
        return [*lines, "  }"]

    def _next(self) -> list[str]:
        writer = Writer(self._known())
        results = writer.write(self.forward[1:])
        return _function("C next(const Gates& g, const C& old_cell)", writer, self._c(results))

    def _link(self) -> list[str]:
        if self.counts[3] > 1:
            return []
        writer, factor = Writer(self._known()), "acc(0)"
        if self.keep is not None:
            [factor] = writer.write([self.keep])
        return _function("Link link(const Gates& g)", writer, f"Link{{{factor}, next(g, acc(0))}}")

    def _slopes(self, early: Sequence[Node]) -> list[str]:
        writer = Writer(self._known(), slopes=True)
        writer.write(early)
        values = ", ".join(writer.known[id(node)] for node in early)
        return [
            *_function(
                "Slopes slopes(const Gates& g, const C& old_cell)", writer, f"Slopes{{{values}}}"
            ),
            "  static TREADLE_HD Slopes slopes(const Gates& g, const C& old_cell, acc) {",
            "    return slopes(g, old_cell);",
            "  }",
        ]

    def _backward(self, early: Sequence[Node]) -> list[str]:
        gates, parts = self.counts[0], self.counts[3]
        known = {id(node): f"s.s{k}" for k, node in enumerate(early)}
        grad_h, *grad_c = self.inputs[gates + parts :]
        known |= {id(node): self._part("grad_cell", k) for k, node in enumerate(grad_c)}
        writer = Writer(known | {id(grad_h): "grad_h"})
        found = writer.write(self.backward)
        of_gates, of_c = ", ".join(found[:gates]), self._c(found[gates:])
        return [
            *_function(
                "Gradients backward(const Slopes& s, acc grad_h, const C& grad_cell)",
                writer,
                f"Gradients{{{{{of_gates}}}, {of_c}}}",
            ),
            "  static TREADLE_HD Gradients backward(const Gates& g, const C& old_cell, acc grad_h,",
            "                                       const C& grad_cell) {",
            "    return backward(slopes(g, old_cell), grad_h, grad_cell);",
            "  }",
        ]


def _function(declared: str, writer: Writer, result: str) -> list[str]:
    body = [f"    {line}" for line in writer.lines]
    return [f"  static TREADLE_HD {declared} {{", *body, f"    return {result};", "  }"]
