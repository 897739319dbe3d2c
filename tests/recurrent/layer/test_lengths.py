"""Rows of variable length: calls with `lengths` are compared with torch's packed batches and with
treadle.reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import treadle
from tests.recurrent.support.layer_cases import EACH_CELL
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
    with_gradients,
)
from tests.support.compare import differing, same_bits

NAN = float("nan")


@EACH_DEVICE
@BOTH_WAYS
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_as_torch_s_packed_batches(
    kind: str, bidirectional: bool, batch_first: bool, dtype: torch.dtype, device: str
) -> None:
    """Compares values and gradients of two stacked layers. Every row has a step, because torch
    cannot pack empty rows."""
    torch.manual_seed(6)
    sizes = {"num_layers": 2, "bidirectional": bidirectional, "batch_first": batch_first}
    made: dict[str, Any] = {**sizes, "dtype": torch.float64, "device": device}
    theirs, ours = (
        getattr(nn, kind)(INPUTS, H, **made),
        getattr(treadle.nn, kind)(INPUTS, H, **made),
    )
    ours.load_state_dict(theirs.state_dict())
    steps = torch.tensor([n or 2 for n in LENGTHS])
    x = torch.randn((B, T, INPUTS) if batch_first else (T, B, INPUTS)).double().to(device)
    count = 4 if bidirectional else 2
    states = [torch.randn(count, B, H).double().to(device) for _ in range(2)]

    def found(net: nn.Module) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, *states[: 2 if kind == "LSTM" else 1])]
        hx = leaves[1] if kind == "GRU" else tuple(leaves[1:])
        if net is ours:
            output, last = net(leaves[0], hx, lengths=steps.to(device, dtype))
        else:
            packing: dict[str, Any] = {"batch_first": batch_first, "enforce_sorted": False}
            packed, last = net(pack_padded_sequence(leaves[0], steps, **packing), hx)
            output, _ = pad_packed_sequence(packed, batch_first, total_length=T)
        results = [output, *((last,) if kind == "GRU" else last)]
        loss = sum((t.sin() * (1 + n)).sum() for n, t in enumerate(results))
        return [*results, *torch.autograd.grad(loss, [*leaves, *net.parameters()])]

    for one, other in zip(found(ours), found(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@EACH_DEVICE
@BOTH_WAYS
@EACH_CELL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["no resets", "none", "rows", "steps"])
def test_by_the_rule(
    form: str, dtype: torch.dtype, cell: str, bidirectional: bool, device: str
) -> None:
    """Results agree with the reference, with resets and all kinds of replacement states."""
    given = Given(cell, bidirectional, 2, device, dtype)
    options: dict[str, Any] = {} if form == "no resets" else {"reset": MARKS.to(device)}
    starts = given.starts("none" if form == "no resets" else form)
    against_reference(given, starts, lengths=lengths(device), **options)


@EACH_DEVICE
@BOTH_WAYS
def test_relu_grows_after_a_row(bidirectional: bool, device: str) -> None:
    """If the steps in the padding ran, h would grow to inf, and its slope times a gradient of zero
    would be NaN."""
    layer = treadle.nn.RNN(
        1, 2, bias=False, nonlinearity="relu", bidirectional=bidirectional, device=device
    )
    weights = list(layer.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.copy_(1.3 * torch.eye(2)[:, : weight.size(1)].to(device) + 0.01)
    x = torch.ones(400, 1, 1, device=device)
    hx = torch.ones(len(weights) // 2, 1, 2, device=device)
    found = layer(x, hx, lengths=torch.tensor([5], device=device))
    alone = layer(x[:5], hx)
    torch.testing.assert_close(found[0][:5], alone[0])
    torch.testing.assert_close(found[1], alone[1])
    grads = [torch.autograd.grad(o.sum() + h.sum(), weights) for o, h in (found, alone)]
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected)


@EACH_DEVICE
@BOTH_WAYS
@EACH_CELL
@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_the_padding_is_not_read(bad: float, cell: str, bidirectional: bool, device: str) -> None:
    """Inputs and replacement states in the padding, and initial states of empty rows, have no
    effect on other results."""
    given = Given(cell, bidirectional, 2, device)
    starts = given.starts("steps")
    options = {"reset": MARKS.to(device), "lengths": lengths(device)}
    beyond, empty = padding(given.x), LENGTHS.index(0)
    good = with_gradients(given, torch.float64, starts, **options)
    assert bool(all(t.isfinite().all() for t in good))
    given.x[beyond] = bad
    for state in given.states:
        state[:, empty] = bad
    for start in starts:
        start[:, beyond] = bad
    found = with_gradients(given, torch.float64, starts, **options)
    results = given.count + 1
    same_bits(found[0], good[0])
    for ours, expected in zip(found[1:results], good[1:results], strict=True):
        assert bool(differing(ours, expected)[:, empty].all())  # h_n is h0, and c_n is c0
        same_bits(ours.index_fill(1, torch.tensor(empty, device=device), 0),
                  expected.index_fill(1, torch.tensor(empty, device=device), 0))  # fmt: skip
    for ours, expected in zip(found[results:], good[results:], strict=True):
        same_bits(ours, expected)
    assert bool((found[results][beyond] == 0).all())
    assert bool((found[0][beyond] == 0).all())


@EACH_DEVICE
@BOTH_WAYS
@EACH_CELL
def test_rows_without_steps_end_as_they_begin(cell: str, bidirectional: bool, device: str) -> None:
    given = Given(cell, bidirectional, device=device)
    for none in (torch.zeros(B, dtype=torch.int64), torch.full((B,), -3)):
        output, *last = given.run(lengths=none.to(device))
        assert bool((output == 0).all())
        for state, begin in zip(last, given.states, strict=True):
            same_bits(state, begin)
    x, *rest = given.tensors()
    output, *last = given.run([x[:0], *rest], lengths=lengths(device))
    assert output.shape[0] == 0
    for state, begin in zip(last, given.states, strict=True):
        same_bits(state, begin)


@EACH_DEVICE
@BOTH_WAYS
@EACH_CELL
def test_the_nearest_length_counts(cell: str, bidirectional: bool, device: str) -> None:
    given = Given(cell, bidirectional, device=device)
    beyond = torch.tensor([-1, T + 1, 2**40, -(2**40), 3], device=device)
    within = torch.tensor([0, T, T, 0, 3], device=device)
    for one, other in zip(given.run(lengths=beyond), given.run(lengths=within), strict=True):
        same_bits(one, other)
    full = torch.full((B,), T, device=device)
    for one, other in zip(given.run(lengths=full), given.run(), strict=True):
        torch.testing.assert_close(one, other)


@EACH_DEVICE
@EACH_CELL
def test_states_do_not_change_in_the_padding(cell: str, device: str) -> None:
    """In one direction and in any dtype, h_n equals a row's last output, and c_n equals that of a
    call with only the row's steps."""
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        given = Given(cell, device=device, dtype=dtype)
        output, *last = given.run(lengths=lengths(device))
        x, *rest = given.tensors()
        for b, n in enumerate(LENGTHS):
            if n == 0:
                continue
            same_bits(last[0][0, b], output[n - 1, b])
            _, *end = given.run([x[:n], *rest])
            for state, expected in zip(last, end, strict=True):
                torch.testing.assert_close(state[:, b], expected[:, b])


