"""Draws README.md's picture: front_page.png.

    python docs/figures/front_page.py                 draw the picture beside this file
    python docs/figures/front_page.py --output DIR    draw it in another folder

Left: training times per time step of treadle.nn.LSTM and GRU and of torch's, over H. They are read
from the committed results of an H200. Right: the picture that the network of examples/photograph.py
has learnt, and its gradient. This script trains the network on the CPU in a few minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import photograph  # noqa: E402
import treadle  # noqa: E402
from photograph_pictures import load_photograph  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "h200" / "h200-cells.json"
NAME = "front_page.png"
COLOURS = 256
BATCH = 16
OURS = "treadle"
STYLES = {OURS: "-", "nn": ":"}
DTYPES = {"bfloat16": "C0", "float16": "C2", "float32": "C1"}
SETTINGS = photograph.Settings(pixels=256, hidden=256, layers=3, batch=4096, steps=2500)


def steps_of_layer(cell: str) -> dict[tuple[str, str], dict[int, float]]:
    """µs per time step in training one layer with B = 16, by (who, dtype) and then by H."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in json.loads(RESULTS.read_text())["rows"]:
        shown = (row.get("suite"), row["op"], row.get("mode")) == ("sweep_cells", cell, "training")
        if not shown or "times" not in row or row["digits"] not in DTYPES:
            continue
        batch, _, hidden = map(int, row["what"].split(","))
        if batch == BATCH:
            for who, name in ((OURS, OURS), ("nn", f"nn.{cell.upper()}")):
                times = found.setdefault((who, row["digits"]), {})
                times[hidden] = row["times"][name]["us_per_step"]
    return found


def draw_steps(axes: Axes, cell: str) -> None:
    for (who, dtype), times in sorted(steps_of_layer(cell).items()):
        widths = sorted(times)
        style: dict[str, Any] = {"color": DTYPES[dtype], "ls": STYLES[who], "lw": 2}
        label = f"{'treadle.nn' if who == OURS else 'torch.nn'}, {dtype}"
        axes.plot(widths, [times[h] for h in widths], marker="o", ms=4, label=label, **style)
    axes.set(yscale="log", ylim=(0.8, 250), xlabel="hidden units H", xticks=widths[::2])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(f"{cell.upper()}, training, µs per time step", loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def learnt() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The network's picture [H, W, 3] from 0 to 1, and the length of its gradient [H, W]."""
    image = torch.from_numpy(load_photograph(SETTINGS.pixels))
    height, width, _ = image.shape
    torch.manual_seed(SETTINGS.seed)
    net = treadle.nn.Siren(
        *(2, SETTINGS.hidden, SETTINGS.layers, 3),
        outermost_linear=True,
        first_omega_0=photograph.FIRST_OMEGA,
    )
    fit = photograph.Fit(net, SETTINGS, image)
    fit.learn(SETTINGS.steps)
    print(f"PSNR {fit.curve.psnr[-1]:.1f} dB", file=sys.stderr)
    picture = fit.picture().reshape(height, width, 3).numpy()
    maps = photograph.derivatives(fit.net, height, width, image.device)
    return (picture + 1) / 2, maps.gradient


def draw(path: Path, picture: NDArray[np.float32], gradient: NDArray[np.float32]) -> None:
    plt.rcParams["font.size"] = 10
    figure = plt.figure(figsize=(12, 3.7), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(1, 4, width_ratios=[1.25, 1.25, 1, 1])
    lstm, gru = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    draw_steps(lstm, "lstm")
    draw_steps(gru, "gru")
    handles, labels = lstm.get_legend_handles_labels()
    lstm.legend(handles[3:], labels[3:], fontsize=8, loc="upper left", frameon=False)
    gru.legend(handles[:3], labels[:3], fontsize=8, loc="upper left", frameon=False)
    # The scale ends at a quantile, so that a few extreme pixels do not make all others pale.
    steep = float(np.quantile(gradient, 0.99))
    images: list[tuple[str, Any, dict[str, Any]]] = [
        ("A photograph as a Siren learnt it", picture, {}),
        ("The Siren's gradient", gradient, {"cmap": "gray_r", "vmin": 0, "vmax": steep}),
    ]
    for column, (title, values, style) in enumerate(images, start=2):
        axes = figure.add_subplot(grid[0, column])
        axes.imshow(values, **style)
        axes.set_title(title, loc="left")
        axes.axis("off")
    file = io.BytesIO()
    figure.savefig(file, dpi=100)
    plt.close(figure)
    # With 256 colours, which are enough, the file has half as many bytes.
    with Image.open(file) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, metavar="DIR")
    output = parser.parse_args(arguments).output
    draw(output / NAME, *learnt())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
