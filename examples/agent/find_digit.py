"""An agent that sees, remembers and walks, and its world, all on one device.

    python examples/agent/find_digit.py              learn, then play with unseen digits
    python examples/agent/find_digit.py --out DIR    also write JSON and pictures there

The agent sees a handwritten digit, the cue, once. Then it must walk to the corner of a room that
shows the same digit, written by somebody else. On its way it sees only the nearest tiles. A
convolutional net with sine activations reads the pixels (perceive), a GRU remembers what was read
and chooses a move (reason), and the room moves the agent (act). Many rooms run side by side, each
in one row of a batch. When an episode ends, the next begins in the same row, and the GRU resets
there. The convolutional net (the eye) learns first, from labelled scenes. Then the GRU (the mind)
learns by PPO. An agent that cannot read, or that forgets the cue, succeeds in at most a quarter of
the rooms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

try:
    from agent_loop import WHO, Loop, player, success
    from agent_nets import Eye, Mind, learn_to_read, share_read
    from agent_pictures import choose, draw_figure, draw_strip, watch
    from agent_speed import measure
    from agent_world import LIMIT, Sheet, World, load_sheets

    import ppo
    from device_check import pick_device
    from machine_facts import facts
except ImportError as error:
    sys.exit(
        f"find_digit.py: {error.name} is missing; it comes with pip install -r requirements.txt"
    )

# The entropy bonus is large: with a smaller one, the agent settles for guessing among corners.
RULES = ppo.Rules(discount=0.97, trace=0.95, clip=0.2, entropy=0.04, epochs=4, parts=4)
TARGET, SHOWN = 0.85, 20
# For measuring speed: the numbers of rows, and the seconds for each way to run the loop.
SIZES, SECONDS = {"cpu": [64, 512], "cuda": [256, 2048, 16384]}, 1.0


@dataclass
class Settings:
    rows: int = 256
    steps: int = 32  # steps per batch
    hidden: int = 128
    reading: int = 800  # training steps of the eye
    updates: int = 160
    learning_rate: float = 5e-3
    tested: int = 200  # steps of the test, with digits that were not in training
    seed: int = 0


class Training:
    """The state of the mind's training, in the rooms of ``loop``."""

    def __init__(self, loop: Loop, settings: Settings) -> None:
        self.loop, self.settings = loop, settings
        self.play = player(loop, settings.steps)
        self.optimizer = torch.optim.Adam(loop.mind.parameters(), settings.learning_rate)
        # For each batch: how many episodes ended, how many of these ended on the right digit, and
        # how many episodes began in the middle of the batch. The counts stay on the device until
        # they are printed, so update() does not wait for the device.
        self.counts: list[Tensor] = []

    def update(self) -> None:
        """Play a batch and learn from it."""
        left = 1 - len(self.counts) / self.settings.updates
        for group in self.optimizer.param_groups:
            group["lr"] = left * self.settings.learning_rate
        rules = replace(RULES, entropy=min(1, 2 * left) * RULES.entropy)
        start = self.loop.h.clone()
        played, value = self.play()
        played = played | {"advantage": ppo.advantages(played, value, rules)}
        right = (played["reward"] > 0).sum()
        self.counts.append(torch.stack([played["ends"].sum(), right, played["begins"][1:].sum()]))
        ppo.improve(self.judge, self.optimizer, played, start, rules)

    def judge(self, part: ppo.Played, start: Tensor) -> tuple[Categorical, Tensor]:
        scores, value, _ = self.loop.mind(part["x"], start, part["begins"])
        # Validation would make the host wait for the device.
        return Categorical(logits=scores, validate_args=False), value

    def curve(self) -> list[float]:
        """For each batch, the fraction of its ended episodes that ended on the right digit."""
        ends, right, _ = torch.stack(self.counts).T
        return (right / ends.clamp(min=1)).tolist()

    def inner_resets(self) -> int:
        return int(torch.stack(self.counts)[:, 2].sum())

    def run(self) -> float:
        """Makes all updates, and returns the seconds that they took."""
        start = time.perf_counter()
        for update in range(1, self.settings.updates + 1):
            self.update()
            if update % SHOWN == 0 or update == self.settings.updates:
                rates = self.curve()[-SHOWN:]
                print(
                    f"update {update:3}: {sum(rates) / len(rates):4.0%} right; "
                    f"{self.inner_resets():,} rooms began in the middle of a batch; "
                    f"{time.perf_counter() - start:.0f} s"
                )
        return time.perf_counter() - start


def learn(settings: Settings, sheets: tuple[Sheet, Sheet]) -> tuple[Training, dict[str, Any]]:
    """Teach the eye, then the mind, and let them play with unseen digits."""
    train, test = sheets
    device = train.kinds.device
    torch.manual_seed(settings.seed)
    eye, mind = Eye().to(device), Mind(settings.hidden).to(device)
    start = time.perf_counter()
    learn_to_read(eye, train, settings.reading)
    read = share_read(eye, test)
    reading = time.perf_counter() - start
    print(f"The eye reads {read:.1%} of unseen digits after {reading:.0f} s, on {device}.")
    training = Training(Loop(World(train, settings.rows), eye, mind), settings)
    seconds = training.run()
    found = {}
    for who, name in WHO.items():
        found[who] = success(Loop(World(test, settings.rows), eye, mind, who), settings.tested)
        print(f"{found[who]['success']:6.1%} of {found[who]['episodes']:,} rooms: {name}")
    record = {
        "eye": round(read, 4),
        "curve": [round(rate, 3) for rate in training.curve()],
        "inner_resets": training.inner_resets(),
        "seconds": {"eye": round(reading, 1), "mind": round(seconds, 1)},
        "success": found,
    }
    return training, record


def write(out: Path, record: dict[str, Any], training: Training, test: Sheet) -> None:
    """Measure, and write JSON and pictures."""
    out.mkdir(parents=True, exist_ok=True)
    eye, mind, device = training.loop.eye, training.loop.mind, test.kinds.device
    episodes = watch(Loop(World(test, 64), eye, mind), 2 * LIMIT)
    draw_strip(out / "agent_strip.png", choose(episodes))
    record["speeds"] = measure(eye, mind, test, SIZES[device.type], SECONDS)
    path = out / f"agent_{device.type}.json"
    path.write_text(json.dumps(record) + "\n")
    draw_figure(path.with_suffix(".png"), record)
    print(f"{path}, {path.with_suffix('.png').name} and agent_strip.png are written.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--rows", type=int, default=Settings.rows, help="rooms side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and pictures there")
    options = parser.parse_args(arguments)
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = pick_device()
    settings = Settings(options.rows, updates=options.updates, seed=options.seed)
    machine = facts(device.type)
    train, test = load_sheets(device)
    training, record = learn(settings, (train, test))
    if options.out:
        head = {"machine": machine, "settings": asdict(settings)}
        write(options.out, head | record, training, test)
    rate = record["success"]["agent"]["success"]
    if rate < TARGET:
        text = f"find_digit.py: the agent solved {rate:.0%} of the rooms, below {TARGET:.0%}"
        print(text, file=sys.stderr)
    return 0 if rate >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
