"""Predicts sine waves at the sizes of PyTorch's time_sequence_prediction, with nn.replace.

    python examples/drop_in/time_sequence_prediction.py --json FILE

The data are 100 waves of 1000 steps with random phases, in float64: 97 for training and 3 for
testing. The model has two layers of 51 units and learns by LBFGS with a learning rate of 0.8. After
each step of LBFGS it predicts 1000 more values from its own outputs. Only these numbers come from
pytorch/examples; the script is our own. The original runs two nn.LSTMCell in a loop over the steps.
Here one nn.LSTM of two layers computes the same. A copy of the model, in which treadle.nn.replace
has replaced the LSTM, trains alongside.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import Step, compare, keep, options
from torch import Tensor, nn

PERIOD, TESTED, RATE = 20, 3, 0.8


class WaveModel(nn.Module):
    """Predicts the next value at each step, and then ``future`` more values: maps [B, T] to
    [B, T + future]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, waves: Tensor, future: int = 0) -> Tensor:
        output, hx = self.rnn(waves.unsqueeze(-1))
        values = [self.head(output)]
        for _ in range(future):
            output, hx = self.rnn(values[-1][:, -1:], hx)
            values.append(self.head(output))
        return torch.cat(values, 1).squeeze(-1)


def make_waves(count: int, length: int) -> Tensor:
    """[count, length]: sines of one period with random phases."""
    starts = torch.randint(-4 * PERIOD, 4 * PERIOD, (count, 1))
    return torch.sin((torch.arange(length) + starts).double() / PERIOD)


def learner(model: nn.Module, waves: Tensor, future: int, told: list[float]) -> Step:
    """Returns a function that takes a step and appends the error on the test waves to ``told``."""
    learnt, tested = waves[TESTED:], waves[:TESTED]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=RATE)

    def error() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(learnt[:, :-1]), learnt[:, 1:])
        loss.backward()
        return loss

    def step(_: int) -> float:
        loss = optimizer.step(error).item()  # LBFGS returns the loss before its step
        with torch.no_grad():
            values = model(tested[:, :-1], future)
        told.append(F.mse_loss(values[:, : tested.size(1) - 1], tested[:, 1:]).item())
        return loss

    return step


def main(given: list[str] | None = None) -> dict[str, Any]:
    sizes = {"steps": 3, "waves": 100, "length": 1000, "width": 51, "future": 1000}
    chosen = options(__doc__, given, **sizes)
    waves = make_waves(chosen.waves, chosen.length).to(chosen.device)
    model = WaveModel(chosen.width).double().to(chosen.device)
    tested: list[list[float]] = []

    def learn(one: nn.Module) -> Step:
        tested.append([])
        return learner(one, waves, chosen.future, tested[-1])

    found = compare(model, learn, chosen.steps)
    found["tested"] = dict(zip(found["losses"], tested, strict=True))
    for side, errors in found["tested"].items():
        print(f"error on the test waves, {side:7}: {'  '.join(f'{e:.2e}' for e in errors)}")
    return keep(found, chosen)


if __name__ == "__main__":
    main()
