"""Errors of treadle.nn.make_step and of the Step that it makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.recurrent.nn.test_nn_step import EACH_DEVICE, B, H, I, made
from tests.support.inputs import GPU
from treadle.nn import GRU, LLTM, LSTM, make_step, restore


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def raises(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("kind", [LSTM, GRU, LLTM])
def test_of_two_directions(kind: Any) -> None:
    with raises(
        ValueError,
        "make_step: layer must have one direction, got bidirectional=True: the second direction "
        "reads each sequence from its end",
    ):
        make_step(kind(I, H, bidirectional=True), B)


def test_arguments() -> None:
    layer: Any = nn.LSTM(I, H)
    with raises(
        TypeError,
        "make_step: layer must be a treadle.nn.LSTM, GRU, RNN, LLTM or Recurrent, got "
        "torch.nn.modules.rnn.LSTM",
    ):
        make_step(layer, B)
    with raises(ValueError, "make_step: batch must be an integer of at least 1, got 0"):
        make_step(GRU(I, H), 0)
    with raises(TypeError, "make_step: batch must be an integer of at least 1, got 2.0"):
        make_step(GRU(I, H), 2.0)  # type: ignore[arg-type]
    with raises(TypeError, "make_step: clone must be a bool, got int"):
        make_step(GRU(I, H), B, clone=1)  # type: ignore[arg-type]


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_of_a_parameter_that_is_computed() -> None:
    layer = GRU(I, H)
    parametrize.register_parametrization(layer, "weight_hh_l0", Twice())
    with raises(
        ValueError,
        "make_step: layer must have plain parameters, got a weight_hh_l0 that is computed at "
        "every call: first call parametrize.remove_parametrizations, prune.remove or "
        "remove_weight_norm of torch.nn.utils",
    ):
        make_step(layer, B)


MARKS = zeros(B, dtype=torch.bool)
INPUT = zeros(B, I)
CALLS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no tensor": ([1.0], None, TypeError, "input must be a tensor, got list"),
    "sequence": (
        zeros(1, B, I),
        None,
        ValueError,
        f"input must have shape [B, I] = [{B}, {I}], got [1, {B}, {I}]",
    ),
    "rows": (
        zeros(B + 1, I),
        None,
        ValueError,
        f"input must have shape [B, I] = [{B}, {I}], got [{B + 1}, {I}]",
    ),
    "dtype": (
        INPUT.double(),
        None,
        RuntimeError,
        "input must have the parameters' dtype, float32, got float64",
    ),
    "device": (
        INPUT.to("meta"),
        None,
        RuntimeError,
        "input must be on the parameters' device, cpu, got meta",
    ),
    "gradient": (
        zeros(B, I).requires_grad_(),
        None,
        RuntimeError,
        "input must not require grad, because a step records no gradients, got a tensor that "
        "does: pass input.detach(), or call the layer itself to train it",
    ),
    "reset is no tensor": (INPUT, [True], TypeError, "reset must be a tensor, got list"),
    "reset's shape": (
        INPUT,
        zeros(1, B, dtype=torch.bool),
        ValueError,
        f"reset must have shape [B] = [{B}], got [1, {B}]",
    ),
    "reset of a simulator": (
        INPUT,
        zeros(B, 1),
        ValueError,
        f"reset must have shape [B] = [{B}], got [{B}, 1]: call reset.squeeze(-1).bool()",
    ),
    "reset [B, 1]": (
        INPUT,
        zeros(B, 1, dtype=torch.bool),
        ValueError,
        f"reset must have shape [B] = [{B}], got [{B}, 1]: call reset.squeeze(-1)",
    ),
    "reset's dtype": (
        INPUT,
        MARKS.to(torch.uint8),
        RuntimeError,
        "reset must have dtype bool, got uint8: call reset.bool()",
    ),
    "reset's device": (
        INPUT,
        MARKS.to("meta"),
        RuntimeError,
        "reset must be on the parameters' device, cpu, got meta",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    input, reset, error, message = CALLS[name]
    layer = LSTM(I, H)
    step = make_step(layer, B)
    before = [state.clone() for state in step.state]
    with raises(error, f"step: {message}"):
        step(input, reset)
    assert all(torch.equal(state, old) for state, old in zip(step.state, before, strict=True))


def test_a_gradient_that_is_not_recorded_is_no_error() -> None:
    step = make_step(GRU(I, H), B)
    with torch.no_grad():
        assert not step(zeros(B, I).requires_grad_()).requires_grad


STATE = zeros(1, B, H)
STATES: dict[str, tuple[Any, type[Exception], str]] = {
    "no pair": (
        STATE,
        TypeError,
        "hx must be a pair of tensors (h0, c0), got Tensor",
    ),
    "shape": (
        (STATE, STATE[0]),
        ValueError,
        f"c0 must have shape [num_layers, B, H] = [1, {B}, {H}], got [{B}, {H}]",
    ),
    "dtype": ((STATE, STATE.double()), RuntimeError, "c0 must have dtype float32, got float64"),
    "device": (
        (STATE.to("meta"), STATE),
        RuntimeError,
        "h0 must be on the parameters' device, cpu, got meta",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states(name: str) -> None:
    hx, error, message = STATES[name]
    step = make_step(LSTM(I, H), B)
    step(torch.ones(B, I))
    before = [state.clone() for state in step.state]
    with raises(error, f"step: {message}"):
        step.set_state(hx)
    assert all(torch.equal(state, old) for state, old in zip(step.state, before, strict=True))


def test_states_beside_half_types() -> None:
    step = make_step(LSTM(I, H, dtype=torch.bfloat16), B)
    state = zeros(1, B, H)
    with raises(RuntimeError, "step: h0 must have dtype bfloat16, got float32"):
        step.set_state((state, state))
    with raises(RuntimeError, "step: c0 must have dtype bfloat16 or float32, got float16"):
        step.set_state((state.bfloat16(), state.half()))


def moved(layer: Any) -> None:
    layer.weight_hh_l0.data = layer.weight_hh_l0.data.clone()


def replaced(layer: Any) -> None:
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0.detach().clone())


def other_dtype(layer: Any) -> None:
    layer.to(torch.float16)


def computed(layer: Any) -> None:
    parametrize.register_parametrization(layer, "weight_hh_l0", Twice())


CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "data": (moved, "weight_hh_l0"),
    "parameter": (replaced, "weight_hh_l0"),
    "dtype": (other_dtype, "weight_ih_l0"),
    "parametrized": (computed, "weight_hh_l0"),
}


@EACH_DEVICE
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_moved(device: str, name: str) -> None:
    layer, x, _ = made("lltm", device)
    step = make_step(layer, B)
    step(x[0])
    change, parameter = CHANGES[name]
    change(layer)
    with raises(
        RuntimeError,
        f"step: {parameter} must stay at the address that it had when the step was made, got "
        "another address: call make_step again after .to() or after assigning a parameter",
    ):
        step(x[0])


@GPU
def test_a_tensor_of_the_cpu_on_cuda() -> None:
    layer, x, _ = made("gru", "cuda")
    step = make_step(layer, B)
    with raises(RuntimeError, "step: input must be on the parameters' device, cuda:0, got cpu"):
        step(x[0].cpu())


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_after_restore_a_step_goes_on(kind: Any) -> None:
    layer = kind(I, H)
    step, x = make_step(layer, B), torch.randn(B, I)
    expected = make_step(layer, B)(x)
    restore(layer)
    assert torch.equal(step(x), expected)


def test_of_parameters_without_values_or_of_another_class() -> None:
    with raises(
        ValueError,
        "make_step: layer must have plain parameters with values, got a weight_ih_l0 that is "
        "on meta",
    ):
        make_step(LSTM(I, H, device="meta"), B)
    layer = GRU(I, H)

    class Own(nn.Parameter):
        pass

    layer.weight_hh_l0 = Own(layer.weight_hh_l0.detach())
    with pytest.raises(ValueError, match="got a weight_hh_l0 that is a"):
        make_step(layer, B)
