"""Compares treadle.nn.LSTM with projections (proj_size) with torch.nn.LSTM: values and gradients
for every form of input and argument."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import treadle
from tests.recurrent.nn.test_nn_rnn import close, flat, results
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, FLOATING, HALVES
from tests.support.rule import within_rule
from treadle.nn import _torch_front

T, B, I, H, P = 4, 4, 5, 7, 3  # noqa: E741
FLAGS = ("bias", "batch_first", "bidirectional")
FORMS = pytest.mark.parametrize(
    "form",
    [
        {"num_layers": layers, **dict(zip(FLAGS, flags, strict=True))}
        for layers, *flags in itertools.product((1, 2), *[(False, True)] * len(FLAGS))
    ],
    ids=lambda f: "-".join(map(str, f.values())),
)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def never_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables torch's ops, which a layer calls for single steps, and on a CPU wherever they are
    faster than treadle's kernels."""
    monkeypatch.setattr(_torch_front, "torchs_is_faster", lambda *_: False)


def pair(*arguments: Any, **options: Any) -> tuple[nn.LSTM, nn.LSTM]:
    """treadle's layer and torch's, with the same parameters."""
    given = {"proj_size": P, "dtype": torch.float64, **options}
    ours, theirs = treadle.nn.LSTM(*arguments, **given), nn.LSTM(*arguments, **given)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def states(layer: nn.LSTM, *batch: int) -> tuple[Tensor, Tensor]:
    count, like = layer.num_layers * (1 + layer.bidirectional), layer.weight_ih_l0
    h0, c0 = (
        torch.randn(count, *batch, size, dtype=torch.float64).to(like)
        for size in (layer.proj_size, layer.hidden_size)
    )
    return h0, c0


# ---- forms


@FORMS
@EACH_DEVICE
@pytest.mark.usefixtures("never_torchs")
def test_every_form_of_input(form: dict[str, Any], device: str) -> None:
    ours, theirs = pair(I, H, **form, device=device)
    for batch, steps in itertools.product((None, 0, 1, B), (1, 2, T)):
        sizes = () if batch is None else (batch,)
        shape = (*sizes, steps, I) if form["batch_first"] else (steps, *sizes, I)
        x = torch.randn(shape, device=device, dtype=torch.float64)
        for hx in (None, states(ours, *sizes)):
            close(results(ours, x, hx), results(theirs, x, hx))
    for lengths in ([4, 3, 2, 1], [1, 3, 4, 3], [1, 1, 1, 1]):
        packed = pack_padded_sequence(
            x, torch.tensor(lengths), form["batch_first"], enforce_sorted=lengths[0] == 4
        )
        for hx in (None, states(ours, B)):
            found, expected = ours(packed, hx), theirs(packed, hx)
            assert type(found[0]) is PackedSequence
            close(found[0][1:], expected[0][1:])
            close(results(ours, packed, hx), results(theirs, packed, hx))


@EACH_DEVICE
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.usefixtures("never_torchs")
def test_as_exact_as_torchs(dtype: torch.dtype, given: bool, device: str) -> None:
    """The tolerance (tests/support/rule.py) comes from the error of torch's own layer."""
    torch.manual_seed(0)
    ours, theirs = pair(33, 65, 2, bidirectional=True, proj_size=20, device=device, dtype=dtype)
    truth = copy.deepcopy(theirs).double()
    x = torch.randn(9, 17, 33, device=device, dtype=dtype)
    hx = states(ours, 17) if given else None
    wide = None if hx is None else tuple(t.double() for t in hx)
    runs = results(ours, x, hx), results(truth, x.double(), wide), results(theirs, x, hx)
    for n, each in enumerate(zip(*runs, strict=True)):
        within_rule(*each, gradient=n >= 3, what=f"result {n}")


def test_empty_sequence_raises_like_torch() -> None:
    for layer in pair(I, H, 2, bidirectional=True):
        with pytest.raises(RuntimeError, match="step|[Ee]xpected sequence length"):
            layer(torch.randn(0, B, I, dtype=torch.float64))


def test_complex_layers_use_torchs_forward() -> None:
    ours, theirs = pair(I, H, 2, bidirectional=True, dtype=torch.complex128)
    x = torch.randn(T, B, I, dtype=torch.complex128)
    assert all(map(torch.equal, flat(ours(x)), flat(theirs(x))))


@EACH_DEVICE
@pytest.mark.usefixtures("never_torchs")
def test_h_n_has_the_bits_of_the_output(device: str) -> None:
    layer, _ = pair(I, 70, 2, bidirectional=True, proj_size=33, device=device, dtype=torch.float32)
    x = torch.randn(9, 33, I, device=device)
    output, (h_n, _) = layer(x)
    assert torch.equal(h_n[2], output[-1, :, :33]) and torch.equal(h_n[3], output[0, :, 33:])
    lengths = torch.arange(33, device=device) % 9 + 1
    output, (h_n, _) = layer(x, lengths=lengths)
    assert torch.equal(h_n[2], output[lengths - 1, torch.arange(33), :33])
    assert h_n.data_ptr() != output.data_ptr()


