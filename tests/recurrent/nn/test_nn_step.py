"""treadle.nn.make_step: single steps equal one call for the whole sequence, on every device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, GPU
from tests.support.rule import within_rule
from treadle import reference
from treadle.nn import GRU, LLTM, LSTM, RNN, make_step

KINDS = {"lstm": LSTM, "gru": GRU, "lltm": LLTM, "rnn_tanh": RNN}
T, B, I, H = 30, 3, 4, 5  # noqa: E741
EACH = pytest.mark.parametrize("kind", KINDS)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)


def made(
    kind: str, device: str = "cpu", dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Any, Tensor, Tensor]:
    """A layer, a sequence [T, B, I] and marks [T, B], some of which are true."""
    torch.manual_seed(3)
    layer = KINDS[kind](I, H, **options).to(device, dtype)
    x = torch.randn(T, B, I, dtype=torch.float64).to(device, dtype)
    return layer, x, (torch.rand(T, B) < 0.2).to(device)


def whole(layer: Any, x: Tensor, reset: Tensor | None = None, hx: Any = None) -> list[Tensor]:
    """Output and states of one call of the layer."""
    with torch.no_grad():
        output, states = layer(x, hx, reset=reset)
    return [output, *(states if isinstance(states, tuple) else (states,))]


def stepped(step: Any, x: Tensor, reset: Tensor | None = None) -> list[Tensor]:
    marks = [None] * len(x) if reset is None else reset
    output = torch.stack([step(row, mark).clone() for row, mark in zip(x, marks, strict=True)])
    return [output, *(state.clone() for state in states(step))]


def states(step: Any) -> tuple[Tensor, ...]:
    return step.state if isinstance(step.state, tuple) else (step.state,)


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@EACH
@EACH_DEVICE
@pytest.mark.parametrize("options", [{}, {"num_layers": 3}, {"bias": False}], ids=str)
def test_equals_the_whole_sequence(kind: str, device: str, options: dict[str, Any]) -> None:
    layer, x, marks = made(kind, device, **options)
    step = make_step(layer, B)
    close(stepped(step, x, marks), whole(layer, x, marks))
    # The step continues from its states, and no row resets without marks.
    hx = tuple(state.clone() for state in states(step))
    found = stepped(step, x)
    close(found, whole(layer, x, hx=hx if len(hx) > 1 else hx[0]))


@EACH_DEVICE
def test_all_states_but_h_are_wide(device: str) -> None:
    """h has the layer's dtype, and the other states are float32. In bfloat16, the sums of an sLSTM
    would lose precision over many steps."""
    torch.manual_seed(3)
    layer = treadle.nn.SLSTM(4, 8, device=device)
    with torch.no_grad():
        layer.bias_ih_l0[8:16] = 6.0  # the forget gate stays near 1
    half = copy.deepcopy(layer).bfloat16()
    step, x = make_step(half, B), torch.randn(400, B, 4, device=device).bfloat16()
    assert [s.dtype for s in states(step)] == [torch.bfloat16, *[torch.float32] * 3]
    wide = tuple(torch.zeros_like(s) for s in states(step))
    marks = torch.zeros(400, B, dtype=torch.bool, device=device)
    marks[100, 1] = True
    with torch.no_grad():
        expected = half(x, wide, reset=marks)
    # On CUDA, a layer rounds its products with the input to bfloat16, and a step does not.
    allowed = {"rtol": 1e-2, "atol": 1e-2} if device == "cuda" else {}
    for found, state in zip(stepped(step, x, marks)[1:], expected[1], strict=True):
        torch.testing.assert_close(found, state, **allowed)


@EACH
@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_by_the_error_rule(kind: str, device: str, dtype: torch.dtype) -> None:
    layer, x, marks = made(kind, device, dtype)

    def plain(dtype: torch.dtype) -> Any:
        zero = torch.zeros(1, B, H, dtype=dtype, device=device)
        hx = zero if kind not in ("lltm", "lstm") else (zero, zero)
        params = [p.detach().to(dtype) for p in layer.parameters()]
        rest = (True, 1, 0.0, False, False, False)
        return getattr(reference, kind)(x.to(dtype), hx, params, *rest, reset=marks)

    step = make_step(layer, B)
    found = stepped(step, x, marks)
    if kind in ("lltm", "lstm") and dtype != torch.float32:
        assert found[2].dtype == torch.float32  # c accumulates, so it is not rounded between steps
        found[2] = found[2].to(dtype)
    for ours, truth, other in zip(found, plain(torch.float64), plain(dtype), strict=True):
        within_rule(ours, truth, other)


@EACH
@EACH_DEVICE
def test_a_thousand_steps(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    x = x.repeat(34, 1, 1)[:1000]
    close(stepped(make_step(layer, B), x), whole(layer, x))


@EACH
@EACH_DEVICE
def test_nan_ends_at_a_reset(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    step = make_step(layer, B)
    marks = torch.tensor([True, False, True], device=device)
    assert step(torch.full_like(x[0], float("nan"))).isnan().all()
    found = step(x[0], marks)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[marks], whole(layer, x[:1])[0][0][marks])


@EACH
@EACH_DEVICE
def test_a_reset_holds_for_one_step(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    step = make_step(layer, B)
    step(x[0])
    step(x[1], torch.ones(B, dtype=torch.bool, device=device))
    torch.testing.assert_close(step(x[2]), whole(layer, x[1:3])[0][1])


# ---- outputs and states


@EACH
@EACH_DEVICE
def test_the_output_is_one_tensor_that_is_not_the_state(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    expected = whole(layer, x[:2])[0]
    step = make_step(layer, B)
    first = step(x[0])
    torch.testing.assert_close(first, expected[0])
    first.fill_(7)
    assert step(x[1]) is first
    torch.testing.assert_close(first, expected[1])
    step = make_step(layer, B, clone=True)
    first = step(x[0])
    step(x[1])
    torch.testing.assert_close(first, expected[0])


@EACH
@EACH_DEVICE
def test_the_state_is_set_written_and_reset(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device, num_layers=2)
    step = make_step(layer, B)
    with torch.no_grad():
        _, hx = layer(x[:9])
    held = states(step)
    step.set_state(hx)
    close(stepped(step, x[9:]), whole(layer, x[9:], hx=hx))
    assert all(now is before for now, before in zip(states(step), held, strict=True))
    for state in held:
        state[:, 1] = 0
    step.set_state(step.state)
    output = step(x[0])[1].clone()
    torch.testing.assert_close(output, whole(layer, x[:1])[0][0, 1])
    step.reset_all()
    close(stepped(step, x), whole(layer, x))


@pytest.mark.parametrize("kind", ["lstm", "lltm"])
@EACH_DEVICE
def test_c_of_half_types_is_given_in_either_dtype(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device, torch.bfloat16)
    h, c = (torch.randn(1, B, H, device=device).bfloat16() for _ in range(2))
    step = make_step(layer, B)
    found = []
    for hx in ((h, c), (h, c.float())):
        step.set_state(hx)
        assert step.state[1].dtype == torch.float32
        torch.testing.assert_close(step.state[1], c.float())
        found.append(step(x[0]).clone())
    same_bits(*found)


@EACH
@EACH_DEVICE
def test_sees_parameters_that_change_in_place(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    step = make_step(layer, B)
    before = step(x[0]).clone()
    layer(x)[0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    step.reset_all()
    after = step(x[0]).clone()
    torch.testing.assert_close(after, whole(layer, x[:1])[0][0])
    assert not torch.allclose(before, after)
    layer.load_state_dict(made(kind)[0].state_dict())
    step.reset_all()
    torch.testing.assert_close(step(x[0]), before)


# ---- where it runs


@EACH
@EACH_DEVICE
def test_evaluates_without_gradients(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device, num_layers=2, dropout=0.9)
    assert layer.training
    found = stepped(make_step(layer, B), x)
    assert layer.training and not any(t.requires_grad for t in found)
    close(found, whole(layer.eval(), x))


@EACH
@EACH_DEVICE
def test_autocast_and_inference_mode_change_nothing(kind: str, device: str) -> None:
    layer, x, marks = made(kind, device, torch.float32)
    expected = stepped(make_step(layer, B), x, marks)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = stepped(make_step(layer, B), x, marks)
    for ours, theirs in zip(found, expected, strict=True):
        same_bits(ours, theirs)
    with torch.inference_mode():
        step = make_step(layer, B)
        first = [step(row, mark).clone() for row, mark in zip(x[:5], marks, strict=False)]
    rest = stepped(step, x[5:], marks[5:])
    same_bits(torch.cat([torch.stack(first), rest[0]]), expected[0])


@EACH
@EACH_DEVICE
def test_of_a_layer_that_was_torchs_and_has_the_batch_first(kind: str, device: str) -> None:
    layer, x, _ = made(kind, device)
    if kind != "lltm":
        torchs = getattr(nn, kind.split("_")[0].upper())(I, H, batch_first=True).to(
            device, torch.float64
        )
        torchs.load_state_dict(layer.state_dict())
        layer = torchs
        treadle.nn.replace(layer)
    else:
        layer.batch_first = True
    found = stepped(make_step(layer, B), x)[0]
    torch.testing.assert_close(found, whole(layer, x.transpose(0, 1))[0].transpose(0, 1))


# ---- only on a GPU


@GPU
@EACH
def test_a_step_is_one_graph_on_cuda(kind: str) -> None:
    """A call runs no ops of the layer on the host, only copies and the graph."""
    layer, x, marks = made(kind, "cuda", torch.float32)
    step = make_step(layer, B)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        step(x[0], marks[0])
    names = {event.name for event in profiled.events() if event.name.startswith(("aten", "tread"))}
    assert "aten::copy_" in names and not any("mm" in n or "treadle" in n for n in names), names


@GPU
@EACH
def test_streams_take_turns_on_cuda(kind: str) -> None:
    """Each call runs on another stream and must wait for the previous call, which is still
    running."""
    layer, x, marks = made(kind, "cuda", torch.float32)
    expected = stepped(make_step(layer, B), x, marks)
    step = make_step(layer, B, clone=True)
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    torch.cuda.synchronize()
    for t in range(T):
        with torch.cuda.stream(streams[t % 3]):
            torch.cuda._sleep(200_000)
            found.append(step(x[t], marks[t]))
    torch.cuda.synchronize()
    same_bits(torch.stack(found), expected[0])


@GPU
def test_many_steps_of_several_layers_at_once_on_cuda() -> None:
    """The steps of several layers alternate, so their graphs must not share memory."""
    pairs = [made(kind, "cuda", torch.float32, num_layers=2)[:2] for kind in KINDS]
    steps = [make_step(layer, B) for layer, _ in pairs]
    found: list[list[Tensor]] = [[] for _ in steps]
    for t in range(T):
        for step, (_, x), outputs in zip(steps, pairs, found, strict=True):
            outputs.append(step(x[t]).clone())
    for (layer, x), outputs in zip(pairs, found, strict=True):
        torch.testing.assert_close(torch.stack(outputs), whole(layer, x)[0], rtol=1e-4, atol=1e-4)
