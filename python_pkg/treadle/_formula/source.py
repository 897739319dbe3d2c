"""Writes the functors of a formula in C++ (kernels/recurrent/formula/functors.h)."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Node, ordered

BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "ge": ">=", "eq": "=="}


class Writer:
    """Statements that compute nodes, given the C++ expressions of some."""

    def __init__(self, known: dict[int, str], halves: frozenset[int] = frozenset()) -> None:
        self.known = dict(known)
        self.halves = halves  # ids of nodes whose error is below a half type's rounding
        self.lines: list[str] = []

    def write(self, results: Sequence[Node]) -> list[str]:
        """The expressions of results."""
        for node in ordered(results, self.known):
            self.known[id(node)] = self._statement(node)
        return [self.known[id(node)] for node in results]

    def _statement(self, node: Node) -> str:
        if node.op == "const":
            return f"acc({node.number.hex()})"
        name = f"v{len(self.lines)}"
        args = [self.known[id(arg)] for arg in node.args]
        kind = "bool" if node.op in ("gt", "ge", "eq") else "acc"
        if node.op in BINARY:
            text = f"{args[0]} {BINARY[node.op]} {args[1]}"
        elif node.op == "where":
            text = f"select({args[0]}, acc({args[1]}), acc({args[2]}))"
        elif node.op == "neg":
            text = f"-{args[0]}"
        else:
            suffix = "_of_halves" if id(node) in self.halves else ""
            text = f"op::{node.op}{suffix}({args[0]})"
        self.lines.append(f"const {kind} {name} = {text};")
        return name


def functors(
    gates: int,
    input_gates: int,
    state_gates: int,
    keep: Node | None,
    forward: tuple[Node, Node],
    backward: Sequence[Node],
    inputs: Sequence[Node],
    seeds: frozenset[int],
) -> str:
    """The text of FormulaRecurrence.

    ``keep`` is the factor of c in new c, or None if new c is not affine in c; ``forward`` is new h
    and new c, ``backward`` the gradients of the gates and of c. ``inputs`` are the gates, c, and the
    gradients of new h and new c; ``seeds`` are the ids of nodes that depend on these gradients.
    """
    given = {id(node): f"g[{k}]" for k, node in enumerate(inputs[:gates])}
    given[id(inputs[gates])] = "old_cell"
    # What is computed before the gradients arrive, as far as the rest reads it.
    late = [node for node in ordered(backward) if id(node) in seeds]
    early = {
        id(arg): arg
        for node in late
        for arg in node.args
        if id(arg) not in seeds and arg.op != "const"
    } | {id(n): n for n in backward if id(n) not in seeds and n.op != "const"}
    flags = [node for node in early.values() if node.op in ("gt", "ge", "eq")]
    kinds = {id(node): "bool" if node in flags else "acc" for node in early.values()}
    members = {key: f"s{k}" for k, key in enumerate(early)}
    slopes = Writer(given)
    values = slopes.write(list(early.values()))
    after = Writer(
        {key: f"s.{name}" for key, name in members.items()}
        | {id(inputs[gates + 1]): "grad_h", id(inputs[gates + 2]): "grad_cell"}
    )
    found = after.write(backward)
    lines = [
        "template <class acc, bool half>",
        f"struct FormulaRecurrence<acc, {gates}, {input_gates}, {state_gates}, half> {{",
        f"  static constexpr int kGates = {gates}, kInputGates = {input_gates},"
        f" kStateGates = {state_gates};",
        "  static constexpr HBound kHBound = HBound::kNone;",
        "  static constexpr TREADLE_HD int weight_block(int gate) { return gate; }",
        "  struct State { acc new_h, new_cell; };",
        "  struct Gradients { acc gates[kGates], old_cell; };",
        "  struct Link { acc keep, add; };",
        "  struct Slopes {",
        *(f"    {kinds[key]} {name};" for key, name in members.items()),
        "  };",
        "  static constexpr bool kReadsNewCell = false;",
    ]
    arguments = "const acc (&g)[kGates]"
    lines.append(f"  static TREADLE_HD State forward({arguments}, acc old_cell) {{")
    # h alone is rounded to a half type: an error in c would add up over the steps.
    roots = {id(node) for node in ordered([forward[1]])}
    quick = ("sigmoid",) if forward[0] is forward[1] else ("sigmoid", "tanh")
    halves = frozenset(
        id(node)
        for node in ordered(forward)
        if node.op in quick and (node.op == "sigmoid" or id(node) not in roots)
    )
    for half in (True, False):
        writer = Writer(given, halves if half else frozenset())
        results = writer.write(forward)
        lines.append(f"    if constexpr ({'half' if half else '!half'}) {{")
        lines += [f"      {line}" for line in writer.lines]
        lines.append(f"      return {{{', '.join(results)}}};")
        lines.append("    }")
    lines.append("  }")
    writer = Writer(given)
    [result] = writer.write(forward[1:])
    lines.append(f"  static TREADLE_HD acc next({arguments}, acc old_cell) {{")
    lines += [f"    {line}" for line in writer.lines] + [f"    return {result};", "  }"]
    if keep is not None:
        writer = Writer(given)
        [factor] = writer.write([keep])
        lines.append(f"  static TREADLE_HD Link link({arguments}) {{")
        lines += [f"    {line}" for line in writer.lines]
        lines += [f"    return {{{factor}, next(g, acc(0))}};", "  }"]
    else:
        lines.append(f"  static TREADLE_HD Link link({arguments}) {{ return {{acc(0), acc(0)}}; }}")
    lines.append(f"  static TREADLE_HD Slopes slopes({arguments}, acc old_cell) {{")
    lines += [f"    {line}" for line in slopes.lines]
    lines += [f"    return {{{', '.join(values)}}};", "  }"]
    lines += [
        f"  static TREADLE_HD Slopes slopes({arguments}, acc old_cell, acc) {{",
        "    return slopes(g, old_cell);",
        "  }",
        "  static TREADLE_HD Gradients backward(const Slopes& s, acc grad_h, acc grad_cell) {",
        *(f"    {line}" for line in after.lines),
        f"    return {{{{{', '.join(found[:-1])}}}, {found[-1]}}};",
        "  }",
        f"  static TREADLE_HD Gradients backward({arguments}, acc old_cell, acc grad_h,",
        "                                       acc grad_cell) {",
        "    return backward(slopes(g, old_cell), grad_h, grad_cell);",
        "  }",
        "};",
    ]
    return "\n".join(lines) + "\n"
