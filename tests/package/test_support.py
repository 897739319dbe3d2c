"""README.md's sentence and table of features are backed by tests that run each op."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle
from tests.interop import test_jagged
from tests.laws import (
    test_cuda,
    test_export,
    test_gradients,
    test_transforms_autocast,
    test_transforms_compile,
    test_transforms_func,
)
from tests.package import test_cpp
from tests.recurrent.layer import test_autocast as recurrent_autocast
from tests.recurrent.layer import test_export as recurrent_export
from tests.sine_linear import test_jet_programs as jet_programs
from tests.sine_linear import test_jet_siren as jet_siren
from tests.sine_linear import test_transforms as sine_transforms
from tests.support import forms
from tests.support.cases import OPS
from tests.support.inputs import Op

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
MODULES = {"LLTM": "lltm", "LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}
MODULES |= {"LLTMCell": "lltm_cell", "SineLinear": "sine_linear"}
WRITTEN = {f"{name}_" for name, op in OPS.items() if op.inplace}
Test = Callable[..., Any]


def named(value: Any) -> str:
    """Returns the op that a test's parameter selects: an Op, or a name such as "scale, strided"."""
    value = value.values if hasattr(value, "marks") else value
    value = value[0] if isinstance(value, tuple) else value
    name = value.name if isinstance(value, Op) else str(value)
    # lltm, lstm and gru call recurrent_layer for each layer, and the tests of invariants run
    # recurrent_layer.
    return re.split(r"[ ,]", name.removeprefix("recurrent_layer "))[0]


