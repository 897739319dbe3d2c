"""treadle.nn.make_training_step: values and gradients equal those of the captured function.

Every test runs on the CPU, on the CPU with emulated graphs, and with CUDA graphs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.recurrent.support.training_cases import (
    B,
    H,
    I,
    Net,
    T,
    device,
    grads_of,
    looped,
    made,
    same,
)
from treadle.nn import make_training_step

__all__ = ["device"]  # the fixture


def test_a_loop_of_calls_is_the_loop_of_the_module(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=T)
    expected = looped(net, x, h)
    found = looped(step, x, h)
    same(found, expected)
    same(
        grads_of(torch.stack(found).square().sum(), net, h),
        grads_of(torch.stack(expected).square().sum(), net, h),
    )


def test_a_function_of_all_steps(device: str) -> None:
    net, x, h = made(device)

    def observe(rows: Tensor, state: dict[str, Tensor]) -> dict[str, Any]:
        outputs = looped(net, rows, state["h"])
        return {"all": torch.stack(outputs), "two": outputs[:2]}

    step = make_training_step(observe, (x, {"h": h}))
    for scale in (1.0, -2.0):  # replays read new values
        found, expected = step(x * scale, {"h": h}), observe(x * scale, {"h": h})
        same([found["all"], *found["two"]], [expected["all"], *expected["two"]])
        losses = [(r["all"].sin().sum() + r["two"][1].sum()) for r in (found, expected)]
        same(grads_of(losses[0], net, h), grads_of(losses[1], net, h))


@pytest.mark.parametrize("cell", ["RNNCell", "LSTMCell"])
def test_cells(device: str, cell: str) -> None:
    net, x, h = made(device, lambda: getattr(nn, cell)(I, H))
    c = torch.ones(B, H, device=device, dtype=torch.float64)

    def run(row: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        found = net(row, (h, c) if cell == "LSTMCell" else h)
        return found if isinstance(found, tuple) else (found, found.sum())

    one_step_at_a_time(run, net, x, h)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LLTM", "torch.GRU", "torch.LSTM"])
def test_layers_of_one_step(device: str, kind: str) -> None:
    where: Any = nn if kind.startswith("torch") else treadle.nn
    layer, x, h = made(device, lambda: getattr(where, kind.removeprefix("torch."))(I, H, 2))
    c = torch.ones(2, B, H, device=device, dtype=torch.float64)

    one_state = kind.endswith(("GRU", "RNN"))

    def run(row: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        hx = torch.stack([h, h])
        output, states = layer(row.unsqueeze(0), hx if one_state else (hx, c))
        return output[0], (states if one_state else states[1]).sum()

    one_step_at_a_time(run, layer, x, h)


def one_step_at_a_time(run: Any, module: nn.Module, x: Tensor, h: Tensor) -> None:
    step = make_training_step(run, (x[0], h), calls=T)
    found, expected = looped(step, x, h), looped(run, x, h)
    same(found, expected)
    losses = [torch.stack(outputs).square().sum() for outputs in (found, expected)]
    same(grads_of(losses[0], module, h), grads_of(losses[1], module, h))


# ---- gradients


def test_training_follows_the_module(device: str) -> None:
    """Runs several updates, each with gradients that two backward passes accumulate."""
    results = []
    for graphed in (False, True):
        net, x, h = made(device)
        step = make_training_step(net, (x[0], h), calls=T) if graphed else net
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for update in range(4):
            for part in range(2):
                torch.stack(looped(step, x * (part - update), h.detach())).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=update > 1)
        results.append([p.detach() for p in net.parameters()])
    same(*results)


def test_gradients_are_new_tensors(device: str) -> None:
    """Later calls do not change earlier results and gradients."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h))
    output, y = step(x[0], h)
    grads = torch.autograd.grad(y.sum(), [h, *net.after.parameters()])
    kept = [t.clone() for t in (output, y, *grads)]
    torch.autograd.grad(step(x[1], 2 * h)[1].sum(), [h, *net.after.parameters()])
    same([output, y, *grads], kept)


