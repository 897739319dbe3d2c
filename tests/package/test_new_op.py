"""The skeleton of `make new-op` fails tests/laws, and passes once its formula is written.

The test builds a copy of the tree in build/new_op, as tests/mutants/run.py does for mutants. The
copy has two ops: one with its formula, and a skeleton. It reuses the objects in build/native. If
there are none, its build takes minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.tree_copy import Copy
from tools import new_op, new_op_texts

ROOT = Path(__file__).resolve().parents[2]
NAME, SKELETON = "relu2", "relu3"
# Values, layouts, first and second derivatives, in place and out=, error texts, vmap, opcheck.
LAWS = (
    "tests/laws/test_numbers.py",
    "tests/laws/test_gradients.py",
    "tests/laws/test_gradients_inplace.py",
    "tests/laws/test_errors.py",
    "tests/laws/test_runtime.py",
    "tests/laws/test_transforms_vmap.py",
    "tests/laws/test_transforms_opcheck.py",
)
# Turns the skeleton into max(x, 0)^2 by the four steps that the tool prints. Each row is a file,
# the text to replace, and the new text.
FORMULA = (
    (
        "python_pkg/treadle/reference/__init__.py",
        'raise NotImplementedError("relu2: write f(x) in treadle.reference")',
        "return torch.relu(x).square()",
    ),
    (
        "python_pkg/treadle/reference/__init__.py",
        'raise NotImplementedError("relu2_backward: write grad * f\'(x) in treadle.reference")',
        "return grad * 2 * torch.relu(x)",
    ),
    ("kernels/elementwise/unary_ops.h", "row(relu2, Relu2, false)", "row(relu2, Relu2, true)"),
    (
        "kernels/math/relu2.h",
        "return x;  // TODO: f(x)",
        "return as_signed(x) <= 0 ? T(0) : x * x;",
    ),
    (
        "kernels/math/relu2.h",
        "return grad * x;  // TODO: grad * f'(x)",
        "return x <= 0 ? T(0) : grad * 2 * x;",
    ),
    (
        "csrc/elementwise/unary.cpp",
        "return t * x;  // TODO: t * f''(x)",
        "return t * x.gt(0) * 2;",
    ),
    (
        "tests/elementwise/cases.py",
        '*op_of_one_tensor("relu2", FLOATING)',
        '*op_of_one_tensor("relu2", FLOATING + INTEGERS)',
    ),
)


def passed_and_failed(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    last = done.stdout.strip().splitlines()[-1].replace(",", "").split()
    counts = dict(zip(last[1:], last, strict=False))
    return int(counts.get("passed", 0)), int(counts.get("failed", 0))


def make_new_op(copy: Copy, name: str) -> list[str]:
    """Returns the lines of the output."""
    made = subprocess.run(
        ["make", "new-op", f"NAME={name}", f"PYTHON={sys.executable}"],
        cwd=copy.folder,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


@pytest.mark.timeout(1800)
def test_the_skeleton_of_an_op() -> None:
    copy = Copy(ROOT / "build" / "new_op", cuda=False, gpu="")
    copy.refresh()
    before = {p: (copy.folder / p).read_bytes() for p in new_op_texts.CHANGED}
    said = [line.split()[:2] for line in make_new_op(copy, NAME)]
    new, changed = (
        [words[1] for words in said if words[:1] == [kind]] for kind in ("new", "changed")
    )
    assert len(new) <= 2 and len(changed) <= 11
    assert all(not (ROOT / path).exists() for path in new)
    assert {p for p in before if (copy.folder / p).read_bytes() != before[p]} == set(changed)
    for path, skeleton, formula in FORMULA:
        text = (copy.folder / path).read_text()
        assert text.count(skeleton) == 1, (path, skeleton)
        (copy.folder / path).write_text(text.replace(skeleton, formula))

    make_new_op(copy, SKELETON)
    assert copy.build()
    law = "tests/laws/test_numbers.py"
    # All cases must fail, so pytest must not stop at the first failure, as copy.test asks it to.
    done = copy.test(
        ["--maxfail=1000", law, "-k", f"{SKELETON} and forward_and_gradients and not cuda"]
    )
    passed, failed = passed_and_failed(done)
    assert failed > 100 and passed == 0, done.stdout[-3000:]
    done = copy.test([*LAWS, "-k", f"{NAME} and not cuda"])
    passed, failed = passed_and_failed(done)
    assert passed > 500 and failed == 0, done.stdout[-3000:]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "NAME must be given, as in `make new-op NAME=relu2`, got none"),
        ("Relu2", "NAME must be of lower-case letters"),
        ("relu2_", "NAME must be of lower-case letters"),
        ("../relu2", "NAME must be of lower-case letters"),
        ("relu2_backward", "NAME must be that of the op alone"),
        ("lambda", "NAME must not be a keyword of Python or C++"),
        ("double", "NAME must not be a keyword of Python or C++"),
        ("tanh", "NAME must be no function of <cmath>"),
        ("scale", "NAME must be new, got 'scale'"),
        ("lltm", "NAME must be new, got 'lltm'"),
        ("reference", "NAME must be new, got 'reference'"),
    ],
)
def test_names_that_are_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what to do instead, and nothing is written."""
    assert new_op.main([name]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"new-op: {words}") and said.out == ""


def test_a_file_without_a_place_for_the_lines_is_refused() -> None:
    text = "// no list of ops\n"
    with pytest.raises(new_op.Refused, match="unary_ops.h must have one place for the new lines"):
        new_op.insert(text, r"^  row", "", before=True, path="unary_ops.h")
