"""The suite layer_overhead: its rows, their verification, and the host clock."""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import run
from benchmarks.harness import cases
from benchmarks.harness.cases import OURS, Plan, Settings
from benchmarks.harness.timing import Effort, Host, Wall
from benchmarks.recurrent import layer_overhead
from benchmarks.recurrent.layer import Kind

QUICK = Settings("cpu", quick=True)
EACH_CELL = pytest.mark.parametrize("cell", layer_overhead.CELLS)


def kind_of(cell: str, steps: int = 1, backward: bool = False) -> Kind:
    shape = layer_overhead.shape_of(QUICK, steps)
    return Kind(shape, torch.float32, backward, 1, cell=cell)


def test_the_rows() -> None:
    keys = [plan.key for plan in run.SUITES["layer_overhead"](Settings("cuda"))]
    assert len(keys) == len(set(keys)) == 3 * 2 * 5
    assert "cuda/layer_overhead/lstm/16,64,512,512/bfloat16/training/host" in keys
    assert "cuda/layer_overhead/gru/16,1,512,512/float32/make_step/wall" in keys
    assert "layer_overhead" in run.SEVERAL["all"]


@EACH_CELL
@pytest.mark.parametrize("backward", [False, True])
def test_a_row_of_calls(cell: str, backward: bool) -> None:
    kind = kind_of(cell, 20 if backward else 1, backward)
    row = cases.run(Plan("key", partial(layer_overhead.call_case, QUICK, kind)))
    assert row["error_over_limit"] <= 1 and row["notes"] == []
    assert set(row["times"]) == {OURS, "nn.GRU", "nn.LSTM"} and row["timer"] == "host"


@EACH_CELL
@pytest.mark.parametrize("clock", ["host", "wall"])
def test_a_row_of_steps(cell: str, clock: str) -> None:
    row = cases.run(Plan("key", lambda: layer_overhead.step_case(QUICK, kind_of(cell), clock)))
    assert row["error_over_limit"] <= 1 and row["notes"] == []
    assert row["fastest_baseline"] == "call by call" and row["timer"] == clock


@EACH_CELL
def test_a_wrong_module_or_step_is_refused(cell: str) -> None:
    def wrong(function: Any) -> Any:
        class Wrong:
            reset_all = staticmethod(getattr(function, "reset_all", lambda: None))

            def __call__(self, *args: Tensor) -> Any:
                found = function(*args)
                return 1.01 * found if isinstance(found, Tensor) else (1.01 * found[0], *found[1:])

        return Wrong()

    for made in (
        layer_overhead.call_case(QUICK, kind_of(cell, 20, True)),
        layer_overhead.step_case(QUICK, kind_of(cell), "host"),
    ):
        made.functions[OURS] = wrong(made.functions[OURS])
        row = cases.run(Plan("key", lambda made=made: made))  # type: ignore[misc]
        assert "is wrong by" in row["refused"] and "times" not in row


def test_the_clock_of_the_host_stops_before_the_device_does() -> None:
    effort = Effort(warmup=1e-3)
    waited = []

    def device() -> None:
        waited.append(None)
        time.sleep(2e-3)

    host, wall = Host("cpu", effort), Wall("cpu", effort)
    host.wait = wall.wait = device
    issue = [lambda: None]
    sample = host.sampler(issue)
    assert min(sample() for _ in range(5)) < 400 and waited
    assert wall._seconds(cycle(issue), 1) >= 2e-3