@pytest.mark.usefixtures("never_torchs")
def test_dropout() -> None:
    """Dropout drops the same elements as torch's, and only in training."""
    for batch_first in (False, True):
        ours, theirs = pair(I, H, 3, dropout=0.5, batch_first=batch_first)
        x, found = torch.randn(T, B, I, dtype=torch.float64), []
        for layer in (ours, theirs, ours.eval(), theirs.eval()):
            torch.manual_seed(5)
            found.append(flat(layer.train(len(found) < 2)(x)))
        close(found[0], found[1])
        close(found[2], found[3])
        assert not torch.allclose(found[0][0], found[2][0])


@EACH_DEVICE
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.usefixtures("never_torchs")
def test_c_of_halves_may_be_float32(dtype: torch.dtype, device: str) -> None:
    layer, _ = pair(I, H, 2, device=device, dtype=dtype)
    for steps in (1, T):
        x = torch.randn(steps, B, I, device=device).to(dtype)
        h0, c0 = states(layer, B)
        output, (h_n, c_n) = layer(x, (h0, c0.float()))
        assert (output.dtype, h_n.dtype, c_n.dtype) == (dtype, dtype, torch.float32)
        torch.testing.assert_close(c_n.to(dtype), layer(x, (h0, c0))[1][1], rtol=0.02, atol=0.02)


# ---- resets, lengths, cells


Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def step_of(layer: nn.LSTM, n: int, direction: int) -> Step:
    """A function that runs one step of a layer and direction of a torch.nn.LSTM. It maps x, h and c
    [B, ...] to the new h and c."""
    name = f"_l{n}" + ("_reverse" if direction else "")
    one = nn.LSTM(
        getattr(layer, f"weight_ih{name}").size(1), H, proj_size=P, bias=layer.bias
    ).double()
    own = dict(layer.named_parameters())
    given = {f"{k.removesuffix('_l0')}_l0": own[k.replace("_l0", name)] for k in one.state_dict()}

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        _, (h, c) = torch.func.functional_call(one, given, (x[None], (h[None], c[None])))
        return h[0], c[0]

    return step


def by_steps(
    layer: nn.LSTM,
    x: Tensor,
    hx: tuple[Tensor, Tensor],
    reset: Tensor,
    reset_hx: tuple[Tensor, Tensor] | None,
    lengths: Tensor,
) -> list[Tensor]:
    """Expected output, h_n, c_n and c of every step for x [T, B, I], computed by one-step calls of
    nn.LSTM with masks for resets and lengths."""
    ends: list[list[Tensor]] = [[], []]
    directions = 1 + layer.bidirectional
    for n in range(layer.num_layers):
        found: list[list[Tensor]] = [[], []]
        for d in range(directions):
            k, step = n * directions + d, step_of(layer, n, d)
            state, every = (hx[0][k], hx[1][k]), {}
            for t in reversed(range(len(x))) if d else range(len(x)):
                real = (t < lengths)[:, None]
                at = t + d
                if at < len(x):
                    mark = (reset[at] & (at < lengths))[:, None]
                    begin = [
                        torch.zeros_like(s)
                        if reset_hx is None
                        else reset_hx[i][k]
                        if reset_hx[i].dim() == 3
                        else reset_hx[i][k, t]
                        for i, s in enumerate(state)
                    ]
                    state = tuple(map(lambda b, s: torch.where(mark, b, s), begin, state))
                new = step(x[t], *state)
                every[t] = [torch.where(real, s, 0) for s in new]
                state = tuple(map(lambda a, b: torch.where(real, a, b), new, state))
            for i in range(2):
                found[i].append(torch.stack([every[t][i] for t in range(len(x))]))
                ends[i].append(state[i])
        x = torch.cat(found[0], -1)
    return [x, torch.stack(ends[0]), torch.stack(ends[1]), torch.cat(found[1], -1)]


