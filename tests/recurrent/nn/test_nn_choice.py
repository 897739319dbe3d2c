"""Tests when modules on a CPU call torch's op instead of treadle's kernels: LSTMs in bfloat16, and
cells in half types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import pack_padded_sequence

from tests.recurrent.nn.test_nn_rnn import flat, pair
from tests.support.rule import within_rule
from treadle.nn import GRUCell, LSTMCell, RNNCell, _cell_choice, _layer_choice, _projected_torch

BF16, FP16 = torch.bfloat16, torch.float16
T, B, H, FEATURES = 3, 16, 128, 5


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records each call of torch.lstm. The CPU is treated as one that multiplies bfloat16."""
    found: list[Any] = []

    def called(*args: Any) -> Any:
        found.append(args)
        return torch.lstm(*args)

    monkeypatch.setattr(_projected_torch, "torchs", called)
    monkeypatch.setattr(_layer_choice, "IN_HARDWARE", frozenset((BF16,)))
    return found


def made(hidden: int = H, rows: int = B, dtype: torch.dtype = BF16, **options: Any) -> Any:
    """Our layer, torch's, and an input."""
    ours, theirs = pair("LSTM", FEATURES, hidden, dtype=dtype, **options)
    return ours, theirs, torch.randn(T, rows, FEATURES, dtype=dtype)


@pytest.mark.parametrize("given", [False, True], ids=["", "hx"])
@pytest.mark.parametrize("form", ["padded", "packed", "no batch", "batch_first"])
def test_an_lstm_in_bfloat16_is_torchs(form: str, given: bool, calls: list[Any]) -> None:
    options = {"num_layers": 2, "bidirectional": True, "batch_first": form == "batch_first"}
    # Without a batch there is one row, so more units are needed.
    ours, theirs, x = made(256 if form == "no batch" else H, **options)
    hx = None
    if given:
        h0, c0 = torch.randn(2, 4, B, ours.hidden_size, dtype=BF16)
        hx = h0, c0
    rows: Any = x
    if form == "packed":
        rows = pack_padded_sequence(x, [T] * B)
    elif form == "batch_first":
        rows = x.transpose(0, 1)
    elif form == "no batch":
        rows, hx = x[:, 0], hx and tuple(t[:, 0] for t in hx)
    with torch.no_grad():
        found, expected = flat(ours(rows, hx)), flat(theirs(rows, hx))
    assert len(calls) == 1 and all(map(torch.equal, found, expected))


