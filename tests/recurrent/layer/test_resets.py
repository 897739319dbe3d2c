"""The behaviour that users expect of `reset` and `reset_hx`. The tests in tests/laws also run the
cases of tests/recurrent/support/reset_cases.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import treadle
from tests.recurrent.support.layer_cases import BLOCKS, EACH_CELL
from tests.support.compare import differing, same_bits
from tests.support.inputs import DEVICES

T, B, INPUTS, H = 7, 3, 4, 5
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
# Resets at various steps; row 1 has none.
MARKS = torch.tensor([[t * 3 % 4 == 0, False, t in (2, 3, 6)] for t in range(T)])


def op_of(cell: str) -> Callable[..., Any]:
    return getattr(treadle, cell)  # type: ignore[no-any-return]


def given(cell: str, device: str, b: int = B, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    torch.manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).to(device, dtype)

    width = BLOCKS[cell] * H
    biases = (draw(width),) if cell == "lltm" else (draw(width), draw(width))
    states = (draw(1, b, H), draw(1, b, H))
    return {
        "x": draw(T, b, INPUTS),
        "hx": states[0] if cell not in ("lltm", "lstm") else states,
        "params": (draw(width, INPUTS), draw(width, H), *biases),
    }


def run(cell: str, x: Tensor, hx: Any, params: Any, **options: Any) -> tuple[Tensor, ...]:
    """Runs one layer; returns the output and all states."""
    found = op_of(cell)(x, hx, params, True, 1, 0.0, False, False, False, **options)
    output, *states = found
    return output, *states


def zeros(cell: str, like: Tensor) -> Any:
    state = like.new_zeros(1, like.shape[1], H)
    return state if cell not in ("lltm", "lstm") else (state, state)


@EACH_CELL
@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_batch_equals_its_pieces(cell: str, device: str, dtype: torch.dtype) -> None:
    """On the CPU the results are bitwise equal. This test makes the products of the input exact,
    because BLAS may sum in another order if there are fewer steps. On CUDA other products may also
    be summed in another order; persistent_resets.py tests the bits there."""
    one = given(cell, device, dtype=dtype)
    weight_ih, *params = one["params"]
    one["x"], weight_ih = ((t * 4).round() / 4 for t in (one["x"], weight_ih))
    one["params"] = (weight_ih, *params)
    x = one["x"].requires_grad_()
    at = 3
    marks = torch.zeros(T, B, dtype=torch.bool, device=device)
    marks[at] = True
    output, *last = run(cell, **one, reset=marks)
    (grad,) = torch.autograd.grad(output.sum(), x)
    first, *_ = run(cell, x[:at], one["hx"], one["params"])
    second, *end = run(cell, x[at:], zeros(cell, x), one["params"])
    pieces = torch.cat([first, second])
    (expected,) = torch.autograd.grad(pieces.sum(), x)
    bound = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    for ours, theirs in zip((output, *last), (pieces, *end), strict=True):
        if device == "cpu":
            same_bits(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, **bound)
    torch.testing.assert_close(grad, expected, **bound)
    assert differing(output, run(cell, **one)[0]).any()


@EACH_CELL
@EACH_DEVICE
def test_nan_stays_behind_a_reset(cell: str, device: str) -> None:
    """NaN and inf do not cross a reset, neither to later steps in the forward pass nor to earlier
    ones in the backward pass."""
    one = given(cell, device)
    marks = torch.zeros(T, B, dtype=torch.bool, device=device)
    marks[3] = True
    for bad in (float("nan"), float("inf")):
        x = one["x"].clone()
        x[2] = bad
        output, *last = run(cell, x, one["hx"], one["params"], reset=marks)
        same_bits(output[3:], run(cell, **one, reset=marks)[0][3:])
        assert all(state.isfinite().all() for state in last)
        x = one["x"].clone()
        x[4] = bad
        x.requires_grad_()
        output, *_ = run(cell, x, one["hx"], one["params"], reset=marks)
        (grad,) = torch.autograd.grad(output.sum(), x)
        good = one["x"].clone().requires_grad_()
        whole, *_ = run(cell, good, one["hx"], one["params"], reset=marks)
        (expected,) = torch.autograd.grad(whole.sum(), good)
        torch.testing.assert_close(grad[:3], expected[:3])


@EACH_CELL
@EACH_DEVICE
def test_a_mark_that_changes_before_backward_is_seen(cell: str, device: str) -> None:
    one = given(cell, device)
    marks = MARKS.to(device)
    output, *_ = run(cell, one["x"].requires_grad_(), one["hx"], one["params"], reset=marks)
    marks[1] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@EACH_CELL
@EACH_DEVICE
def test_marks_may_differ_between_samples_of_vmap(cell: str, device: str) -> None:
    one = given(cell, device)
    several = torch.stack([MARKS, ~MARKS, MARKS.roll(1, 0)]).to(device)

    def output(marks: Tensor) -> Tensor:
        return run(cell, **one, reset=marks)[0]

    found = torch.func.vmap(output)(several)
    torch.testing.assert_close(found, torch.stack([output(marks) for marks in several]))

    def gradient(x: Tensor, marks: Tensor) -> Tensor:
        return run(cell, x, one["hx"], one["params"], reset=marks)[0].sin().sum()

    per_sample = torch.func.vmap(torch.func.grad(gradient), (None, 0))(one["x"], several)
    each = [torch.func.grad(gradient)(one["x"], marks) for marks in several]
    torch.testing.assert_close(per_sample, torch.stack(each))


@EACH_CELL
@EACH_DEVICE
def test_compiled_for_any_length(cell: str, device: str) -> None:
    one = given(cell, device, dtype=torch.float32)

    def output(x: Tensor, marks: Tensor) -> Tensor:
        return run(cell, x, zeros(cell, x), one["params"], reset=marks)[0]

    torch._dynamo.reset()
    compiled = torch.compile(output, fullgraph=True, dynamic=True, backend="aot_eager")
    for t, b in ((T, B), (4, 2)):
        x = one["x"][:t, :b].clone().requires_grad_()
        marks = MARKS[:t, :b].to(device)
        found, expected = compiled(x, marks), output(x, marks)
        same_bits(found, expected)
        grads = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
        same_bits(*grads)


# ---- modules


def module(kind: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(2)
    theirs = getattr(nn, kind)(INPUTS, H, num_layers=2, dtype=torch.float64, **options)
    ours = getattr(treadle.nn, kind)(INPUTS, H, num_layers=2, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def by_pieces(net: nn.Module, x: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Runs torch's layers over each piece of a row [T, I] separately. Returns the output, and h
    after the last step of each direction."""
    cuts = [0, *(t for t in range(1, len(x)) if marks[t]), len(x)]
    found = [net(x[i:j]) for i, j in zip(cuts, cuts[1:], strict=False)]
    states = [hx[0] if isinstance(hx, tuple) else hx for _, hx in found]
    last = states[-1].clone()
    if net.bidirectional:
        last[1::2] = states[0][1::2]
    return torch.cat([output for output, _ in found]), last


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_modules_run_pieces_as_torch_does_one_by_one(kind: str, bidirectional: bool) -> None:
    """Tests stacked layers with one direction and with two, and inputs with the batch first or
    second, without a batch, and packed."""
    ours, theirs = module(kind, bidirectional=bidirectional)
    x = torch.randn(T, B, INPUTS, dtype=torch.float64)
    rows = [by_pieces(theirs, x[:, b], MARKS[:, b]) for b in range(B)]
    expected = torch.stack([output for output, _ in rows], 1)
    last = torch.stack([h for _, h in rows], 1)
    output, hx = ours(x, reset=MARKS)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(hx[0] if kind == "LSTM" else hx, last)
    alone, _ = ours(x[:, 2], reset=MARKS[:, 2])
    torch.testing.assert_close(alone, expected[:, 2])
    first, _ = module(kind, bidirectional=bidirectional, batch_first=True)
    output, _ = first(x.transpose(0, 1), reset=MARKS.T)
    torch.testing.assert_close(output, expected.transpose(0, 1))

    lengths = (4, 7, 2)
    packing: dict[str, Any] = {"lengths": lengths, "enforce_sorted": False}
    packed = pack_padded_sequence(x, **packing)
    marks = pack_padded_sequence(MARKS, **packing)
    rows = [by_pieces(theirs, x[:n, b], MARKS[:n, b]) for b, n in enumerate(lengths)]
    for each in (marks, marks.data):
        found, hx = ours(packed, reset=each)
        assert isinstance(found, PackedSequence)
        output, _ = pad_packed_sequence(found)
        for b, n in enumerate(lengths):
            torch.testing.assert_close(output[:n, b], rows[b][0])
        torch.testing.assert_close(
            hx[0] if kind == "LSTM" else hx, torch.stack([h for _, h in rows], 1)
        )


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "LLTM"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_states_to_start_with(kind: str, batch_first: bool) -> None:
    """One state per row gives the same results as repeating it for each step."""
    torch.manual_seed(3)
    net = getattr(treadle.nn, kind)(INPUTS, H, num_layers=2, batch_first=batch_first).double()
    x = torch.randn(T, B, INPUTS, dtype=torch.float64)
    states = [torch.randn(2, B, H, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def form(states: list[Tensor]) -> Any:
        return states[0] if kind == "GRU" else tuple(states)

    def turned(t: Tensor, dim: int = 0) -> Tensor:
        return t.transpose(dim, dim + 1) if batch_first else t

    every = [turned(s.unsqueeze(1).expand(2, T, B, H), 1) for s in states]
    options = {"reset": turned(MARKS)}
    by_row, _ = net(turned(x), reset_hx=form(states), **options)
    by_step, _ = net(turned(x), reset_hx=form(every), **options)
    same_bits(by_row, by_step)
    used = states[:1] if kind == "GRU" else states
    for one, other in zip(
        torch.autograd.grad(by_row.sum(), used),
        torch.autograd.grad(by_step.sum(), used),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    with_none, _ = net(turned(x), **options)
    zero, _ = net(turned(x), reset_hx=form([torch.zeros_like(s) for s in states]), **options)
    same_bits(with_none, zero)
    assert differing(by_row, zero).any()


def test_packed_rows_begin_anew_in_the_caller_s_order() -> None:
    ours, _ = module("GRU")
    x, start = torch.randn(T, B, INPUTS).double(), torch.randn(2, B, H).double()
    lengths = (4, 7, 2)
    packing: dict[str, Any] = {"lengths": lengths, "enforce_sorted": False}
    marks = pack_padded_sequence(MARKS, **packing)
    found, _ = ours(pack_padded_sequence(x, **packing), reset=marks, reset_hx=start)
    output, _ = pad_packed_sequence(found)
    for b, n in enumerate(lengths):
        one = {"reset": MARKS[:n, b], "reset_hx": start[:, b]}
        torch.testing.assert_close(output[:n, b], ours(x[:n, b], **one)[0])
