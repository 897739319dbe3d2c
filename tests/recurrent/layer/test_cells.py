"""The cell states that a call with `return_cells` returns, compared with those of treadle.reference
and with c_n."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import treadle
from tests.recurrent.support.length_calls import (
    BOTH_WAYS,
    EACH_DEVICE,
    INPUTS,
    LENGTHS,
    MARKS,
    B,
    Given,
    H,
    T,
    against_reference,
    lengths,
    padding,
)
from tests.support.compare import same_bits
from tests.support.inputs import GPU

EACH_PAIR = pytest.mark.parametrize("cell", ["lltm", "lstm"])
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@EACH_DEVICE
@BOTH_WAYS
@EACH_PAIR
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["no resets", "none", "rows", "steps", "lengths"])
def test_by_the_rule(
    form: str, dtype: torch.dtype, cell: str, bidirectional: bool, device: str
) -> None:
    """Results and gradients of two stacked layers agree with treadle.reference by the rule of
    tests/support/rule.py."""
    given = Given(cell, bidirectional, 2, device, dtype)
    options: dict[str, Any] = {"return_cells": True}
    if form == "lengths":
        options["lengths"] = lengths(device)
    elif form != "no resets":
        options["reset"] = MARKS.to(device)
    starts = given.starts(form if form in ("rows", "steps") else "none")
    against_reference(given, starts, **options)


@EACH_DEVICE
@BOTH_WAYS
@EACH_PAIR
def test_the_last_cells_are_c_n(cell: str, bidirectional: bool, device: str) -> None:
    given = Given(cell, bidirectional, device=device)
    for options in ({}, {"lengths": lengths(device)}):
        output, h_n, c_n, cells = given.run(return_cells=True, **options)
        for ours, plain in zip((output, h_n, c_n), given.run(**options), strict=True):
            torch.testing.assert_close(ours, plain)
        assert cells.shape == output.shape
        for b, n in enumerate(LENGTHS if options else [T] * B):
            if n == 0:
                continue
            torch.testing.assert_close(cells[n - 1, b, :H], c_n[0, b])
            if bidirectional:
                torch.testing.assert_close(cells[0, b, H:], c_n[1, b])
        if options:
            assert bool((cells[padding(cells)] == 0).all())


@EACH_DEVICE
@BOTH_WAYS
@EACH_PAIR
def test_one_step_has_the_bits_of_c_n(cell: str, bidirectional: bool, device: str) -> None:
    for dtype in DTYPES:
        given = Given(cell, bidirectional, device=device, dtype=dtype)
        x, *rest = given.tensors()
        _, _, c_n, cells = given.run([x[:1], *rest], return_cells=True)
        same_bits(cells[0], torch.cat(list(c_n), dim=-1))


@EACH_DEVICE
@EACH_PAIR
def test_float32_cells_beside_halves(cell: str, device: str) -> None:
    given = Given(cell, device=device, dtype=torch.bfloat16)
    x, h0, c0, *params = given.tensors()
    _, _, c_n, cells = given.run([x, h0, c0.float(), *params], return_cells=True)
    assert c_n.dtype == cells.dtype == torch.float32
    torch.testing.assert_close(cells[-1], c_n[0], rtol=0.05, atol=0.05)


@EACH_DEVICE
@BOTH_WAYS
@pytest.mark.parametrize("kind", ["LLTM", "LSTM"])
def test_modules_in_every_form(kind: str, bidirectional: bool, device: str) -> None:
    """Two stacked layers with resets accept each form of input: batch first or second, a single
    row, packed rows."""
    torch.manual_seed(8)
    made: dict[str, Any] = {"num_layers": 2, "bidirectional": bidirectional, "device": device}
    net = getattr(treadle.nn, kind)(INPUTS, H, **made, dtype=torch.float64)
    x, marks = torch.randn(T, B, INPUTS).double().to(device), MARKS.to(device)
    start = tuple(torch.randn(4 if bidirectional else 2, B, H).double().to(device) for _ in "hc")
    steps = torch.tensor([n or 2 for n in LENGTHS])
    options: dict[str, Any] = {"return_cells": True, "reset": marks, "reset_hx": start}
    _, _, expected = net(x, lengths=steps.to(device), **options)
    net.batch_first = True
    _, _, found = net(x.transpose(0, 1), lengths=steps.to(device), **{**options, "reset": marks.T})
    torch.testing.assert_close(found.transpose(0, 1), expected)
    net.batch_first = False
    packing: dict[str, Any] = {"lengths": steps, "enforce_sorted": False}
    packed = {**options, "reset": pack_padded_sequence(marks, **packing)}
    _, _, cells = net(pack_padded_sequence(x, **packing), **packed)
    assert isinstance(cells, PackedSequence)
    torch.testing.assert_close(pad_packed_sequence(cells, total_length=T)[0], expected)
    one = {"reset": marks[:, 1], "reset_hx": tuple(s[:, 1] for s in start), "return_cells": True}
    _, _, alone = net(x[:, 1], **one)
    _, _, every = net(x, **options)
    torch.testing.assert_close(alone, every[:, 1])


@BOTH_WAYS
@EACH_PAIR
def test_derivatives_of_second_order(cell: str, bidirectional: bool) -> None:
    given = Given(cell, bidirectional)
    leaves = [given.x[:3, :2], *(s[:, :2] for s in given.states), *given.params]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]

    def call(*tensors: Tensor) -> Tensor:
        return given.run(list(tensors), return_cells=True, reset=MARKS[:3, :2])[-1]

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


@EACH_DEVICE
@BOTH_WAYS
@EACH_PAIR
def test_nan_stays_behind_a_reset(cell: str, bidirectional: bool, device: str) -> None:
    given = Given(cell, bidirectional, device=device)
    marks = torch.zeros(T, B, dtype=torch.bool, device=device)
    marks[3] = marks[4] = True
    good = given.run(reset=marks, return_cells=True)[-1]
    given.x[3] = float("nan")
    found = given.run(reset=marks, return_cells=True)[-1]
    others = [t for t in range(T) if t != 3]
    torch.testing.assert_close(found[others], good[others])


@EACH_DEVICE
@EACH_PAIR
def test_under_vmap_and_compiled(cell: str, device: str) -> None:
    given = Given(cell, True, device=device)
    several = torch.stack([given.x, given.x.flip(0), given.x * 2])

    def cells(x: Tensor) -> Tensor:
        return given.run([x, *given.tensors()[1:]], return_cells=True)[-1]

    each = torch.stack([cells(x) for x in several])
    torch.testing.assert_close(torch.func.vmap(cells)(several), each)
    torch._dynamo.reset()
    compiled = torch.compile(cells, fullgraph=True, dynamic=True, backend="aot_eager")
    for t in (T, 4):
        torch.testing.assert_close(compiled(given.x[:t]), cells(given.x[:t]))


@GPU
@EACH_PAIR
def test_a_captured_graph_on_cuda(cell: str) -> None:
    given = Given(cell, True, device="cuda", dtype=torch.float32)
    steps = lengths("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        given.run(return_cells=True, lengths=steps)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = given.run(return_cells=True, lengths=steps)
    steps.copy_(lengths("cuda").flip(0))
    graph.replay()
    for one, other in zip(found, given.run(return_cells=True, lengths=steps), strict=True):
        same_bits(one, other)
