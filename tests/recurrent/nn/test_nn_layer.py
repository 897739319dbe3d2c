"""treadle.nn.LLTM follows the conventions of nn.LSTM: shapes, names, states, copies."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.testing._internal import common_modules

from tests.support.inputs import DEVICES, FLOATING, HALVES
from treadle.nn import LLTM

T, B, I, H = 3, 4, 5, 7  # noqa: E741
FLAGS = ("bias", "batch_first", "bidirectional")


def forms() -> Iterator[dict[str, Any]]:
    for layers, *flags in itertools.product((1, 2), *[(False, True)] * len(FLAGS)):
        yield {"num_layers": layers, **dict(zip(FLAGS, flags, strict=True))}


def flat(result: Any) -> list[Tensor]:
    output, (h, c) = result
    return [output.data if isinstance(output, PackedSequence) else output, h, c]


def same_kind(ours: Any, theirs: Any) -> None:
    assert type(ours[0]) is type(theirs[0]) and isinstance(ours[1], tuple)
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [None, 0, 1, B])
def test_shapes_are_those_of_lstm(device: str, batch: int | None) -> None:
    for form in forms():
        ours, theirs = (kind(I, H, **form, device=device) for kind in (LLTM, nn.LSTM))
        sizes = () if batch is None else (batch,)
        shape = (*sizes, T, I) if form["batch_first"] else (T, *sizes, I)
        x = torch.randn(shape, device=device)
        count = form["num_layers"] * (1 + form["bidirectional"])
        state = torch.randn(count, *sizes, H, device=device)
        for hx in (None, (state, state), [state, state]):
            same_kind(ours(x, hx), theirs(x, hx))
        if batch == B:
            packed = pack_padded_sequence(
                x, torch.tensor([1, 3, 2, 3]), form["batch_first"], enforce_sorted=False
            )
            same_kind(ours(packed), theirs(packed))
            same_kind(ours(packed, (state, state)), theirs(packed, (state, state)))


@pytest.mark.parametrize("device", DEVICES)
def test_no_steps_change_nothing(device: str) -> None:
    """With T = 0 the layer returns the initial states, whereas nn.LSTM raises."""
    for form in forms():
        layer = LLTM(I, H, **form, device=device)
        count = form["num_layers"] * (1 + form["bidirectional"])
        width = H * (1 + form["bidirectional"])
        shape = (B, 0) if form["batch_first"] else (0, B)
        hx = tuple(torch.randn(count, B, H, device=device, requires_grad=True) for _ in range(2))
        output, last = layer(torch.randn(*shape, I, device=device), hx)
        assert output.shape == (*shape, width)
        for before, after in zip(hx, last, strict=True):
            assert torch.equal(before, after)
        (last[0].sum() + 2 * last[1].sum()).backward()
        assert (hx[0].grad == 1).all() and (hx[1].grad == 2).all()
        output, (h, c) = layer(torch.randn(0, I, device=device))
        assert output.shape == (0, width) and not h.any() and not c.any()


def samples(dtype: torch.dtype = torch.float64) -> list[common_modules.ModuleInput]:
    return common_modules.module_inputs_torch_nn_LSTM(None, "cpu", dtype, False, training=True)


def test_module_samples_of_lstm() -> None:
    """Without a batch dimension, shapes equal those of nn.LSTM, and values equal those of a batch
    with one row."""
    assert len(samples()) == 32
    for sample in samples():
        options = sample.constructor_input.kwargs
        proj_size = options.pop("proj_size")
        if proj_size:
            with pytest.raises(TypeError, match="proj_size"):
                LLTM(**options, proj_size=proj_size)
            continue
        ours, theirs = (kind(**options, dtype=torch.float64) for kind in (LLTM, nn.LSTM))
        args = sample.forward_input.args
        result = ours(*args)
        same_kind(result, theirs(*args))
        batched = sample.reference_fn(ours, *args)
        torch.testing.assert_close(flat(result), flat(batched), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_states_start_in_the_dtype_of_the_input(device: str, dtype: torch.dtype) -> None:
    layer = LLTM(I, H, device=device, dtype=dtype)
    x = torch.randn(T, B, I, device=device, dtype=dtype)
    assert {t.dtype for t in flat(layer(x))} == {dtype}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_a_float32_cell_state_stays_float32(device: str, dtype: torch.dtype) -> None:
    layer = LLTM(I, H, num_layers=2, device=device, dtype=dtype)
    x, h = (torch.randn(n, B, m, device=device, dtype=dtype) for n, m in ((T, I), (2, H)))
    c = torch.full((2, B, H), 1e4, device=device)
    output, (h_n, c_n) = layer(x, (h, c))
    assert (output.dtype, h_n.dtype, c_n.dtype) == (dtype, dtype, torch.float32)
    # Near 10,000, float16 and bfloat16 would lose this change to rounding.
    assert 0 < (c_n - c).abs().max() < 4


def test_parameters_have_the_names_of_lstm_and_one_bias() -> None:
    for form in forms():
        ours, theirs = LLTM(I, H, **form), nn.LSTM(I, H, **form)
        expected = {
            name.replace("bias_ih", "bias"): (3 * H, *p.shape[1:])
            for name, p in theirs.named_parameters()
            if not name.startswith("bias_hh")
        }
        found = {name: tuple(p.shape) for name, p in ours.named_parameters()}
        assert list(found.items()) == list(expected.items())
        assert list(ours.state_dict()) == list(expected)
        listed = [[id(p) for p in each] for each in ours.all_weights]
        assert sum(listed, []) == [id(p) for p in ours.parameters()]
        assert len(listed) == len(theirs.all_weights) and len(set(map(len, listed))) == 1


def test_parameters_are_drawn_like_those_of_lstm() -> None:
    torch.manual_seed(3)
    layer = LLTM(100, 64, num_layers=2, bidirectional=True)
    for parameter in layer.parameters():
        assert parameter.requires_grad
        bound = 1 / math.sqrt(64)
        assert parameter.abs().max() <= bound
        # Initial values have the standard deviation of a uniform distribution and nearly reach its
        # bounds.
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert parameter.max() > 0.95 * bound and parameter.min() < -0.95 * bound
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert not any(torch.equal(p, before[name]) for name, p in layer.named_parameters())
    torch.manual_seed(3)
    again = LLTM(100, 64, num_layers=2, bidirectional=True).state_dict()
    assert all(torch.equal(again[name], before[name]) for name in before)


def test_meta_device() -> None:
    with torch.device("meta"):
        inside = LLTM(I, H)
    layer = LLTM(I, H, 2, bidirectional=True, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta for p in (*inside.parameters(), *layer.parameters()))
    output, (h, c) = layer(torch.empty(T, B, I, device="meta", dtype=torch.bfloat16))
    assert output.is_meta and (output.shape, c.shape) == ((T, B, 2 * H), (4, B, H))
    layer.to_empty(device="cpu").reset_parameters()
    assert layer(torch.randn(T, B, I).bfloat16())[0].isfinite().all()


def test_copies_and_files_keep_everything() -> None:
    for form in forms():
        layer = LLTM(I, H, **form, recompute=True)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        loaded = LLTM(I, H, **form, recompute=True)
        loaded.load_state_dict(torch.load(file, weights_only=True))
        x = torch.randn(T, B, I)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
            assert other.weight_hh_l0 is not layer.weight_hh_l0
            assert repr(other) == repr(layer) and other.flatten_parameters() is None
            for a, b in zip(flat(other(x)), flat(layer(x)), strict=True):
                assert torch.equal(a, b)


def test_says_what_lstm_says() -> None:
    for form in forms():
        for dropout in (0.0, 0.5) if form["num_layers"] > 1 else (0,):
            ours, theirs = (kind(8, 64, **form, dropout=dropout) for kind in (LLTM, nn.LSTM))
            assert repr(ours) == repr(theirs).replace("LSTM", "LLTM")
    assert repr(LLTM(8, 64, recompute=True)) == "LLTM(8, 64, recompute=True)"
    settings = set(nn.LSTM.__constants__) - {"mode", "proj_size"}
    assert all(hasattr(LLTM(8, 64), name) for name in settings)


@pytest.mark.parametrize("is_packed", [False, True])
def test_dropout(is_packed: bool) -> None:
    def run(layer: LLTM, x: Tensor) -> Tensor:
        return flat(layer(pack_sequence(list(x.unbind(1))) if is_packed else x))[0].view(T, B, H)

    layer = LLTM(I, H, num_layers=2, dropout=0.5)
    x = torch.randn(T, B, I)
    assert not torch.equal(run(layer, x), run(layer, x))
    assert torch.equal(run(layer.eval(), x), run(layer, x))
    # With dropout 1, the second layer reads zeros, but only in training.
    everything, second = LLTM(I, H, num_layers=2, dropout=1), LLTM(H, H)
    state = everything.state_dict()
    names = second.state_dict()
    second.load_state_dict({name: state[name.replace("_l0", "_l1")] for name in names})
    of_zeros = run(second, torch.zeros(T, B, H))
    torch.testing.assert_close(run(everything, x), of_zeros)
    assert not torch.allclose(run(everything.eval(), x), of_zeros)


def test_numbers_of_numpy_are_sizes() -> None:
    layer = LLTM(np.int64(I), np.int32(H), np.int64(2), dropout=np.float32(0.5))
    assert repr(layer) == "LLTM(5, 7, num_layers=2, dropout=0.5)"
