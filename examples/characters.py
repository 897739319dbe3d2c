"""Train one of treadle's recurrent layers to write: it predicts a text character by character.

    python examples/characters.py                              learn for 2 minutes, then write
    python examples/characters.py --cell gru                   the same with another cell
    python examples/characters.py --resume FILE --minutes 5    continue from a saved file

The default text comes with Python and its packages: licences and Python's language reference. A
tenth of the text is held out. The result is measured in bits per character: with b bits, the next
character of the held-out text is as hard to guess as one of 2**b equally likely characters.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import treadle
from characters_text import alphabet, find_text, read_text, split, unigram_bits
from device_check import pick_device

EMBEDDING = 64
WARM_UP, FULL_RATE = 100, 400
PATIENCE = 15
FORMAT = "characters.py 1"
WRONG_STATE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
OF_A_NEW_RUN = ("cell", "hidden", "layers", "seed")
LAYERS = {"lltm": treadle.nn.LLTM, "lstm": treadle.nn.LSTM, "gru": treadle.nn.GRU}
States = tuple[Tensor, ...]  # h, and c if the cell has one


@dataclass
class Settings:
    """The settings of a run. The defaults suit two CPU cores and two minutes."""

    cell: str = "lltm"
    hidden: int = 192
    layers: int = 1
    batch: int = 16
    length: int = 64
    dropout: float = 0.0
    learning_rate: float = 1e-2
    seed: int = 0
    pull: float = 0.3  # the weight of the penalty on an LLTM's c


LARGE = Settings(hidden=512, layers=2, batch=64, length=128, dropout=0.2, learning_rate=2e-3)


class Writer(nn.Module):
    """Scores the next character at each position: maps text [T, B] and states to scores
    [T, B, characters] and states."""

    def __init__(self, characters: int, settings: Settings) -> None:
        super().__init__()
        between = settings.dropout if settings.layers > 1 else 0.0
        self.embedding = nn.Embedding(characters, EMBEDDING)
        kind = LAYERS[settings.cell]
        self.layer = kind(EMBEDDING, settings.hidden, settings.layers, dropout=between)
        self.states = 1 if settings.cell == "gru" else 2
        self.dropout = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.hidden, characters)

    def forward(self, text: Tensor, hx: States) -> tuple[Tensor, States]:
        # On a GPU the products run in bfloat16. An LLTM's cell state stays in float32, the
        # dtype in which start() creates it. The cell state is a sum over the whole text, and
        # bfloat16 has too few digits to add small terms to a large sum.
        cuda = text.device.type == "cuda"
        with torch.autocast(text.device.type, torch.bfloat16, enabled=cuda):
            given = hx if self.states > 1 else hx[0]
            output, last = self.layer(self.embedding(text), given)
            scores = self.head(self.dropout(output)).float()
            return scores, last if self.states > 1 else (last,)

    def start(self, batch: int) -> States:
        shape = self.layer.num_layers, batch, self.layer.hidden_size
        kind = {"dtype": torch.float32, "device": self.head.weight.device}
        return tuple(torch.zeros(shape, **kind) for _ in range(self.states))


class Training:
    """A model, and what an exact continuation needs: optimizer, position in the text, states."""

    def __init__(self, settings: Settings, text: str, device: torch.device) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.text, self.device = settings, text, device
        self.learnt, self.held_out = split(text)
        self.characters = alphabet(self.learnt)
        self.model = Writer(len(self.characters), settings).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), settings.learning_rate)
        self.numbers = self.encode(self.learnt)
        self.pieces = (len(self.numbers) // settings.batch - 1) // settings.length
        self.steps, self.offset = 0, 0
        self.hx = self.model.start(settings.batch)
        self.columns = self.numbers[:0]

    def encode(self, text: str) -> Tensor:
        index = {character: number for number, character in enumerate(self.characters)}
        return torch.tensor([index.get(character, 0) for character in text], device=self.device)

    def step(self) -> Tensor:
        """Train on the next piece of every column. Returns the loss in bits per character, as a
        tensor on the device."""
        place = self.steps % self.pieces * self.settings.length
        if place == 0:
            # Each pass splits the text at different positions.
            self.offset = int(torch.randint(len(self.numbers), ()))
            self.hx = self.model.start(self.settings.batch)
        if place == 0 or not len(self.columns):
            self.columns = cut(self.numbers.roll(self.offset), self.settings.batch)
        piece = self.columns[place : place + self.settings.length + 1]

        step = self.steps + 1
        rate = self.settings.learning_rate * min(1, step / WARM_UP)
        self.optimizer.param_groups[0]["lr"] = rate / math.sqrt(max(1, step / FULL_RATE))
        self.model.train()
        self.optimizer.zero_grad()
        scores, hx = self.model(piece[:-1], self.hx)
        loss = F.cross_entropy(scores.flatten(0, 1), piece[1:].flatten())
        # An LLTM has no forget gate, so |c| grows until tanh(c) saturates. This penalty keeps c in
        # the range where tanh(c) still depends on it.
        pull = self.settings.pull * hx[1].abs().mean() if self.settings.cell == "lltm" else 0.0
        (loss + pull).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        # The next piece continues from these states, but its gradients stop here.
        self.hx = tuple(state.detach() for state in hx)
        self.steps = step
        return loss.detach() / math.log(2)

    @torch.no_grad()
    def examine(self) -> float:
        """Bits per character of the held-out text."""
        self.model.eval()
        batch = min(16, len(self.held_out) // 256 + 1)
        columns = cut(self.encode(self.held_out), batch)
        hx, total = self.model.start(batch), torch.zeros((), device=self.device)
        for place in range(0, len(columns) - 1, 256):
            piece = columns[place : place + 257]
            scores, hx = self.model(piece[:-1], hx)
            total += F.cross_entropy(scores.flatten(0, 1), piece[1:].flatten(), reduction="sum")
        return total.item() / columns[1:].numel() / math.log(2)

    @torch.no_grad()
    def write(self, count: int, temperature: float) -> str:
        """A text sampled from the model, with a separate random generator."""
        self.model.eval()
        random = torch.Generator().manual_seed(self.steps)
        number, hx, written = self.encode("\n"), self.model.start(1), ""
        for _ in range(count):
            scores, hx = self.model(number[None], hx)
            scores[..., 0] = -math.inf  # never write the token that replaces rare characters
            chances = (scores.flatten().cpu() / temperature).softmax(0)
            number = torch.multinomial(chances, 1, generator=random).to(self.device)
            written += self.characters[int(number)]
        return written

    def save(self, path: Path) -> None:
        state = {"format": FORMAT, "settings": asdict(self.settings), "text": self.text}
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"steps": self.steps, "offset": self.offset, "h": self.hx[0], "c": self.hx[-1]}
        state["random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.device)
        # Write to another name first. If the program is interrupted, the previous file remains.
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_name(path.name + ".part"))
        os.replace(path.with_name(path.name + ".part"), path)

    @classmethod
    def resumed(cls, path: Path, device: torch.device) -> Training:
        """Load a file that save() wrote. Exits the program if there is no such file."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or state.get("format") != FORMAT:
                raise ValueError("another program wrote it")
            training = cls(Settings(**state["settings"]), state["text"], device)
            training.model.load_state_dict(state["model"])
            training.optimizer.load_state_dict(state["optimizer"])
            training.steps, training.offset = state["steps"], state["offset"]
            saved = state["h"].to(device), state["c"].to(device)
            training.hx = saved[: training.model.states]
            torch.set_rng_state(state["random"])
            if device.type == "cuda" and "random_cuda" in state:
                torch.cuda.set_rng_state(state["random_cuda"], device)
        except FileNotFoundError:
            sys.exit(f"characters.py: there is no file {path} to resume; --output writes one")
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, *WRONG_STATE) as error:
            reason = str(error).split("\n")[0]
            sys.exit(f"characters.py: {path} is not what --output saved: {reason}")
        return training


