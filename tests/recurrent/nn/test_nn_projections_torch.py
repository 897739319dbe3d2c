"""Tests when treadle.nn.LSTM with projections runs torch's ops instead of treadle's kernels, and
the results of a single step on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from tests.recurrent.nn.test_nn_projections import FORMS, B, H, I, pair, states
from tests.recurrent.nn.test_nn_rnn import close, flat, results
from tests.support.inputs import FLOATING
from tests.support.rule import within_rule
from treadle.nn import _projected_torch, _torch_front

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def calls_of_torchs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def called(*args: Any) -> Any:
        calls.append(args)
        return torch.lstm(*args)

    monkeypatch.setattr(_projected_torch, "torchs", called)
    return calls


LONG = (128, 1, 64, 32)  # T, B, H, P: torch's ops have far more overhead than work
WIDE = (4, 64, 256, 64)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_which_way_a_cpu_takes(packed: bool, given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of_torchs(monkeypatch)
    for sizes, torchs in ((LONG, False), (WIDE, True), ((1, *LONG[1:]), True)):
        steps, rows, hidden, projection = sizes
        for batch_first in (False, True):
            options = {"proj_size": projection, "batch_first": batch_first, "bidirectional": True}
            layer, other = pair(I, hidden, 2, **options)
            x = torch.randn(steps, rows, I, dtype=torch.float64)
            x = x.transpose(0, 1) if batch_first else x
            rows_of = pack_padded_sequence(x, [steps] * rows, batch_first) if packed else x
            hx = states(layer, rows) if given else None
            calls.clear()
            close(results(layer, rows_of, hx), results(other, rows_of, hx))
            assert len(calls) == int(torchs)


def test_what_torchs_op_cannot_do_takes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, rows, hidden, projection = WIDE
    layer, _ = pair(I, hidden, proj_size=projection, dtype=torch.bfloat16)
    calls = calls_of_torchs(monkeypatch)
    x, (h0, c0) = torch.randn(steps, rows, I).bfloat16(), states(layer, rows)
    marks = torch.zeros(steps, rows, dtype=torch.bool)
    layer(x, lengths=torch.full((rows,), steps))
    layer(x, reset=marks)
    layer(x, return_cells=True)
    layer(x, (h0, c0.float()))
    torch.func.vmap(lambda one: layer(one)[0])(x[None])
    layer.recompute = True
    layer(x)
    assert calls == []
    layer.recompute = False
    layer(x)
    assert len(calls) == 1


def counted_cells(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records each call of torch's fused cell."""
    calls, cell = [], _projected_torch.fused_cell

    def called(*args: Any) -> Any:
        calls.append(args)
        return cell(*args)

    monkeypatch.setattr(_projected_torch, "fused_cell", called)
    return calls


@NEEDS_GPU
@FORMS
def test_a_single_step_on_a_gpu(form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is torch's fused cell, with the results and all derivatives of nn.LSTM on a CPU."""
    calls = counted_cells(monkeypatch)
    ours, theirs = pair(I, H, **form)
    gpu = copy.deepcopy(ours).cuda()
    x = torch.randn(*((B, 1) if form["batch_first"] else (1, B)), I, dtype=torch.float64)
    rows = pack_padded_sequence(x, [1] * B, form["batch_first"])
    cells = form["num_layers"] * (2 if form["bidirectional"] else 1)
    for data, moved in ((x, x.cuda()), (rows, rows.to("cuda"))):
        for hx in (None, states(ours, B)):
            given = None if hx is None else tuple(t.cuda() for t in hx)
            calls.clear()
            found = results(gpu, moved, given)
            assert len(calls) == cells
            close([t.cpu() for t in found], results(theirs, data, hx))
    leaves = [x.cuda(), *(t.cuda() for t in states(ours, B))]
    leaves = [t.requires_grad_() for t in leaves]

    def run(x: Tensor, *hx: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(gpu(x, hx)))

    assert torch.autograd.gradcheck(run, leaves) and torch.autograd.gradgradcheck(run, leaves)


@NEEDS_GPU
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("given", [False, True])
def test_a_single_step_is_as_exact_as_torchs(dtype: torch.dtype, given: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(33, 65, 2, bidirectional=True, proj_size=20, device="cuda", dtype=dtype)
    truth = copy.deepcopy(theirs).double()
    x = torch.randn(1, 17, 33, device="cuda", dtype=dtype)
    hx = states(ours, 17) if given else None
    wide = None if hx is None else tuple(t.double() for t in hx)
    runs = results(ours, x, hx), results(truth, x.double(), wide), results(theirs, x, hx)
    for n, each in enumerate(zip(*runs, strict=True)):
        within_rule(*each, gradient=n >= 3, what=f"result {n}")


@NEEDS_GPU
def test_dropout_between_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops the elements that run_projected drops, which test_dropout compares with torch's."""
    layer, _ = pair(I, H, 3, dropout=0.5, device="cuda")
    x, calls = torch.randn(1, B, I, device="cuda", dtype=torch.float64), counted_cells(monkeypatch)
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(5)
        found = flat(layer(x))
        assert len(calls) == 3
        with monkeypatch.context() as patch:
            patch.setattr(_torch_front, "torchs_is_faster", lambda *_: False)
            torch.manual_seed(5)
            close(found, flat(layer(x)))
        calls.clear()


@NEEDS_GPU
def test_single_steps_that_torchs_cell_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_cells(monkeypatch)
    layer, _ = pair(I, H, device="cuda", dtype=torch.bfloat16)
    x, (h0, c0) = torch.randn(1, B, I, device="cuda").bfloat16(), states(layer, B)
    layer(x, lengths=torch.ones(B, dtype=torch.int64, device="cuda"))
    layer(x, reset=torch.zeros(1, B, dtype=torch.bool, device="cuda"))
    layer(x, return_cells=True)
    layer(x, (h0, c0.float()))
    torch.func.vmap(lambda one: layer(one)[0])(x[None])
    torch.func.jvp(lambda one: layer(one)[0], (x,), (x,))
    with torch.autocast("cuda", torch.bfloat16):
        layer(x)
    with torch.autograd.forward_ad.dual_level():
        layer(torch.autograd.forward_ad.make_dual(x, x))
    layer(torch.cat([x, x]))
    layer(x[:, :0])
    layer.recompute = True
    layer(x)
    layer.recompute = False
    assert calls == []
    layer(x)
    assert len(calls) == 1
