"""DeepXDE trains a Siren equally well with Siren.jet and with DeepXDE's own derivatives."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.package.test_examples import EXAMPLES, run

RECORD = EXAMPLES.parent / "docs" / "figures" / "deepxde_poisson.json"


@pytest.mark.skipif(importlib.util.find_spec("deepxde") is None, reason="needs deepxde")
def test_both_ways_learn_the_same() -> None:
    done = run("--steps", 100, script="interop/deepxde_poisson.py")
    assert done.returncode == 0, done.stderr
    errors = re.findall(r"^(\S+): 100 steps in .* off by ([\d.]+)%", done.stdout, re.M)
    assert [name for name, _ in errors] == ["dde.grad.hessian", "Siren.jet"]
    one, other = (float(error) for _, error in errors)
    assert one == pytest.approx(other, rel=0.01) and one < 10


def test_what_the_page_says_was_recorded() -> None:
    """In the recorded run, the net trained with Siren.jet reaches the same error in about half the
    time."""
    record = json.loads(RECORD.read_text())
    theirs, ours = record["found"]["dde.grad.hessian"], record["found"]["Siren.jet"]
    assert ours["error"] == pytest.approx(theirs["error"], rel=0.01)
    assert 0.4 < ours["processor_seconds"] / theirs["processor_seconds"] < 0.6
    assert f"DeepXDE {record['machine']['deepxde'].rpartition('.')[0]}" in (
        (EXAMPLES.parent / "docs" / "physics.md").read_text()
    )
