"""The sweep over shapes: its rows, targets and checks, and the page that is written from them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import cases, machine
from benchmarks.harness.cases import Plan, Row, Settings
from benchmarks.harness.verify import Refused
from benchmarks.pages import sweep_page, tables, targets_page
from benchmarks.recurrent import layer_calls, lltm_targets, sweep, sweep_cells
from benchmarks.recurrent.layer_calls import Shape
from benchmarks.recurrent.sweep import BF16, FP16, FP32, Sweep
from benchmarks.recurrent.sweep_calls import Form, check_both_ways, chosen, in_algorithm
from treadle import reference

QUICK = Settings("cpu", quick=True)
SMALL = Shape(3, 20, 6, 6, "16,512,512")
FORMS = {form.name: form for form in (sweep.DENSE, *sweep.FORMS)}


def measured(key: str, build: Callable[..., Any], kind: Sweep) -> Row:
    """Runs a plan of a CUDA suite on the CPU: its case does not depend on the device."""
    return cases.run(Plan(key, lambda: build(QUICK, kind)))


# Keys of a few rows of every suite.
SOME = re.compile(
    "/sweep_targets/16?,512,512/|/sweep_shapes/(16,512,128/(bf|float16)|64,512,512, packed/f)|"
    "/sweep_algorithms/1,512,512/bf|/sweep_cell_algorithms/gru/1,512,512/bf|"
    "/sweep_launch/1,8,32/float32|/sweep_cells/[a-z]+/1,512,512/float16|"
    "/sweep_rnn/rnn_(tanh/1|relu/16),512,512/float16|"
    "/sweep_wide/(lstm/)?8000,24,256/bf|/sweep_wide/gru/512,24,64/bf"
)
OTHER = {"key": "other", "label": "other", "group": "other"}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Some rows of every suite, measured on the CPU with the sizes of a quick run."""
    found = []
    with pytest.MonkeyPatch.context() as patch, cases.threads(1):
        patch.setattr(sweep, "ALGORITHMS", ("rows", "grid"))
        for suite in (*sweep.SUITES.values(), *sweep_cells.SUITES.values()):
            for plan in suite(Settings("cuda", quick=True)):
                if SOME.search(plan.key):
                    made: Any = plan.build
                    build, (_, kind) = partial(made.func, **made.keywords), made.args
                    found.append(measured(plan.key, build, kind))
    return found


def test_every_row_is_right_and_timed(rows: list[Row]) -> None:
    count = Counter(row["suite"] for row in rows)
    assert count == {
        **{"sweep_targets": 10, "sweep_shapes": 6, "sweep_algorithms": 2, "sweep_launch": 4},
        **{"sweep_cells": 4, "sweep_rnn": 4, "sweep_cell_algorithms": 2, "sweep_wide": 6},
    }
    for row in rows:
        assert row["error_over_limit"] <= 1, row["key"]
        for name, times in row["times"].items():
            assert times["us_per_step"] == pytest.approx(times["median_us"] / row["steps"])
            assert "us_per_step_and_gate" in times, name
        left_out = ["algorithm grid left out: "] if "algorithms" in row["suite"] else []
        assert [note[: len("algorithm grid left out: ")] for note in row["notes"]] == left_out
        parts = row["key"].split("/")
        if row["op"] != "lltm":
            assert parts.pop(2) == row["op"]
        assert parts[1:5] == [row["suite"], row["what"], row["digits"], row["mode"]]
        assert row["timer"] == "wall" and "target" in row


def limit(rows: list[Row], key: str) -> tuple[str, float, dict[str, float]]:
    row = next(row for row in rows if row["key"] == f"cuda/{key}")
    medians = {name: times["median_us"] for name, times in row["times"].items()}
    return row["target"]["text"], row["target"]["limit_us"], medians


def test_the_targets(rows: list[Row]) -> None:
    text, most, medians = limit(rows, "sweep_targets/16,512,512/bfloat16/training")
    assert (text, most) == ("at most 1.9 µs a step", pytest.approx(1.9 * 20))
    assert set(medians) == {"treadle", "nn.LSTM", "nn.LSTM, float16"}
    text, most, medians = limit(rows, "sweep_targets/1,512,512/float16/inference")
    assert most == pytest.approx(1.05 * medians["treadle, bfloat16"])
    assert text == "at most 1.05 × treadle, bfloat16" and "nn.LSTM" in medians
    text, most, medians = limit(rows, "sweep_targets/16,512,512/float32/training")
    assert (text, most) == ("at most 4.5 µs a step", pytest.approx(4.5 * 20))
    assert set(medians) == {"treadle", "nn.LSTM"}
    text, most, medians = limit(rows, "sweep_shapes/64,512,512, packed/float16/training")
    assert (text, most) == ("at most 1 × nn.LSTM", pytest.approx(medians["nn.LSTM"]))
    text, most, medians = limit(rows, "sweep_algorithms/1,512,512/bfloat16/training")
    assert text == "at most 1.05 × the best algorithm"
    assert most == pytest.approx(1.05 * medians["algorithm rows"])
    text, most, medians = limit(rows, "sweep_launch/1,8,32/float32/inference/module")
    assert most == pytest.approx(medians["nn.LSTM"])
    text, most, medians = limit(rows, "sweep_cells/gru/1,512,512/float16/training")
    assert (text, most) == ("at most 1.05 × nn.GRU", pytest.approx(1.05 * medians["nn.GRU"]))
    text, most, medians = limit(rows, "sweep_wide/8000,24,256/bfloat16/training")
    assert (text, most) == ("at most 72 µs a step", pytest.approx(72 * 20))
    assert set(medians) == {"treadle", "nn.LSTM"}
    text, most, medians = limit(rows, "sweep_wide/lstm/8000,24,256/bfloat16/inference")
    assert (text, most) == ("at most 27 µs a step", pytest.approx(27 * 20))
    text, most, medians = limit(rows, "sweep_wide/gru/512,24,64/bfloat16/training")
    assert (text, most) == ("at most 1.05 × nn.GRU", pytest.approx(1.05 * medians["nn.GRU"]))


