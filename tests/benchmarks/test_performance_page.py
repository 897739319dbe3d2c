"""docs/performance.md: its first table, what it must not contain, and tables of made-up rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.pages import performance_page as page
from benchmarks.pages import tables

GPU = {"device": "cuda", "gpu": "GPU", "torch": "2", "driver": "5", "date": "2026-11-22T"}
TEXT = page.PAGE.read_text()


def machine(*rows: tables.Row, **facts: Any) -> tables.Machine:
    return [], GPU | facts, list(rows)


def made(key: str, op: str, suite: str, **times: float) -> tables.Row:
    _, _, what, digits, mode = key.split("/")
    names = {name.replace("_", "."): time for name, time in times.items()}
    return {
        **{"key": key, "label": key, "group": suite, "op": op, "suite": suite, "what": what},
        **{"digits": digits, "mode": mode, "shape": [16, 10, 8, 8], "form": "2 layers"},
        **{"project": "some/project", "yardsticks": []},
        "times": {
            name: {"median_us": time, "us_per_step": time / 10} for name, time in names.items()
        },
    }


def test_the_first_table_has_the_headline() -> None:
    """The first table has LSTM 16,512,512 in all dtypes and modes, with torch's times."""
    first = re.search(r"^\|.*?(?=\n\n)", TEXT, re.S | re.M)
    assert first is not None
    head, _, *rows = first[0].splitlines()
    assert head.startswith("| B,T,H | bfloat16, inference | bfloat16, training | float16,")
    row = next(row for row in rows if row.startswith("| LSTM 16,512,512 |"))
    assert len(re.findall(r"[\d.]+ / [\d.]+", row)) == 8


def test_the_page_is_short_and_has_no_target_of_ours() -> None:
    assert len(TEXT.splitlines()) <= 200
    tables_of_the_page = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
    assert not re.search(r"rl_shapes|sweep_targets|algorithm|target|at (most|least)|make_step",
                         tables_of_the_page)  # fmt: skip
    assert page.PICTURE.stat().st_size < 150_000, "run benchmarks/pages/performance_page.py"


def test_only_what_others_wrote_is_a_baseline() -> None:
    row = made("cuda/rl/a/b/c", "gru", "rl", treadle=3, nn_GRU=2, treadle_x=1)
    row["times"] |= {"algorithm step": {"median_us": 1}, "loop of lltm_cell": {"median_us": 1}}
    row["times"] |= {"copy": {"median_us": 1}}
    row["yardsticks"] = ["copy"]
    assert page.outside(row) == {"nn.GRU": 2} and page.over(row) == 1.5
    del row["times"]["nn.GRU"]
    assert page.over(row) is None and page.over({"refused": "wrong"}) is None


def test_where_it_is_slower() -> None:
    slow = made("cuda/sweep_cells/slow/float16/training", "lstm", "x", treadle=15, nn_LSTM=10)
    rows = [
        slow,
        made("cuda/sweep_cells/even/float16/training", "lstm", "x", treadle=102, nn_LSTM=100),
    ]
    cpu = [
        made("cpu/views/ten/float16/training", "scale", "x", treadle=11, torch_mul=10),
        made("cpu/views/half/float16/training", "scale", "x", treadle=15, torch_mul=10),
    ]
    text = "\n".join(
        page.slower([machine(*rows), ([], {"device": "cpu", "cpu": "C", "cores": 2}, cpu)])
    )
    assert "| GPU | sweep_cells/slow/float16/training | 15.0 | nn.LSTM: 10.0 | 1.50 |" in text
    assert "| C, 2 cores | views/half/float16/training |" in text
    assert "even" not in text and "views/ten" not in text
    assert "GPU: 1 of 2 rows; C, 2 cores: 2 of 2 rows, 1 of them by less than 20 %." in text
    times = ((n, dict(treadle=10 + n, nn_LSTM=10)) for n in range(1, 7))
    many = [made(f"cuda/cells/{n}/float16/training", "lstm", "x", **own) for n, own in times]
    text = "\n".join(page.slower([machine(*many)]))
    assert "cells/5/" in text and "cells/4/" not in text


def test_models_and_wrong_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(page.models([])) == [page.NO_MODELS]
    rows = [
        made("cuda/models/One/float16/inference", "lstm", "models", treadle=2000, nn_LSTM=5000),
        made("cuda/models/One/float16/training", "lstm", "models", treadle=3000),
    ]
    rows[1]["baseline_wrong"] = {"nn.LSTM": "off by 0.5"}
    text = "\n".join(page.models([machine(*rows)]))
    cells = "| 2.00 ms (2.50 ×) | 3.00 ms (torch's result is wrong) |"
    assert f"| One (some/project) | LSTM 16,10,8,8, 2 layers {cells}" in text
    layers = [row | {"suite": "sweep_cells", "what": "16,10,8"} for row in rows]
    text = "\n".join(page.layers([machine(*layers)]))
    assert "| LSTM 16,10,8 |  |  | 200 / 500 | 300 / wrong |" in text


def test_pages_of_no_results() -> None:
    for make in page.BLOCKS.values():
        assert all(isinstance(line, str) for line in make([]))
    assert list(page.layers([])) == [page.NONE_YET]


def test_the_picture_is_of_the_committed_rows(tmp_path: Path) -> None:
    assert page.main(["--output", str(tmp_path)]) == 0
    with Image.open(tmp_path / page.PICTURE.name) as drawn, Image.open(page.PICTURE) as kept:
        assert drawn.size == kept.size and min(drawn.size) > 400
