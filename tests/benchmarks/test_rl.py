"""The benchmarks of resets: rows, baselines that give the same results, and the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks import run
from benchmarks.harness import cases, machine
from benchmarks.harness.cases import Plan, Row, Settings
from benchmarks.pages import rl_page, tables
from benchmarks.recurrent import rl, rl_calls
from benchmarks.recurrent.layer_calls import Shape, cell_arguments
from benchmarks.recurrent.rl import Episodes

QUICK = Settings("cpu", quick=True)
SMALL = Episodes(Shape(3, 12, 8, 8, "3,12,8"), torch.float64, True, cell="gru", share=0.3)
EACH_CELL = pytest.mark.parametrize("cell", rl.CELLS)


def test_the_rows() -> None:
    keys = [plan.key for plan in run.SUITES["rl"](Settings("cuda"))]
    assert len(keys) == len(set(keys)) == 2 * 3 * 2 * 2 * 2
    assert "cuda/rl/gru/128,128,256/bfloat16/resets 3%/training" in keys
    assert "rl" in run.SEVERAL["all"]


@EACH_CELL
@pytest.mark.parametrize(("share", "steps"), [(0.0, 12), (0.3, 12), (0.3, 8), (1.0, 12)])
def test_all_ways_compute_the_same(cell: str, share: float, steps: int) -> None:
    """All implementations agree over whole sequences of different lengths. A row of the benchmark
    compares only the first steps."""
    args = cell_arguments(cell, SMALL.shape, "cpu", torch.float64, True)
    marks = rl_calls.marks_of(SMALL.shape, share, "cpu")
    assert marks.sum() >= (1 if share < 1 else marks.numel())
    ways = (
        rl_calls.loop(cell, marks),
        rl_calls.padded(cell, True, marks),
        rl_calls.with_resets(cell, True, marks),
    )
    found = []
    for way in ways:
        results = way(args[0][:steps], *args[1:])
        torch.manual_seed(0)
        loss = sum((y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in results)
        found.append([*results, *torch.autograd.grad(loss, [a for a in args if a.requires_grad])])
    for others in found[1:]:
        torch.testing.assert_close(others, found[0])


@EACH_CELL
@pytest.mark.parametrize(
    ("dtype", "backward"), list(zip(rl.DTYPES, (False, True), strict=True)), ids=str
)
def test_a_trial_row(cell: str, dtype: torch.dtype, backward: bool) -> None:
    kind = replace(SMALL, dtype=dtype, backward=backward, cell=cell)
    row = cases.run(Plan("key", partial(rl.case, QUICK, kind)))
    baselines = [rl.padded_of(kind), rl.loop_of(kind)]
    assert row["error_over_limit"] <= 1 and row["notes"] == []
    assert set(row["times"]) == {"treadle", rl.NONE, *baselines}
    assert row["fastest_baseline"] in baselines
    assert row["target"]["limit_us"] == 1.05 * row["times"][rl.NONE]["median_us"]


@pytest.mark.parametrize("name", ["treadle", "nn.GRU, cut, padded, packed"])
def test_who_ignores_resets_is_not_timed(name: str) -> None:
    made = rl.case(QUICK, replace(SMALL, dtype=torch.float32))
    none = torch.zeros(12, 3, dtype=torch.bool)
    made.functions[name] = rl_calls.with_resets("gru", True, none)
    row = cases.run(Plan("key", lambda: made))
    if name == "treadle":
        assert "result 0 is wrong" in row["refused"] and "times" not in row
    else:
        assert name not in row["times"]
        assert row["notes"][0].startswith(f"{name} left out: lltm: result 0 is wrong")


def made(key: str, reached: bool, times: dict[str, float]) -> Row:
    return {
        **{"key": key, "label": key, "group": "gru layer with resets, CUDA", "steps": 10},
        "times": {name: {"median_us": time} for name, time in times.items()},
        "target": {"text": "", "limit_us": 1.0, "reached": reached},
    }


ROWS = [
    made(
        "cuda/rl/gru/8,10,16/float32/resets 3%/training",
        False,
        {
            **{"treadle": 40, rl.NONE: 36, "nn.GRU, cut, padded, packed": 100},
            **{"loop of nn.GRUCell": 400, rl.TRITON: 200},
        },
    ),
    made("cuda/rl/gru/8,10,16/float32/resets 50%/training", True, {"treadle": 40, rl.NONE: 40}),
    {"key": "cuda/rl/lstm/8,10,16/float32/resets 3%/training", "refused": "wrong", "group": "g"},
]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Writes results that look like those of a GPU."""
    facts = machine.facts("cpu") | {"device": "cuda", "gpu": "H200", "driver": "1"}
    folder = tmp_path / "h200"
    folder.mkdir()
    (folder / "rl.json").write_text(json.dumps({"machine": facts, "rows": ROWS}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    return tables.machines


def test_the_page(results: Callable[[], list[Any]]) -> None:
    text = "\n".join(rl_page.every_row(results(), rl_page.PAGE.parent))
    assert "](../figures/rl.png)" in text
    training = "| gru 8,10,16 float32 resets {} training |"
    assert training.format("3%") + " **4.00** | 0.90 | 2.50 | 10.00 | 5.00 |" in text
    assert training.format("50%") + " 4.00 | 1.00 | – | – | – |" in text
    assert "| lstm 8,10,16 float32 resets 3% training | wrong |" in text
    text = "\n".join(rl_page.figures(results()))
    assert "H200, torch" in text
    line = "| GRU float32, training | 2 | 0.95 (0.90 to 1.00) | 2.50 (2.50 to 2.50) | 10.0 (10.0"
    assert line in text and "LSTM" not in text
    assert list(rl_page.every_row([], rl_page.PAGE.parent)) == [rl_page.NONE_YET]
    assert list(rl_page.figures([])) == [rl_page.NONE_YET]


def test_the_picture(results: Callable[[], list[Any]], tmp_path: Path) -> None:
    assert results()
    assert rl_page.main(["--output", str(tmp_path)]) == 0
    with Image.open(tmp_path / "rl.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 100


def test_no_picture_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert rl_page.main(["--output", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())


def test_marks_are_of_the_share_that_is_asked_for() -> None:
    shape = Shape(64, 128, 4, 4, "")
    for share in rl.SHARES:
        marks: Tensor = rl_calls.marks_of(shape, share, "cpu")
        assert marks.float().mean().item() == pytest.approx(share, rel=0.1)