def cut(numbers: Tensor, batch: int) -> Tensor:
    """Cuts the text [N] into ``batch`` columns of successive characters: [N // batch, batch]."""
    rows = len(numbers) // batch
    return numbers[: rows * batch].view(batch, rows).t().contiguous()


def train(training: Training, options: argparse.Namespace) -> None:
    begun, last, best, since = time.monotonic(), training.steps, math.inf, 0
    total = torch.zeros((), device=training.device)
    print("    step  minutes  bits a character: learning  held out")
    while True:
        total += training.step()
        minutes = (time.monotonic() - begun) / 60
        done = minutes >= options.minutes or training.steps - options.begin == options.steps
        if training.steps % options.every and not done:
            continue
        mean, held_out = total.item() / (training.steps - last), training.examine()
        print(f"{training.steps:8,}  {minutes:7.2f}  {mean:26.4f}  {held_out:8.4f}", flush=True)
        training.save(options.output)
        total.zero_()
        last, since = training.steps, since + 1
        if held_out < best:
            best, since = held_out, 0
        if since == PATIENCE:
            print("The held-out text has not improved for a while: the model only memorizes now.")
        if done or since == PATIENCE:
            return


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, help="stop after this time (1.75 if --steps is not given)")
    add("--steps", type=int, help="stop after this many more steps")
    add("--every", type=int, default=250, help="print a line and save after this many steps")
    add("--device", choices=("cpu", "cuda"), help="default: the GPU if treadle runs on it")
    add("--resume", type=Path, metavar="FILE", help="continue from a file that --output saved")
    out = Path(__file__).with_name("out") / "characters.pt"
    add("--output", type=Path, metavar="FILE", help=f"where to save (--resume's file, or {out})")
    add("--text", type=Path, metavar="FILE", help="the text to learn (UTF-8)")
    add("--write", type=int, default=500, metavar="N", help="characters to write at the end")
    add("--temperature", type=float, default=0.7, help="lower makes the text more predictable")
    add("--cell", choices=tuple(LAYERS), help="the cell of a new run (default: lltm)")
    for name in ("hidden", "layers", "seed"):
        add(f"--{name}", type=int, help="only for a new run")
    options = parser.parse_args(arguments)
    if options.resume and any(vars(options)[n] is not None for n in ("text", *OF_A_NEW_RUN)):
        parser.error(
            "--resume goes on with the text, the cell, the sizes and the seed of the saved run"
        )
    for name in ("minutes", "steps", "every", "temperature", "hidden", "layers"):
        if (value := vars(options)[name]) is not None and value <= 0:
            parser.error(f"--{name} must be greater than 0, got {value}")
    if options.minutes is None:
        options.minutes = math.inf if options.steps else 1.75
    options.output = options.output or options.resume or out
    return options


