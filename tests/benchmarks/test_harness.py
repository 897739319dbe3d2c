"""The benchmark harness: its files, the results that it refuses, and its clocks."""

from __future__ import annotations

import json
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks import run
from benchmarks.elementwise import dense
from benchmarks.harness import cases, machine, report, spread
from benchmarks.harness.cases import Case, Plan, Settings, Target
from benchmarks.harness.timing import Effort, Wall, measure, summary
from benchmarks.harness.verify import Refused, verify
from benchmarks.recurrent import rl, sweep, sweep_cells, tutorial
from tests.support.inputs import DEVICES
from treadle import reference

GPU_ALONE = ("dense", "chain")
SOME = 2
QUICK = Effort(sample=1e-4, seconds=0.01, rounds=(5, 11), warmup=1e-3)


def quick(folder: Path, *arguments: str, device: str = "cpu") -> tuple[int, dict[str, Any]]:
    """Makes a trial run. Returns its exit status and its JSON."""
    fixed = ["--quick", "--device", device, "--threads", "1", "--output", str(folder)]
    status = run.main([*fixed, "--name", "trial", *arguments])
    return status, json.loads((folder / "trial.json").read_text())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("suite", run.SUITES)
def test_some_rows_of_every_suite(
    suite: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A trial run measures at most SOME rows, evenly spaced in the suite."""
    plans = [plan.key for plan in run.SUITES[suite](Settings(device, quick=True, threads=(1,)))]
    if not plans:
        on_gpu = (*GPU_ALONE, *sweep.SUITES, *sweep_cells.SUITES, rl.COST_SUITE)
        assert device == "cpu" and suite in on_gpu
        return
    keys = plans[:: -(-len(plans) // SOME)]
    every = run.plans_of
    monkeypatch.setattr(run, "plans_of", lambda *how: [p for p in every(*how) if p.key in keys])
    status, results = quick(tmp_path, "--suite", suite, device=device)
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert [row["key"] for row in results["rows"]] == keys
    for row in results["rows"]:
        assert row["error_over_limit"] <= 1 and row["label"] in printed
        assert ("times" in row) != ("memory" in row)
        for times in row.get("times", {}).values():
            assert 0 < times["min_us"] <= times["q25_us"] <= times["median_us"] <= times["q75_us"]
            assert times["samples"] >= QUICK.rounds[0]
        if "target" in row and "times" in row:
            ours = row["times"]["treadle"]["median_us"]
            assert row["target"]["reached"] == (ours <= row["target"]["limit_us"])
    assert printed.splitlines()[-1].startswith(f"{len(keys)} rows, ")
    with Image.open(tmp_path / "trial.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 100
    assert results["machine"]["torch"] == torch.__version__
    assert results["machine"]["device"] == device


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_row_has_a_key_of_its_own(device: str) -> None:
    keys = [plan.key for suite in run.SUITES.values() for plan in suite(Settings(device))]
    assert keys and len(set(keys)) == len(keys)


def too_large(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * (factor * 1.001)


def one_nan(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = x * factor
    out[-1] = torch.nan
    return out


def unwritten(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    out[:-1] = x[:-1] * factor
    return out


def last_bit(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = x * factor
    out[3] = torch.nextafter(out[3], torch.tensor(torch.inf))
    return out


def no_kernel(x: torch.Tensor, factor: float) -> torch.Tensor:
    raise RuntimeError("no kernel image is available\nand more lines")


@pytest.mark.parametrize("broken", [too_large, one_nan, unwritten, last_bit, no_kernel])
def test_a_broken_op_is_refused(
    broken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    real = dense.ours
    monkeypatch.setattr(run.plot, "draw", lambda *_: None)
    monkeypatch.setattr(dense, "ours", lambda op: broken if op == "scale" else real(op))
    only = [f"{op}/float32/2^14/1" for op in ("scale", "sine")]
    status, results = quick(tmp_path, "--suite", "elementwise", "--only", *only)
    rows = {row["op"]: row for row in results["rows"]}
    assert status == 1
    assert "refused" in rows["scale"] and "times" not in rows["scale"]
    assert "times" in rows["sine"]
    assert "REFUSED: cpu/elementwise/scale/float32/2^14" in capsys.readouterr().out


class WrongSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def test_a_wrong_gradient_is_refused() -> None:
    x = torch.randn(8, requires_grad=True)
    with pytest.raises(Refused, match="^sine: gradient 0 is wrong by "):
        verify(WrongSlope.apply, "sine", (x,))
    assert verify(WrongSlope.apply, "sine", (x.detach(),)) <= 1


def test_a_baseline_that_is_wrong_is_left_out() -> None:
    def explode(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such luck")

    case = Case(
        op="sine",
        functions={"treadle": torch.sin, "cosine": torch.cos, "fuse": explode, "torch": torch.sin},
        inputs=[(torch.randn(8),)],
        timer=Wall("cpu", QUICK),
        yardsticks={"nothing": [lambda: None]},
        target=Target("nothing + 1 s", lambda medians: medians["nothing"] + 1e6),
        facts={"group": "", "label": ""},
    )
    row = cases.run(Plan("key", lambda: case))
    assert set(row["times"]) == {"treadle", "torch", "nothing"}
    assert row["fastest_baseline"] == "torch" and row["target"]["reached"]
    assert row["notes"][0].startswith("cosine left out: sine: result 0 is wrong by ")
    assert row["notes"][1] == "fuse left out: no such luck"


def test_compare(tmp_path: Path, capsys: Any) -> None:
    only = ("--suite", "overhead", "--only", "/sine/")
    _, old = quick(tmp_path, *only)
    for row, factor in zip(old["rows"], (10, 0.1), strict=True):
        for times in row["times"].values():
            for name in ("median_us", "q25_us", "q75_us"):
                times[name] *= factor
    old["machine"] |= {"cpu": "another"}
    old["rows"].append({**old["rows"][0], "key": "no longer there"})
    older = tmp_path / "old.json"
    older.write_text(json.dumps(old))
    capsys.readouterr()
    _, new = quick(tmp_path, *only, "--compare", str(older))
    printed = capsys.readouterr().out
    assert [line[-1] for line in report.compare(old, new)] == ["faster", "slower"]
    assert [line[-1] for line in report.compare(new, new)] == ["", ""]
    assert "2 rows in both, 1 slower, 1 faster" in printed
    assert "another cpu: another then" in printed
    assert machine.commit(new["machine"]) in printed


def test_wall_clock_and_turns() -> None:
    order: list[str] = []

    def work(name: str, seconds: float) -> Any:
        def call() -> None:
            order.append(name)
            time.sleep(seconds)

        return call

    effort = Effort(sample=1e-3, seconds=0.1, rounds=(7, 9), warmup=1e-3)
    found = measure(Wall("cpu", effort), {"a": [work("a", 2e-3)], "b": [work("b", 6e-3)]})
    assert 7 <= len(found["a"]) == len(found["b"]) <= 9
    assert 2000 <= summary(found["a"])["median_us"] < summary(found["b"])["median_us"]
    # After the warm-up the candidates alternate: each runs once per round.
    turns = order[-2 * len(found["a"]) :]
    assert all(set(turns[i : i + 2]) == {"a", "b"} for i in range(0, len(turns), 2))


def test_inputs_take_turns() -> None:
    seen: list[int] = []
    calls = [lambda n=n: seen.append(n) for n in range(3)]
    Wall("cpu", QUICK).sampler(calls)()
    assert seen[:7] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_tutorials_way_is_right(dtype: torch.dtype) -> None:
    cell = tutorial.function_of(tutorial.forward, tutorial.backward)
    b, i, h = 3, 5, 7
    shapes = ((b, i), (3 * h, h + i), (3 * h,), (b, h), (b, h))
    args = tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    assert verify(cell, "lltm_cell", args) <= 1
    assert reference.lltm_cell(*args)[0].dtype == dtype


def test_gpu_script_says_how_it_is_used() -> None:
    script = Path(run.ROOT) / "benchmarks" / "gpu.sh"
    found = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert found.returncode == 2
    for piece in ("test", "sanitize", "bench", "probe"):
        assert f"  {piece}" in found.stdout


def test_rows_are_measured_by_processes_of_their_own() -> None:
    """Two processes, as on a machine with two GPUs, time each row once."""
    settings = Settings("cpu", quick=True, threads=(1, 2))
    again = partial(run.plans_of, ["sine_linear"], settings, [""])
    keys = [plan.key for plan in again()]
    rows = list(spread.measure(keys, again, ["0", "1"]))
    assert sorted(row["key"] for row in rows) == sorted(keys) and len(keys) == 4
    assert all(row["times"]["treadle"]["median_us"] > 0 for row in rows)
