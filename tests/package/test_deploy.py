"""docs/deploy.md: its snippets run in order, and their results equal the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import treadle
from tests.support.pages import snippets

PYTHON = snippets("deploy.md")
ONNX = ("onnx", "onnxscript", "onnxruntime")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the page's first snippets, then those under a heading, and returns their variables."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)

    def run(heading: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        found = [code for under, code in PYTHON if under in ("Deploying a model", heading)]
        assert len(found) > 1
        for code in found:
            exec(code, names)
        return names

    return run


def test_onnx(page: Any) -> None:
    for package in ONNX:
        pytest.importorskip(package, reason=f"{package} is not installed")
    names = page("ONNX")
    expected = names["model"](torch.zeros(2, 7, 3))
    torch.testing.assert_close(torch.from_numpy(names["output"]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heading", ["torch.export", "torch.jit.trace"])
def test_files_that_python_loads(page: Any, heading: str) -> None:
    names = page(heading)
    for batch, steps in ((2, 7), (5, 1)):
        x = torch.randn(batch, steps, 3)
        torch.testing.assert_close(names["loaded"](x), names["model"](x))


def test_every_snippet_is_run() -> None:
    here = {"Deploying a model", "ONNX", "torch.export", "torch.jit.trace"}
    # tests/recurrent/layer/test_export.py runs the snippet that needs a compiler.
    assert {heading for heading, _ in PYTHON} == here | {"AOTInductor"}
    runner = Path(__file__).with_name("aoti_runner.cpp").read_text()
    ((_, code),) = snippets("deploy.md", "cpp")
    assert [line for line in code.splitlines() if line not in runner] == []


def test_two_example_tensors_that_are_one() -> None:
    """As the page warns, the exported program reads one of the tensors in place of both."""
    lstm = treadle.nn.LSTM(3, 5)
    x, zeros = torch.randn(6, 4, 3), torch.zeros(1, 4, 5)
    h, c = torch.randn(2, 1, 4, 5).unbind()
    for given, read in (((zeros, zeros), (c, c)), ((zeros, zeros.clone()), (h, c))):
        program = torch.export.export(lstm, (x, given)).module()
        torch.testing.assert_close(program(x, (h, c)), lstm(x, read))
