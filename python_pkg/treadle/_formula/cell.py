"""treadle.Cell: a recurrent cell that a user defines by a formula."""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib
import inspect
import keyword
import linecache
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from .. import _build
from .calls import NAMES, Value, lift
from .compiler import Source, install
from .graph import Graph, Node, is_affine, program
from .source import Formula

__all__ = ["Cell"]


class Cell:
    """A recurrent cell that is defined by a formula for one hidden unit.

    A step computes each gate k as ``W_ih[k] @ x + b_ih[k] + W_hh[k] @ h + b_hh[k]``. The formula
    computes the new state from the gates and the old state, unit by unit.
    :class:`treadle.nn.Recurrent` makes layers of such a cell. Kernels are compiled when a layer
    first needs them, and cached in the folder that the environment variable ``TREADLE_CELLS`` names
    (by default, treadle/cells in the user's cache folder). NVRTC, which comes with torch, compiles
    the GPU kernels, and the system's C++ compiler (``CXX``) compiles the CPU kernels. If there is
    no C++ compiler, treadle warns, and torch's operations compute the steps.

    Args:
        name: the cell's name in errors, a Python identifier.
        gates: the names of the gates, 1 to 4. The weights have a block of H rows for each gate, in
            this order, except that the block of ``only_state`` is the first and the block of
            ``only_input`` the last. The attribute ``gates`` has the names in the blocks' order.
        forward: the formula, a function composed of torch's pointwise operations. Its arguments
            have the names of the gates, of the values, and of the old state: ``h``, or ``c`` for a
            cell with ``states=("c",)``. It returns the new ``h``, or ``(h, c)``. It runs once, on
            symbols, when the cell is created, so it must use ``torch.where`` instead of branches.
            Alternatively, ``forward`` is a string of statements that assign ``h`` (and ``c``).
        states: the names of states besides h, such as an LSTM's ``c``; none by default. No matrix
            product reads them. The formula of a cell with states cannot read the old ``h``.
        values: the names of learned values, one number per hidden unit each; none by default. A
            layer has a parameter [H] for each, such as ``decay_l0`` for ``values=("decay",)``.
            There may be at most four states and values together, where h counts as a state if
            there are no others.
        only_input: the name of a gate that does not depend on h; ``weight_hh`` has no rows for it.
        only_state: the name of a gate that does not depend on x; ``weight_ih`` has no rows for it.
            Give both names or neither. A GRU's candidate state, for example, needs two such gates.

    Raises:
        TypeError, ValueError: an argument is not as above. An error within the formula is raised
            from the line that contains it.

    Example::

        def ligru(a, z, h):
            z = torch.sigmoid(z)
            return z * h + (1 - z) * torch.relu(a)

        cell = treadle.Cell("ligru", gates=("a", "z"), forward=ligru)
        layer = treadle.nn.Recurrent(cell, 40, 512)
    """

    def __init__(
        self,
        name: str,
        *,
        gates: Sequence[str],
        forward: Callable[..., Any] | str,
        states: Sequence[str] = (),
        values: Sequence[str] = (),
        only_input: str | None = None,
        only_state: str | None = None,
    ) -> None:
        self.name = _identifier("name", name)
        self._module: str = sys._getframe(1).f_globals.get("__name__", "")
        given = _names("gates", gates)
        self.states = _names("states", states)
        if "h" in self.states:
            raise ValueError(
                "Cell: states must not name h, which every cell has, got " + str(list(self.states))
            )
        self.values = _names("values", values)
        #: What the op's c consists of: h or the other states, and the values, which never change.
        self.parts = (*(self.states or ("h",)), *self.values)
        _check_parts(self.parts, self.values)
        _check_single(given, only_input, only_state)
        both = tuple(gate for gate in given if gate not in (only_input, only_state))
        names = (*given, *self.states, *self.values)
        if len({*names, "h"}) != len(names) + 1:
            raise ValueError(
                "Cell: names of gates, states and values must differ from each other and from h, "
                f"got {', '.join(names)}"
            )
        if only_input is not None and only_state is not None:
            #: The gates, in the order of their blocks of H rows in the weights: first
            #: ``only_state``, last ``only_input``.
            self.gates = (only_state, *both, only_input)
        else:
            self.gates = both
        if not (both and len(given) <= 4):
            raise ValueError(
                "Cell: gates must be 1 to 4 names, at least one besides only_input and only_state, "
                f"got {given}"
            )
        #: How many gates are computed from the input, and how many from h.
        self.input_gates = self.state_gates = len(both) + (only_input is not None)
        graph = Graph()
        inputs = [graph.input() for _ in (*given, *self.parts)]
        if isinstance(forward, str):
            forward = _compiled(name, forward, self.states)
        #: The formula, a function that takes tensors or symbols as keyword arguments.
        self.forward = forward
        nodes = dict(zip((*self.gates, *self.parts), inputs, strict=True))
        results = _traced(self, graph, forward, nodes)
        self._register(graph, inputs, (*results, *(nodes[value] for value in self.values)))

    def _register(self, graph: Graph, inputs: list[Node], results: tuple[Node, ...]) -> None:
        counts = (len(self.gates), self.input_gates, self.state_gates, len(self.parts))
        # A cell whose c is only h gets no c from the caller.
        of_c = 0 if self.parts == ("h",) else len(self.parts)
        affine = False
        if len(results) == 2:
            of_gates = [graph.const(0)] * (len(inputs) - 1)
            [keep] = graph.tangents(results[1:], inputs, [*of_gates, graph.const(1)])
            affine = is_affine(results[1], inputs[-1], keep)
        seeds = [graph.input(seed=True) for _ in results]
        backward = graph.gradients(results, seeds, inputs)
        formula = Formula(
            counts,
            [*inputs, *seeds],
            results,
            backward,
            keep if affine else None,
            frozenset(graph.seeds),
        )
        functors = formula.functors()
        programs = [program(inputs, results), program(formula.inputs, backward)]
        for values, read in ((results, inputs), (backward, formula.inputs)):
            own = Graph(nodes=graph.nodes)
            tangents = [own.input() for _ in read]
            programs.append(program([*read, *tangents], own.tangents(values, read, tangents)))
        flags = (*counts[:3], of_c, affine)
        digest = hashlib.sha256("\0".join([repr(flags), *programs, functors]).encode())
        #: The ops look this cell up by its key. Cells with the same name and formula share a key.
        self.key = f"{self.name}_{digest.hexdigest()[:8]}"
        with _registering:
            if self.key in _sources:
                return
            texts = (text.encode() for text in programs)
            wrong = _library().treadle_add_formula(self.key.encode(), *flags, *texts)
            if wrong:
                raise ValueError(f"Cell: {wrong.decode()}")
            _sources[self.key] = Source(functors, counts, inputs, results)
            install(_library(), _sources)

    def __repr__(self) -> str:
        states = f", states={self.states}" if self.states else ""
        values = f", values={self.values}" if self.values else ""
        return f"Cell({self.name!r}, gates={self.gates}{states}{values})"

    def __reduce__(self) -> Any:
        for name, value in vars(sys.modules.get(self._module, object)).items():
            if value is self:
                return _global, (self._module, name)
        raise TypeError(
            f"Cell: {self.name} cannot be pickled, because its formula is code: assign it to a "
            "global variable of the module that creates it, or save the state_dict of its layers"
        )

    def __deepcopy__(self, memo: Any) -> Cell:
        return self  # a cell never changes


