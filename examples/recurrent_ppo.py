"""Train a GRU policy by PPO on mazes that require memory; episodes begin in the middle of rows.

    python examples/recurrent_ppo.py                     learn, in seconds
    python examples/recurrent_ppo.py --ignore-resets     without resets: the policy cannot learn
    python examples/recurrent_ppo.py --figure IMAGE.png  draw the curves of all variants, write JSON

The mazes are T-mazes. The first sign in a corridor shows on which side the treasure is, and all
later signs are random. The corridor ends without warning, and only the policy's move at the end,
left or right, counts. So the policy must remember the first sign. Nothing in the input marks this
sign as the first; the policy can tell only by its state, which has just been reset.

Many mazes run side by side, each in one row of the batch. When a maze ends, the next begins in the
same row, and the layer resets there (its argument `reset`), both when the policy plays and when it
learns. Each batch continues from the last states of the previous batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ppo
import treadle

MAZES, STEPS, HIDDEN = 64, 32, 32
SHORTEST, LONGEST = 8, 24
RULES = ppo.Rules(discount=0.9, trace=0.9, clip=0.2, entropy=0.01, epochs=4, parts=4)
LEARNING_RATE = 3e-3
TARGET, SHOWN, SEEDS = 0.95, 10, 5
# The variants. A key says when the GRU ignores resets; its value is the label in the figure.
WAYS = {"": "with resets", "learning": "resets in playing alone", "always": "without resets"}


class Mazes:
    """MAZES corridors. When one ends, a new one begins in its row."""

    def __init__(self, random: torch.Generator) -> None:
        self.random = random
        self.side = torch.zeros(MAZES, dtype=torch.long)
        self.left = torch.zeros(MAZES, dtype=torch.long)
        self.begins = torch.ones(MAZES, dtype=torch.bool)
        self.sign = self._next()

    def _draw(self, low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (MAZES,), generator=self.random)

    def _next(self) -> Tensor:
        """The next sign of each corridor, [MAZES, 2]."""
        sign = self._draw(0, 1)
        self.side = torch.where(self.begins, sign, self.side)
        self.left = torch.where(self.begins, self._draw(SHORTEST, LONGEST), self.left) - 1
        return F.one_hot(sign, 2).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Advances by one step. Returns the rewards (1 or -1 where a corridor ends, otherwise 0)
        and which corridors ended."""
        self.begins = self.left == 0
        reward = torch.where(self.begins, (action == self.side) * 2.0 - 1.0, 0.0)
        self.sign = self._next()
        return reward, self.begins


