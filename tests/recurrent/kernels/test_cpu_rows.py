"""On the CPU, a row gives the same bits by itself, in any batch, step by step, and with any number
of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.threads import threads

STEPS, BATCH, INPUTS = 6, 13, 21
# So many rows that each step computes its product with the input.
MANY = 40
# Enough work for several threads, which divide the units, because there are few blocks of rows.
HIDDEN, FEW = 328, 9


def rows(layer: torch.nn.RNNBase, x: Tensor, h: Tensor) -> list[Tensor]:
    """The output, and the gradient of h0 for a loss with different weights for each step."""
    h = h.detach().requires_grad_()
    states = h if isinstance(layer, torch.nn.GRU) else (h, torch.ones_like(h))
    output = layer(x, states)[0]
    weights = torch.linspace(0, 1, STEPS, dtype=x.dtype).view(-1, 1, 1)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), h)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [3, 16, 33, 64, 130])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "LLTM"])
def test_a_row_has_its_bits_in_any_batch(cell: str, hidden: int, dtype: torch.dtype) -> None:
    layer = getattr(treadle.nn, cell)(INPUTS, hidden, dtype=dtype)
    x = torch.randn(STEPS, BATCH, INPUTS, dtype=dtype)
    h = torch.randn(1, BATCH, hidden, dtype=dtype)
    together = rows(layer, x, h)
    for count in (1, 2, 3, 4, 5, 6, 8):
        parts = zip(x.split(count, 1), h.split(count, 1), strict=True)
        apart = zip(*(rows(layer, *part) for part in parts), strict=True)
        for whole, found in zip(together, apart, strict=True):
            assert torch.equal(torch.cat(found, 1), whole), count


def step_by_step(layer: torch.nn.RNNBase, x: Tensor) -> Tensor:
    """The output of a call for each step."""
    state, outputs = None, []
    for row in x:
        output, state = layer(row[None], state)
        outputs.append(output)
    return torch.cat(outputs)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("hidden", [7, 64, 100])
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [
        ("LSTM", torch.float32),
        ("LSTM", torch.float16),
        ("GRU", torch.float64),
        ("GRU", torch.bfloat16),
        ("RNN", torch.float32),
        ("SLSTM", torch.float32),
    ],
    ids=str,
)
def test_a_row_has_its_bits_step_by_step(
    cell: str, dtype: torch.dtype, hidden: int, grad: bool
) -> None:
    """The products with the input are computed in each step for many rows, before all steps for few
    rows, and together with h for one step. In half types, a call rounds the states that it returns,
    so steps one by one have other bits."""
    layer = getattr(treadle.nn, cell)(INPUTS, hidden, dtype=dtype)
    x = torch.randn(STEPS, MANY, INPUTS, dtype=dtype)
    with threads(2), torch.set_grad_enabled(grad):
        whole = layer(x)[0]
        for count in (1, 3, MANY):
            parts = x.split(count, 1)
            assert torch.equal(torch.cat([layer(part)[0] for part in parts], 1), whole), count
            if dtype.itemsize >= 4:
                apart = torch.cat([step_by_step(layer, part) for part in parts], 1)
                assert torch.equal(apart, whole), count


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_more_rows_than_fit_into_the_cache(cell: str) -> None:
    """With long rows, a step computes all units of some rows before those of others."""
    layer = getattr(treadle.nn, cell)(700, 1030)
    x = torch.randn(2, 120, 700)
    with torch.no_grad():
        whole, last = layer(x)
        for first in (0, 40, 80):
            found, own = layer(x[:, first : first + 40])
            assert torch.equal(found, whole[:, first : first + 40]), first
            ours, theirs = (t[0] if isinstance(t, tuple) else t for t in (own, last))
            assert torch.equal(ours, theirs[:, first : first + 40]), first


def module(cell: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return getattr(treadle.nn, cell)(INPUTS, HIDDEN, dtype=dtype)


def results(layer: Any, batch: int, ragged: bool, resets: bool) -> list[Tensor]:
    """The output, the last states, and the gradients of the first states, which ATen's products do
    not change."""
    torch.manual_seed(1)
    dtype = layer.weight_ih_l0.dtype
    x = torch.randn(STEPS, batch, INPUTS, dtype=dtype)
    states = [torch.randn(1, batch, HIDDEN, dtype=dtype, requires_grad=True)]
    if isinstance(layer, (torch.nn.LSTM, treadle.nn.SLSTM)):
        more = 1 if isinstance(layer, torch.nn.LSTM) else 3
        states += [torch.rand(1, batch, HIDDEN, dtype=dtype, requires_grad=True)] * more
    options: dict[str, Any] = {}
    if resets:
        reset = torch.rand(STEPS, batch) < 0.4
        options = {"reset": reset, "reset_hx": states if len(states) > 1 else states[0]}
    given: Any = x
    if ragged:
        lengths = torch.arange(batch) % STEPS + 1
        given = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        if resets:
            packed = torch.nn.utils.rnn.pack_padded_sequence(reset, lengths, enforce_sorted=False)
            options["reset"] = packed
    output, last = layer(given, tuple(states) if len(states) > 1 else states[0], **options)
    data = output.data if ragged else output
    last = last if isinstance(last, tuple) else (last,)
    loss = (data * torch.linspace(0, 1, HIDDEN, dtype=dtype)).sum() + sum(t.sum() for t in last)
    return [data, *last, *torch.autograd.grad(loss, states)]


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("batch", [1, FEW])
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [
        ("LSTM", torch.float32),
        ("LSTM", torch.bfloat16),
        ("GRU", torch.float64),
        ("RNN", torch.float32),
        ("SLSTM", torch.float32),
    ],
    ids=str,
)
def test_any_number_of_threads(
    cell: str, dtype: torch.dtype, batch: int, ragged: bool, resets: bool
) -> None:
    layer = module(cell, dtype)
    with threads(1):
        expected = results(layer, batch, ragged, resets)
    for count in (2, 3, 5, 16):
        for _ in range(3):
            with threads(count):
                found = results(layer, batch, ragged, resets)
            assert all(map(torch.equal, found, expected)), count


def test_fewer_threads_than_parts() -> None:
    """OpenMP may start fewer threads than it was asked for. A thread then computes several parts of
    the same rows."""
    code = (
        "from tests.recurrent.kernels import test_cpu_rows as t\n"
        "import torch\n"
        "t.test_any_number_of_threads('LSTM', torch.float32, t.FEW, True, True)\n"
        "t.test_any_number_of_threads('GRU', torch.float64, 1, False, False)\n"
    )
    for limit in ("1", "2", "3"):
        env = {**os.environ, "OMP_THREAD_LIMIT": limit, "OMP_DYNAMIC": "false"}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
