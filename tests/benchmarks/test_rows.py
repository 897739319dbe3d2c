"""The rows of the benchmarks: which there are, of what they are made, and what they amount to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import (
    cases,
    elementwise,
    machine,
    means,
    overhead,
    plot,
    readme_numbers,
    report,
    run,
    sine,
    views,
)
from benchmarks import verify as verifying
from benchmarks.cases import Case, Plan, Row, Settings
from benchmarks.timing import Effort
from benchmarks.verify import Refused, verify


def test_the_rows_are_those_of_the_bars() -> None:
    plans = [p.key for suite in run.SUITES.values() for p in suite(Settings("cpu"))]
    exact, periodic = len(elementwise.EXACT), len(sine.PERIODIC)
    assert sum("/elementwise/" in key for key in plans) == (exact * 6 + periodic * 2 * 7) * 4 * 2
    assert sum("/cell/" in key for key in plans) == 3 * 2 * 2
    assert {"cpu/elementwise/sine/float16/2^26/6e4/2 threads"} <= set(plans)
    assert {"cpu/views/add, both transposed, bf16/1 threads"} <= set(plans)
    cuda = [p.key for suite in run.SUITES.values() for p in suite(Settings("cuda"))]
    assert len(set(cuda)) == len(cuda)
    assert {f"cuda/elementwise/{op}/bfloat16" for op in overhead.OPS} <= set(cuda)
    assert {f"cuda/sizes/{op}/float32/2^10" for op in overhead.OPS} <= set(cuda)
    assert {f"cuda/elementwise/{op}/float32/1e30" for op in sine.PERIODIC} <= set(cuda)
    assert {"cuda/views/add, both misaligned, fp16", "cuda/views/sine, misaligned fp16"} <= set(
        cuda
    )
    assert "cuda/cell/16,32,128/float32/forward + backward/wall" in cuda
    assert "cuda/cell/512,1024,1024/bfloat16/forward/device" in cuda


def test_the_rows_of_results_that_are_kept_are_still_there() -> None:
    for path in readme_numbers.RESULTS.glob("*/*.json"):
        results = json.loads(path.read_text())
        settings = Settings(results["machine"]["device"])
        keys = {plan.key for suite in run.SUITES.values() for plan in suite(settings)}
        assert {row["key"] for row in results["rows"]} <= keys


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rows_that_come_by_the_hundred_are_brief(device: str) -> None:
    timer = Settings(device).brief()
    assert timer.name == ("wall" if device == "cpu" else "device")
    assert timer.effort.seconds < Effort().seconds / 5 and timer.effort.rounds[0] >= 3


def test_ops_of_one_kind_are_one_line_of_the_readme() -> None:
    lines = {
        "sine, CPU, 1 thread": "elementwise",
        "cosine of large arguments, CPU, 2 threads": "sine and cosine of large arguments",
        "cosine by argument, 1 GiB a tensor, CUDA": "1 GiB a tensor",
        "vector_add on views, CPU, 1 thread": "views and mixed dtypes",
        "scale, in cache, CUDA": "elementwise, in cache",
        "lltm_cell, wall time, CUDA": "lltm_cell, wall time",
        "call overhead, cpu": "call overhead",
    }
    for group, line in lines.items():
        assert readme_numbers.group({"group": group, "label": ""}) == line


def test_the_readme_shows_the_newest_machine_of_each_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are on the page beside the results, with links that start there."""
    row = {"key": "cpu/scale", "group": "scale, CPU", "label": "scale", "ratio": 0.5, "times": {}}
    known = machine.facts("cpu")
    for name, kind, day in [("a", "cpu", 2), ("b", "cpu", 4), ("c", "cpu", 3), ("d", "cuda", 1)]:
        facts = {**known, "device": kind, "date": f"2026-01-0{day}", "cpu": name}
        (tmp_path / name).mkdir()
        text = json.dumps({"machine": facts, "rows": [row]})
        (tmp_path / name / "cpu.json").write_text(text)
    monkeypatch.setattr(readme_numbers, "RESULTS", tmp_path)
    found = readme_numbers.machines()
    assert [facts["cpu"] for _, facts, _ in found] == ["d", "b", "c", "a"]
    assert [facts["cpu"] for _, facts, _ in readme_numbers.newest(found)] == ["d", "b"]
    empty = f"above\n{readme_numbers.BEGIN}\n{readme_numbers.END}\nbelow\n"
    monkeypatch.setattr(readme_numbers, "OTHERS", tmp_path / "README.md")
    monkeypatch.setattr(readme_numbers, "README", tmp_path.parent / "README.md")
    others = readme_numbers.rewritten_others(empty)
    readme = readme_numbers.rewritten(empty)
    assert re.findall(r"^\*\*(\w), .*\[cpu.json\]\((.*)\)", others, re.M) == [
        ("c", "c/cpu.json"),
        ("a", "a/cpu.json"),
    ]
    assert re.findall(r"^\*\*(\w), .*\[cpu.json\]\((.*)\)", readme, re.M) == [
        ("d", f"{tmp_path.name}/d/cpu.json"),
        ("b", f"{tmp_path.name}/b/cpu.json"),
    ]
    with pytest.raises(SystemExit, match="must have one line"):
        readme_numbers.rewritten_others("nothing")


