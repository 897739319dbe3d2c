"""Errors of treadle.nn.make_training_step and of the TrainingStep that it makes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recurrent.support.training_cases import B, H, I, Net, device, made
from treadle.nn import make_training_step

__all__ = ["device"]  # the fixture

WAYS_WITH_GRAPHS = pytest.mark.parametrize(
    "device", ["emulated", *(["cuda"] if torch.cuda.is_available() else [])], indirect=True
)


def raises(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# ---- arguments


def test_what_a_step_is_made_of() -> None:
    x = torch.zeros(B, I)
    with raises(TypeError, "make_training_step: fn must be callable, got Tensor"):
        make_training_step(x, (x,))  # type: ignore[arg-type]
    with raises(
        TypeError, "make_training_step: sample_args must be a tuple of the arguments, got Tensor"
    ):
        make_training_step(torch.sin, x)  # type: ignore[arg-type]
    with raises(
        TypeError,
        "make_training_step: sample_args[1]['n'] must be a tensor, got int: bind other arguments "
        "by functools.partial",
    ):
        make_training_step(torch.sin, (x, {"n": 3}))
    with raises(
        ValueError, "make_training_step: sample_args must be tensors on one device, got no tensor"
    ):
        make_training_step(torch.sin, ())
    with raises(
        ValueError,
        "make_training_step: sample_args must be tensors on one device, got cpu and meta",
    ):
        make_training_step(torch.sin, (x, x.to("meta")))
    with raises(ValueError, "make_training_step: calls must be an integer of at least 1, got 0"):
        make_training_step(torch.sin, (x,), calls=0)


X, STATE = torch.zeros(B, I), torch.zeros(B, H)
CALLS: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "number": ((X, {"h": 0.0}), TypeError, "args[1]['h'] must be a tensor, got float"),
    "rows": (
        (X[:2], {"h": STATE}),
        ValueError,
        f"args[0] must have the sample's shape, [{B}, {I}], got [2, {I}]: make a step for each "
        "shape",
    ),
    "dtype": (
        (X, {"h": STATE.double()}),
        RuntimeError,
        "args[1]['h'] must have the sample's dtype, float32, got float64",
    ),
    "device": (
        (X.to("meta"), {"h": STATE}),
        RuntimeError,
        "args[0] must be on the samples' device, cpu, got meta",
    ),
    "gradient": (
        (X.clone().requires_grad_(), {"h": STATE}),
        RuntimeError,
        "args[0] must not require grad, because its sample does not, got requires_grad=True: make "
        "the step with sample.requires_grad_(), or pass args[0].detach()",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    args, error, message = CALLS[name]
    net = Net()
    step = make_training_step(lambda x, state: net(x, state["h"]), (X, {"h": STATE}))
    with raises(error, f"training_step: {message}"):
        step(*args)
    step(X, {"h": STATE})


def test_another_structure() -> None:
    step = make_training_step(torch.add, (X, X))
    for args in [(X,), (X, X, X), (X, (X,)), ((X, X),)]:
        with pytest.raises(ValueError, match="^training_step: args must have the structure of"):
            step(*args)


# ---- what can be captured


@WAYS_WITH_GRAPHS
def test_functions_that_cannot_be_captured(device: str) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    with raises(TypeError, "make_training_step: fn must return tensors, got float"):
        make_training_step(lambda t: (t, 2.0), (x,))
    with raises(
        RuntimeError,
        "make_training_step: fn must return at least one tensor that requires grad, got none",
    ):
        make_training_step(lambda t: t.detach(), (x,))
    with raises(
        RuntimeError,
        "make_training_step: fn must not change its arguments, got one that it changes",
    ):
        make_training_step(lambda t, u: t * u.add_(1), (x, x.detach()))
    before = x.sin()
    with raises(
        RuntimeError,
        "make_training_step: fn must get as an argument every tensor that requires grad and was "
        "computed before the call, got a result of SinBackward0 that is no argument: add it to "
        "sample_args",
    ):
        make_training_step(lambda t: t * before, (x,))


# ---- calls that would be wrong


@WAYS_WITH_GRAPHS
def test_too_many_calls(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=2)
    held = [step(x[0], h) for _ in range(2)]
    with raises(
        RuntimeError,
        "training_step: at most 2 calls may wait for their backward pass, got one more: pass a "
        "larger calls= to make_training_step, or call the step in torch.no_grad() if no gradient "
        "is needed",
    ):
        step(x[0], h)
    del held[0]
    step(x[0], h)


@WAYS_WITH_GRAPHS
@pytest.mark.parametrize("calls", [1, 2])
def test_a_second_backward_pass(calls: int, device: str) -> None:
    """A second backward pass works until `calls` later calls have overwritten the memory."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=calls)
    loss = step(x[0], h)[1].sum()
    grads = [torch.autograd.grad(loss, h, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*grads)
    later = []
    for k in range(1, calls):
        later.append(step(x[k], h))
        assert torch.equal(torch.autograd.grad(loss, h, retain_graph=True)[0], grads[0])
    later.append(step(x[calls], h))
    with raises(
        RuntimeError,
        "training_step: the backward pass of a call must not run again after later calls have "
        "reused the call's memory, got such a backward pass: pass a larger calls= to "
        "make_training_step",
    ):
        loss.backward()


@WAYS_WITH_GRAPHS
def test_parameters_that_change_before_the_backward_pass(device: str) -> None:
    """Eager code also raises here, because the gradient would be computed with other weights."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=2)
    first, second = (step(x[k], h)[1].sum() for k in range(2))
    first.backward()
    with torch.no_grad():
        next(net.parameters()).add_(1)
    with raises(
        RuntimeError,
        "training_step: the parameters must not change between a call and its backward pass, got "
        "a parameter that was written in place: call optimizer.step() after the backward pass",
    ):
        second.backward()


@WAYS_WITH_GRAPHS
def test_second_derivatives(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h))
    with raises(
        RuntimeError,
        "training_step: create_graph must be False, because a training step has no second "
        "derivatives, got True: call fn itself to compute them",
    ):
        torch.autograd.grad(step(x[0], h)[1].sum(), h, create_graph=True)


@WAYS_WITH_GRAPHS
def test_another_mode(device: str) -> None:
    net, x, h = made(device, lambda: Net(dropout=0.5))
    step = make_training_step(net, (x[0], h))
    net.eval()
    with raises(
        RuntimeError,
        "training_step: Net must be in train(), as when the step was made, got eval(): make "
        "another step, or evaluate in torch.no_grad()",
    ):
        step(x[0], h)
    net.train()
    step(x[0], h)


@WAYS_WITH_GRAPHS
def test_another_autocast(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h))
    with torch.autocast(x.device.type, torch.bfloat16):
        with raises(
            RuntimeError,
            "training_step: autocast must be disabled, as when the step was made, got "
            "enabled in bfloat16",
        ):
            step(x[0], h)


def moved(net: Any) -> None:
    net.after.weight.data = net.after.weight.data.clone()


def assigned(net: Any) -> None:
    net.after.weight = copy.deepcopy(net.after.weight)


@WAYS_WITH_GRAPHS
@pytest.mark.parametrize("change", [moved, assigned])
def test_parameters_that_moved(device: str, change: Callable[[Any], None]) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h))
    change(net)
    with raises(
        RuntimeError,
        "training_step: weight must stay at the address that it had when the step was made, got "
        "another address: call make_training_step again after .to() or after assigning a parameter",
    ):
        step(x[0], h)


@WAYS_WITH_GRAPHS
def test_a_parameter_that_was_frozen(device: str) -> None:
    net, x, h = made(device)
    net.after.bias.requires_grad_(False)
    step = make_training_step(net, (x[0], h))
    step(x[0], h)
    net.after.bias.requires_grad_()
    with raises(
        RuntimeError,
        "training_step: bias must not require grad, because it did not when the step was made, "
        "got requires_grad=True: call make_training_step again",
    ):
        step(x[0], h)


@WAYS_WITH_GRAPHS
def test_a_backward_pass_within_another(device: str) -> None:
    """Gradients are summed within one pass, so a nested pass raises, even for a call on which the
    outer pass does not depend."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=3)
    inner = step(x[2], h)[1].sum()

    def nested(grad: Tensor) -> None:
        with torch.enable_grad():
            inner.backward()

    between, _ = step(x[0], h)
    between.register_hook(nested)
    with pytest.raises(RuntimeError, match="^training_step: a backward pass must end before the"):
        step(x[1], between)[1].sum().backward()


def test_a_module_is_called(device: str) -> None:
    """The captured function need not be a module, and may read a parameter directly."""
    leaf = nn.Parameter(torch.ones(3, device=device))
    x = torch.ones(3, device=device)
    step = make_training_step(lambda t: leaf * t, (x,))
    step(2 * x).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2]