def test_sizes_and_dtypes_that_are_faster(calls: list[Any]) -> None:
    with torch.no_grad():
        for hidden, rows, dtype, torchs in (
            (H, B, BF16, True),
            (H, B - 1, BF16, False),
            (2 * H, 1, BF16, True),
            (H - 1, B, BF16, False),
            (H, B, FP16, False),
            (H, B, torch.float32, False),
        ):
            ours, _, x = made(hidden, rows, dtype)
            calls.clear()
            ours(x)
            assert len(calls) == int(torchs), (hidden, rows, dtype)
        gru, _ = pair("GRU", FEATURES, H, dtype=BF16)
        calls.clear()
        gru(x.bfloat16())
        assert calls == []


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch.lstm under autocast raises on this CPU",
)
def test_autocast(calls: list[Any]) -> None:
    ours, theirs, x = made(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", BF16):
        found, expected = flat(ours(x)), flat(theirs(x))
    assert len(calls) == 1 and all(map(torch.equal, found, expected))


def test_a_cpu_without_such_hardware(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _, x = made()
    monkeypatch.setattr(_layer_choice, "IN_HARDWARE", frozenset())
    with torch.no_grad():
        ours(x)
    assert calls == []


def test_calls_that_torchs_op_cannot_run(calls: list[Any]) -> None:
    ours, _, x = made()
    lengths, c = torch.full((B,), T), torch.zeros(1, B, H)
    with torch.no_grad():
        ours(x, lengths=lengths)
        ours(x, reset=torch.zeros(T, B, dtype=torch.bool))
        ours(x, return_cells=True)
        ours(x, (c.bfloat16(), c))
        torch.func.vmap(lambda one: ours(one)[0])(x[None])
        with forward_ad.dual_level():
            ours(forward_ad.make_dual(x, x))
    # oneDNN's op has no second derivatives.
    output = ours(x)[0]
    first = torch.autograd.grad(output.float().square().sum(), ours.weight_hh_l0, create_graph=True)
    second = torch.autograd.grad(first[0].float().square().sum(), ours.weight_hh_l0)[0]
    assert calls == [] and bool(second.isfinite().all())
    for parameter in ours.parameters():
        parameter.requires_grad_(False)
    ours(x.requires_grad_())
    assert calls == []
    ours(x.detach())
    assert len(calls) == 1


# ---- cells


def torchs_is_faster(kind: str, hidden: int, rows: int, dtype: torch.dtype, grad: bool) -> bool:
    x, h = torch.zeros(rows, FEATURES, dtype=dtype), torch.zeros(rows, hidden, dtype=dtype)
    weight = torch.zeros(1, dtype=dtype, requires_grad=grad)
    return _cell_choice.torchs_is_faster(kind, hidden, x, h, h, [weight])


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_cells_in_half_types(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cell_choice, "IN_HARDWARE", frozenset((dtype,)))
    assert torchs_is_faster(kind, H, B, dtype, grad=False)
    assert torchs_is_faster(kind, H, B, dtype, grad=True)
    assert not torchs_is_faster(kind, 64, B, dtype, grad=False)
    assert torchs_is_faster(kind, 32, 1, dtype, grad=False)
    # torch calls oneDNN, which takes long to begin, only in bfloat16 and from 33 units on.
    by_onednn = dtype == BF16 and not kind.startswith("rnn")
    assert torchs_is_faster(kind, 33, 1, dtype, grad=False) != by_onednn
    # Without the hardware, torch's products are several times slower, except those of a row.
    monkeypatch.setattr(_cell_choice, "IN_HARDWARE", frozenset())
    assert not torchs_is_faster(kind, H, B, dtype, grad=False)
    assert not torchs_is_faster(kind, H, B, dtype, grad=True)
    assert torchs_is_faster(kind, H, 1, dtype, grad=False)
    assert torchs_is_faster(kind, H, 1, dtype, grad=True) == kind.startswith("rnn")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cells_in_wide_types(dtype: torch.dtype) -> None:
    for kind, rows, grad, torchs in (
        ("lstm", 1, False, True),
        ("lstm", 1, True, True),
        ("lstm", 2, True, False),
        ("lstm", 255, False, True),
        ("lstm", 256, False, False),
        ("lstm", 15, True, False),
        ("lstm", 16, True, True),
        ("gru", 256, False, True),
        ("gru", 15, True, False),
        ("gru", 16, True, True),
        ("rnn_relu", 2, False, True),
        ("rnn_relu", 2, True, True),
    ):
        assert torchs_is_faster(kind, H, rows, dtype, grad) == torchs, (kind, rows, grad)
    assert torchs_is_faster("lstm", 64, 63, dtype, grad=False)
    assert not torchs_is_faster("lstm", 64, 64, dtype, grad=False)
    assert not torchs_is_faster("gru", 64, 1, dtype, grad=True)
    found: list[bool] = []

    def vmapped(x: Tensor) -> Tensor:
        h = x.new_zeros(1, H)
        found.append(_cell_choice.torchs_is_faster("gru", H, x, h, h, []))
        return x

    torch.func.vmap(vmapped)(torch.zeros(2, 1, FEATURES, dtype=dtype))
    torch.jit.trace(vmapped, torch.zeros(1, FEATURES, dtype=dtype), check_trace=False)
    assert found == [False, False]


def tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("module", [LSTMCell, GRUCell, RNNCell])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("rows", [1, B])
def test_both_ways_of_a_cell_agree(
    module: Any, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    cell = module(FEATURES, H, dtype=dtype)
    x, h = torch.randn(rows, FEATURES, dtype=dtype), torch.randn(rows, H, dtype=dtype)
    hx = (h, h) if module is LSTMCell else h
    exact = h.double()
    with torch.no_grad():
        truth = tensors(cell.double()(x.double(), (exact, exact) if module is LSTMCell else exact))
    cell.to(dtype)
    found: list[list[Tensor]] = []
    for hardware in (frozenset(), frozenset((dtype,))):
        monkeypatch.setattr(_cell_choice, "IN_HARDWARE", hardware)
        with torch.no_grad():
            found.append(tensors(cell(x, hx)))
    for ours, torchs, right in zip(*found, truth, strict=True):
        within_rule(ours, right, torchs, gradient=False, what=f"{module.__name__} {dtype}")