def bare(key: str, case: Case) -> Row:
    return cases.run(Plan(key, lambda: case))


@pytest.mark.parametrize("op", sine.PERIODIC)
def test_the_rows_of_arguments(op: str, tmp_path: Path) -> None:
    """Those of CUDA, on the CPU: what they are made of is the same."""
    settings, rows = Settings("cpu", quick=True), []
    for dtype, shares in sine.SHARES.items():
        for argument, share in shares.items():
            row = bare(argument, sine.argument_case(settings, op, dtype, argument))
            assert row["error_over_limit"] <= 1 and set(row["times"]) >= {"treadle", "copy"}
            assert ("bar" in row) == (share is not None)
            rows.append(row)
    assert rows[0]["bar"]["text"] == "at least 0.97 × copy's speed"
    copy = rows[0]["times"]["copy"]["median_us"]
    assert rows[0]["bar"]["limit_us"] == pytest.approx(copy / 0.97)
    plot.draw({"machine": machine.facts("cpu"), "rows": rows}, tmp_path / "shares.png")
    with Image.open(tmp_path / "shares.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 300


def test_arguments_are_what_they_are_called() -> None:
    torch.manual_seed(0)
    for dtype, shares in sine.SHARES.items():
        for argument in shares:
            x = elementwise.drawn(100_000, "cpu", dtype, argument).double()
            assert bool(x.isfinite().all())
            if argument == elementwise.MIXTURE:
                assert 0.007 < float((x.abs() > 50).double().mean()) < 0.011
                assert 0.5 < float(x.abs().median()) < 0.8
            else:
                assert 0.5 < float(x.abs().median()) / float(argument) < 0.8


def test_views_are_verified_and_timed_on_the_cpu() -> None:
    settings, found = Settings("cpu", quick=True), []
    for view in views.views():
        case = views.view_case(settings, view)
        assert case.bar is not None
        error = verify(case.functions["treadle"], case.op, case.inputs[0], poison=True)
        assert error <= 1, view.name
        found.append(view.name)
    assert len(set(found)) == len(found)
    maker = views.Maker("cpu", 64, 128)
    assert maker.misaligned(torch.float32).data_ptr() % 16 == 4
    assert maker.channels_last(torch.float32).is_contiguous(memory_format=torch.channels_last)
    for layout, _ in views.UNARY.values():
        assert layout(maker, torch.float64).numel() == 64 * 128


def test_out_is_written() -> None:
    view = next(v for v in views.views() if v.name == "scale, out=")
    case = views.view_case(Settings("cpu", quick=True), view)
    for function in case.functions.values():
        result = function(*case.inputs[0])
        assert torch.equal(result, case.inputs[0][0] * overhead.FACTOR)
        assert result.data_ptr() == function(*case.inputs[0]).data_ptr()
    forgetful = views.into(lambda *args, out: None, case.inputs[0][0])
    with pytest.raises(Refused):
        verify(forgetful, "scale", case.inputs[0])


def with_speed(speed: float, part: str) -> Row:
    return {"ratio": 1 / speed, "mean_bar": {"over": "both", "part": part, "least": 1.1}}


def test_the_geometric_mean_is_a_bar() -> None:
    fast, slow = with_speed(2.0, "views"), with_speed(0.5, "sizes")
    (mean,) = means.of([fast, slow, {"mean_bar": fast["mean_bar"], "refused": ""}, {"ratio": 9.0}])
    assert mean["value"] == pytest.approx(1) and mean["rows"] == 2 and not mean["reached"]
    assert mean["parts"] == pytest.approx({"views": 2, "sizes": 0.5})
    assert means.sentence(mean).endswith(
        "1.000 (views 2.000, sizes 0.500); at least 1.1: NOT REACHED"
    )
    assert report.summary([fast, slow])[-1] == "2 rows, 0 of 1 bars reached, 0 refused"
    assert report.summary([fast])[-1] == "1 rows, 1 of 1 bars reached, 0 refused"
    assert means.of([{"ratio": 1.0}]) == []


def test_repeated_inputs_are_verified_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verifying.CHUNK, "cpu", 64)
    x = elementwise.repeated(256, "cpu", torch.float32)
    assert torch.equal(x[:64], x[64:128]) and not torch.equal(x[:32], x[32:64])
    assert verify(torch.sin, "sine", (x,)) <= 1

    def wrong_at_the_end(x: torch.Tensor) -> torch.Tensor:
        out = torch.sin(x)
        out[-1] += 0.1
        return out

    with pytest.raises(Refused, match="is wrong by "):
        verify(wrong_at_the_end, "sine", (x,))