def test_every_target_has_a_row() -> None:
    rows = {
        plan.key.removeprefix("cuda/sweep_targets/") for plan in sweep.targets(Settings("cuda"))
    }
    known = {
        f"{','.join(map(str, sizes))}/{digits}/{mode}"
        for digits, shapes in lltm_targets.LLTM_TARGETS.items()
        for sizes, some in shapes.items()
        for mode, _ in zip(("inference", "training"), some, strict=False)
    }
    beside = {row.replace("/bfloat16/", "/float16/") for row in known if "/bfloat16/" in row}
    assert rows == known | beside


def test_of_the_algorithms_the_best_counts() -> None:
    medians = {"treadle": 9.0, "algorithm cluster": 4.0, "algorithm step": 5.0}
    assert sweep.of_best(1.05, medians) == pytest.approx(4.2)
    with pytest.raises(KeyError, match="no algorithm"):
        sweep.of_best(1.05, {"treadle": 9.0})
    # A CPU runs none of CUDA's algorithms: the row then has notes instead of a target.
    row = measured("key", sweep.algorithms_case, Sweep(SMALL, BF16, False))
    assert len(row["notes"]) == 4 and "target" not in row and set(row["times"]) == {"treadle"}


def test_tf32_is_as_the_row_says() -> None:
    for tf32 in (True, False):
        sweep.shape_case(QUICK, Sweep(SMALL, FP32, False, tf32=tf32))
        assert torch.backends.cuda.matmul.allow_tf32 == tf32
    sweep.shape_case(QUICK, Sweep(SMALL, FP32, False, tf32=True))
    sweep.algorithms_case(QUICK, Sweep(SMALL, FP16, False))
    assert not torch.backends.cuda.matmul.allow_tf32


def test_launches_say_the_algorithm() -> None:
    args = layer_calls.arguments(SMALL, "cpu", FP32, True)
    assert chosen(in_algorithm("auto"), args) == ""
    assert chosen(in_algorithm("no such"), args) == ""


