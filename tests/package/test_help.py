"""What help() and notebooks show of the package: arguments, defaults, and texts that need no
repository."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treadle
from tests.support import installed

FUNCTIONS = [name for name in treadle.__all__ if inspect.isroutine(getattr(treadle, name))]
CLASSES = [name for name in treadle.nn.__all__ if inspect.isclass(getattr(treadle.nn, name))]
LAYERS = ("lltm", "lstm", "gru")
# Its arguments are those of what it calls.
ANY_ARGUMENTS = {"launch_info"}


def shown(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_have_arguments_with_types(name: str) -> None:
    function = getattr(treadle, name)
    parameters = shown(function)
    stars = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert not stars or name in ANY_ARGUMENTS
    assert all(p.annotation is not p.empty for p in parameters)
    described = inspect.getdoc(function) or ""
    assert all(re.search(rf"\b{p.name}\b", described) for p in parameters)
    # What pydoc prints, as help() does.
    assert f"{parameters[0].name}: " in pydoc.plain(pydoc.render_doc(function)).split("\n")[2]


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_arguments_with_types(name: str) -> None:
    parameters = shown(getattr(treadle.nn, name))
    assert parameters and all(p.annotation is not p.empty for p in parameters)


@pytest.mark.parametrize("name", LAYERS)
def test_a_shown_signature_is_the_ops(name: str) -> None:
    """Names, order and defaults of torch.ops.treadle's schema, and return_cells, which chooses."""
    schema = getattr(treadle.torch_ops(), name).input._schema
    shown_ = [(p.name, p.default) for p in shown(getattr(treadle, name))]
    own = [(a.name, a.default_value if a.has_default_value() else inspect.Parameter.empty)]
    assert shown_ == own


TYPED = """
from collections.abc import Sequence
import torch, treadle
from torch import Tensor
x, h, p = torch.zeros(2, 1, 3), torch.zeros(1, 1, 4), [torch.zeros(1)]
rest = (True, 1, 0.0, False, False)
a: tuple[Tensor, Tensor, Tensor] = treadle.lstm(x, (h, h), p, *rest, False)
b: tuple[Tensor, Tensor, Tensor, Tensor] = treadle.lltm(x, (h, h), p, *rest, False, return_cells=True)
c: tuple[Tensor, Tensor] = treadle.gru(x, h, p, *rest, False)
d: tuple[Tensor, Tensor, Tensor] = treadle.lltm(x, torch.zeros(1), (h, h), p, *rest)
treadle.lltm(x, h, p, *rest, False)
treadle.gru(x, h, p, *rest, "no")
treadle.lstm(x, (h, h), p)
"""


def test_types_are_those_of_the_overloads(tmp_path: Path) -> None:
    """mypy takes the right calls and refuses the last three lines."""
    (tmp_path / "program.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "program.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**__import__("os").environ, "MYPYPATH": str(installed.PACKAGE.parent)},
    )
    lines = re.findall(r"^program\.py:(\d+): error", done.stdout, re.M)
    total = len(TYPED.splitlines())
    assert sorted(set(map(int, lines))) == [total - 2, total - 1, total], done.stdout


def test_docstrings_name_no_page_that_a_wheel_lacks() -> None:
    found = []
    for file in installed.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                pages = re.findall(r"[\w/]+\.md\b", ast.get_docstring(node) or "")
                found += [f"{file.name}: {page}" for page in pages]
    assert not found
