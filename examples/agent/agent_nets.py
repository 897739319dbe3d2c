"""The nets that perceive and reason: a convolutional net with sine activations, and a GRU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from agent_world import KINDS, MOVES, TILES, Sheet, paint, scenes
from torch import Tensor, nn

import treadle

ACTIONS, SIGHT = len(MOVES), TILES * KINDS
SCENES, EYE_RATE = 64, 6e-3


class Eye(nn.Module):
    """Scores the kind of each tile in frames: maps [B, 1, 24, 24] to [B, 9, KINDS]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 2, stride=2)
        self.conv3 = nn.Conv2d(32, 64, 2, stride=2)
        self.head = nn.Conv2d(64, KINDS, 1)

    def forward(self, frame: Tensor) -> Tensor:
        x = frame
        for layer in (self.conv1, self.conv2, self.conv3):
            x = treadle.sine(layer(x))
        return self.head(x).flatten(2).transpose(1, 2)


class Mind(nn.Module):
    """Remembers tiles and moves, scores the next move and predicts the future reward."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layer = treadle.nn.GRU(SIGHT + ACTIONS, hidden)
        self.head = nn.Linear(hidden, ACTIONS + 1)

    def forward(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, values and states from inputs [T, B, I], states [1, B, H] and resets [T, B]."""
        output, h = self.layer(x, h, reset=begins)
        return *self.decide(output), h

    def decide(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [..., 4] and values [...] from the layer's output [..., H]."""
        scores, value = self.head(output).split([ACTIONS, 1], -1)
        return scores, value.squeeze(-1)


def learn_to_read(eye: Eye, sheet: Sheet, steps: int) -> None:
    """Train the eye on labelled scenes."""
    optimizer = torch.optim.Adam(eye.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, EYE_RATE, total_steps=steps)
    for _ in range(steps):
        tiles = scenes(sheet, SCENES)
        scores = eye(paint(sheet, tiles))
        optimizer.zero_grad()
        F.cross_entropy(scores.flatten(0, 1), sheet.kinds[tiles].flatten()).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def share_read(eye: Eye, sheet: Sheet, count: int = 2000) -> float:
    """The fraction of digits that the eye reads correctly, in ``count`` scenes of this sheet."""
    tiles = scenes(sheet, count)
    kinds = sheet.kinds[tiles]
    right = eye(paint(sheet, tiles)).argmax(-1) == kinds
    digits = kinds < KINDS - 2
    return ((right & digits).sum() / digits.sum()).item()
