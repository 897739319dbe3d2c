"""Compares treadle.nn.LSTM, GRU and RNN with torch.nn's: values and gradients for every form of
input and argument."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing._internal import common_modules

import treadle
from tests.support.inputs import DEVICES, FLOATING
from tests.support.rule import within_rule

T, B, I, H = 3, 4, 5, 7  # noqa: E741
KINDS: dict[str, tuple[type[nn.RNNBase], type[nn.RNNBase]]] = {
    "LSTM": (treadle.nn.LSTM, nn.LSTM),
    "GRU": (treadle.nn.GRU, nn.GRU),
    "RNN": (treadle.nn.RNN, nn.RNN),
}
EACH = pytest.mark.parametrize("kind", KINDS)
FLAGS = ("bias", "batch_first", "bidirectional")


def forms() -> Iterator[dict[str, Any]]:
    for layers, *flags in itertools.product((1, 2), *[(False, True)] * len(FLAGS)):
        yield {"num_layers": layers, **dict(zip(FLAGS, flags, strict=True))}


FORMS = pytest.mark.parametrize("form", list(forms()), ids=lambda f: "-".join(map(str, f.values())))


def pair(kind: str, *arguments: Any, **options: Any) -> tuple[nn.RNNBase, nn.RNNBase]:
    """treadle's layer and torch's, with the same parameters."""
    ours, theirs = (each(*arguments, **options) for each in KINDS[kind])
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def flat(result: Any) -> list[Tensor]:
    output, last = result
    states = last if isinstance(last, tuple) else (last,)
    return [output.data if isinstance(output, PackedSequence) else output, *states]


def states(layer: nn.RNNBase, *batch: int, **options: Any) -> Any:
    count = layer.num_layers * (1 + layer.bidirectional)
    like = {"dtype": layer.weight_ih_l0.dtype, "device": layer.weight_ih_l0.device, **options}
    h0, c0 = torch.randn(2, count, *batch, H, **like).unbind()
    return (h0, c0) if isinstance(layer, nn.LSTM) else h0


def results(layer: nn.RNNBase, x: Any, hx: Any) -> list[Tensor]:
    """Results, and gradients of parameters, input and states."""
    given = [] if hx is None else list(hx) if isinstance(hx, tuple) else [hx]
    leaves = [t.detach().requires_grad_() for t in given]
    data = (x.data if isinstance(x, PackedSequence) else x).detach().requires_grad_()
    x = PackedSequence(data, *x[1:]) if isinstance(x, PackedSequence) else data
    hx = None if hx is None else tuple(leaves) if isinstance(hx, tuple) else leaves[0]
    found = flat(layer(x, hx))
    wanted = [data, *leaves, *layer.parameters()]
    loss = sum((t.double() * t.detach().double().cos()).sum() for t in found)
    return [*(t.detach() for t in found), *torch.autograd.grad(loss, wanted)]


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


# ---- forms


@EACH
@FORMS
@pytest.mark.parametrize("device", DEVICES)
def test_every_form_of_input(kind: str, form: dict[str, Any], device: str) -> None:
    ours, theirs = pair(kind, I, H, **form, device=device, dtype=torch.float64)
    for batch in (None, 0, 1, B):
        sizes = () if batch is None else (batch,)
        shape = (*sizes, T, I) if form["batch_first"] else (T, *sizes, I)
        x = torch.randn(shape, device=device, dtype=torch.float64)
        for hx in (None, states(ours, *sizes)):
            close(results(ours, x, hx), results(theirs, x, hx))
    for lengths in ([3, 3, 2, 1], [1, 3, 2, 3]):
        packed = pack_padded_sequence(
            x, torch.tensor(lengths), form["batch_first"], enforce_sorted=lengths[0] == 3
        )
        for hx in (None, states(ours, B)):
            found, expected = ours(packed, hx), theirs(packed, hx)
            assert type(found[0]) is PackedSequence
            close(found[0][1:], expected[0][1:])
            close(results(ours, packed, hx), results(theirs, packed, hx))


@EACH
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("device", DEVICES)
def test_as_exact_as_torchs(kind: str, dtype: torch.dtype, device: str) -> None:
    """The tolerance (tests/support/rule.py) comes from the error of torch's own layer."""
    ours, theirs = pair(kind, 33, 65, 2, bidirectional=True, device=device, dtype=dtype)
    truth = copy.deepcopy(theirs).double()
    x = torch.randn(9, 17, 33, device=device, dtype=dtype)
    runs = results(ours, x, None), results(truth, x.double(), None), results(theirs, x, None)
    count = len(flat(ours(x)))
    for n, each in enumerate(zip(*runs, strict=True)):
        within_rule(*each, gradient=n >= count, what=f"result {n}")


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_empty_sequence_raises_like_torch(kind: str, device: str) -> None:
    for form in forms():
        shape = (B, 0, I) if form["batch_first"] else (0, B, I)
        for each in pair(kind, I, H, **form, device=device):
            for x in (torch.randn(shape, device=device), torch.randn(0, I, device=device)):
                with pytest.raises(RuntimeError, match="step|[Ee]xpected sequence length"):
                    each(x)


@EACH
def test_complex_layers_use_torchs_forward(kind: str) -> None:
    ours, theirs = pair(kind, I, H, 2, bidirectional=True, dtype=torch.complex128)
    x = torch.randn(T, B, I, dtype=torch.complex128)
    assert all(map(torch.equal, flat(ours(x)), flat(theirs(x))))
    register_parametrization(ours, "weight_ih_l0", nn.Identity())
    assert all(map(torch.equal, flat(ours(x)), flat(theirs(x))))
    with pytest.raises(ValueError, match="complex128, which torch runs, must be called without"):
        ours(x, lengths=torch.tensor([T] * B))


@EACH
def test_dropout(kind: str) -> None:
    """Dropout drops the same elements as torch's, and only in training."""
    ours, theirs = pair(kind, I, H, 3, dropout=0.5, dtype=torch.float64)
    x, found = torch.randn(T, B, I, dtype=torch.float64), []
    for layer in (ours, theirs, ours.eval(), theirs.eval()):
        torch.manual_seed(5)
        found.append(flat(layer.train(len(found) < 2)(x)))
    close(found[0], found[1])
    close(found[2], found[3])
    assert not torch.allclose(found[0][0], found[2][0])


def module_info(kind: str) -> Any:
    cls = KINDS[kind][1]
    return next(info for info in common_modules.module_db if info.module_cls is cls)


@EACH
def test_module_samples(kind: str) -> None:
    """Values and gradients agree with torch's for torch's own samples, which have no batch
    dimension."""
    info, count = module_info(kind), 0
    for sample in info.module_inputs_func(info, "cpu", torch.float64, False, training=True):
        made = sample.constructor_input
        ours, theirs = pair(kind, *made.args, **made.kwargs, dtype=torch.float64)
        x, *hx = sample.forward_input.args
        close(results(ours, x, *(hx or [None])), results(theirs, x, *(hx or [None])))
        count += 1
    assert count == (16 if kind == "GRU" else 32)  # LSTM also has projections, and RNN relu
