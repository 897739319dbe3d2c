"""Draws README.md's picture: front_page.png.

    python docs/figures/front_page.py                 the picture beside this file
    python docs/figures/front_page.py --output DIR    the same in another folder

Left: what a training step of the LLTM layer takes beside nn.LSTM's, over H, from the committed
results of an H200. Right: the network of examples/photograph.py, learnt on the CPU by this script
in a few minutes, with the gradient and the Laplacian that autograd gives of it.
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
from photograph_pictures import Maps, load_photograph  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "h200" / "h200-sweep.json"
NAME = "front_page.png"
COLOURS = 256
BATCH = 16
WHO = {"nn.LSTM": "C1", "treadle": "C0"}
LABELS = {"nn.LSTM": "nn.LSTM", "treadle": "treadle.nn.LLTM"}
STYLES = {"bfloat16": "--", "float16": "-"}
SETTINGS = photograph.Settings(pixels=256, hidden=256, layers=3, batch=4096, steps=2500)


def steps_of_layer() -> dict[tuple[str, str], dict[int, float]]:
    """µs a training step of one dense layer of B = 16: by (who, dtype), then by H."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in json.loads(RESULTS.read_text())["rows"]:
        shapes = row.get("suite") == "sweep_shapes" and "times" in row
        if not shapes or row["mode"] != "training" or row["digits"] not in STYLES:
            continue
        batch, _, hidden = row["what"].split(",")[:3]
        if int(batch) != BATCH or row["what"].count(",") != 2:
            continue  # packed, stacked and bidirectional layers have rows of their own
        for who in WHO:
            times = found.setdefault((who, row["digits"]), {})
            times[int(hidden)] = row["times"][who]["us_per_step"]
    return found


def draw_steps(axes: Axes) -> None:
    for (who, dtype), times in sorted(steps_of_layer().items()):
        widths = sorted(times)
        style: dict[str, Any] = {"color": WHO[who], "ls": STYLES[dtype], "lw": 2}
        values = [times[hidden] for hidden in widths]
        axes.plot(widths, values, marker="o", label=f"{LABELS[who]}, {dtype}", **style)
    axes.set(yscale="log", ylim=(0.8, 200), xlabel="hidden units H", xticks=widths)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(f"µs a step in training, {BATCH} sequences, H200", loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, ncols=2, loc="upper center", frameon=False)


def learnt() -> tuple[NDArray[np.float32], Maps]:
    """The network's picture [H, W, 3] in 0 to 1, and its derivatives."""
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
    return (picture + 1) / 2, photograph.derivatives(fit.net, height, width, image.device)


def draw(path: Path, picture: NDArray[np.float32], maps: Maps) -> None:
    plt.rcParams["font.size"] = 10
    figure = plt.figure(figsize=(12, 3.7), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(1, 4, width_ratios=[1.9, 1, 1, 1])
    draw_steps(figure.add_subplot(grid[0, 0]))
    # The few extreme pixels do not darken the rest.
    steep, bent = (float(np.quantile(np.abs(m), 0.99)) for m in (maps.gradient, maps.laplacian))
    images: list[tuple[str, Any, dict[str, Any]]] = [
        ("A photograph, learnt", picture, {}),
        ("its gradient", maps.gradient, {"cmap": "gray_r", "vmin": 0, "vmax": steep}),
        ("its Laplacian", maps.laplacian, {"cmap": "RdBu_r", "vmin": -bent, "vmax": bent}),
    ]
    for column, (title, values, style) in enumerate(images, start=1):
        axes = figure.add_subplot(grid[0, column])
        axes.imshow(values, **style)
        axes.set_title(title, loc="left")
        axes.axis("off")
    file = io.BytesIO()
    figure.savefig(file, dpi=100)
    plt.close(figure)
    # 256 colours are enough, and half the bytes.
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
