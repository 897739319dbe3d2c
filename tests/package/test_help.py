"""help() and notebooks show arguments and defaults, and the texts make sense without the
repository."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treadle
from tests.support import installed

FUNCTIONS = [name for name in treadle.__all__ if inspect.isroutine(getattr(treadle, name))]
CLASSES = [name for name in treadle.nn.__all__ if inspect.isclass(getattr(treadle.nn, name))]
EMPTY = inspect.Parameter.empty
LAYERS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
# launch_info accepts the arguments of the function that it calls.
ANY_ARGUMENTS = {"launch_info"}


def shown(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_have_arguments_with_types(name: str) -> None:
    function = getattr(treadle, name)
    parameters = shown(function)
    stars = [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert not stars or name in ANY_ARGUMENTS
    assert all(p.annotation is not EMPTY for p in parameters)
    described = inspect.getdoc(function) or ""
    missing = [p.name for p in parameters if not re.search(rf"\b{p.name}\b", described)]
    assert not missing or "Arguments and errors: :func:" in described, missing
    # help() shows what pydoc renders.
    assert f"{parameters[0].name}: " in pydoc.plain(pydoc.render_doc(function)).split("\n")[2]


NAMES = """
import inspect, treadle
names = [name for name in dir(treadle) if not name.startswith("_")]
print([n for n in names if n not in treadle.__all__ and not inspect.ismodule(getattr(treadle, n))])
print([n for n in dir(treadle.nn) if not n.startswith("_") and n not in treadle.nn.__all__
       and not inspect.ismodule(getattr(treadle.nn, n))])
"""


def test_completion_shows_what_is_public() -> None:
    """dir() shows only public names and submodules."""
    done = installed.python("-c", NAMES)
    assert (done.stdout, done.stderr) == ("[]\n[]\n", "")


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_arguments_with_types(name: str) -> None:
    parameters = shown(getattr(treadle.nn, name))
    assert parameters and all(p.annotation is not EMPTY for p in parameters)


@pytest.mark.parametrize("name", LAYERS)
def test_a_shown_signature_is_the_ops(name: str) -> None:
    """Names, order and defaults are those of torch.ops.treadle's schema, plus return_cells, which
    selects the overload."""
    schema = getattr(torch.ops.treadle, name).input._schema
    own = [(a.name, a.default_value if a.has_default_value() else EMPTY) for a in schema.arguments]
    chosen = [] if name not in ("lltm", "lstm") else [("return_cells", False)]
    assert [(p.name, p.default) for p in shown(getattr(treadle, name))] == own + chosen


def test_docstrings_name_no_page_that_a_wheel_lacks() -> None:
    found = []
    for file in installed.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                pages = re.findall(r"[\w/]+\.md\b", ast.get_docstring(node) or "")
                found += [f"{file.name}: {page}" for page in pages]
    assert not found