class Policy(nn.Module):
    """Scores left and right, and predicts the future reward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = treadle.nn.GRU(2, HIDDEN)
        self.head = nn.Linear(HIDDEN, 3)

    def forward(
        self, signs: Tensor, h: Tensor, begins: Tensor | None
    ) -> tuple[torch.distributions.Categorical, Tensor, Tensor]:
        """Takes signs [T, B, 2], states [1, B, H] and resets [T, B]. Returns the distributions of
        moves [T, B], the values [T, B] and the last states [1, B, H]."""
        output, h = self.layer(signs, h, reset=begins)
        scores, value = self.head(output).split([2, 1], -1)
        return torch.distributions.Categorical(logits=scores), value.squeeze(-1), h


class Training:
    """A policy, its mazes, and the fraction of mazes solved in each batch (`rates`)."""

    def __init__(self, ignore_resets: str = "", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.random = torch.Generator().manual_seed(seed)
        self.ignore = ignore_resets
        self.mazes, self.policy = Mazes(self.random), Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), LEARNING_RATE)
        self.h = torch.zeros(1, MAZES, HIDDEN)
        self.inner_resets = 0
        self.rates: list[float] = []

    def rate(self) -> float:
        return sum(self.rates[-SHOWN:]) / len(self.rates[-SHOWN:])

    def act(self, h: Tensor) -> tuple[torch.distributions.Categorical, Tensor, Tensor]:
        """Runs the policy on the current sign of every maze, but does not advance the mazes."""
        begins = None if self.ignore == "always" else self.mazes.begins[None]
        return self.policy(self.mazes.sign[None], h, begins)

    @torch.no_grad()
    def play(self) -> dict[str, Tensor]:
        """Plays STEPS steps in every maze. Each entry is [STEPS, MAZES], but "sign" is [..., 2]."""
        steps: list[tuple[Tensor, ...]] = []
        for _ in range(STEPS):
            sign, begins = self.mazes.sign, self.mazes.begins
            choice, value, self.h = self.act(self.h)
            action = choice.sample()
            reward, ends = self.mazes.step(action[0])
            chance = choice.log_prob(action)
            steps.append((sign, begins, action[0], chance[0], value[0], reward, ends))
        names = ("sign", "begins", "action", "chance", "value", "reward", "ends")
        played = dict(zip(names, map(torch.stack, zip(*steps, strict=True)), strict=True))
        _, value, _ = self.act(self.h)
        played["advantage"] = ppo.advantages(played, value[0], RULES)
        return played

    def update(self) -> None:
        """Play a batch and learn from it."""
        start = self.h
        played = self.play()
        self.inner_resets += int(played["begins"][1:].sum())
        reward = played["reward"][played["ends"]]
        self.rates.append((reward > 0).float().mean().item())
        ppo.improve(self.judge, self.optimizer, played, start, RULES, self.random)

    def judge(
        self, part: ppo.Played, start: Tensor
    ) -> tuple[torch.distributions.Categorical, Tensor]:
        """The current policy's distributions of moves and its values, [STEPS, B], for some rows."""
        begins = None if self.ignore else part["begins"]
        choice, value, _ = self.policy(part["sign"], start, begins)
        return choice, value


def train(ignore_resets: str, seed: int, updates: int) -> Training:
    training, start = Training(ignore_resets, seed), time.perf_counter()
    for update in range(1, updates + 1):
        training.update()
        if update % SHOWN == 0 or update == updates:
            print(
                f"update {update:3}: {training.rate():4.0%} of the mazes solved; "
                f"{training.inner_resets:,} began in the middle of a batch; "
                f"{time.perf_counter() - start:.0f} s"
            )
    return training


def compare(path: Path, updates: int, seed: int) -> None:
    """Train each variant with SEEDS seeds, draw the curves to ``path``, and write a JSON file."""
    curves: dict[str, list[list[float]]] = {}
    for ignore, label in WAYS.items():
        curves[label] = []
        for one in range(seed, seed + SEEDS):
            print(f"{label}, seed {one}")
            rates = train(ignore, one, updates).rates
            curves[label].append([round(rate, 3) for rate in rates])
    settings = {"mazes": MAZES, "steps": STEPS, "lengths": [SHORTEST, LONGEST], "hidden": HIDDEN}
    record = {"torch": torch.__version__, "settings": settings, "curves": curves}
    path.with_suffix(".json").write_text(json.dumps(record) + "\n")

    from matplotlib.figure import Figure  # only figures need matplotlib

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for color, (label, runs) in enumerate(curves.items()):
        for number, rates in enumerate(runs):
            axes.plot(rates, color=f"C{color}", linewidth=1, label=label if number == 0 else None)
    axes.set(xlabel="update", ylabel="mazes solved", ylim=(0, 1.05))
    axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:.0%}")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ignore-resets",
        choices=("learning", "always"),
        nargs="?",
        const="always",
        default="",
        help="do not reset states at the end of a maze: when learning, or always",
    )
    parser.add_argument("--figure", type=Path, metavar="IMAGE.png", help="draw all curves")
    options = parser.parse_args(arguments)
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    if options.figure:
        compare(options.figure, options.updates, options.seed)
        return 0
    rate = train(options.ignore_resets, options.seed, options.updates).rate()
    if rate < TARGET:
        text = f"recurrent_ppo.py: the policy solved {rate:.0%} of the mazes, below {TARGET:.0%}"
        print(text, file=sys.stderr)
    return 0 if rate >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
