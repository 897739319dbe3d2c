"""All rows of a run as one picture: a panel a group."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from . import machine
from .cases import OURS, Row
from .report import groups


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the PNG. Rows over several sizes become lines, all others points."""
    try:
        import matplotlib
    except ImportError:
        print("note: no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        group: timed
        for group, rows in groups(results["rows"]).items()
        if (timed := [row for row in rows if "times" in row])
    }
    if not panels:
        return
    lined = [group for group, rows in panels.items() if "series" in rows[0]]
    pointed = [group for group in panels if group not in lined]
    heights = [0.9 + 0.26 * len(panels[group]) for group in pointed]
    columns = 2
    heights += [2.8] * math.ceil(len(lined) / columns)
    figure = plt.figure(figsize=(11, 0.6 + sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    for number, group in enumerate(pointed):
        points(figure.add_subplot(grid[number, :]), group, panels[group])
    for number, group in enumerate(lined):
        place = grid[len(pointed) + number // columns, number % columns]
        lines(figure.add_subplot(place), group, panels[group])
    figure.suptitle(machine.name(results["machine"]), fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def points(axes: Any, title: str, rows: list[Row]) -> None:
    """For each row the others' times over ours, and a bar's limit as a tick: right of 1 is good."""
    names = list(dict.fromkeys(name for row in rows for name in row["times"] if name != OURS))
    for color, name in enumerate(names):
        at = [i for i, row in enumerate(rows) if name in row["times"]]
        values = [relative(rows[i], name) for i in at]
        axes.plot(values, at, "o", color=f"C{color}", label=name, markersize=5, alpha=0.85)
    ticks = [(relative_limit(row), i) for i, row in enumerate(rows) if "bar" in row]
    if ticks:
        axes.plot(*zip(*ticks, strict=True), "|", color="black", markersize=11, label="bar")
    axes.axvline(1.0, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    # A yardstick far below, as an empty launch is, would press the rest together.
    axes.set_xlim(max(0.1, min(low, 0.45)), max(high, 2.2))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(f"{title}: time over treadle's (right of 1: treadle is faster)", fontsize=9)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def relative(row: Row, name: str) -> float:
    return float(row["times"][name]["median_us"] / row["times"][OURS]["median_us"])


def relative_limit(row: Row) -> float:
    return float(row["bar"]["limit_us"] / row["times"][OURS]["median_us"])


def lines(axes: Any, title: str, rows: list[Row]) -> None:
    """The fastest rival's time over ours, a line a dtype, over the number of elements."""
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        ours = [row for row in rows if row["dtype"] == dtype and "ratio" in row]
        values = [1 / row["ratio"] for row in ours]
        axes.plot([math.prod(row["shape"]) for row in ours], values, "o-", label=dtype)
    axes.axhline(0.98, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("elements", fontsize=8)
    axes.set_ylabel("speed / torch's", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
