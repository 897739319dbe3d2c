"""The pictures of the photograph example: the photograph, and a sheet with the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]


class Curve(Protocol):
    seconds: list[float]
    psnr: list[float]


@dataclass
class Maps:
    """Gradient magnitude and Laplacian of the brightness at each pixel, [H, W] each."""

    gradient: Floats
    laplacian: Floats

    @staticmethod
    def of_differences(grey: Floats) -> Maps:
        """The maps of a picture [H, W], from central differences. The picture is mirrored at its
        border."""
        padded = np.pad(grey, 1, mode="reflect")
        down, up = padded[2:, 1:-1], padded[:-2, 1:-1]
        right, left = padded[1:-1, 2:], padded[1:-1, :-2]
        return Maps(np.hypot(down - up, right - left) / 2, down + up + right + left - 4 * grey)

    def likeness(self, other: Maps) -> tuple[float, float]:
        """The correlation of each map with that of another picture, without the border."""
        pairs = (self.gradient, other.gradient), (self.laplacian, other.laplacian)
        inner = [[m[2:-2, 2:-2].ravel() for m in pair] for pair in pairs]
        return tuple(float(np.corrcoef(*pair)[0, 1]) for pair in inner)  # type: ignore[return-value]


def load_photograph(width: int) -> Floats:
    """matplotlib's photograph of Grace Hopper, [H, W, 3] in ±1."""
    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as picture:
        size = width, round(picture.height * width / picture.width)
        scaled = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    return np.asarray(scaled, dtype=np.float32) / 127.5 - 1


def draw_sheet(
    path: Path, pictures: list[Floats], maps: list[Maps], curves: dict[str, Curve]
) -> None:
    """Draws three rows: the photograph with its derivatives, the fit with its own, and the curves.

    ``pictures`` are the photograph and the fit, [H, W, 3] in ±1. ``maps`` are their derivatives.
    """
    height, width, _ = pictures[0].shape
    figure = Figure(figsize=(13, 3 + 6.5 * height / width), layout="constrained")
    # Two rows of maps and a row for the curves.
    grid = figure.add_gridspec(3, 3, height_ratios=[height / width, height / width, 0.55])
    names = "photograph", "fit"
    likeness = maps[0].likeness(maps[1])
    # Both rows have the same scale. It ends at a quantile, so that a few extreme pixels do not
    # make all others pale.
    most = [float(np.quantile(np.abs(m), 0.99)) for m in (maps[0].gradient, maps[0].laplacian)]
    for row, (name, picture, map) in enumerate(zip(names, pictures, maps, strict=True)):
        axes = [figure.add_subplot(grid[row, column]) for column in range(3)]
        axes[0].imshow((picture + 1) / 2)
        axes[1].imshow(map.gradient, cmap="gray_r", vmin=0, vmax=most[0])
        axes[2].imshow(map.laplacian, cmap="RdBu_r", vmin=-most[1], vmax=most[1])
        how = "by differences" if row == 0 else "of the network"
        titles = [
            f"the {name}, {width} x {height}" if row == 0 else f"the {name}",
            f"{name}: gradient's magnitude, {how}",
            f"{name}: Laplacian, {how}",
        ]
        if row == 1:
            titles[1] += f" (r = {likeness[0]:.2f})"
            titles[2] += f" (r = {likeness[1]:.2f})"
        for one, title in zip(axes, titles, strict=True):
            one.set_title(title, fontsize=10)
            one.axis("off")
    draw_curves(figure.add_subplot(grid[2, :]), curves)
    figure.savefig(path, dpi=90)


def draw_curves(axes: Axes, curves: dict[str, Curve]) -> None:
    """Draws the PSNR over the seconds of learning. These exclude the time to measure the PSNR."""
    styles = [{"lw": 3, "color": "C0"}, {"lw": 1.5, "color": "black", "ls": "--"}]
    for (name, curve), style in zip(curves.items(), styles, strict=True):
        label = f"{name}: {curve.psnr[-1]:.1f} dB in {curve.seconds[-1]:.1f} s"
        axes.plot(curve.seconds, curve.psnr, label=label, **style)
    axes.set(xlabel="seconds of learning", ylabel="PSNR in dB")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right")
