"""Cells that are defined by formulas, on a GPU. Most tests run a group of cases with each algorithm
in a separate process, which is killed if a kernel hangs, as for the built-in cells
(tests/recurrent/kernels/test_cuda_persistent.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import treadle
from tests.recurrent.formula import cells
from tests.recurrent.kernels.persistent_calls import DTYPES
from tests.recurrent.kernels.test_cuda_persistent import PERSISTENT, watch
from tests.recurrent.support.formula_cases import CELLS
from tests.support.inputs import GPU, HOPPER, SM80
from tests.support.installed import ROOT

# The time limit of a process. It includes compilation: a kernel is compiled when a case first
# needs it.
SECONDS = 400
EACH = pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [*((a, d) for a, d in PERSISTENT if a != "tiles"), *(("step", d) for d in DTYPES)],
)
EACH_CELL = pytest.mark.parametrize("cell", [cell.key for cell in CELLS])


@SM80
@EACH
@EACH_CELL
@pytest.mark.parametrize("group", ["cases", "large"])
def test_by_the_rule_of_all_ops(group: str, cell: str, algorithm: str, dtype: str) -> None:
    watch(group, algorithm, dtype, cell, seconds=SECONDS)


@SM80
@EACH
@EACH_CELL
def test_resets(cell: str, algorithm: str, dtype: str) -> None:
    watch("reset bits", algorithm, dtype, cell, seconds=SECONDS)


@HOPPER
@EACH_CELL
@pytest.mark.parametrize("dtype", DTYPES)
def test_algorithms_agree(dtype: str, cell: str) -> None:
    watch("agree", dtype, cell, seconds=SECONDS)


@GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_whose_capture_is_the_first_call(dtype: torch.dtype) -> None:
    """The kernels are compiled and loaded during the capture."""

    def fresh(a: object, b: object, h: object) -> object:
        return torch.tanh(a + 0.25 * h) * torch.sigmoid(b)  # type: ignore[operator, arg-type]

    cell = treadle.Cell(f"fresh_{str(dtype)[6:]}", gates=("a", "b"), forward=fresh)
    layer = treadle.nn.Recurrent(cell, 8, 64, device="cuda", dtype=dtype)
    x = torch.randn(9, 4, 8, device="cuda", dtype=dtype)
    (x[0] @ x[0].t()).sum()  # initialises cuBLAS before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        output, _ = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(output, layer(x)[0])


@GPU
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    code = (
        "import torch, treadle; from tests.recurrent.formula import cells;"
        "layer = treadle.nn.Recurrent(cells.LIGRU, 8, 64, device='cuda');"
        "x = torch.randn(9, 4, 8, device='cuda');"
        "layer(x)[0].sum().backward(); print(layer.weight_hh_l0.grad.isfinite().all().item())"
    )
    environment = {**os.environ, "TREADLE_CELLS": str(tmp_path / "cells")}
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "True"
        said.append(done.stderr)
    assert "treadle: compiled " in said[0] and " of ligru_" in said[0], said[0]
    assert "compiled" not in said[1], said[1]


@GPU
def test_a_compiler_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle._formula import nvrtc

    def missing() -> None:
        raise RuntimeError("libnvrtc.so.13 was not found: install a CUDA build of torch")

    monkeypatch.setattr(nvrtc, "_nvrtc", missing)
    cell = treadle.Cell("late", gates=("a",), forward=lambda a, h: torch.sin(a) + 0.125 * h)
    layer = treadle.nn.Recurrent(cell, 8, 32, device="cuda")
    with pytest.raises(RuntimeError, match="late_.*: libnvrtc.so.13 was not found"):
        layer(torch.randn(9, 4, 8, device="cuda"))


@GPU
def test_which_kernels_run() -> None:
    """The planner treats cells of formulas like the built-in cells."""
    from tests.recurrent.kernels.persistent_calls import kernels

    layer = treadle.nn.Recurrent(cells.LIGRU, 8, 256, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(32, 4, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    found = kernels(lambda: layer(x)[0].sum().backward())
    assert not {"step", "warp", "tiles"} & set(found), found
    names = [name for group in found.values() for name in group]
    assert sum("_forward" in name for name in names) == 1, names
    assert sum("_backward" in name for name in names) == 1, names
