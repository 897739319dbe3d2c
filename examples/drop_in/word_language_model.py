"""Trains a language model with torch.nn.LSTM, and a copy of it that treadle.nn.replace converted.

    python examples/drop_in/word_language_model.py --json FILE

The model has an embedding, two layers of torch.nn.LSTM and a linear head, all of width 200. A batch
has 20 columns of text, and each step reads 35 words of every column. SGD has a learning rate of 20,
gradients are clipped at 0.25, and dropout is 0.2 (--percent 20). These numbers are those of the
example word_language_model in pytorch/examples, but the code is our own. The text is the same as in
examples/characters.py. On a GPU, the losses of the two models are comparable only with --percent 0,
because cuDNN and treadle draw different dropout masks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import Step, compare, keep, options  # puts examples/ on the path
from torch import Tensor, nn

from characters_text import find_text

RATE, CLIP = 20.0, 0.25
LEAST = 3  # rarer words are merged into one


class WordModel(nn.Module):
    """Scores the next word: maps text [T, B] and states to scores [T, B, words] and states."""

    def __init__(self, words: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=dropout)
        self.head = nn.Linear(width, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.head.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, text: Tensor, hx: Any) -> tuple[Tensor, Any]:
        output, hx = self.rnn(self.dropout(self.embedding(text)), hx)
        return self.head(self.dropout(output)), hx


def columns_of_words(batch: int) -> tuple[Tensor, int]:
    """The text in ``batch`` columns, [N, batch], and the number of different words."""
    text = find_text().split()
    kept = [word for word, count in Counter(text).items() if count >= LEAST]
    index = {word: number for number, word in enumerate(kept, start=1)}
    numbers = torch.tensor([index.get(word, 0) for word in text])
    rows = len(numbers) // batch
    return numbers[: rows * batch].view(batch, rows).t().contiguous(), len(kept) + 1


def learner(model: nn.Module, columns: Tensor, length: int) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    pieces = (len(columns) - 1) // length
    kept: dict[str, Any] = {"hx": None}

    def step(number: int) -> float:
        place = number % pieces * length
        hx = kept["hx"] if place else None
        scores, hx = model(columns[place : place + length], hx)
        target = columns[place + 1 : place + 1 + length]
        loss = F.cross_entropy(scores.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        # The next piece continues from these states, but its gradients stop here.
        kept["hx"] = tuple(state.detach() for state in hx)
        return loss.item()

    return step


def main(given: list[str] | None = None) -> dict[str, Any]:
    sizes = {"steps": 100, "width": 200, "layers": 2, "batch": 20, "length": 35, "percent": 20}
    chosen = options(__doc__, given, **sizes)
    columns, words = columns_of_words(chosen.batch)
    print(f"{columns.numel():,} words, {words:,} of them different, on {chosen.device}")
    model = WordModel(words, chosen.width, chosen.layers, chosen.percent / 100).to(chosen.device)
    columns = columns.to(chosen.device)
    found = compare(model, lambda one: learner(one, columns, chosen.length), chosen.steps)
    return keep({"words": words} | found, chosen)


if __name__ == "__main__":
    main()