def given(test: Test) -> set[str]:
    """Returns the ops among the parameters of a test."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    names = {named(value) for mark in marks for value in mark.args[1]}
    return names & FUNCTIONS


def transformed(transform: str) -> set[str]:
    assert transform in test_transforms_func.TRANSFORMS
    return given(test_transforms_func.test_transform)


def called(*parts: Any) -> set[str]:
    """Returns the ops that the source of these tests or modules calls, directly or through a module
    of treadle."""
    text = "\n".join(inspect.getsource(part) for part in parts)
    names = set(re.findall(r"\btreadle\.(?:nn\.)?(\w+)|\b(LLTM)\(", text))
    found = {a or b for a, b in names}
    return {MODULES.get(name, name) for name in found} & FUNCTIONS


def by_jet(*parts: Any) -> set[str]:
    """Returns the op of jets if all of these call Siren.jet, which calls the op for each layer."""
    return (
        {"sine_linear_jet"} if all(".jet(" in inspect.getsource(part) for part in parts) else set()
    )


def in_cpp() -> set[str]:
    """Returns the ops that the C++ example calls. Checks that a test builds and runs it."""
    test = inspect.getsource(test_cpp.test_example_builds_and_trains_without_python_and_toolkit)
    assert "train_cell" in test and "every op is right" in test
    text = (ROOT / "examples" / "cpp" / "train_cell.cpp").read_text()
    return set(re.findall(r"\btreadle::(\w+)\(", text)) & FUNCTIONS


def autocast() -> set[str]:
    laws = test_transforms_autocast
    assert "NEW.values()" in inspect.getsource(laws.test_elementwise_ops_run_as_they_are)
    found = (set(forms.NEW) & FUNCTIONS) | called(laws.test_cell)
    assert "torch.autocast" in inspect.getsource(recurrent_autocast.test_autocast)
    assert "layer" in recurrent_autocast.test_autocast.__code__.co_names
    found |= given(recurrent_autocast.test_autocast)
    assert "torch.autocast" in inspect.getsource(jet_siren.test_autocast_lowers_the_precision)
    found |= by_jet(jet_siren.test_autocast_lowers_the_precision)
    return found | called(sine_transforms.test_autocast_runs_in_the_lower_precision)


def exported() -> set[str]:
    return called(
        test_export.Everything,
        test_export.Decoder,
        test_export.test_export_save_load,
        sine_transforms.Net,
        sine_transforms.test_export_save_load,
        recurrent_export.Layers,
        recurrent_export.test_aoti,
    ) | by_jet(jet_programs.Field)


FUNCTIONS = {name for name in treadle.__all__ if inspect.isfunction(getattr(treadle, name))}
PROOFS: dict[str, Callable[[], set[str]]] = {
    "double backward": lambda: given(test_gradients.test_gradgradcheck),
    "jvp": lambda: transformed("jvp"),
    "vmap": lambda: transformed("vmap of grad") & transformed("grad of vmap"),
    "compile": lambda: given(test_transforms_compile.test_forward_and_backward),
    "export": exported,
    "autocast": autocast,
    "CUDA graphs": lambda: given(test_cuda.test_graph_capture),
    "C++": in_cpp,
}


JAGGED = {"add": "vector_add"}  # names in test_jagged that differ from the op's


def jagged() -> set[str]:
    assert "PAIRS" in inspect.getsource(test_jagged.test_like_torch)
    names = {re.split(r"[ ,]", name)[0].removesuffix("_") for name in test_jagged.PAIRS}
    return {JAGGED.get(name, name) for name in names} | by_jet(test_jagged.test_jets_of_a_siren)


def as_torchs_under_autocast() -> set[str]:
    return {form.op.name for form in forms.NEW.values()}


# For each column in which ops differ: the possible entries, and the ops that have each entry.
DIFFERENCES: dict[str, dict[str, Callable[[], set[str]]]] = {
    "in place": {"✓": lambda: {form.op.name for form in forms.INPLACE.values()}},
    "`out=`": {"✓": lambda: {form.op.name for form in forms.OUT.values()}},
    "nested tensors": {"✓": jagged},
    "autocast": {
        "as torch's": as_torchs_under_autocast,
        "lower precision": lambda: autocast() - as_torchs_under_autocast(),
    },
}


def table() -> dict[str, dict[str, str]]:
    """The cells of the README's table, by the row's first cell and then by column."""
    block = re.search(r"^\| op \|.*?(?=\n\n)", README, re.S | re.M)
    assert block is not None
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in block[0].splitlines()
    ]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def sentence() -> list[str]:
    """The features that the README promises for every op."""
    found = re.search(r"^Every op supports (.*?)\.\s+Tests\s+run\s+every\s+op", README, re.S | re.M)
    assert found is not None
    return re.split(r", | and ", " ".join(found[1].split()))


def first_op(row: str) -> str:
    return str(re.findall(r"`(\w+)`", row)[0])


def kind(name: str) -> type:
    found = getattr(treadle.nn, name)
    return found if isinstance(found, type) else object


def test_every_op_has_a_row() -> None:
    names = {name for row in table() for name in re.findall(r"`([\w.]+)`", row)}
    for name in names:
        found: object = treadle
        for part in name.split("."):
            found = getattr(found, part)
    assert names & FUNCTIONS == FUNCTIONS - {"launch_info"}
    modules = {name for name in treadle.nn.__all__ if issubclass(kind(name), torch.nn.Module)}
    # Layers of formulas have no op of their own; a sentence below the table names them.
    formulas = {name for name in modules if issubclass(kind(name), treadle.nn.Recurrent)}
    assert all(f"`nn.{name}`" in README for name in formulas)
    assert {f"nn.{name}" for name in modules - formulas} <= names


@pytest.mark.parametrize("feature", PROOFS)
def test_every_op_is_proved_to_have_it(feature: str) -> None:
    proved = PROOFS[feature]()
    assert proved <= {*OPS, *WRITTEN, "lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"}
    assert feature in sentence()
    assert {first_op(row) for row in table()} <= proved, feature


def test_the_sentence_names_what_is_proved_alone() -> None:
    assert sentence() == list(PROOFS)


@pytest.mark.parametrize("column", DIFFERENCES)
def test_marks_are_proved(column: str) -> None:
    marks = {mark: find() for mark, find in DIFFERENCES[column].items()}
    for row, cells in table().items():
        op = first_op(row)
        wanted = next((mark for mark, ops in marks.items() if op in ops), "–")
        assert cells[column] == wanted, f"{op}: {column}"


def test_columns_are_those_that_are_proved() -> None:
    for cells in table().values():
        assert list(cells) == ["op", "replaces", *DIFFERENCES]