def _global(module: str, name: str) -> Cell:
    """Loads a pickled cell, which is a global variable of a module."""
    found: Cell = getattr(importlib.import_module(module), name)
    return found


_registering = threading.Lock()
_sources: dict[str, Source] = {}  # of registered cells, by key


@cache
def _library() -> Any:
    library = ctypes.CDLL(_build.kernels_path())
    add = library.treadle_add_formula
    add.restype = ctypes.c_char_p
    add.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 5, *[ctypes.c_char_p] * 4]
    return library


def _identifier(label: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"Cell: {label} must be a string, got {type(name).__name__}")
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ValueError(f"Cell: {label} must be an identifier, got {name!r}")
    return name


def _names(label: str, names: object) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Sequence):
        raise TypeError(f"Cell: {label} must be a sequence of names, got {names!r}")
    return tuple(_identifier(label, name) for name in names)


def _check_parts(parts: Sequence[str], values: Sequence[str]) -> None:
    if len(parts) > 4:
        raise ValueError(
            "Cell: states and values must be at most four names together, counting h if there "
            f"are no other states, got {list(parts)}"
        )
    for value in values:
        if value in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            raise ValueError(
                f"Cell: values must not have the name of another parameter, got {value!r}"
            )


def _check_single(gates: Sequence[str], only_input: str | None, only_state: str | None) -> None:
    """Checks the names of the gates that have only one product."""
    if (only_input is None) != (only_state is None) or (
        only_input is not None and (only_input == only_state)
    ):
        raise ValueError(
            "Cell: only_input and only_state must be two different gates or both None, got "
            f"{only_input!r} and {only_state!r}"
        )
    for label, gate in (("only_input", only_input), ("only_state", only_state)):
        if gate is not None and gate not in gates:
            raise ValueError(f"Cell: {label} must be one of the gates {gates}, got {gate!r}")


