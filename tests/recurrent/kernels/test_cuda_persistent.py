"""Tests the algorithms of recurrent_layer that run in one launch, "cluster" and "grid", and
compares them with the other algorithms. A kernel that hangs ends only if its process is killed.
So each test runs its cases (persistent_worker.py) in a separate process with a time limit of a
minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import treadle
from tests.recurrent.kernels import persistent_worker
from tests.recurrent.kernels.persistent_calls import DTYPES, fitting, most_hidden
from tests.recurrent.kernels.persistent_worker import NONE_RUNS, SECONDS, NoneRunsError, run
from tests.recurrent.plan.test_plan import BINDINGS
from tests.recurrent.support.layer_cases import EACH_CELL
from tests.support.inputs import HOPPER, SM80
from tests.support.installed import ROOT

Process = subprocess.Popen[str]

ALGORITHMS = pytest.mark.parametrize("algorithm", ["cluster", "grid"])
ALL_ALGORITHMS = pytest.mark.parametrize("algorithm", ["cluster", "grid", "tiles", "warp", "step"])
FLOAT_ALGORITHMS = pytest.mark.parametrize("algorithm", ["cluster", "grid", "tiles"])
CHOSEN = ("cluster", "grid", "tiles")
PERSISTENT = [(r, d) for r in CHOSEN for d in DTYPES if most_hidden(r, DTYPES[d])]
EVERYWHERE = [(r, d) for r in ("warp", "step") for d in DTYPES]
EACH = pytest.mark.parametrize(("algorithm", "dtype"), [*PERSISTENT, *EVERYWHERE])


def start(group: str, *arguments: Any) -> Process:
    path = [str(Path(treadle.__file__).parents[1]), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.recurrent.kernels.persistent_worker",
            group,
            json.dumps(arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
    )


def fit_of(algorithm: str, *widths: int) -> list[int]:
    """The supported widths near `widths`, without duplicates, and a larger width for the grid."""
    wider = [1000] if algorithm == "grid" else []
    return list({fitting(algorithm, h): None for h in (*widths, *wider)})


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-80:])


def finish(process: Process, seconds: float = SECONDS) -> str:
    """The process's output. The test fails if the process failed or is still running. It is skipped
    if this GPU supports none of the layers."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        pytest.fail(f"still running after {seconds} s:\n{tail(said)}")
    if process.returncode == NONE_RUNS:
        pytest.skip("this GPU supports none of these layers")
    assert process.returncode == 0, f"exit status {process.returncode}:\n{tail(said)}"
    return said


def watch(group: str, *arguments: Any, seconds: float = SECONDS) -> str:
    return finish(start(group, *arguments), seconds)


# ---- values

CLUSTER_WIDTHS = ((1, 31), (32, 33), (96, 128), (257,), (512,), (768,))
WIDTHS = [("cluster", widths) for widths in CLUSTER_WIDTHS]
WIDTHS += [("grid", widths) for widths in (*CLUSTER_WIDTHS, (1000,), (1024,), (1100,), (2048,))]
WIDTHS += [("step", (33, 257)), ("step", (2048,)), ("warp", (33, 257)), ("warp", (512,))]
WIDTHS += [("tiles", (64, 128, 192)), ("tiles", (1024,))]


@SM80
@pytest.mark.parametrize(("algorithm", "widths"), WIDTHS, ids=str)
def test_every_size(algorithm: str, widths: tuple[int, ...]) -> None:
    watch("sizes", algorithm, *widths)


@SM80
@pytest.mark.parametrize(
    ("algorithm", "widths"),
    [
        *(("cluster", h) for h in ((31,), (64, 128, 200, 256), (400, 512, 640, 768))),
        *(("grid", h) for h in ((33, 256, 512), (769, 1000, 1024), (1025, 1500, 2048))),
        ("tiles", (64, 320, 512)),
    ],
    ids=str,
)
def test_every_share_of_the_batch(algorithm: str, widths: tuple[int, ...]) -> None:
    watch("batches", algorithm, *widths)


@SM80
@pytest.mark.parametrize(
    ("algorithm", "widths"),
    [
        *(("cluster", widths) for widths in ((1, 31, 33, 64), (65, 96, 128), (200, 257), (512,))),
        *(("grid", widths) for widths in ((1, 33), (512,), (768,), (1023,), (1024,))),
        *(("tiles", widths) for widths in ((64, 128, 192), (1024,))),
    ],
    ids=str,
)
def test_every_size_in_float32(algorithm: str, widths: tuple[int, ...]) -> None:
    watch("float sizes", algorithm, *widths)


@SM80
@FLOAT_ALGORITHMS
def test_every_share_of_the_batch_in_float32(algorithm: str) -> None:
    watch("float batches", algorithm, *fit_of(algorithm, 64, 96, 128, 200, 512))


@HOPPER
def test_tiles_of_all_units_and_of_half() -> None:
    """The number of tiles decides whether a block has 64 units or 32. Both occur here."""
    watch("shares", (3, 512, 512), (2, 4200, 256), (3, 2040, 512), (2, 8000, 256))


@SM80
def test_every_share_of_the_batch_of_lstm_in_float32() -> None:
    watch("float batches of lstm", 96, 128, 256, 257, 512)


@HOPPER
@BINDINGS
@ALGORITHMS
def test_float32_on_tensor_cores(algorithm: str) -> None:
    watch("split", algorithm)


@HOPPER
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_tanh"])
def test_float32_on_tensor_cores_backward(cell: str) -> None:
    watch("split backward", cell)


@SM80
@pytest.mark.parametrize("narrow", [True, False])
@ALL_ALGORITHMS
def test_packed(algorithm: str, narrow: bool) -> None:
    wide = (257, 512) if algorithm == "cluster" else (512, 1000, 1024, 2048)
    widths = [fitting(algorithm, h) for h in ((1, 33, 128) if narrow else wide)]
    watch("packed", algorithm, *sorted(set(widths)))


