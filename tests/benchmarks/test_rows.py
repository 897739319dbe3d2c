"""The rows of the benchmarks: their keys, their cases, and the results computed from them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import (
    run,
)
from benchmarks.elementwise import (
    dense,
    overhead,
    sine,
    views,
)
from benchmarks.harness import (
    cases,
    machine,
    means,
    report,
)
from benchmarks.harness import verify as verifying
from benchmarks.harness.cases import Case, Plan, Row, Settings
from benchmarks.harness.verify import Refused, verify
from benchmarks.pages import tables, targets_page


def test_the_rows_of_results_that_are_kept_are_still_there() -> None:
    for path in tables.RESULTS.glob("*/*.json"):
        results = json.loads(path.read_text())
        settings = Settings(results["machine"]["device"])
        keys = {plan.key for suite in run.SUITES.values() for plan in suite(settings)}
        assert {row["key"] for row in results["rows"]} <= keys


def test_ops_of_one_kind_are_one_line_of_the_readme() -> None:
    lines = {
        "sine, CPU, 1 thread": "elementwise",
        "cosine of large arguments, CPU, 2 threads": "sine and cosine of large arguments",
        "cosine by argument, 1 GiB a tensor, CUDA": "1 GiB a tensor",
        "vector_add on views, CPU, 1 thread": "views and mixed dtypes",
        "scale, in cache, CUDA": "elementwise, in cache",
        "lltm_cell, wall time, CUDA": "lltm_cell, wall time",
        "call overhead, cpu": "call overhead",
        "gru layers of public models, float32, tf32, CUDA": "gru layers of public models",
    }
    for group, line in lines.items():
        assert targets_page.group({"group": group, "label": ""}) == line


def test_pages_show_gpus_first_then_the_most_rows_then_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"key": "cpu/scale", "group": "scale, CPU", "label": "scale", "ratio": 0.5, "times": {}}
    known = machine.facts("cpu")
    cpus = [("a", "cpu", 2), ("b", "cpu", 4), ("c", "cpu", 3)]
    for name, kind, day in [*cpus, ("d", "cuda", 1), ("e", "cuda", 5)]:
        facts = {**known, "device": kind, "date": f"2026-01-0{day}", "cpu": name}
        (tmp_path / name).mkdir()
        rows = [row, row | {"key": "cuda/scale"}] if name == "d" else [row]
        text = json.dumps({"machine": facts, "rows": rows})
        (tmp_path / name / "cpu.json").write_text(text)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    found = tables.machines()
    assert [facts["cpu"] for _, facts, _ in found] == ["d", "e", "b", "c", "a"]
    made = "\n".join(targets_page.each(found, "numbers"))
    links = re.findall(r"\[cpu.json\]\((.*)\)", made)
    assert [link[-10:] for link in links] == [f"{name}/cpu.json" for name in "debca"]
    with pytest.raises(SystemExit, match="must have one line"):
        targets_page.rewritten("nothing", found)


def bare(key: str, case: Case) -> Row:
    return cases.run(Plan(key, lambda: case))


def test_arguments_are_what_they_are_called() -> None:
    torch.manual_seed(0)
    for dtype, shares in sine.SHARES.items():
        for argument in shares:
            x = dense.drawn(100_000, "cpu", dtype, argument).double()
            assert bool(x.isfinite().all())
            if argument == dense.MIXTURE:
                assert 0.007 < float((x.abs() > 50).double().mean()) < 0.011
                assert 0.5 < float(x.abs().median()) < 0.8
            else:
                assert 0.5 < float(x.abs().median()) / float(argument) < 0.8


def test_views_are_verified_and_timed_on_the_cpu() -> None:
    settings, found = Settings("cpu", quick=True), []
    for view in views.views():
        case = views.view_case(settings, view)
        assert case.target is not None
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
    return {"ratio": 1 / speed, "mean_target": {"over": "both", "part": part, "least": 1.1}}


def test_the_geometric_mean_is_a_target() -> None:
    fast, slow = with_speed(2.0, "views"), with_speed(0.5, "sizes")
    (mean,) = means.of(
        [fast, slow, {"mean_target": fast["mean_target"], "refused": ""}, {"ratio": 9.0}]
    )
    assert mean["value"] == pytest.approx(1) and mean["rows"] == 2 and not mean["reached"]
    assert mean["parts"] == pytest.approx({"views": 2, "sizes": 0.5})
    assert means.sentence(mean).endswith(
        "1.000 (views 2.000, sizes 0.500); the target, at least 1.1, was NOT REACHED"
    )
    assert report.summary([fast, slow])[-1] == "2 rows, 0 of 1 targets reached, 0 refused"
    assert report.summary([fast])[-1] == "1 rows, 1 of 1 targets reached, 0 refused"
    assert means.of([{"ratio": 1.0}]) == []


def test_repeated_inputs_are_verified_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verifying.CHUNK, "cpu", 64)
    x = dense.repeated(256, "cpu", torch.float32)
    assert torch.equal(x[:64], x[64:128]) and not torch.equal(x[:32], x[32:64])
    assert verify(torch.sin, "sine", (x,)) <= 1

    def wrong_at_the_end(x: torch.Tensor) -> torch.Tensor:
        out = torch.sin(x)
        out[-1] += 0.1
        return out

    with pytest.raises(Refused, match="is wrong by "):
        verify(wrong_at_the_end, "sine", (x,))