def changed(form: Form, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The reference, with `change` applied to its output."""
    plain = form.call(reference.lltm, True)

    def call(*args: Any) -> Any:
        output, *last = plain(*args)
        return change(output), *last

    return call


def late_nan(output: Tensor) -> Tensor:
    return output.masked_fill((torch.arange(len(output)) == 10).view(-1, 1, 1), torch.nan)


def stale_first(output: Tensor) -> Tensor:
    return torch.cat([output[:3], output[2:3], output[4:]])


def stale_last(output: Tensor) -> Tensor:
    return torch.cat([output[:-3], output[-4:-3], output[-2:]])


@pytest.mark.parametrize("name", [", 4 layers", ", bidirectional"])
@pytest.mark.parametrize("backward", [False, True])
def test_whole_calls_of_every_form_are_checked(name: str, backward: bool) -> None:
    form = FORMS[name]
    args = form.arguments(SMALL, "cpu", FP32, backward)
    check = form.check(args)
    assert check(changed(form, lambda output: output), poison=True) <= 1
    with pytest.raises(Refused, match="not all"):
        check(changed(form, late_nan))
    with pytest.raises(Refused, match="result 0 is wrong"):
        check(changed(form, stale_first))


def test_the_second_direction_is_checked() -> None:
    form = FORMS[", bidirectional"]
    args = form.arguments(SMALL, "cpu", FP32, True)
    with pytest.raises(Refused, match="result 1 is wrong"):
        check_both_ways(changed(form, stale_last), args)
    # A sequence of at most 2 * 10 steps is compared as a whole.
    assert check_both_ways(form.ours(True), args, 10) <= 1
    with pytest.raises(Refused, match="result 0 is wrong"):
        check_both_ways(changed(form, stale_last), args, 10)


def test_parameters_of_every_form_are_as_many_as_needed() -> None:
    for name, directions in ((", 4 layers", 4), (", bidirectional", 2)):
        form = FORMS[name]
        args = form.arguments(SMALL, "cpu", FP32, True)
        assert args[1].shape == (directions, SMALL.b, SMALL.h) and len(args) == 3 + 3 * directions
        own = form.lstm_arguments(args)
        assert len(own) == 3 + 4 * directions and all(t.requires_grad for t in own[3:])
        results = form.ours(True)(*args), form.call(torch.lstm, True)(*own)
        for one, other in zip(*results, strict=True):
            assert one.shape == other.shape
    data, (sizes,), *_ = FORMS[", packed"].arguments(SMALL, "cpu", BF16, True)
    assert data.shape == (int(sizes.sum()), SMALL.i) and data.is_leaf and data.requires_grad


def gpu_facts() -> dict[str, Any]:
    made = {"device": "cuda", "gpu": "a GPU", "driver": "1.2", "built_with_cuda": "13.0"}
    return machine.facts("cpu") | made | {"date": "2026-11-22T01:02:03+00:00"}


@pytest.fixture
def results(rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Writes results to a new folder. One row misses its target, and two are refused."""
    found = json.loads(json.dumps([row for row in rows if row["op"] == "lltm"]))
    for row in found:
        row["times"]["treadle"] |= {"median_us": 20.0, "us_per_step": 20.0 / row["steps"]}
        row["target"] |= {"limit_us": 100.0, "reached": True}
    slow = next(row for row in found if row["suite"] == "sweep_shapes")
    slow["target"] |= {"limit_us": 16.0, "reached": False}
    wrong = next(row for row in found if row["suite"] == "sweep_algorithms")
    del wrong["times"], wrong["target"]
    wrong["refused"] = "lltm: wrong"
    failed = {"key": "cuda/sweep_shapes/9,9,9/float32/training", "group": "failed", "notes": []}
    found.append(failed | {"label": failed["key"], "refused": "out of memory"})
    folder = tmp_path / "results" / "gpu"
    folder.mkdir(parents=True)
    written = {"machine": gpu_facts(), "quick": False, "rows": found}
    (folder / "sweep.json").write_text(json.dumps(written))
    older = {"machine": gpu_facts() | {"date": "2026"}, "quick": False, "rows": [OTHER]}
    (folder / "other.json").write_text(json.dumps(older))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    return found


def test_the_page_shows_every_row(results: list[Row], tmp_path: Path) -> None:
    written = targets_page.rewritten(sweep_page.PAGE.read_text(), tables.machines())
    page = " ".join(written.split())  # independent of line breaks
    assert "**a GPU**: torch " in page and "2026-11-22; [sweep.json](" in page
    assert "](../figures/layer.png)" in page
    assert "| 16,512,512 | bfloat16 | 5.00 | 1.00 / " in page
    assert page.count("| 16,512,512 | float32 | 5.00 | 1.00 / ") == 1
    slow = next(row for row in results if row["suite"] == "sweep_shapes")
    lstm = slow["times"]["nn.LSTM"]["us_per_step"]
    assert f"| {slow['what']} | **1.00 / {sweep_page.number(lstm)}** | 1.00 / " in page
    assert page.count("**1.00 / ") == 1 and "| 1,512,512 | wrong | " in page
    for row in results:
        assert f"| {row.get('what', '')} |" in written or row["suite"] == "sweep_launch"
    assert "Targets missed: 1 of 23." in page
    assert f"| {slow['key']} | 25.0% | at most 1 × nn.LSTM |" in page
    assert "not timed: cuda/sweep_shapes/9,9,9/float32/training (out of memory)" in page
    assert " × rows |" in page
    assert "Time of one call with B,T,H of 1,8,32, in µs, treadle / nn.LSTM:" in page
    assert sweep_page.main(["--output", str(tmp_path)]) == 0
    with Image.open(tmp_path / "layer.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 200


def test_what_the_planner_chose() -> None:
    times = {
        "treadle": 4.4,
        "algorithm cluster": 4.0,
        "algorithm grid": 8.0,
        "algorithm step": 80.0,
    }
    row: Row = {"algorithm": "grid", "times": {name: {"median_us": t} for name, t in times.items()}}
    text = "grid: 1.10 × cluster (grid 2.00, step 20.0)"
    assert sweep_page.choice(row) == text
    assert sweep_page.choice(row | {"target": {"reached": False}}) == f"**{text}**"
    alone = row | {"times": {name: row["times"][name] for name in ("treadle", "algorithm step")}}
    assert sweep_page.choice(alone) == "grid: 0.06 × step"
    assert sweep_page.choice(None) == "" and sweep_page.choice({"refused": "wrong"}) == "wrong"


def test_a_page_of_no_results() -> None:
    assert list(sweep_page.figures([])) == [sweep_page.NONE_YET]
    assert [sweep_page.number(x) for x in (0.853, 14.04, 338.2)] == ["0.85", "14.0", "338"]


def test_the_readme_has_one_line_of_them(results: list[Row]) -> None:
    found = [line for line in targets_page.lines(results) if "sweep" in line]
    assert len(found) == 1 and found[0].startswith(f"| {targets_page.SWEEP} | 24 | ")
    assert "22 of 23 |" in found[0]


def test_the_picture_is_small() -> None:
    assert sweep_page.PICTURE.stat().st_size < 150_000, "run benchmarks/pages/sweep_page.py"
