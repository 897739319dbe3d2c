"""Draws a run of train_lm.py: losses, and tokens per second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"treadle": "C0", "torch": "C1"}
STYLES = {"treadle": "-", "torch": "--"}


def draw(record: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure  # not needed for training

    figure = Figure(figsize=(9 if record["runs"] else 5.4, 3.6), layout="constrained")
    if record["runs"]:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
        _draw_losses(left, record)
    else:
        right = figure.subplots()
    machine = record["machine"]
    rows = record["speeds"]
    for number, side in enumerate(rows[0]["tokens_per_s"]):
        values = [row["tokens_per_s"][side] for row in rows]
        places = [place + 0.4 * number for place in range(len(rows))]
        bars = right.barh(places, values, 0.36, color=COLOURS[side], label=side)
        right.bar_label(bars, [f" {value:,.0f}" for value in values], fontsize=7)
    names = [f"{row['task']} {row['dtype']}\n{row['batch']} × {row['length']}" for row in rows]
    right.set_yticks([place + 0.2 for place in range(len(rows))], names, fontsize=7)
    right.invert_yaxis()
    right.set(xscale="log")
    right.margins(x=0.2)
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    right.set_title(f"Tokens per second, {where}", loc="left", fontsize=10)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def _draw_losses(axes: Any, record: dict[str, Any]) -> None:
    mixer = record["settings"]["mixer"].upper()
    for side, run in record["runs"].items():
        losses = run["losses"]
        axes.plot(losses, STYLES[side], color=COLOURS[side], lw=1.2, label=f"{side}'s {mixer}")
    axes.set(xlabel="step", ylabel="bits a byte", yscale="log")
    axes.set_yticks([2, 3, 4, 6, 8], ["2", "3", "4", "6", "8"], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_title("Loss in training", loc="left", fontsize=10)
