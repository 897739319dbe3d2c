"""The losses of LLTM, LSTM and GRU: recurrent_losses.py runs, and its results become table rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pages import losses_page
from tests.support import installed

SCRIPT = installed.ROOT / "docs" / "figures" / "recurrent_losses.py"


def test_a_trial_writes_a_row_for_every_cell_and_program(tmp_path: Path) -> None:
    done = installed.python(str(SCRIPT), "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / losses_page.FIGURES.name).read_text())
    rows = {(r["program"], r["cell"], bool(r.get("pull"))) for r in found["rows"]}
    cells = [("lltm", False), ("lstm", False), ("gru", False)]
    assert rows == {
        *(("waves", *cell) for cell in cells),
        *(("characters", *cell) for cell in [*cells, ("lltm", True)]),
    }
    assert all("largest_c" in row for row in found["rows"] if row["cell"] != "gru")


def test_the_page_has_a_line_a_program_and_a_loss_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"cpu": "a CPU", "torch": "2", "treadle_commit": "0123456789a", "date": "2026-11-24T"}
    waves = [
        {"program": "waves", "cell": cell, "after": 3, "loss": loss, "largest_c": 2.0}
        for cell, loss in (("lltm", 0.5), ("lstm", 4e-5))
    ]
    bits = {"program": "characters", "cell": "lltm", "after": 1500, "rate": 0.01, "bits": 2.625}
    text = {"characters": 1234}
    rows = [*waves, bits | {"pull": 0.0}, bits | {"pull": 0.3, "bits": 2.5}]
    made = {"machine": machine, "waves": {"rows": 40, "length": 1000}, "text": text, "rows": rows}
    path = tmp_path / "losses.json"
    path.write_text(json.dumps(made))
    monkeypatch.setattr(losses_page, "FIGURES", path)
    said = list(losses_page.lines())
    assert (
        "| waves, 3 steps of LBFGS: squared error | 0.5 (c to 2) | – | 4e-05 (c to 2) | – |" in said
    )
    line = "| characters, 1,500 steps of Adam, rate 0.01: bits | 2.62 | 2.50 | – | – |"
    assert line in said
    assert said[0].startswith("a CPU, torch 2, treadle 0123456789, 2026-11-24, [losses.json]")
