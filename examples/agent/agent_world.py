"""Rooms of handwritten digits, many side by side, as tensors on one device.

A room has 5 x 5 tiles of 8 x 8 pixels, a wall around them, and a digit in each corner. The agent
begins in the middle and sees the 3 x 3 tiles around it, which do not include a corner. Only the
first frame also shows the cue, a digit on the agent's own tile. The agent must find the corner with
the same digit, written by somebody else. An episode ends when the agent reaches any digit, or after
LIMIT steps. Then the next episode begins in the same row of the batch.

Nothing here reads a tensor's value on the host, so on a GPU the host never waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

TILE, WINDOW, SIDE = 8, 3, 7  # pixels of a tile, tiles of a frame, tiles of a room with its walls
TILES = WINDOW * WINDOW
DIGITS, CORNERS = 10, 4
# There are KINDS kinds of tiles: the digits 0 to 9, the floor and the wall. FLOOR and WALL are the
# positions of the first two pictures in a sheet.
FLOOR_KIND, WALL_KIND, KINDS = 10, 11, 12
FLOOR, WALL = 0, 1
START = SIDE * (SIDE // 2) + SIDE // 2
MOVES = (-SIDE, 1, SIDE, -1)  # up, right, down, left
# The maximum number of steps in an episode, the reward for failing, and the standard deviation of
# the noise in pixels.
LIMIT, WRONG, NOISE = 24, -0.5, 0.15
TEST_DIGITS = 360


@dataclass
class Sheet:
    """Pictures of tiles [N, 8, 8] and their kinds [N]: floor, wall, then all digits in order."""

    pictures: Tensor
    kinds: Tensor
    first: Tensor  # [10]: where the pictures of each digit begin
    count: Tensor  # [10]

    def to(self, device: torch.device) -> Sheet:
        tensors = (self.pictures, self.kinds, self.first, self.count)
        return Sheet(*(each.to(device) for each in tensors))


def load_sheets(device: torch.device) -> tuple[Sheet, Sheet]:
    """scikit-learn's digits in two sheets: one for training, and 360 random digits for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[TEST_DIGITS:], order[:TEST_DIGITS]
    train, test = (make_sheet(images[part], labels[part], device) for part in parts)
    return train, test


def make_sheet(images: Tensor, labels: Tensor, device: torch.device) -> Sheet:
    order = labels.argsort(stable=True)
    count = labels.bincount(minlength=DIGITS)
    wall = torch.full((TILE, TILE), 0.5)
    wall[::4] = wall[:4, 0] = wall[4:, 4] = 0.2  # bricks
    plain = torch.stack([torch.zeros(TILE, TILE), wall])
    kinds = torch.tensor([FLOOR_KIND, WALL_KIND])
    return Sheet(
        torch.cat([plain, images[order]]),
        torch.cat([kinds, labels[order]]),
        WALL + 1 + count.cumsum(0) - count,
        count,
    ).to(device)


class World:
    """``rows`` rooms, one for each row of the batch. When an episode ends, a new room replaces the
    old one in its row. ``step`` updates the tensors in place."""

    def __init__(self, sheet: Sheet, rows: int) -> None:
        self.sheet, self.rows = sheet, rows
        self.device = device = sheet.kinds.device
        self.moves = torch.tensor(MOVES, device=device)
        near = torch.arange(WINDOW, device=device) - WINDOW // 2
        self.window = (SIDE * near[:, None] + near).flatten()
        room = torch.full((SIDE, SIDE), WALL)
        room[1:-1, 1:-1] = FLOOR
        self.empty = room.flatten().to(device)
        low, high = SIDE + 1, 2 * SIDE - 2
        below = SIDE * (SIDE - 3)
        self.corners = torch.tensor([low, high, low + below, high + below], device=device)
        self.at = torch.full((rows,), START, device=device)
        self.tiles = self.empty.repeat(rows, 1)  # [B, 49], positions in the sheet
        self.wanted = torch.zeros(rows, dtype=torch.long, device=device)
        self.clock = torch.zeros(rows, dtype=torch.long, device=device)
        self.begins = torch.ones(rows, dtype=torch.bool, device=device)
        self._begin()

    def _draw(self, digits: Tensor) -> Tensor:
        """Draws a picture of each of the digits. Returns their positions in the sheet."""
        first, count = self.sheet.first[digits], self.sheet.count[digits]
        return first + (torch.rand(digits.shape, device=self.device) * count).long()

    def _begin(self) -> None:
        """Makes new rooms in the rows that begin. It draws rooms for all rows and keeps those that
        it needs, because only the device knows which rows begin."""
        chances = torch.rand(self.rows, DIGITS, device=self.device) * (self.sheet.count > 0)
        digits = chances.topk(CORNERS, -1).indices  # four different ones
        which = (torch.rand(self.rows, 1, device=self.device) * CORNERS).long()
        wanted = digits.gather(1, which)
        tiles = self.empty.repeat(self.rows, 1)
        tiles[:, self.corners] = self._draw(digits)
        tiles[:, START] = self._draw(wanted)[:, 0]
        new = self.begins
        self.tiles.copy_(torch.where(new[:, None], tiles, self.tiles))
        self.wanted.copy_(torch.where(new, wanted[:, 0], self.wanted))
        self.at.masked_fill_(new, START)
        self.clock.masked_fill_(new, 0)

    def in_view(self) -> Tensor:
        """The tiles around each agent, [B, 9], as positions in the sheet."""
        return self.tiles.gather(1, self.at[:, None] + self.window)

    def frame(self) -> Tensor:
        """The agents' frames, [B, 1, 24, 24]."""
        return paint(self.sheet, self.in_view())

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Moves the agents by ``action`` [B] in 0..3. Returns rewards and which episodes ended."""
        there = self.at + self.moves[action]
        tile = self.tiles.gather(1, there[:, None])[:, 0]
        kind = self.sheet.kinds[tile]
        self.at.copy_(torch.where(kind == WALL_KIND, self.at, there))
        self.tiles[:, START].fill_(FLOOR)
        self.clock += 1
        on_digit = kind < DIGITS
        torch.logical_or(on_digit, self.clock == LIMIT, out=self.begins)
        right = kind == self.wanted
        reward = right + WRONG * (self.begins & ~right)
        ends = self.begins.clone()
        self._begin()
        return reward, ends


def paint(sheet: Sheet, tiles: Tensor) -> Tensor:
    """The frames [B, 1, 24, 24] that show tiles [B, 9], with noise."""
    cells = sheet.pictures[tiles].unflatten(1, (WINDOW, WINDOW))
    frame = cells.transpose(2, 3).reshape(len(tiles), 1, WINDOW * TILE, WINDOW * TILE)
    return frame + NOISE * torch.randn_like(frame)


def scenes(sheet: Sheet, count: int) -> Tensor:
    """Nine random tiles for each of ``count`` frames, [count, 9]. Most are digits."""
    shape, device = (count, TILES), sheet.kinds.device
    digits = torch.randint(WALL + 1, len(sheet.kinds), shape, device=device)
    plain = torch.randint(WALL + 1, shape, device=device)
    return torch.where(torch.rand(shape, device=device) < 0.7, digits, plain)