def _stored(tree: ast.AST) -> set[str]:
    """The names that the statements of a text assign, without those assigned within functions."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension)):
            found |= _stored(node)
    return found


def _compiled(cell: str, text: str, states: Sequence[str]) -> Callable[..., Any]:
    """Makes a function of a formula that is given as text."""
    file = f"<formula of {cell}>"
    text = textwrap.dedent(text).strip()
    code = compile(text, file, "exec")
    stored = _stored(ast.parse(text))
    for needed in ("h", *states):
        if needed not in stored:
            raise ValueError(f"Cell: the formula of {cell} must assign {needed}")
    # With this, a traceback shows the line of the text.
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)

    def forward(**given: Any) -> Any:
        names: dict[str, Any] = {**NAMES, "torch": torch, **given}
        exec(code, names)
        return (names["h"], *(names[state] for state in states)) if states else names["h"]

    return forward


def _traced(
    cell: Cell, graph: Graph, forward: Callable[..., Any], inputs: dict[str, Node]
) -> tuple[Node, ...]:
    """Runs the formula on symbols. Returns new h and the new states, or new h twice for a cell
    without states."""
    if not callable(forward):
        raise TypeError(f"Cell: forward must be a function or text, got {type(forward).__name__}")
    try:
        parameters = inspect.signature(forward).parameters.values()
    except ValueError:
        raise TypeError("Cell: forward must be a Python function, got a built-in one") from None
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = {p.name for p in parameters}
        needed = {p.name for p in parameters if p.default is p.empty}
        if not needed <= set(inputs) <= names:
            raise ValueError(
                f"Cell: forward must have the arguments {', '.join(inputs)}, got "
                f"{', '.join(p.name for p in parameters)}"
            )
    found = forward(**{name: Value(graph, node) for name, node in inputs.items()})
    if not cell.states:
        node = lift(graph, found)
        return node, node
    if not isinstance(found, tuple) or len(found) != 1 + len(cell.states):
        got = f"{len(found)} values" if isinstance(found, tuple) else type(found).__name__
        got = "one value" if isinstance(found, Value) else got
        raise TypeError(f"Cell: forward must return (h, {', '.join(cell.states)}), got {got}")
    return tuple(lift(graph, value) for value in found)
