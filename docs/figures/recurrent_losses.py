"""Trains two programs with LLTM, LSTM and GRU, for the table of losses in docs/recurrent.md.

    python docs/figures/recurrent_losses.py                 write recurrent_losses.json here
    python docs/figures/recurrent_losses.py --output DIR    write the file to another folder
    python docs/figures/recurrent_losses.py --quick         use tiny sizes, as the tests do

It runs for some minutes on one core. The program `waves` is that of PyTorch's example
time_sequence_prediction: two layers of 51 units, trained by LBFGS, predict the next value of sine
waves in float64. The program `characters` is examples/characters.py with 160 units. There the LLTM
is trained with and without the penalty on c that this example adds to the loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import treadle  # noqa: E402
from benchmarks.harness import machine  # noqa: E402
from examples import characters, characters_text  # noqa: E402

CELLS = {"lltm": treadle.nn.LLTM, "lstm": treadle.nn.LSTM, "gru": treadle.nn.GRU}
UNITS, HELD_OUT = 51, 3
WAVES = {"rows": 40, "length": 1000, "looks": [3, 6, 9]}
TEXT = {"steps": 1500, "rates": [3e-3, 1e-2]}
QUICK_WAVES, QUICK_TEXT = {"rows": 5, "length": 20, "looks": [1]}, {"steps": 2, "rates": [3e-3]}


class Waves(nn.Module):
    """Predicts the next value at each step: maps [T, B, 1] to [T, B, 1], and returns the states."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.layer = CELLS[cell](1, UNITS, 2)
        self.head = nn.Linear(UNITS, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        output, states = self.layer(x)
        return self.head(output), states


def waves(rows: int, length: int) -> Tensor:
    """Sine waves [T, B, 1] of period 126 with random phases."""
    begins = np.random.RandomState(2).randint(-80, 80, (1, rows))
    return torch.from_numpy(np.sin((np.arange(length)[:, None] + begins) / 20)).unsqueeze(-1)


def learn_waves(cell: str, rows: int, length: int, looks: list[int]) -> Iterator[dict[str, Any]]:
    """Yields the held-out loss and the largest c each time that the number of LBFGS steps is in
    ``looks``. Each step has 20 evaluations."""
    torch.manual_seed(0)
    model, data = Waves(cell).double(), waves(rows, length)
    learnt, held_out = data[:, HELD_OUT:], data[:, :HELD_OUT]
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(learnt[:-1])[0], learnt[1:])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for step in range(1, max(looks) + 1):
        optimizer.step(closure)
        if step not in looks:
            continue
        with torch.no_grad():
            guess, states = model(held_out[:-1])
            loss = F.mse_loss(guess, held_out[1:]).item()
        yield {"program": "waves", "cell": cell, "after": step, "loss": loss} | largest(states)


def largest(states: Any) -> dict[str, float]:
    """The largest magnitude in the last c, or nothing for a GRU, which has no c."""
    return {"largest_c": states[1].abs().max().item()} if isinstance(states, tuple) else {}


def learn_text(text: str, cell: str, pull: float, rate: float, steps: int) -> dict[str, Any]:
    """Trains, and returns a row with the bits per character of the held-out text."""
    settings = replace(characters.Settings(), cell=cell, hidden=160, learning_rate=rate, pull=pull)
    training = characters.Training(settings, text, torch.device("cpu"))
    for _ in range(steps):
        training.step()
    found = {"program": "characters", "cell": cell, "pull": pull, "rate": rate, "after": steps}
    return found | {"bits": training.examine()} | largest(training.hx if cell != "gru" else None)


def all_rows(of_waves: dict[str, Any], of_text: dict[str, Any], text: str) -> Iterator[Any]:
    for cell in CELLS:
        yield from learn_waves(cell, **of_waves)
    pulls = [("lltm", 0.0), ("lltm", characters.Settings.pull), ("lstm", 0.0), ("gru", 0.0)]
    for cell, pull in pulls:
        for rate in of_text["rates"]:
            yield learn_text(text, cell, pull, rate, of_text["steps"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "figures", metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a trial")
    chosen = parser.parse_args(arguments)
    # A second thread helps little with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    of_waves, of_text = (QUICK_WAVES, QUICK_TEXT) if chosen.quick else (WAVES, TEXT)
    text = characters_text.find_text()
    facts = machine.facts("cpu")
    kept = ("cpu", "cores", "cpu_capability", "torch", "treadle", "treadle_commit", "date")
    found: dict[str, Any] = {"machine": {key: facts[key] for key in kept}}
    found |= {"waves": of_waves, "text": {**of_text, "characters": len(text)}, "rows": []}
    for row in all_rows(of_waves, of_text, text):
        print(row, flush=True)
        found["rows"].append(row)
    (chosen.output / "recurrent_losses.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
