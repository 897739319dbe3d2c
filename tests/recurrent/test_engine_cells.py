"""The algorithm "cluster" takes any cell: an LSTM and a GRU go through it as functors, and nothing
else is new. engine_cells.cu is compiled wherever there is a toolkit, and run where there is a GPU
of sm_90, in a process that has a minute."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import treadle
from tests.recurrent.engine_cells import GATES, INVALID_VALUE, KINDS, TOO_LARGE, Engine, Layer
from tests.recurrent.test_cuda_persistent import finish
from tests.support.inputs import HOPPER
from tests.support.installed import ROOT
from tools.native import cuda, host

EACH = pytest.mark.parametrize("cell", KINDS)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """engine_cells.cu for each cell."""
    torch_there = host.Torch.installed()
    toolkit = cuda.find(torch_there)
    if isinstance(toolkit, cuda.Missing):
        pytest.skip(toolkit.reason)
    folder = tmp_path_factory.mktemp("cells")
    files = {cell: folder / f"{cell}.so" for cell in KINDS}
    runtime = toolkit.libraries(torch_there)[0]
    command = [toolkit.nvcc, "-std=c++17", "-I.", "-arch=sm_90", "-shared", "-cudart=none"]
    command += [
        "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall",
        "tests/recurrent/engine_cells.cu",
        runtime,
    ]
    started = [
        subprocess.Popen(
            [*command, f"-DCELL={KINDS[c].functor}", f"-DTYPE={KINDS[c].type}", "-o", file],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for c, file in files.items()
    ]
    for process, said in [(p, p.communicate()[0]) for p in started]:
        assert process.returncode == 0, said
    return files


@EACH
def test_compiles(cell: str, libraries: dict[str, Path]) -> None:
    """Every kernel that fits; the others are refused, before CUDA is asked anything."""
    engine, nothing = Engine(libraries[cell]), [ctypes.c_void_p(None)] * 12
    for function, shapes in TOO_LARGE.items():
        for shape in shapes:
            assert engine.call(function, [1, 1, 1, 1, 8, 8, *shape, 8], *nothing) == INVALID_VALUE


@EACH
def test_functor(cell: str, libraries: dict[str, Path]) -> None:
    """On the host: its values and gradients are those of the formula."""
    one_unit = ctypes.CDLL(str(libraries[cell])).one_unit
    draws = torch.randn(200, GATES + 3, dtype=torch.float64) * 2
    results = (ctypes.c_double * (GATES + 3))()
    for draw in draws:
        gates = (ctypes.c_double * GATES)(*draw[:GATES].tolist())
        one_unit(gates, *(ctypes.c_double(x) for x in draw[GATES:].tolist()), results)
        gate_leaf, cell_leaf = draw[:GATES, None].requires_grad_(), draw[GATES, None]
        states = KINDS[cell].formula(gate_leaf, cell_leaf.requires_grad_())
        grads = torch.autograd.grad(states, [gate_leaf, cell_leaf], [*draw[GATES + 1 :, None]])
        expected = torch.cat([*states, *(g.flatten() for g in grads)]).detach()
        torch.testing.assert_close(torch.tensor(results, dtype=torch.float64), expected)


@EACH
def test_formula(cell: str) -> None:
    """It is torch.nn's layer, the GRU's with a candidate of two gates."""
    torch.manual_seed(1)
    kind, features, hidden = KINDS[cell], 5, 6
    theirs: nn.RNNBase = (nn.GRU if cell == "gru" else nn.LSTM)(
        features, hidden, bidirectional=True, dtype=torch.float64
    )
    valid = torch.arange(7)[:, None] < torch.tensor([7, 5, 5, 2, 1])
    x = torch.randn(int(valid.sum()), features, dtype=torch.float64)
    h0, c0 = torch.randn(2, 2, valid.shape[1], hidden, dtype=torch.float64)
    c0 = h0 if cell == "gru" else c0

    def gates(of_input: Tensor, of_h: Tensor) -> tuple[Tensor, Tensor]:
        """[..., GATES, H] of both."""
        of_input, of_h = (t.unflatten(-1, (-1, hidden)) for t in (of_input, of_h))
        if cell == "gru":
            none = torch.zeros_like(of_input[..., :1, :])
            of_input = torch.cat([of_input, none], dim=-2)
            none = torch.zeros_like(of_h[..., :1, :])
            of_h = torch.cat([of_h[..., :2, :], none, of_h[..., 2:, :]], dim=-2)
        return of_input, of_h

    products, weights, biases = [], [], []
    for suffix in ("_l0", "_l0_reverse"):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (getattr(theirs, name + suffix) for name in names)
        product, weight = gates(x @ w_ih.t(), w_hh.t())
        products.append(product)
        weights.append(weight.flatten(-2).t())
        biases.append(sum(gates(b_ih, b_hh)).flatten())
    stacked = [torch.stack(part) for part in (products, weights, biases)]
    h, _, h_n, c_n = Layer(kind.formula, valid, *stacked, h0, c0).run()

    sequence = PackedSequence(x, valid.sum(1))
    output, last = theirs(sequence, h0 if cell == "gru" else (h0, c0))
    torch.testing.assert_close(h.transpose(0, 1).flatten(1), output.data)
    for ours, other in zip((h_n, c_n), last if cell == "lstm" else (last, last), strict=True):
        torch.testing.assert_close(ours, other)


@HOPPER
@EACH
def test_runs(cell: str, libraries: dict[str, Path]) -> None:
    path = os.pathsep.join([str(Path(treadle.__file__).parents[1]), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.recurrent.engine_cells", str(libraries[cell]), cell],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    finish(process)
