"""cell_step: a step of torch's cells by torch's ops, which records one autograd Node on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import treadle  # noqa: F401  # registers the ops
from tests.support.inputs import DEVICES, FLOATING
from tests.support.rule import within_rule

B, I, H = 4, 5, 7  # noqa: E741
TORCHS: dict[str, Callable[..., Any]] = {
    "lstm": lambda x, h, c, *rest: torch.lstm_cell(x, (h, c), *rest),
    "gru": lambda x, h, c, *rest: torch.gru_cell(x, h, *rest),
    "rnn_tanh": lambda x, h, c, *rest: torch.rnn_tanh_cell(x, h, *rest),
    "rnn_relu": lambda x, h, c, *rest: torch.rnn_relu_cell(x, h, *rest),
}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
EACH = pytest.mark.parametrize("cell", TORCHS)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

Arguments = list[Tensor | None]
Sizes = tuple[int, int, int]  # B, I, H


def made(
    cell: str,
    device: str,
    dtype: torch.dtype = torch.float64,
    bias: bool = True,
    *,
    sizes: Sizes = (B, I, H),
    scale: float = 1.0,
) -> Arguments:
    """Arguments of a step. ``scale`` multiplies the weights."""
    b, i, h = sizes
    gates = GATES[cell] * h
    states, weights = [(b, i), (b, h), (b, h)], [(gates, i), (gates, h)]
    found: Arguments = [
        (torch.randn(size, device=device) * by).to(dtype)
        for group, by in ((states, 1.0), (weights, scale), ([(gates,), (gates,)], 1.0))
        for size in group
    ]
    if cell != "lstm":
        found[2] = None
    return found if bias else [*found[:5], None, None]


def step(cell: str, arguments: Arguments) -> list[Tensor]:
    found: list[Tensor] = torch.ops.treadle.cell_step(*arguments, cell=cell)
    return found


def torchs(cell: str, arguments: Arguments) -> list[Tensor]:
    found = TORCHS[cell](*arguments)
    return list(found) if isinstance(found, tuple) else [found]


def leaves_of(arguments: Arguments) -> list[Tensor]:
    return [t for t in arguments if t is not None and t.requires_grad]


def with_grad(arguments: Arguments, which: tuple[int, ...] = tuple(range(7))) -> Arguments:
    return [
        t if t is None or n not in which else t.detach().requires_grad_()
        for n, t in enumerate(arguments)
    ]


def gradients(out: list[Tensor], leaves: list[Tensor], **options: Any) -> list[Tensor]:
    loss = sum((t.double() * (t.detach().double().cos() + 0.5)).sum() for t in out)
    return list(torch.autograd.grad(loss, leaves, **options))


def results(
    run: Callable[..., list[Tensor]],
    cell: str,
    given: Arguments,
    which: tuple[int, ...] = tuple(range(7)),
) -> list[Tensor]:
    """The states, and the gradients of these arguments."""
    arguments = with_grad(given, which)
    out = run(cell, arguments)
    return [*(t.detach() for t in out), *gradients(out, leaves_of(arguments))]


def as_exact_as_torchs(cell: str, given: Arguments) -> list[Tensor]:
    """Checks the results of a step by the rule of all ops, and returns them."""
    wide = [None if t is None else t.double() for t in given]
    found = results(step, cell, given)
    runs = found, results(torchs, cell, wide), results(torchs, cell, given)
    states = 2 if cell == "lstm" else 1
    for n, each in enumerate(zip(*runs, strict=True)):
        within_rule(*each, gradient=n >= states, what=f"result {n}")
    return found


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@EACH
@EACH_DEVICE
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_torchs(cell: str, bias: bool, device: str) -> None:
    given = made(cell, device, bias=bias)
    # Each argument alone, and all together.
    for which in (*((n,) for n in range(7)), tuple(range(7))):
        runs = []
        for run in (step, torchs):
            arguments = with_grad(given, which)
            out = run(cell, arguments)
            leaves = leaves_of(arguments)
            runs.append([*(t.detach() for t in out), *(gradients(out, leaves) if leaves else [])])
        close(*runs)


@EACH
@pytest.mark.parametrize("dtype", FLOATING)
@EACH_DEVICE
def test_as_exact_as_torchs(cell: str, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    as_exact_as_torchs(cell, made(cell, device, dtype))


@EACH
@EACH_DEVICE
def test_second_derivatives(cell: str, device: str) -> None:
    given = with_grad(made(cell, device))
    leaves = leaves_of(given)

    def run(*of: Tensor) -> tuple[Tensor, ...]:
        rest = iter(of)
        return tuple(step(cell, [None if t is None else next(rest) for t in given]))

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


@EACH
@EACH_DEVICE
def test_arguments_that_depend_on_each_other(cell: str, device: str) -> None:
    """Second derivatives, where h is a function of the input, and both biases are one tensor."""
    given, runs = made(cell, device), []
    assert given[0] is not None and given[5] is not None
    for run in (step, torchs):
        x, bias = given[0].detach().requires_grad_(), given[5].detach().requires_grad_()
        h = torch.cat([x, x[:, :2].sin()], 1)
        out = run(cell, [x, h, *given[2:5], bias, bias])
        first = gradients(out, [x, bias], create_graph=True)
        runs.append([*first, *gradients(first, [x, bias])])
    close(*runs)


@EACH
@EACH_DEVICE
def test_gradients_of_some_results(cell: str, device: str) -> None:
    """A result that the loss does not use has no gradient, and sum() has an expanded one."""
    given = made(cell, device)
    for n in range(2 if cell == "lstm" else 1):
        runs = []
        for run in (step, torchs):
            arguments = with_grad(given)
            leaves = leaves_of(arguments)
            runs.append(torch.autograd.grad(run(cell, arguments)[n].sum(), leaves))
        close(*runs)


@EACH
@EACH_DEVICE
@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
def test_autocast_is_torchs(cell: str, lower: torch.dtype, device: str) -> None:
    given, runs = made(cell, device, torch.float32), []
    for run in (step, torchs):
        arguments = with_grad(given)
        with torch.autocast(device, lower):
            out = run(cell, arguments)
        found = gradients(out, leaves_of(arguments))
        assert {t.dtype for t in found} == {torch.float32}
        runs.append([*(t.detach() for t in out), *found])
    torch.testing.assert_close(*runs, rtol=0.05, atol=0.05)


@EACH
@NEEDS_GPU
def test_a_backward_pass_under_autocast(cell: str) -> None:
    """It computes in the dtype of the forward pass, and leaves later weight gradients alone."""
    given = made(cell, "cuda", torch.float32)
    found = []
    for inside in (True, False):
        arguments = with_grad(given)
        with torch.autocast("cuda", torch.bfloat16, enabled=inside):
            with torch.autocast("cuda", enabled=False):
                out = step(cell, arguments)
            found.append(gradients(out, leaves_of(arguments)))
            if inside:
                later = sum(t.sum() for t in step(cell, arguments))
                grads = torch.autograd.grad(later, leaves_of(arguments))
                assert all(bool(g.any()) for g in grads)
    torch.testing.assert_close(*found)


@EACH
@NEEDS_GPU
def test_one_node_on_a_gpu(cell: str) -> None:
    arguments = with_grad(made(cell, "cuda"))
    out = step(cell, arguments)
    (node,) = {t.grad_fn for t in out}
    assert node is not None and node.name() == "CellStepBackward"
    assert {following.name() for following, _ in node.next_functions if following is not None} == {
        "torch::autograd::AccumulateGrad"
    }
    sum(t.sum() for t in out).backward()
    grads = [t.grad for t in leaves_of(arguments)]
    assert all(g is not None for g in grads)
    assert all(t.grad_fn is None for t in step(cell, made(cell, "cuda")))


@EACH
@EACH_DEVICE
def test_gradients_share_no_memory(cell: str, device: str) -> None:
    arguments = with_grad(made(cell, device))
    grads = gradients(step(cell, arguments), leaves_of(arguments))
    assert len({g.data_ptr() for g in grads}) == len(grads)


@EACH
@EACH_DEVICE
def test_backward_twice(cell: str, device: str) -> None:
    arguments = with_grad(made(cell, device))
    out = step(cell, arguments)
    first = gradients(out, leaves_of(arguments), retain_graph=True)
    close(gradients(out, leaves_of(arguments)), first)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(out, leaves_of(arguments))


@EACH
@EACH_DEVICE
def test_what_torch_does_not_save_may_be_written_over(cell: str, device: str) -> None:
    """torch's op saves neither input nor h if the weights are frozen."""
    given, runs = made(cell, device), []
    for run in (step, torchs):
        arguments = with_grad([t if t is None else t.clone() for t in given], (1,))
        out = run(cell, arguments)
        assert arguments[0] is not None
        arguments[0].zero_()
        runs.append(gradients(out, leaves_of(arguments)))
    close(*runs)
    arguments = with_grad(made(cell, device))
    out = step(cell, arguments)
    with torch.no_grad():
        leaves_of(arguments)[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(out, leaves_of(arguments))


@EACH
@EACH_DEVICE
def test_transforms(cell: str, device: str) -> None:
    given = made(cell, device)
    x = given[0]
    assert x is not None

    def run(of: Callable[..., list[Tensor]], x: Tensor) -> Tensor:
        return torch.cat(of(cell, [x, *given[1:]]), -1)

    once = [torch.func.grad(lambda x, of=of: run(of, x).square().sum()) for of in (step, torchs)]
    close(*(of(x) for of in once))
    close(*(torch.func.grad(lambda x, of=of: of(x).sin().sum())(x) for of in once))
    if device == "cpu" or cell.startswith("rnn"):  # torch's fused cells have no forward mode
        close(*(torch.func.jvp(lambda x, of=of: run(of, x), (x,), (x,)) for of in (step, torchs)))


@EACH
@EACH_DEVICE
def test_wrong_sizes_raise_torchs_error(cell: str, device: str) -> None:
    given = with_grad(made(cell, device))
    for n, size in itertools.product(range(5), ((B, H + 1), (1, H), (H,), (B + 1, I))):
        if given[n] is None or given[n].shape == size:
            continue
        wrong: Arguments = [*given[:n], torch.randn(size, device=device).double(), *given[n + 1 :]]
        texts = []
        for run in (step, torchs):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                run(cell, wrong)
            texts.append(repr(raised.value))
        assert texts[0] == texts[1]


@pytest.mark.parametrize("cell", [cell for cell in TORCHS if cell != "gru"])
@pytest.mark.parametrize("grad", [True, False])
def test_fake_tensors_of_a_gpu(cell: str, grad: bool) -> None:
    """torch can compute the sizes of results on a machine without a GPU, except for a GRU cell."""
    with FakeTensorMode(), torch.set_grad_enabled(grad):
        given = [
            None if t is None else torch.empty(t.shape, device="cuda") for t in made(cell, "cpu")
        ]
        arguments = with_grad(given)
        out = step(cell, arguments)
        assert [t.shape for t in out] == [(B, H)] * (2 if cell == "lstm" else 1)
        assert all(t.device.type == "cuda" for t in out)


@EACH
@EACH_DEVICE
def test_a_mode_sees_torchs_ops(cell: str, device: str) -> None:
    found = []
    for run in (step, torchs):
        arguments = with_grad(made(cell, device))
        with FlopCounterMode(display=False) as counter:
            gradients(run(cell, arguments), leaves_of(arguments))
        found.append(counter.get_total_flops())
    assert found[0] == found[1] > 0


def test_messages() -> None:
    given = made("lstm", "cpu")
    with pytest.raises(RuntimeError, match="cell_step: cell must be lstm, gru, rnn_tanh or rnn_re"):
        step("lltm", given)
    with pytest.raises(RuntimeError, match="cell_step: c must not be given if cell is gru"):
        step("gru", given)
    with pytest.raises(RuntimeError, match="cell_step: c must be a tensor if cell is lstm"):
        step("lstm", [*given[:2], None, *given[3:]])