def test_calls_outside_of_one_chain(device: str) -> None:
    """The calls do not depend on each other, and the loss uses only two of the three. The loss also
    uses a parameter directly."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=3)

    def loss(call: Any) -> Tensor:
        first, _, third = (call(row, h)[1] for row in x[:3])
        total: Tensor = (first * third).sum() + net.after.weight.sum()
        return total

    for _ in range(2):
        same(grads_of(loss(step), net, h), grads_of(loss(net), net, h))


def test_two_losses_of_two_graphs(device: str) -> None:
    """Each backward pass gives the gradients of its own calls and results, in any order."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=2)
    losses = [[call(x[k], h)[k].sum() for k in range(2)] for call in (step, net)]
    for k in (1, 0):
        found, expected = (grads_of(losses[n][k], net, h) for n in (0, 1))
        if k == 0 and found[2] is not None:  # this loss does not depend on the last layer
            assert not found[2].any()
            found = [t if e is not None else None for t, e in zip(found, expected, strict=True)]
        same(found, expected)


def test_gradients_of_some(device: str) -> None:
    """A backward pass that computes only some gradients leaves nothing behind that would change the
    next pass."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=T)
    found, expected = (torch.stack(looped(call, x, h)).sin().sum() for call in (step, net))
    (ours,), (theirs,) = (torch.autograd.grad(t, h, retain_graph=True) for t in (found, expected))
    torch.testing.assert_close(ours, theirs)
    weight = net.cell.weight_hh
    (ours,), (theirs,) = (
        torch.autograd.grad(t, weight, retain_graph=True) for t in (found, expected)
    )
    torch.testing.assert_close(ours, theirs)
    same(grads_of(found, net, h), grads_of(expected, net, h))


def test_a_backward_pass_that_failed_leaves_nothing(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=2)

    def fail(grad: Tensor) -> None:
        raise KeyError("a hook")

    between, _ = step(x[0], h)
    between.register_hook(fail)
    with pytest.raises(KeyError):
        step(x[1], between)[1].sum().backward()
    del between
    losses = [call(x[2], h)[1].sum() for call in (step, net)]
    same(grads_of(losses[0], net, h), grads_of(losses[1], net, h))


def test_frozen_parameters_and_hooks(device: str) -> None:
    """A parameter's hook runs once per backward pass; a frozen parameter gets no gradient."""
    net, x, h = made(device)
    seen = []
    net.cell.weight_hh.register_hook(lambda grad: seen.append(1) or 2 * grad)
    step = make_training_step(net, (x[0], h), calls=2)
    del seen[:]
    for frozen in (False, True, False):
        net.before.weight.requires_grad_(not frozen)
        losses = [torch.stack(looped(call, x[:2], h)).sum() for call in (step, net)]
        same(grads_of(losses[0], net, h), grads_of(losses[1], net, h))
        assert net.before.weight.grad is None or not frozen
    assert len(seen) == 6


def test_while_other_graphs_hold_the_parameters(device: str) -> None:
    """An earlier loss keeps its graph, and a second step of the same module has another shape."""
    net, x, h = made(device)
    held = net(x[0], h)[1].sum()
    steps = [make_training_step(net, (x[0, :n], h[:n]), calls=2) for n in (B, 1)]
    for step, n in zip(steps, (B, 1), strict=True):
        found, expected = (torch.stack(looped(c, x[:2, :n], h[:n])).sum() for c in (step, net))
        same(grads_of(found, net, h), grads_of(expected, net, h))
    assert held.isfinite()


