"""tools/check_words.py reports every violation, and its rules match those of CONTRIBUTING.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_words

ROOT = Path(__file__).resolve().parents[2]
GRID = "kernels/recurrent/grid/grid.cuh"


@pytest.mark.parametrize(
    ("path", "text", "old"),
    [
        ("csrc/a.h", "// Of the gates, those that\n// are kept.", "begins with Of"),
        ("tools/a.py", 'def f():\n    """Of the gates."""', "begins with Of"),
        ("docs/a.md", "- Of the gates, one.", "begins with Of"),
        ("kernels/include/a.h", "/* The gates.\n * Of these, one. */", "begins with Of"),
        (GRID, "// The warps that\n// multiply.", "warps that multiply"),
        (GRID, "int x;  // warps that finish", "warps that finish"),
        (GRID, "// floats that are split", "split"),
        ("docs/dev/findings/a.md", "faster than the exact kernel", "exact"),
        ("csrc/a.h", "// high and low, two words each", "words (of a number)"),
        (GRID, "// Polls a word.", "words (of the exchange)"),
        ("kernels/recurrent/tiles/tiles.cuh", "// the narrow layout", "narrow, wide"),
        (GRID, "// one tile alone", "alone"),
        (GRID, "// where tiles are late", "late"),
        ("csrc/a.h", "// the mode is put back", "put back"),
        (GRID, "// the place of step s", "place"),
        ("benchmarks/a.py", "# candidates take turns", "turns"),
        ("csrc/recurrent/a.h", "// turns of groups", "Group"),
        ("csrc/recurrent/a.h", "// a group of steps is captured", "group of steps"),
        ("benchmarks/a.py", "# reached the bar", "bar, goal"),
        ("docs/a.md", "faster than its rival", "rival"),
        ("tests/a.py", "# a planted error", "planted error"),
        ("tests/a.toml", 'what = "a law of all ops is broken"', "law"),
        ("tools/a.sh", "# the row starts anew", "starts anew"),
        ("tools/a.sh", "# Anew, from the first row", "starts anew"),
        ("csrc/a.h", "// each row stops by itself", "stops by itself"),
        ("python_pkg/a.py", "raise ValueError('the compiler passes by this')", "passes by"),
        ("csrc/a.cpp", 'f("the cells of all steps");', "cells"),
    ],
)
def test_check_words_finds(path: str, text: str, old: str) -> None:
    text = "\n\n" + text
    problems = check_words.check_file(Path(path), text)
    assert len(problems) == 1 and problems[0].startswith((f"{path}:3: ", f"{path}:4: "))
    assert old in problems[0].partition(": ")[2].partition("->")[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("csrc/a.h", "// One of\n// the gates; `law`, tests/laws, split_rows.\nint law = 0;"),
        (GRID, "int word;  // a packet, 4 bytes"),
        ("kernels/math/a.h", "// x is split into parts. Products are exact.\n// A phase in turns."),
        ("kernels/recurrent/engine/resets.cuh", "// a word of marks, one step at a time"),
        ("examples/a.py", "# bars of a chart; the goal of the maze; a narrow strip"),
        ("csrc/a.h", "// arguments that pass by reference, in another place"),
        ("tests/a.py", "LAW = 'anew'  # a key, no message\nlaw = 'tests/laws'"),
        ("docs/a.md", "```sh\n# a rival's law\n```\n"),
    ],
)
def test_check_words_accepts_what_is_right(path: str, text: str) -> None:
    assert check_words.check_file(Path(path), text) == []


def test_lines_of_prose_are_short() -> None:
    long = "word " * 25
    wrong = check_words.check_file(Path("docs/a.md"), f"short\n{long}\n")
    assert wrong == ["docs/a.md:2: a line of prose must have at most 100 characters"]
    address = "x" * 90
    for line in (f"| {long} |", f"```\n{long}\n```", f"[a link](https://{address}), then text"):
        assert check_words.check_file(Path("docs/a.md"), line) == []
    assert check_words.check_file(Path("tools/a.py"), f"x = '{long}'") == []


def test_each_rule_is_a_row_of_the_glossary() -> None:
    rows = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    missing = [r.old for r in check_words.RULES if f"| {r.old} | {r.new} |" not in rows]
    assert not missing


def test_the_tree_is_read() -> None:
    found = {path.as_posix() for path in check_words.files()}
    assert {GRID, "csrc/schemas.h", "docs/limits.md", "Makefile", ".ci/run"} <= found
    assert not any(path.startswith((".venv", "build/")) for path in found)