@BOTH_WAYS
@EACH_CELL
def test_derivatives_of_second_order(cell: str, bidirectional: bool) -> None:
    given = Given(cell, bidirectional)
    steps, rows = torch.tensor([2, 0, 3]), 3
    leaves = [given.x[:3, :rows], *(s[:, :rows] for s in given.states), *given.params]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return given.run(list(tensors), lengths=steps, reset=MARKS[:3, :rows])

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("kind", ["LLTM", "LSTM", "GRU"])
def test_modules_drop_between_layers_and_run_without_a_batch(kind: str) -> None:
    torch.manual_seed(7)
    net = getattr(treadle.nn, kind)(INPUTS, H, num_layers=2, dropout=1.0).double()
    x = torch.randn(T, B, INPUTS).double()
    dropped, _ = net(x, lengths=lengths())
    same = [dropped[:n, b] for b, n in enumerate(LENGTHS)]
    assert all(bool((dropped[n:, b] == 0).all()) for b, n in enumerate(LENGTHS))
    other, _ = net(x + 1, lengths=lengths())
    for b, n in enumerate(LENGTHS):
        same_bits(other[:n, b], same[b])  # the input has no effect
    net.eval()
    output, last = net(x, lengths=lengths())
    for b, n in enumerate(LENGTHS):
        alone, end = net(x[:, b], lengths=torch.tensor(n))
        torch.testing.assert_close(alone, output[:, b])
        for one, every in zip(
            [end] if kind == "GRU" else end, [last] if kind == "GRU" else last, strict=True
        ):
            torch.testing.assert_close(one, every[:, b])


@pytest.mark.parametrize("kind", ["LLTM", "LSTM", "GRU"])
def test_autocast_gives_the_dtypes_of_a_call_without_lengths(kind: str) -> None:
    net = getattr(treadle.nn, kind)(INPUTS, H, bidirectional=True)
    x = torch.randn(T, B, INPUTS)
    with torch.autocast("cpu", torch.bfloat16):
        found, plain = net(x, lengths=lengths()), net(x)
    states = [[r[1]] if kind == "GRU" else r[1] for r in (found, plain)]
    assert [t.dtype for t in (found[0], *states[0])] == [t.dtype for t in (plain[0], *states[1])]
    expected = net(x, lengths=lengths())
    torch.testing.assert_close(found[0].float(), expected[0], rtol=0.05, atol=0.05)