@SM80
@FLOAT_ALGORITHMS
def test_packed_in_float32(algorithm: str) -> None:
    watch("float packed", algorithm, *fit_of(algorithm, 1, 33, 64, 128, 200, 257, 512))


@SM80
@pytest.mark.parametrize("algorithm", [*CHOSEN, "warp"])
def test_layouts(algorithm: str) -> None:
    watch("layouts", algorithm, *{fitting(algorithm, h): 0 for h in (1, 33, 128, 257, 512)})


@SM80
@FLOAT_ALGORITHMS
def test_layouts_in_float32(algorithm: str) -> None:
    watch("float layouts", algorithm, *fit_of(algorithm, 1, 33, 65, 257, 512))


@SM80
@EACH
@EACH_CELL
@pytest.mark.parametrize("group", ["cases", "large"])
def test_by_the_rule_of_all_ops(group: str, cell: str, algorithm: str, dtype: str) -> None:
    watch(group, algorithm, dtype, cell)


@HOPPER
@EACH_CELL
@pytest.mark.parametrize("dtype", DTYPES)
def test_algorithms_agree(dtype: str, cell: str) -> None:
    watch("agree", dtype, cell)


@SM80
@EACH
@pytest.mark.parametrize("width", ["narrow", "odd", "wide"])
def test_what_is_not_finite_stays_in_its_row(width: str, algorithm: str, dtype: str) -> None:
    """In half types, a single block runs the narrow layer, and clusters run the odd one with their
    general kernels, because the dense ones need H to be a multiple of 8."""
    wide = 1000 if algorithm == "grid" else 512
    if algorithm == "cluster":
        wide = min(wide, most_hidden(algorithm, DTYPES[dtype]))
    watch("rows", algorithm, dtype, {"narrow": 33, "odd": 101, "wide": wide}[width])


@SM80
@EACH
@pytest.mark.parametrize("hidden", [96, 129])
def test_a_weight_that_is_not_finite_stays_with_its_unit(
    algorithm: str, dtype: str, hidden: int
) -> None:
    watch("weights", algorithm, dtype, hidden)


# ---- what runs


@HOPPER
@BINDINGS
def test_which_algorithm_runs() -> None:
    watch("auto")


@HOPPER
@BINDINGS
@ALGORITHMS
def test_one_launch(algorithm: str) -> None:
    watch("launched", algorithm)


@HOPPER
@ALGORITHMS
def test_what_a_algorithm_cannot_run(algorithm: str) -> None:
    watch("raises", algorithm)


# ---- bits


@SM80
@pytest.mark.parametrize(("algorithm", "dtype"), [(r, d) for r, d in PERSISTENT if d != "float16"])
@pytest.mark.parametrize("which", ["small", "medium", "wide"])
def test_a_thousand_times_the_same_bits(which: str, algorithm: str, dtype: str) -> None:
    watch("repeats", algorithm, dtype, which)


@SM80
@ALGORITHMS
def test_four_streams_beside_a_product_that_fills_the_chip(algorithm: str) -> None:
    watch("streams", algorithm)


@SM80
@pytest.mark.parametrize(
    "algorithms", [("cluster", "cluster"), ("grid", "grid"), ("cluster", "grid")], ids="-".join
)
def test_two_processes_at_once(algorithms: tuple[str, str], tmp_path: Path) -> None:
    both = [start("together", r, str(tmp_path), n) for n, r in enumerate(algorithms)]
    try:
        for process in both:
            finish(process)
    finally:
        for process in both:
            process.kill()


@SM80
@ALGORITHMS
@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_graph_capture_as_the_first_call_of_all(mode: str, form: str, algorithm: str) -> None:
    watch("capture", algorithm, form, mode)


@SM80
@ALGORITHMS
@pytest.mark.parametrize("group", ["recycled", "memory", "waits"])
def test_memory_and_the_host(group: str, algorithm: str) -> None:
    watch(group, algorithm)


# ---- the watchdog, which needs no GPU


def test_a_failing_case_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise AssertionError("deliberate")

    cases = [("good", lambda: None), ("bad", fails), ("good again", lambda: None)]
    assert run(iter(cases)) == ["bad"]
    said = capsys.readouterr()
    assert "3 cases, 1 failed" in said.out and "deliberate" in said.err


def test_refused_cases_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU other than sm_90, a case passes if the planner refuses its layer. If the planner
    refuses the layers of all cases, run() raises NoneRunsError."""

    def refuses() -> None:
        raise RuntimeError("recurrent_layer: algorithm grid needs 16 multiprocessors, got 8")

    monkeypatch.setattr(persistent_worker, "on_hopper", lambda: False)
    assert run(iter([("good", lambda: None), ("refused", refuses)])) == []
    for none in ([("refused", refuses)], []):
        with pytest.raises(NoneRunsError):
            run(iter(none))
    monkeypatch.setattr(persistent_worker, "on_hopper", lambda: True)
    assert run(iter([("refused", refuses)])) == ["refused"]
    with pytest.raises(AssertionError, match="no case"):
        run(iter(()))


def test_a_thread_that_is_left_ends_no_process() -> None:
    """A process may end while other threads are running, such as autograd's."""
    assert "1 cases, 0 failed" in watch("leaves a thread")


def test_a_hang_is_ended() -> None:
    process = start("hangs")
    assert process.stdout is not None
    while "case forever" not in (line := process.stdout.readline()):
        assert line, "the process ended before the case began"
    with pytest.raises(pytest.fail.Exception, match="still running after 0.5 s"):
        finish(process, seconds=0.5)
    assert process.returncode is not None