def main(arguments: list[str] | None = None) -> Training:
    options = parse(arguments)
    # A second thread helps little with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = torch.device(options.device) if options.device else pick_device()
    if options.resume:
        training = Training.resumed(options.resume, device)
    else:
        given = {n: vars(options)[n] for n in OF_A_NEW_RUN if vars(options)[n] is not None}
        settings = Settings(**(asdict(LARGE if device.type == "cuda" else Settings()) | given))
        text = read_text(options.text) if options.text else find_text()
        training = Training(settings, text, device)
    options.begin = training.steps
    learnt, held_out, characters = training.learnt, training.held_out, training.characters
    size = sum(parameter.numel() for parameter in training.model.parameters())
    print(
        f"{len(learnt):,} characters to learn from, {len(held_out):,} held out, "
        f"{len(characters)} different ones; on {device}.\n{size:,} parameters; "
        f"a step is {training.settings.batch} pieces of {training.settings.length} characters."
    )
    train(training, options)
    print(
        f"Guessing without a context takes {math.log2(len(characters)):.2f} bits a character, "
        f"or {unigram_bits(learnt, held_out, characters):.2f} if the frequencies are known.\n\n"
        f"{training.write(options.write, options.temperature).strip()}\n\n"
        f"Go on with: python {Path(sys.argv[0])} --resume {options.output}"
    )
    return training


if __name__ == "__main__":
    main()
