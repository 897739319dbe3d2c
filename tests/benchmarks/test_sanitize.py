"""The programs for the sanitizers call every function of kernels.h and of treadle.jax.

These tests run them on the CPU, without a sanitizer.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from tests.c_api import everything, native
from tests.recurrent.support import formula_cases


def test_every_function_of_kernels_h_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    count: Counter[str] = Counter()
    call = native.call

    def counted(name: str, *arguments: Any) -> None:
        count[name] += 1
        call(name, *arguments)

    monkeypatch.setattr(native, "call", counted)
    for run in everything.runs("cpu"):
        run()
    assert set(count) == set(native.FUNCTIONS) - {"treadle_get_launch"}
    assert min(count.values()) >= 4


def test_every_function_of_treadle_jax_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.interop.with_jax import functions

    sanitize_jax = import_module("benchmarks.sanitize_jax")
    called: Counter[str] = Counter()
    for name in functions.__all__:
        function = getattr(functions, name)

        def counted(*arguments: Any, name: str = name, function: Any = function) -> Any:
            called[name] += 1
            return function(*arguments)

        monkeypatch.setattr(functions, name, counted)
    monkeypatch.setattr(sanitize_jax, "SIZES", ((2, 3, 4, 8, 2), (2, 3, 4, 8, 1)))
    monkeypatch.setattr(sanitize_jax, "FLOATS", ("float32",))
    assert sanitize_jax.run("cpu") == 7 + 8
    assert set(called) == set(functions.__all__)


def test_a_name_stands_for_all_forms_of_the_op() -> None:
    sanitize = import_module("benchmarks.sanitize")
    found = {op.name for op, _, _ in sanitize.pieces(["recurrent_layer", "scale"])}
    cells = {f"recurrent_layer {cell}" for cell in ("lstm", "gru", "lltm", "rnn_tanh", "rnn_relu")}
    formulas = {f"recurrent_layer {cell.key}" for cell in formula_cases.CELLS}
    assert found == {"scale", *cells, *(f"{cell} resets" for cell in cells), *formulas}


def test_parts_share_all_cases() -> None:
    sanitize = import_module("benchmarks.sanitize")
    parts = [list(sanitize.Part.read(f"{k}/3").of_all(iter(range(8)))) for k in range(3)]
    assert parts == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(sanitize.Part().of_all(iter(range(3)))) == [0, 1, 2]


@pytest.mark.parametrize("text", ["3/3", "-1/3", "1/0", "/2", "a/2", "1/2/3"])
def test_a_part_that_is_not_one(text: str) -> None:
    """A part must be K/N with 0 <= K < N. Any other part would run no cases and report success."""
    sanitize = import_module("benchmarks.sanitize")
    with pytest.raises(SystemExit, match="must be K/N with K from 0 to N - 1, got " + text):
        sanitize.Part.read(text)
