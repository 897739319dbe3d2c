"""Draws all rows of a run as one picture with a panel per group."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.elementwise.overhead import TWINS
from benchmarks.harness import machine
from benchmarks.harness.cases import OURS, Row
from benchmarks.harness.report import groups

# A dtype has the same colour in all half-width panels; dtypes that are not listed are gray.
COLORS = {"float32": "C0", "bfloat16": "C1", "float16": "C2", "float64": "C3"}


def draw(results: dict[str, Any], path: Path) -> None:
    """Writes the PNG. A group that varies one thing (size, argument or layout) has a half-width
    panel; every other group has a panel with a line of points for each row."""
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
    halves = [group for group, rows in panels.items() if "series" in rows[0]]
    pointed = [group for group in panels if group not in halves]
    heights = [0.9 + 0.26 * len(panels[group]) for group in pointed]
    # Two half-width panels share a row, which is as high as the higher one.
    pairs = [halves[i : i + 2] for i in range(0, len(halves), 2)]
    heights += [max(height(panels[group]) for group in pair) for pair in pairs]
    figure = plt.figure(figsize=(11, 0.6 + sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for number, group in enumerate(pointed):
        points(figure.add_subplot(grid[number, :]), group, panels[group])
    for number, group in enumerate(halves):
        place = grid[len(pointed) + number // 2, number % 2]
        draw_series = SERIES[panels[group][0]["series"]]
        draw_series(figure.add_subplot(place), group, panels[group])
    figure.suptitle(machine.name(results["machine"]), fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def points(axes: Any, title: str, rows: list[Row]) -> None:
    """Draws, for each row, the times divided by ours, and the target's limit as a tick. Where a
    point is to the right of 1, ours is faster."""
    names = list(dict.fromkeys(name for row in rows for name in row["times"] if name != OURS))
    for color, name in enumerate(names):
        at = [i for i, row in enumerate(rows) if name in row["times"]]
        values = [relative(rows[i], name) for i in at]
        axes.plot(values, at, "o", color=f"C{color}", label=name, markersize=5, alpha=0.85)
    ticks = [(relative_limit(row), i) for i, row in enumerate(rows) if "target" in row]
    if ticks:
        axes.plot(*zip(*ticks, strict=True), "|", color="black", markersize=11, label="target")
    axes.axvline(1.0, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    # Cut the axis off: a much faster yardstick, such as an empty launch, would compress the rest.
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
    return float(row["target"]["limit_us"] / row["times"][OURS]["median_us"])


def height(rows: list[Row]) -> float:
    if rows[0]["series"] == "layout":
        return 0.9 + 0.17 * len({row["layout"] for row in rows})
    return 3.4 if rows[0]["series"] == "argument" else 2.8


def lines(axes: Any, title: str, rows: list[Row]) -> None:
    """Draws the fastest baseline's time divided by ours, over the number of elements: a line for
    each dtype."""
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        ours = [row for row in rows if row["dtype"] == dtype and "ratio" in row]
        values = [1 / row["ratio"] for row in ours]
        at = [math.prod(row["shape"]) for row in ours]
        axes.plot(at, values, "o-", color=COLORS.get(dtype, "gray"), label=dtype, markersize=5)
    for share in {share_of_baseline(row) for row in rows if "target" in row and "ratio" in row}:
        axes.axhline(share, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("elements", fontsize=8)
    axes.set_ylabel("speed / torch's", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)


def share_of_baseline(row: Row) -> float:
    """The speed that the target requires, divided by the speed of the fastest baseline."""
    baseline = row["times"][row["fastest_baseline"]]["median_us"]
    return round(float(baseline / row["target"]["limit_us"]), 4)


def shares(axes: Any, title: str, rows: list[Row]) -> None:
    """Draws speeds divided by a copy's, over the arguments. Each dtype has a colour, and torch has
    open circles."""
    arguments = sorted({row["argument"] for row in rows}, key=magnitude)
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = sorted(
            (row for row in rows if row["dtype"] == dtype and "copy" in row["times"]),
            key=lambda row: arguments.index(row["argument"]),
        )
        at = [arguments.index(row["argument"]) for row in mine]
        style = {"color": COLORS.get(dtype, "gray"), "linewidth": 1.2, "markersize": 4.5}
        axes.plot(at, [share_of_copy(row, OURS) for row in mine], "o-", label=dtype, **style)
        torchs = [share_of_copy(row, f"torch.{TWINS[row['op']].__name__}") for row in mine]
        axes.plot(at, torchs, "o:", fillstyle="none", **style)
        limits = [
            (i, limit_of_copy(row)) for i, row in zip(at, mine, strict=True) if "target" in row
        ]
        if limits:
            axes.plot(*zip(*limits, strict=True), "_", color=style["color"], markersize=14)
    axes.axhline(1.0, color="gray", linewidth=1)
    axes.set_xticks(range(len(arguments)), arguments, fontsize=8)
    axes.set_xlabel("arguments: this × N(0,1)", fontsize=8)
    axes.set_ylabel("speed / a copy's", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}\nfull: treadle; open, dotted: torch; dash: target", fontsize=9)
    axes.legend(fontsize=7)


def magnitude(argument: str) -> float:
    """A sort key, by which numbers come first, in order, and then everything else."""
    try:
        return float(argument)
    except ValueError:
        return math.inf


def share_of_copy(row: Row, name: str) -> float:
    """The speed of `name` divided by the copy's. NaN, which is not drawn, if there is no time."""
    if name not in row["times"]:
        return math.nan
    return float(row["times"]["copy"]["median_us"] / row["times"][name]["median_us"])


def limit_of_copy(row: Row) -> float:
    return float(row["times"]["copy"]["median_us"] / row["target"]["limit_us"])


def layouts(axes: Any, title: str, rows: list[Row]) -> None:
    """Draws the fastest baseline's time divided by ours: a line of points for each layout, and a
    colour for each dtype."""
    names = list(dict.fromkeys(row["layout"] for row in rows))
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        ours = [row for row in rows if row["dtype"] == dtype and "ratio" in row]
        at = [names.index(row["layout"]) for row in ours]
        style = {"color": COLORS.get(dtype, "gray"), "markersize": 4, "alpha": 0.8}
        axes.plot([1 / row["ratio"] for row in ours], at, "o", label=dtype, **style)
    for share in {share_of_baseline(row) for row in rows if "target" in row and "ratio" in row}:
        axes.axvline(share, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.7), max(high, 1.6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.set_title(f"{title}: speed / torch's", fontsize=9)
    axes.legend(fontsize=7)


SERIES: dict[str, Callable[[Any, str, list[Row]], None]] = {
    "size": lines,
    "argument": shares,
    "layout": layouts,
}