class Keeps(nn.Module):
    """A module that reads one parameter directly, another one from a list, and a leaf that is not a
    parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.full((I,), float(k))) for k in (2, 3))
        self.kept = [self.b]
        self.leaf = torch.ones(I, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.b * x + self.kept[0] * x.square() + self.leaf * x


def test_parameters_in_other_places(device: str) -> None:
    module, x, _ = made(device, Keeps)
    module.leaf = module.leaf.to(device).requires_grad_()
    module.b.register_hook(lambda grad: 2 * grad)
    step = make_training_step(module, (x[0],))
    for scale in (1.0, 2.0):
        losses = [call(scale * x[0]).sum() for call in (step, module)]
        same(*(grads_of(loss, module, module.leaf) for loss in losses))


def test_results_without_a_gradient(device: str) -> None:
    net, x, h = made(device)

    def run(row: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new, y = net(row, state)
        return new.argmax(-1), y, y.detach()

    chosen, y, detached = make_training_step(run, (x[0], h))(x[0], h)
    expected = run(x[0], h)
    same([chosen, y, detached], expected)
    assert [t.requires_grad for t in (chosen, y, detached)] == [False, True, False]
    same(grads_of(y.sum(), net, h), grads_of(expected[1].sum(), net, h))


def test_an_argument_need_not_be_differentiated(device: str) -> None:
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=T)
    found, expected = (torch.stack(looped(call, x, h.detach())).sum() for call in (step, net))
    same(grads_of(found, net), grads_of(expected, net))
    assert h.grad is None


# ---- slots


def test_slots_return(device: str) -> None:
    """The memory of a call (its slot) becomes free after its backward pass, or when its result is
    deleted."""
    net, x, h = made(device)
    step = make_training_step(net, (x[0], h), calls=2)
    for _ in range(3):
        loss = step(x[0], step(x[1], h)[0])[1].sum()
        loss.backward()  # the graph still exists
    for _ in range(5):
        step(x[0], h)
    with torch.no_grad():
        for _ in range(5):
            step(x[0], h)


# ---- modes


def test_without_gradients_it_is_the_function(device: str) -> None:
    net, x, h = made(device, lambda: Net(dropout=0.5))
    step = make_training_step(net, (x[0], h))
    net.eval()
    with torch.no_grad():
        same(step(x[0, :2], h[:2]), net(x[0, :2], h[:2]))
    with torch.inference_mode():
        same(step(x[0], h), net(x[0], h))


def test_dropout_draws_new_numbers(device: str) -> None:
    """Each call drops different elements. Its backward pass drops the same ones."""
    net, x, h = made(device, lambda: nn.Dropout(0.5))
    step = make_training_step(lambda t: 3 * net(t), (h,), calls=3)
    masks = []
    for _ in range(2):
        results = [step(h) for _ in range(3)]
        masks += [t.detach() != 0 for t in results]
        del results
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6
    large = torch.ones_like(h).requires_grad_()
    result = step(large)
    step(h)
    (grad,) = torch.autograd.grad(result.sum(), large)
    torch.testing.assert_close(grad, result.detach())


def test_making_a_step_changes_nothing(device: str) -> None:
    """Making a step does not change batch norm statistics, random numbers, gradients or the sample
    arguments."""
    net, x, _ = made(device, lambda: nn.Sequential(nn.BatchNorm1d(I), nn.Dropout(0.5)))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    kept = x[0].clone()
    drawn = []
    for make in (False, True):
        torch.manual_seed(0)
        if make:
            step = make_training_step(net, (x[0],))
        drawn.append(torch.rand(3, device=device))
    same(*[[t] for t in drawn])
    same(net.state_dict().values(), before.values())
    assert torch.equal(x[0], kept) and all(p.grad is None for p in net.parameters())
    step(x[1])
    mean = before["0.running_mean"] * 0.9 + x[1].mean(0) * 0.1
    torch.testing.assert_close(net[0].running_mean, mean)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(device: str, inside: bool) -> None:
    """Weights are cast in every call, so that updates take effect."""
    net, x, h = made(device)
    net, x, h = net.float(), x.float(), h.detach().float().requires_grad_()

    def run(row: Tensor, state: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16) if inside else nullcontext():
            found: Tensor = net.after(net.before(row) + state)
            return found

    def outside() -> Any:
        return torch.autocast(device, torch.bfloat16, enabled=not inside)

    with outside():
        step = make_training_step(run, (x[0], h), calls=2)
    for _ in range(2):
        with outside():
            found, expected = (call(x[0], h) + call(x[1], h) for call in (step, run))
        assert found.dtype == torch.bfloat16
        same([found], [expected])
        ours, theirs = (grads_of(t.sum(), net, h) for t in (found, expected))
        for one, other in zip(ours, theirs, strict=True):
            if one is not None and other is not None:
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            net.before.weight.mul_(-3)


def test_weights_that_are_computed(device: str) -> None:
    net, x, h = made(device)
    nn.utils.parametrizations.weight_norm(net.before)
    step = make_training_step(net, (x[0], h), calls=2)
    losses = [torch.stack(looped(call, x[:2], h)).sum() for call in (step, net)]
    same(grads_of(losses[0], net, h), grads_of(losses[1], net, h))
