"""The skeleton that `make new-cell` writes fails the comparison with its paper's equations. Once
its formula and these equations are written, it passes the tests of cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from tests.mutants.tree_copy import Copy
from tools import new_cell

ROOT = Path(__file__).resolve().parents[2]
NAME = "CIFG"
# Turns the skeleton into an LSTM whose input gate is 1 - f. Each row is a file, a text in the
# skeleton, and the text that replaces it.
FORMULA = (
    (
        f"{new_cell.FORMULAS}/cifg.py",
        "def _step(a: Any, h: Any) -> Any:\n    return torch.tanh(a)\n",
        "def _step(f: Any, g: Any, o: Any, c: Any) -> Any:\n"
        "    f = torch.sigmoid(f)\n"
        "    c = f * c + (1 - f) * torch.tanh(g)\n"
        "    return torch.sigmoid(o) * torch.tanh(c), c\n",
    ),
    (f"{new_cell.FORMULAS}/cifg.py", 'gates=("a",)', 'gates=("f", "g", "o"), states=("c",)'),
    (
        f"{new_cell.PAPERS}/cifg.py",
        '        raise NotImplementedError("CIFG: write the equations of the paper here")\n',
        "        f, g, o = gates.chunk(3, -1)\n"
        "        c = torch.sigmoid(f) * c + torch.sigmoid(-f) * torch.tanh(g)\n"
        "        h = torch.sigmoid(o) * torch.tanh(c)\n",
    ),
    (f"{new_cell.PAPERS}/cifg.py", "h, found = x.new_zeros", "h = c = x.new_zeros"),
    (f"{new_cell.PAPERS}/cifg.py", "layer.hidden_size), []", "layer.hidden_size)\n    found = []"),
)
LAWS = ("test_numbers.py", "test_gradients.py", "test_transforms_vmap.py")


def test_the_skeleton_of_a_cell(tmp_path: Path) -> None:
    copy, tree = Copy(tmp_path, cuda=False, gpu=""), tmp_path
    copy.refresh()
    # Only Python files change, so the copy can use this tree's libraries.
    (tree / "python_pkg/treadle/lib").symlink_to(Path(treadle.__file__).parent / "lib")
    made = subprocess.run(
        ["make", "--no-print-directory", "new-cell", f"NAME={NAME}", f"PYTHON={sys.executable}"],
        cwd=tree,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    said = [line.split()[0] for line in made.stdout.splitlines()[:4]]
    assert said == ["new", "new", "changed", "changed"]

    layers = ("tests/recurrent/formula/test_formula_layers.py", "-k", "CIFG and layers_of")
    done = copy.test(layers)
    assert done.returncode == 1 and "NotImplementedError: CIFG: write" in done.stdout, done.stdout

    for path, skeleton, formula in FORMULA:
        text = (tree / path).read_text()
        assert text.count(skeleton) == 1, (path, skeleton)
        (tree / path).write_text(text.replace(skeleton, formula))
    done = copy.test(layers)
    assert done.returncode == 0, done.stdout
    laws = [f"tests/laws/{name}" for name in LAWS]
    done = copy.test([*laws, "-k", f"{NAME} and not cuda", "--slow=none"])
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1]) > 50, done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "NAME must be given, as in `make new-cell NAME=CIFG`, got none"),
        ("cifg", "NAME must be the name of a class"),
        ("../CIFG", "NAME must be the name of a class"),
        ("LiGRU", "NAME must be new, got 'LiGRU', which treadle.nn already has"),
        ("GRU", "NAME must be new, got 'GRU'"),
        ("LIGRU", "NAME must be new, got 'LIGRU'"),
    ],
)
def test_names_that_are_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to do instead, and nothing is written."""
    assert new_cell.main([name]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"new-cell: {words}") and said.out == ""


def test_the_lists_are_those_that_the_script_writes() -> None:
    names = list(treadle.nn.formulas.CELLS)
    assert (ROOT / new_cell.FORMULAS / "__init__.py").read_text() == new_cell.listed(names)
