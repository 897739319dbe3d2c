"""A model, and graphs emulated on the CPU, for tests of treadle.nn.make_training_step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.inputs import DEVICES
from treadle.nn import TrainingStep, _training_graphs, _training_modules

T, B, I, H = 6, 3, 4, 5  # noqa: E741
WAYS = ("plain", "emulated", *DEVICES[1:])


class Emulated(_training_graphs.Recorder):
    """Runs on the CPU what a graph would replay, and writes into the same tensors."""

    def __init__(self, device: torch.device) -> None: ...

    @contextmanager
    def prepare(self) -> Iterator[None]:
        # Capturing changes neither the random number generator nor buffers.
        modules = _training_modules.Modules()
        with modules.watched(), torch.random.fork_rng([]):
            yield
        modules.restore_buffers()

    def capture(
        self, run: Callable[[], list[Tensor]], *, shared: bool
    ) -> tuple[list[Tensor], Callable[[], None]]:
        result = run()
        graphs = run.__self__._graphs  # type: ignore[attr-defined]

        def replay() -> None:
            with torch.enable_grad(), graphs.aliased():
                again = run()
            with torch.no_grad():
                for old, new in zip(result, again, strict=True):
                    if old is not None:
                        old.copy_(new)

        return result, replay

    def enter(self) -> None: ...


@pytest.fixture(params=WAYS)
def device(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulated":
        monkeypatch.setattr(_training_graphs, "Recorder", Emulated)
        monkeypatch.setattr(TrainingStep, "_captured_on", ("cpu", "cuda"))
    return "cuda" if request.param == "cuda" else "cpu"


class Net(nn.Module):
    """A cell between other layers; one parameter is also used outside of its module's call."""

    def __init__(self, cell: str = "GRUCell", dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(I, H), nn.Linear(H, I)
        self.cell = getattr(nn, cell)(H, H)
        self.dropout = nn.Dropout(dropout)
        self.unused = nn.Linear(H, H)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(self.dropout(self.before(x).tanh()), h)
        return h, self.after(h) + x @ self.after.weight @ self.after.weight.T


def made(device: str, net: Callable[[], nn.Module] = Net) -> tuple[Any, Tensor, Tensor]:
    torch.manual_seed(3)
    module = net().to(device, torch.float64)
    kind = {"device": device, "dtype": torch.float64}
    return module, torch.randn(T, B, I).to(**kind), torch.randn(B, H).to(**kind).requires_grad_()


def looped(step: Any, x: Tensor, h: Tensor) -> list[Tensor]:
    outputs = []
    for row in x:
        h, y = step(row, h)
        outputs.append(y)
    return outputs


def grads_of(loss: Tensor, module: nn.Module, *others: Tensor) -> list[Tensor | None]:
    module.zero_grad()
    for t in others:
        t.grad = None
    loss.backward()
    found = [*module.parameters(), *others]
    return [None if p.grad is None else p.grad.clone() for p in found]


def same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)
