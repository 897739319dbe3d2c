"""A slow test runs at least once in four commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.inputs import GPU, HOPPER, SM80
from tests.support.slow import SLOW

ROOT = Path(__file__).resolve().parents[2]


def test_slow_tests_are_there() -> None:
    for key in SLOW:
        file, _, function = key.partition("::")
        assert (ROOT / file).is_file(), key
        assert not function or f"def {function}(" in (ROOT / file).read_text(), key


def test_an_entry_is_a_function_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SLOW", {"tests/a.py::test_b": 20, "tests/c.py": 10})
    keys = map(tiers.slow_key, ("tests/a.py::test_b[x::y]", "tests/a.py::test_d", "tests/c.py::e"))
    assert list(keys) == ["tests/a.py::test_b", None, "tests/c.py"]


@pytest.mark.parametrize(
    ("path", "families"),
    [
        ("kernels/recurrent/plan/plan.cpp", {"recurrent"}),
        ("kernels/math/cells/lstm.h", {"recurrent"}),
        ("csrc/elementwise/scale.cpp", {"elementwise"}),
        ("python_pkg/treadle/nn/siren.py", {"sine_linear"}),
        ("python_pkg/treadle/onnx/_recurrent.py", {"interop"}),
        ("tests/sine_linear_jet/cases.py", {"sine_linear"}),
        ("examples/digits.py", {"examples"}),
        ("docs/dev/gpu-runs.md", set()),
        ("csrc/common/check.h", {"all"}),
        ("tests/support/inputs.py", {"all"}),
    ],
)
def test_whom_a_file_concerns(path: str, families: set[str]) -> None:
    assert tiers.concerned(path) == families


def test_a_part_runs_and_what_changed_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiers.left_out(SLOW, "all", 0) == set()
    assert tiers.left_out(SLOW, "none", 1e9) == set(SLOW)
    touched = {key for key in SLOW if "sine_linear" in tiers.subjects(key)}
    parts = []
    for number in range(tiers.PARTS):
        monkeypatch.setattr(tiers, "turn", lambda number=number: number)
        monkeypatch.setattr(tiers, "changed", lambda: {"all"})
        parts.append(set(SLOW) - tiers.left_out(SLOW, "some", 0))
        # Changes add tests until the limit is reached.
        limit = 2000
        taken = set(SLOW) - tiers.left_out(SLOW, "some", limit)
        assert parts[-1] < taken < set(SLOW)
        assert limit - max(SLOW.values()) < sum(map(SLOW.get, taken)) <= limit
        # What changed comes before what did not.
        monkeypatch.setattr(tiers, "changed", lambda: {"sine_linear"})
        needed = sum(map(SLOW.get, parts[-1] | touched))
        taken = set(SLOW) - tiers.left_out(SLOW, "some", needed)
        assert taken == parts[-1] | touched
        assert set(SLOW) - tiers.left_out(SLOW, "some", 1e9) == set(SLOW)
    assert set.union(*parts) == set(SLOW) and sum(map(len, parts)) == len(SLOW)


def test_changes_are_those_since_the_last_run_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    monkeypatch.setattr(tiers, "FULL_RUN", tmp_path / "full_run")
    assert tiers.changed() == {"all"}
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a")
    (tmp_path / "full_run").write_text(git("rev-parse", "HEAD"))
    assert tiers.changed() == set()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.py").touch()
    git("add", "examples")
    git("commit", "-q", "-m", "b")
    assert tiers.changed() == {"examples"} and tiers.turn() == 2
    (tmp_path / "full_run").write_text("0" * 40)  # a commit that this clone does not have
    assert tiers.changed() == {"all"}


def test_long_tests_begin_and_those_of_an_entry_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiers, "SLOW", {"long": 50, "middle": 30, "least": 20})
    keys = [None, "least", None, "middle", None, "long", "long", None, None]
    tests = [f"{key or 'short'} {n}" for n, key in enumerate(keys)]
    found = tiers.spread(tests, keys, 2)
    assert found == [
        *("long 5", "long 6", "short 0", "short 2"),
        *("middle 3", "least 1", "short 4", "short 7", "short 8"),
    ]


def test_tests_that_need_a_gpu_have_the_marker_cuda() -> None:
    """Their names need not contain "cuda"."""
    assert tiers.needs_gpu("a.py::test_on_cuda", []) and tiers.needs_gpu("test_cuda.py::test", [])
    for mark in (GPU, HOPPER, SM80):
        assert tiers.needs_gpu("a.py::test", [mark.mark])
    other = pytest.mark.skipif(True, reason="needs nvcc")
    assert not tiers.needs_gpu("a.py::test[cpu]", [other.mark])
