"""docs/write_a_cell.md: its snippets run and check their results, and its statements are true."""

from __future__ import annotations

import pickle
import re
import traceback
from typing import Any

import pytest
import torch

import treadle
from tests.support.pages import DOCS, snippets
from treadle._formula.calls import FUNCTIONS

TEXT = (DOCS / "write_a_cell.md").read_text()


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Runs the page's snippets in order and returns their variables. Most snippets check their own
    results."""
    names: dict[str, Any] = {"torch": torch, "treadle": treadle}
    for heading, code in snippets("write_a_cell.md"):
        exec(compile(code, f"write_a_cell.md, {heading}", "exec"), names)
    return names


def test_layer_learns(page: dict[str, Any]) -> None:
    assert len(page["losses"]) == 300 and max(page["losses"][-10:]) < 0.01
    assert page["losses"][0] > 1 / 12


def test_parameters(page: dict[str, Any]) -> None:
    shapes = {name: tuple(value.shape) for name, value in page["layer"].named_parameters()}
    vectors = {"bias_ih_l0": (2 * 32,), "bias_hh_l0": (2 * 32,)}
    assert shapes == {"weight_ih_l0": (2 * 32, 1), "weight_hh_l0": (2 * 32, 32), **vectors}
    assert page["layer"].cell.gates == ("z", "a")
    text = re.search(r'`forward` may also be a\s+string: `"(.*)"`', TEXT)
    assert text is not None
    treadle.Cell("text", gates=("z", "a"), forward=text[1])


def test_gru_is_that_of_torch(page: dict[str, Any]) -> None:
    layer, twin = treadle.nn.Recurrent(page["cell"], 8, 32), torch.nn.GRU(8, 32)
    assert page["cell"].name == "gru"
    theirs = twin.state_dict()  # in the order r, z, n
    layer.load_state_dict({k: v.roll(32, 0) if "hh" in k else v for k, v in theirs.items()})
    x = torch.randn(20, 4, 8)
    torch.testing.assert_close(layer(x), twin(x))


def test_functions_are_those_of_the_page() -> None:
    found = set()
    for module in (torch, torch.nn.functional):
        listed = re.search(rf"^- from {re.escape(module.__name__)}: (.*(?:\n  .*)*)", TEXT, re.M)
        assert listed is not None
        found |= {getattr(module, name) for name in re.findall(r"`(\w+)`", listed[1])}
    assert found == set(FUNCTIONS)


def test_errors_show_the_line_and_the_reason() -> None:
    assert "`a formula cannot call softmax`" in TEXT
    formula = "z = torch.sigmoid(z)\nh = z * torch.softmax(h, -1)"
    with pytest.raises(TypeError, match="a formula cannot call softmax") as error:
        treadle.Cell("wrong", gates=("z",), forward=formula)
    lines = [frame.line for frame in traceback.extract_tb(error.tb)]
    assert "h = z * torch.softmax(h, -1)" in lines


def test_limits(page: dict[str, Any]) -> None:
    layer, x = treadle.nn.Recurrent(page["lstm"], 8, 32), torch.randn(20, 4, 8)
    with pytest.raises(ValueError, match="return_cells must be False"):
        layer(x, return_cells=True)
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(layer)
