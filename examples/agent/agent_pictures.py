"""The pictures of find_digit.py: a strip of what the agent saw and did, and its curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agent_loop import Loop
from agent_world import DIGITS, KINDS, SIDE, START, TILE, WINDOW
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

ARROWS = "↑→↓←"
EPISODES, LONGEST, SHORTEST = 3, 12, 8
GREEN, RED, BLUE = "#2a9d4a", "#d62728", "#1f77b4"


@dataclass
class Moment:
    """A step of one row: the room, and the agent's position, view, readings, move and reward."""

    room: np.ndarray  # [56, 56]
    at: int
    frame: np.ndarray  # [24, 24]
    read: list[int]  # the kinds of the nine tiles according to the eye
    action: int
    reward: float


def watch(loop: Loop, steps: int) -> list[list[Moment]]:
    """The first complete episode of each row, if the row has one within ``steps`` steps."""
    world = loop.world
    episodes: list[list[Moment]] = [[] for _ in range(world.rows)]
    running, done = [False] * world.rows, [False] * world.rows
    for _ in range(steps):
        begins, at = world.begins.tolist(), world.at.tolist()
        cells = world.sheet.pictures[world.tiles].unflatten(1, (SIDE, SIDE))
        rooms = cells.transpose(2, 3).reshape(world.rows, SIDE * TILE, SIDE * TILE).cpu().numpy()
        played = {name: value.tolist() for name, value in loop.step().items()}
        frames = loop.frame[:, 0].cpu().numpy()
        for row in range(world.rows):
            running[row] |= begins[row]
            if done[row] or not running[row]:
                continue
            scores = torch.tensor(played["x"][row][: WINDOW * WINDOW * KINDS])
            read = scores.view(-1, KINDS).argmax(-1).tolist()
            action, reward = played["action"][row], played["reward"][row]
            episodes[row].append(Moment(rooms[row], at[row], frames[row], read, action, reward))
            done[row] = played["ends"][row]
    return [episode for episode, whole in zip(episodes, done, strict=True) if whole]


def choose(episodes: list[list[Moment]]) -> list[list[Moment]]:
    """The first successful episodes of medium length, and then the first failed one, if any."""
    fit = [e for e in episodes if SHORTEST <= len(e) <= LONGEST]
    good = [e for e in fit if e[-1].reward > 0]
    bad = [e for e in fit if e[-1].reward <= 0][:1]
    return [*good[: EPISODES - len(bad)], *bad] or episodes[:1]


def draw_strip(path: Path, episodes: list[list[Moment]]) -> None:
    """Draws each episode as a row of steps. A step shows the room from above and, below it, the
    agent's view."""
    columns = max(map(len, episodes))
    figure = Figure(figsize=(1.1 * columns, 2.75 * len(episodes) + 0.3))
    grid = figure.subplots(2 * len(episodes), columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for number, episode in enumerate(episodes):
        for step, moment in enumerate(episode):
            draw_room(grid[2 * number][step], moment, step)
            draw_view(grid[2 * number + 1][step], moment, step == len(episode) - 1)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.04, top=0.95, wspace=0.08, hspace=0.2)
    figure.savefig(path, dpi=80)


def draw_room(axes: Axes, moment: Moment, step: int) -> None:
    axes.imshow(moment.room, cmap="gray_r", vmin=0, vmax=1.2)
    top, left = (TILE * (place - WINDOW // 2) - 0.5 for place in divmod(moment.at, SIDE))
    size = WINDOW * TILE
    axes.add_patch(Rectangle((left, top), size, size, fill=False, edgecolor=BLUE, linewidth=1.5))
    axes.plot(left + size / 2, top + size / 2, "o", color=BLUE, markersize=3)
    axes.set_title(f"step {step}" + (", cue" if moment.at == START and step == 0 else ""), size=7)


def draw_view(axes: Axes, moment: Moment, last: bool) -> None:
    """Draws the frame, the digits read in it, and the move. The colour shows the outcome."""
    axes.imshow(moment.frame, cmap="gray_r", vmin=0, vmax=1.2)
    for place, kind in enumerate(moment.read):
        if kind < DIGITS:
            top, left = divmod(place, WINDOW)
            axes.text(TILE * left, TILE * top + 1, str(kind), color=BLUE, size=8, weight="bold")
    color = (GREEN if moment.reward > 0 else RED) if last else "black"
    end = (" right" if moment.reward > 0 else " wrong") if last else ""
    axes.set_title(ARROWS[moment.action] + end, size=9, color=color, pad=2)


def draw_figure(path: Path, record: dict[str, Any]) -> None:
    """Draws the learning curve, the success of each agent in WHO, and frames per second."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 0.7, 1.3))
    left.plot(record["curve"], lw=1.2)
    left.axhline(0.25, color="grey", lw=0.8, ls="--")
    left.annotate("one of four", (len(record["curve"]), 0.2), ha="right", color="grey", fontsize=8)
    left.set(xlabel="update", ylim=(0, 1))
    left.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    left.set_title("Rooms solved while it learns", loc="left", fontsize=10)
    names = list(record["success"])
    shares = [record["success"][name]["success"] for name in names]
    bars = middle.barh(names, shares, 0.6, color=["C0", "C1", "C1", "grey"])
    middle.bar_label(bars, [f" {share:.0%}" for share in shares], fontsize=8)
    middle.set(xlim=(0, 1.3))
    middle.set_xticks([])
    middle.invert_yaxis()
    middle.set_title("Rooms of unseen digits", loc="left", fontsize=10)
    draw_speeds(right, record["speeds"])
    machine = record["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, one thread"
    right.set_title(f"Frames per second\n{where}", loc="left", fontsize=10)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def draw_speeds(axes: Axes, speeds: list[dict[str, Any]]) -> None:
    """Draws a group of bars for each number of rows, with one bar for each way to run the loop."""
    ways, sizes = (list(dict.fromkeys(row[key] for row in speeds)) for key in ("way", "rows"))
    height = 0.8 / len(ways)
    for number, way in enumerate(ways):
        found = [row for row in speeds if row["way"] == way]
        places = [sizes.index(row["rows"]) + height * number for row in found]
        bars = axes.barh(places, [row["frames_per_s"] for row in found], 0.9 * height, label=way)
        labels = [f" {row['frames_per_s']:,}" for row in found]
        axes.bar_label(bars, labels, fontsize=7)
    middles = [place + 0.4 - height / 2 for place in range(len(sizes))]
    axes.set_yticks(middles, [f"{size:,} rooms" for size in sizes], fontsize=8)
    axes.invert_yaxis()
    axes.set(xscale="log")
    found = [row["frames_per_s"] for row in speeds]
    axes.set_xlim(min(found) / 4, max(found) * 4)
    axes.legend(frameon=False, fontsize=7, loc="upper center", ncols=3, bbox_to_anchor=(0.45, -0.1))
