"""Arguments that treadle.Cell and treadle.nn.Recurrent refuse, and their error texts."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import treadle
from tests.recurrent.formula import cells
from treadle import Cell
from treadle._formula.calls import NAMES, Value
from treadle._formula.graph import Graph, is_affine


def same(a: Any, h: Any) -> Any:
    return a


def made(**given: Any) -> Cell:
    return Cell(**{"name": "mine", "gates": ("a",), "forward": same} | given)


ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "name": ({"name": 3}, TypeError, "Cell: name must be a string, got int"),
    "odd name": (
        {"name": "my cell"},
        ValueError,
        "Cell: name must be an identifier, got 'my cell'",
    ),
    "keyword": ({"name": "lambda"}, ValueError, "Cell: name must be an identifier, got 'lambda'"),
    "a state like a gate": (
        {"states": ("a",), "forward": lambda a: (a, a)},
        ValueError,
        "Cell: names of gates, states and values must differ from each other and from h, got a, a",
    ),
    "gates as bytes": (
        {"gates": b"ab"},
        TypeError,
        "Cell: gates must be a sequence of names, got b'ab'",
    ),
    "built-in function": (
        {"forward": torch.sigmoid},
        TypeError,
        "Cell: forward must be a Python function, got a built-in one",
    ),
    "only in a function": (
        {"forward": "def f():\n    h = a\nf()"},
        ValueError,
        "Cell: the formula of mine must assign h",
    ),
    "gates as text": (
        {"gates": "ab"},
        TypeError,
        "Cell: gates must be a sequence of names, got 'ab'",
    ),
    "a gate that is no name": (
        {"gates": ("a", 1)},
        TypeError,
        "Cell: gates must be a string, got int",
    ),
    "no gates": (
        {"gates": ()},
        ValueError,
        "Cell: gates must be 1 to 4 names, at least one besides only_input and only_state, got ()",
    ),
    "five gates": (
        {"gates": tuple("abcde")},
        ValueError,
        "Cell: gates must be 1 to 4 names, at least one besides only_input and only_state, got "
        "('a', 'b', 'c', 'd', 'e')",
    ),
    "equal gates": (
        {"gates": ("a", "a")},
        ValueError,
        "Cell: names of gates, states and values must differ from each other and from h, got a, a",
    ),
    "a gate called h": (
        {"gates": ("h",)},
        ValueError,
        "Cell: names of gates, states and values must differ from each other and from h, got h",
    ),
    "a value with the name of a state": (
        {"states": ("c",), "values": ("c",)},
        ValueError,
        "Cell: names of gates, states and values must differ from each other and from h, got a, c, "
        "c",
    ),
    "a value with the name of a weight": (
        {"values": ("weight_hh",)},
        ValueError,
        "Cell: values must not have the name of another parameter, got 'weight_hh'",
    ),
    "five states": (
        {"states": ("c", "n", "m", "k", "l")},
        ValueError,
        "Cell: states and values must be at most four names together, counting h if there are no "
        "other states, got ['c', 'n', 'm', 'k', 'l']",
    ),
    "four values besides h": (
        {"values": ("p", "q", "r", "s")},
        ValueError,
        "Cell: states and values must be at most four names together, counting h if there are no "
        "other states, got ['h', 'p', 'q', 'r', 's']",
    ),
    "half of the pair": (
        {"gates": ("a", "b"), "only_input": "a"},
        ValueError,
        "Cell: only_input and only_state must be two different gates or both None, got "
        "'a' and None",
    ),
    "a gate that is not there": (
        {"gates": ("a", "b", "c"), "only_input": "a", "only_state": "x"},
        ValueError,
        "Cell: only_state must be one of the gates ('a', 'b', 'c'), got 'x'",
    ),
    "no gate of both": (
        {"gates": ("a", "b"), "only_input": "a", "only_state": "b"},
        ValueError,
        "Cell: gates must be 1 to 4 names, at least one besides only_input and only_state, "
        "got ('a', 'b')",
    ),
    "forward": ({"forward": 3}, TypeError, "Cell: forward must be a function or text, got int"),
    "arguments": (
        {"forward": lambda x, h: x},
        ValueError,
        "Cell: forward must have the arguments a, h, got x, h",
    ),
    "no h": ({"forward": "b = a"}, ValueError, "Cell: the formula of mine must assign h"),
    "no c": (
        {"states": ("c",), "forward": "h = a"},
        ValueError,
        "Cell: the formula of mine must assign c",
    ),
    "a state that is not returned": (
        {"states": ("c",), "forward": lambda a, c: a},
        TypeError,
        "Cell: forward must return (h, c), got one value",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case: str) -> None:
    given, error, message = ARGUMENTS[case]
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        made(**given)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return 1.0 * (a > 0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 0.5 * grad


KNOWN = "a formula may use + - * / ** and comparisons, torch's abs, add, "
FORMULAS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "branch": (
        lambda a, h: a if a > 0 else h,
        TypeError,
        "a formula must not branch on its values, which are symbols: use torch.where(condition, "
        "a, b)",
    ),
    "max of Python": (lambda a, h: max(a, h), TypeError, "a formula must not branch"),
    "unknown function": (
        lambda a, h: torch.cumsum(a, 0),
        TypeError,
        f"a formula cannot call cumsum; {KNOWN}",
    ),
    "unknown method": (lambda a, h: a.view(-1), AttributeError, "a formula's value has no 'view'"),
    "tensor": (
        lambda a, h: a * torch.ones(3),
        TypeError,
        "a formula may use only its arguments and numbers, got Tensor: name learned values in "
        "Cell's argument values",
    ),
    "math": (
        lambda a, h: math.exp(a),
        TypeError,
        "a formula's arguments are symbols, not numbers: use functions of torch, not of math",
    ),
    "matrix product": (
        lambda a, h: a @ h,
        TypeError,
        f"a formula computes each unit from its own values; {KNOWN}",
    ),
    "index": (lambda a, h: a[:, :2], TypeError, "a formula computes each unit from its own values"),
    "power of 2": (lambda a, h: 2**a, TypeError, "a formula computes each unit from its own"),
    "rounding": (
        lambda a, h: torch.div(a, 2, rounding_mode="floor"),
        ValueError,
        "div: rounding_mode must be None in a formula, got 'floor'",
    ),
    "power of a value": (
        lambda a, h: a**h,
        TypeError,
        "a formula's exponents must be integers or 0.5, got a value of the formula",
    ),
    "infinite power": (
        lambda a, h: a**math.inf,
        TypeError,
        "a formula's exponents must be integers or 0.5, got inf",
    ),
    "no bounds": (lambda a, h: torch.clamp(a), ValueError, "clamp: min or max must be given"),
    "a function of its own derivative": (
        lambda a, h: Spike.apply(a),
        TypeError,
        "a formula cannot call an autograd.Function",
    ),
    "sum of comparisons": (
        lambda a, h: (a > 0) + (h > 0),
        TypeError,
        "add: comparisons are combined by & and |, not by arithmetic",
    ),
    "and": (lambda a, h: a & (h > 0), TypeError, "& takes comparisons of a formula's values"),
    "text": (
        lambda a, h: a * "2",
        TypeError,
        "a formula may use only its arguments and numbers, got str",
    ),
    "infinity": (
        lambda a, h: a * math.inf,
        ValueError,
        "a formula's numbers must be finite, got inf",
    ),
    "power": (
        lambda a, h: a**1.5,
        TypeError,
        "a formula's exponents must be integers or 0.5, got 1.5",
    ),
    "large power": (
        lambda a, h: a**9,
        ValueError,
        "a formula's exponents must be from -8 to 8 and not 0, got 9",
    ),
    "in place": (
        lambda a, h: torch.nn.functional.relu(a, inplace=True),
        ValueError,
        "relu: inplace must be False in a formula, got True",
    ),
    "nothing": (
        lambda a, h: None,
        TypeError,
        "a formula may use only its arguments and numbers, got None",
    ),
    "condition": (
        lambda a, h: torch.where(a, a, h),
        TypeError,
        "torch.where: condition must be a comparison of a formula's values",
    ),
}


@pytest.mark.parametrize("case", FORMULAS)
def test_formulas(case: str) -> None:
    """The traceback of the error leads to the formula's line."""
    forward, error, message = FORMULAS[case]
    with pytest.raises(error, match=re.escape(message)) as caught:
        made(forward=forward)
    if case != "nothing":
        assert any(str(entry.path) == __file__ for entry in caught.traceback[2:])


