"""Tests training with checkpointing, loss scaling and threads. Tests with several processes are in
tests/interop/test_many_gpus.py."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES

STEPS, B, I, H = 4, 6, 5, 7  # noqa: E741


class Net(nn.Module):
    """Runs a cell over a few steps, then elementwise ops."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = treadle.nn.LLTMCell(I, H)
        self.shift = nn.Parameter(torch.randn(H))
        self.head = nn.Linear(H, 1)

    def forward(self, steps: Tensor) -> Tensor:
        hx = None
        for x in steps:
            hx = self.cell(x, hx)
        assert hx is not None
        mixed = treadle.vector_add(hx[0], self.shift, alpha=0.5)
        return self.head(treadle.scale(treadle.sine(mixed), 2.0))  # type: ignore[no-any-return]


def net(device: str) -> Net:
    torch.manual_seed(0)
    return Net().to(device)


def data(device: str, seed: int = 1, batch: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(STEPS, batch, I, generator=generator).to(device)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_checkpointing_changes_no_gradient(device: str, reentrant: bool, autocast: bool) -> None:
    model, x = net(device), data(device).requires_grad_()

    def run(forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        x.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            forward(x).float().square().mean().backward()
        return [p.grad for p in model.parameters()] + [x.grad]  # type: ignore[misc]

    plain = run(model)
    again = run(lambda x: checkpoint(model, x, use_reentrant=reentrant))
    for ours, expected in zip(again, plain, strict=True):
        same_bits(ours, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler(device: str) -> None:
    """A scaled step in float16 changes the parameters; a step that overflows is skipped."""
    model, x = net(device), data(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    for factor, moves in ((1.0, True), (float("inf"), False), (1.0, True)):
        before = [p.detach().clone() for p in model.parameters()]
        scale = scaler.get_scale()
        with torch.autocast(device, torch.float16):
            loss = treadle.scale(model(x).float().square().mean(), factor)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert any(changed) == moves
        assert (scaler.get_scale() < scale) != moves


@pytest.mark.parametrize("device", DEVICES)
def test_scaled_gradients_are_the_gradients(device: str) -> None:
    model, x = net(device).double(), data(device).double()
    plain = gradients(model, model(x).square().mean())
    scaled = gradients(model, treadle.scale(model(x).square().mean(), 2.0**16))
    for ours, expected in zip(scaled, plain, strict=True):
        torch.testing.assert_close(ours * 2.0**-16, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_sixteen_threads_at_once(device: str) -> None:
    """Each thread uses one of four batches. All threads share the parameters."""
    model, count = net(device), 16

    def work(seed: int) -> list[Tensor]:
        found: list[Tensor] = []
        for _ in range(5):
            x = data(device, seed % 4, batch=64)
            loss = model(x).square().mean()
            found = [loss.detach(), *gradients(model, loss)]
            treadle.scale_(x, 0.5)
            treadle.sine(x, out=x)
            found.append(x)
        return found

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(count) as pool:
        together = list(pool.map(work, range(count)))
    for seed, found in enumerate(together):
        for ours, expected in zip(found, alone[seed % 4], strict=True):
            same_bits(ours, expected, f"thread {seed}")