def gradients(found: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    loss = sum((t * t.detach().cos()).sum() for t in found)
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


def reset_cases() -> Iterator[Any]:
    for form in ({}, {"num_layers": 2, "bidirectional": True}):
        for states_of, some in itertools.product(("zeros", "rows", "steps"), ("all", "lengths")):
            name = f"{form.get('num_layers', 1)} {states_of} {some}"
            yield pytest.param(form, states_of, some == "lengths", id=name)


@EACH_DEVICE
@pytest.mark.parametrize(("form", "states_of", "some"), list(reset_cases()))
@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.usefixtures("never_torchs")
def test_resets_lengths_and_cells(
    form: dict[str, Any], states_of: str, some: bool, steps: int, device: str
) -> None:
    torch.manual_seed(1)
    ours, theirs = pair(I, H, **form, device=device)
    x = torch.randn(steps, B, I, device=device, dtype=torch.float64, requires_grad=True)
    reset = torch.rand(steps, B, device=device) < 0.4
    lengths = torch.tensor([steps, 0, 1, 2] if some else [steps] * B, device=device)
    hx = tuple(t.requires_grad_() for t in states(ours, B))
    resets: Any = None
    if states_of == "rows":
        resets = tuple(t.requires_grad_() for t in states(ours, B))
    elif states_of == "steps":
        resets = tuple(t.requires_grad_() for t in states(ours, steps, B))
    leaves = [x, *hx, *(resets or ())]
    for batch_first in (False, True):
        ours.batch_first = batch_first

        def turned(t: Tensor, first: int = 0, on: bool = batch_first) -> Tensor:
            return t.transpose(first, first + 1) if on else t

        given: Any = resets
        if states_of == "steps":
            given = tuple(turned(t, 1) for t in resets)
        output, last, cells = ours(
            turned(x),
            hx,
            reset=turned(reset),
            reset_hx=given,
            lengths=lengths.clamp(max=steps) if some else None,
            return_cells=True,
        )
        found = [turned(output), *last, turned(cells)]
        expected = by_steps(theirs, x, hx, reset, resets, lengths.clamp(max=steps))
        close(found, expected)
        close(
            gradients(found, [*leaves, *ours.parameters()]),
            gradients(expected, [*leaves, *theirs.parameters()]),
        )


@EACH_DEVICE
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.usefixtures("never_torchs")
def test_resets_of_a_packed_batch(given: bool, device: str) -> None:
    """A packed batch gives the same results as the padded batch with lengths;
    test_resets_lengths_and_cells checks the latter step by step."""
    layer, _ = pair(I, H, 2, bidirectional=True, device=device)
    x = torch.randn(6, B, I, device=device, dtype=torch.float64)
    reset, hx = torch.rand(6, B, device=device) < 0.4, states(layer, B)
    lengths = torch.tensor([2, 6, 1, 4])
    real = (torch.arange(6)[:, None] < lengths).to(device)

    def pack(t: Tensor) -> PackedSequence:
        return pack_padded_sequence(t, lengths, enforce_sorted=False)

    for resets in (None, states(layer, B), states(layer, 6, B)):
        of_data = resets
        if resets is not None and resets[0].dim() == 4:
            of_data = tuple(torch.stack([pack(d).data for d in t]) for t in resets)
        options = {"reset": pack(reset), "reset_hx": of_data, "return_cells": True}
        output, last, cells = layer(pack(x), hx if given else None, **options)
        wanted = layer(
            x,
            hx if given else None,
            reset=reset,
            reset_hx=resets,
            lengths=lengths.to(device),
            return_cells=True,
        )
        close([output.data, cells.data], [pack(wanted[0]).data, pack(wanted[2]).data])
        close(last, wanted[1])
        assert bool(real.any())


@EACH_DEVICE
def test_padding_does_not_matter(device: str) -> None:
    layer, _ = pair(I, H, 2, bidirectional=True, device=device)
    x = torch.randn(T, B, I, device=device, dtype=torch.float64)
    lengths, hx = torch.tensor([4, 0, 1, 3], device=device), states(layer, B)
    padding = torch.arange(T, device=device)[:, None, None] >= lengths[:, None]
    for value in (0.0, float("nan")):
        leaf = torch.where(padding, value, x).requires_grad_()
        found = flat(layer(leaf, hx, lengths=lengths))
        grads = gradients(found, [leaf, *layer.parameters()])
        assert all(bool(t.isfinite().all()) for t in (*found, *grads))
        assert not bool(torch.where(padding, grads[0], 0).any())
        if value == 0:
            expected = found
    for ours, theirs in zip(found, expected, strict=True):
        same_bits(ours.detach(), theirs.detach())


@EACH_DEVICE
@pytest.mark.usefixtures("never_torchs")
def test_values_that_are_not_finite_stay_in_their_row(device: str) -> None:
    layer, theirs = pair(I, H, 2, device=device)
    x, hx = torch.randn(T, B, I, device=device, dtype=torch.float64), states(layer, B)
    for value, where in itertools.product((float("nan"), float("inf")), (0, 1)):
        given = tuple(t.clone() for t in hx)
        given[where][0, 2, 1] = value
        found, expected = layer(x, given), theirs(x, given)
        torch.testing.assert_close(flat(found), flat(expected), equal_nan=True)
        clean = [n for n in range(B) if n != 2]
        close(found[0][:, clean], layer(x, hx)[0][:, clean])