def test_conditions() -> None:
    """Tests comparisons, and the operators that combine them."""
    cell = made(
        gates=("a", "b"),
        forward=lambda a, b, h: torch.where(
            (a == b) | (a != 1) & ~(b >= 2), a, torch.where(a <= b, b, 0.5)
        ),
    )
    layer = treadle.nn.Recurrent(cell, 2, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(2))
        layer.weight_hh_l0.zero_()
    points = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    grid = torch.cartesian_prod(points, points)
    a, b = grid.unbind(1)
    expected = torch.where(
        (a == b) | (a != 1) & ~(b >= 2), a, torch.where(a <= b, b, torch.tensor(0.5).double())
    )
    assert torch.equal(layer(grid.unsqueeze(0))[0].flatten(), expected)


def test_a_line_of_text_is_shown() -> None:
    with pytest.raises(NameError, match="nonsense") as caught:
        made(forward="b = a + 1\nh = nonsense(b)")
    entry = caught.traceback[-1]
    assert str(entry.path).endswith("<formula of mine>") and entry.lineno == 1
    with pytest.raises(SyntaxError, match="invalid syntax"):
        made(forward="h = a +* 2")


def test_numbers_of_numpy_and_torch() -> None:
    factor = np.float32(0.5)
    wanted = made(forward=lambda a, h: a * 0.5)
    assert made(forward=lambda a, h: a * factor).key == wanted.key
    assert made(forward=lambda a, h: a * np.float64(0.5)).key == wanted.key

    def scaled(a: Any, h: Any, by: float) -> Any:
        return a * by

    assert made(forward=functools.partial(scaled, by=0.5)).key == wanted.key


LAYERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "cell": ({"cell": "lstm"}, TypeError, "Recurrent: cell must be a treadle.Cell, got str"),
    "input_size": (
        {"input_size": 0},
        ValueError,
        "Recurrent: input_size must be an integer of at least 1, got 0",
    ),
    "hidden_size": (
        {"hidden_size": 2.0},
        TypeError,
        "Recurrent: hidden_size must be an integer of at least 1, got 2.0",
    ),
    "dropout": ({"dropout": 2}, ValueError, "Recurrent: dropout must be a number between 0 and 1"),
    "bias": ({"bias": 1}, TypeError, "Recurrent: bias must be a bool, got int"),
    "dtype": ({"dtype": torch.int32}, Exception, "Recurrent: dtype must be float64, float32"),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers(case: str) -> None:
    given, error, message = LAYERS[case]
    arguments = {"cell": cells.LIGRU, "input_size": 3, "hidden_size": 5} | given
    with pytest.raises(error, match=re.escape(message)):
        treadle.nn.Recurrent(**arguments)


def test_calls() -> None:
    layer, wide = (treadle.nn.Recurrent(cell, 3, 5) for cell in (cells.LIGRU, cells.COUPLED))
    x = torch.zeros(4, 2, 3)
    for call, message in (
        (lambda: layer(torch.zeros(4, 2, 4)), "ligru: input must have shape"),
        (lambda: layer(x.double()), "ligru: "),
        (
            lambda: layer(x, torch.zeros(1, 3, 5)),
            "ligru: h0 must have shape [num_layers * D, B, H] = [1, 2, 5], got [1, 3, 5]",
        ),
        (lambda: layer(x, return_cells=True), "ligru: return_cells must be False, got True"),
        (lambda: wide(x, torch.zeros(1, 2, 5)), "coupled: "),
    ):
        with pytest.raises((RuntimeError, ValueError, TypeError), match=re.escape(message)):
            call()


def test_an_op_of_a_cell_that_was_not_made() -> None:
    x = torch.zeros(4, 2, 3)
    with pytest.raises(RuntimeError, match="rnn_relu or a Cell's key, got ligru_0"):
        torch.ops.treadle.recurrent_layers(
            x, None, [], [], True, 1, 0.0, False, False, False, cell="ligru_00000000"
        )


def test_text_is_a_block_of_python() -> None:
    """Functions, comprehensions and loops in the text see the gates. The first line may begin a
    block."""
    wanted = made(forward=lambda a, h: 0.25 * a + 0.5 * a + h * 2).key
    for text in (
        "h = sum([w * a for w in (0.5,)], 0.25 * a) + h * 2",
        "f = lambda x: 0.25 * x + 0.5 * a\nh = f(a) + h * 2",
        """
        for factor in (2,):
            h = 0.25 * a + 0.5 * a + h * factor
        """,
    ):
        assert made(forward=text).key == wanted, text


def test_cells_that_differ_only_in_states() -> None:
    one = Cell("x", gates=("a",), forward=lambda a, h: h)
    other = Cell("x", gates=("a",), states=("c",), forward=lambda a, c: (c, c))
    assert one.key != other.key
    x = torch.ones(3, 2, 2)
    assert len(treadle.nn.Recurrent(other, 2, 3)(x, (x[:1, :, :1].expand(1, 2, 3),) * 2)[1]) == 2


def test_threads_that_make_the_same_cell() -> None:
    def make(number: int) -> str:
        return Cell("shared", gates=("a",), forward=lambda a, h: torch.tanh(a * number)).key

    with ThreadPoolExecutor(6) as pool:
        for number in range(2, 12):
            assert len(set(pool.map(make, [number] * 12))) == 1


def test_which_cells_are_affine() -> None:
    """If the new c is affine in c, GPU kernels can compose several steps before c is known."""
    for text, affine in (
        ("c = sigmoid(a) * c + a", True),
        ("c = where(a > 0, c, 2 * c + 1)", True),
        ("c = c * c", False),
        ("c = abs(c)", False),
        ("c = sigmoid(a) * c + a - (c > 1) * 0.5", False),
        ("c = where(c > 0, a, 0.5)", False),
        ("c = where(c > 0, c + a, c - a)", False),
        ("c = where((a > 0) & (c > a), c, a)", False),
    ):
        graph = Graph()
        a, c = (Value(graph, graph.input()) for _ in "ac")
        names = {**NAMES, "a": a, "c": c}
        exec(text, names)
        result = names["c"].node
        [slope] = graph.tangents([result], [a.node, c.node], [graph.const(0), graph.const(1)])
        assert is_affine(result, c.node, slope) == affine, text
