"""The pictures of the examples signed_distance and poisson."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SQUARE = (-1, 1, -1, 1)


def draw_distance(path: Path, learnt: Floats, exact: Floats) -> None:
    """Draws both signed distances [N, N] over the square from -1 to 1, with contours 0.1 apart."""
    figure = Figure(figsize=(8.4, 4.3), layout="constrained")
    levels = np.arange(-1, 1.5, 0.1)
    for axes, field, title in zip(
        figure.subplots(1, 2),
        (learnt, exact),
        ("learnt from its outline", "exact"),
        strict=True,
    ):
        axes.contourf(
            field, levels=levels, cmap="RdBu", vmin=-0.8, vmax=0.8, extent=SQUARE, alpha=0.75
        )
        axes.contour(field, levels=levels, colors="black", linewidths=0.4, extent=SQUARE)
        axes.contour(field, levels=[0], colors="black", linewidths=2.5, extent=SQUARE)
        plain(axes, title)
    figure.savefig(path, dpi=90)


def draw_potential(path: Path, potential: Floats, exact: Floats, slope: Floats) -> None:
    """Draws the potential [N, N] with the lines of the field -slope [N, N, 2], and then the error
    of the potential."""
    figure = Figure(figsize=(9.4, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    axis = np.linspace(-1, 1, len(potential))
    shown = left.imshow(potential, cmap="RdBu_r", vmin=-1, vmax=1, extent=SQUARE, origin="lower")
    left.streamplot(
        axis, axis, -slope[..., 0], -slope[..., 1], color="black", linewidth=0.6, density=1.1
    )
    figure.colorbar(shown, ax=left, shrink=0.8)
    plain(left, "the potential of two charges, and its field")
    shown = right.imshow(np.abs(potential - exact), cmap="magma", extent=SQUARE, origin="lower")
    figure.colorbar(shown, ax=right, shrink=0.8)
    plain(right, "how far it is from the exact answer")
    figure.savefig(path, dpi=75)


def plain(axes: Axes, title: str) -> None:
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
    axes.set_title(title, fontsize=10)
