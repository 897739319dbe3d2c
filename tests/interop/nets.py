"""The nets of test_many_gpus.py, and their training in one process with the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import treadle

B, T, I, H = 8, 5, 3, 7  # noqa: E741
STEPS = 3
MOST_NORM = 0.05  # the limit of the gradients' norm: each step must be clipped

Results = dict[str, Any]


class Tagger(nn.Module):
    """A recurrent layer and a linear head."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(I, H, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * H, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])  # type: ignore[no-any-return]


class EveryOp(nn.Module):
    """Runs a cell over a few steps, a sine layer, then the elementwise ops."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = treadle.nn.LLTMCell(I, H)
        self.waves = treadle.nn.SineLinear(H, H, omega_0=2.0)
        self.shift = nn.Parameter(torch.randn(H))
        self.head = nn.Linear(H, 1)

    def forward(self, x: Tensor) -> Tensor:
        hx = None
        for step in x.unbind(1):
            hx = self.cell(step, hx)
        assert hx is not None
        mixed = treadle.vector_add(self.waves(hx[0]), self.shift, alpha=0.5)
        return self.head(treadle.scale(treadle.sine(mixed), 2.0))  # type: ignore[no-any-return]


def replaced() -> nn.Module:
    net = Tagger(nn.LSTM)
    assert treadle.nn.replace(net).replaced == ["rnn"]
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: Tagger(treadle.nn.LSTM),
    "GRU": lambda: Tagger(treadle.nn.GRU),
    "replaced": replaced,
    "LLTM": lambda: Tagger(treadle.nn.LLTM),
    "Siren": lambda: treadle.nn.Siren(I, H, hidden_layers=2, out_features=1, outermost_linear=True),
    "every op": EveryOp,
}


def net(name: str, device: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETS[name]().to(device)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def batches(device: str) -> list[Tensor]:
    """The whole batch of each step."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, T, I, generator=generator).to(device) for _ in range(STEPS)]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    return mse_loss(y.float(), torch.ones_like(y, dtype=torch.float32))


def whole(value: Tensor) -> Tensor:
    """Gathers a sharded tensor."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[no-any-return]


def named(tensors: Iterator[tuple[str, Tensor | None]]) -> dict[str, Tensor]:
    """Gathers the tensors on the CPU. The keys are their names without the wrapper's prefix."""
    found = {}
    for name, tensor in tensors:
        assert tensor is not None, name
        found[name.removeprefix("module.")] = whole(tensor).detach().cpu().clone()
    return found


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return named((name, p.grad) for name, p in model.named_parameters())


def results(losses: list[Tensor], norms: list[Tensor], model: nn.Module) -> Results:
    """Returns losses and norms, the clipped gradients of the last step, and the parameters after
    this step."""
    return {
        "losses": torch.stack([loss.detach().cpu() for loss in losses]),
        "norms": torch.stack([norm.detach().cpu() for norm in norms]),
        "gradients": gradients(model),
        "parameters": named(model.named_parameters()),
    }


def train_alone(name: str, device: str, steps: int = STEPS) -> Results:
    model = net(name, device)
    optimizer, losses, norms = optimizer_of(model), [], []
    for x in batches(device)[:steps]:
        optimizer.zero_grad()
        losses.append(loss_of(model, x))
        losses[-1].backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM))
        optimizer.step()
    return results(losses, norms, model)


def train_alone_in_bfloat16(name: str, device: str, world: int) -> Results:
    """Mixed precision in plain code. The inputs and a copy of the parameters are rounded, and each
    part of the batch has bfloat16 gradients. Their mean and the parameters are float32."""
    model = net(name, device)
    optimizer, losses, norms = optimizer_of(model), [], []
    for x in batches(device):
        rounded = copy.deepcopy(model).bfloat16()
        optimizer.zero_grad()
        found = []
        for part in x.bfloat16().chunk(world):
            loss = loss_of(rounded, part)
            found.append(loss.detach())
            grads = torch.autograd.grad(loss, list(rounded.parameters()))
            for p, grad in zip(model.parameters(), grads, strict=True):
                p.grad = (0 if p.grad is None else p.grad) + grad.float() / world
        losses.append(torch.stack(found).mean())
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM))
        optimizer.step()
    return results(losses, norms, model)
