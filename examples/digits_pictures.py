"""The pictures of the digits demo: the network's input, and the PNGs of its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageFilter

# scikit-learn's digits were made from 32 x 32 bitmaps, by summing blocks of 4 x 4 pixels.
BITMAP, SIZE = 32, 8
# These digits are at most three quarters as wide as they are high. Ink covers about a fifth of a
# picture.
WIDEST, LEAST_INK = 24, 0.2
# Values below this fraction of the range from background to darkest ink count as background.
FAINTEST = 0.25


def prepare(picture: Image.Image) -> np.ndarray:
    """Convert a picture of one digit, of any size, to scikit-learn's form: [8, 8] in 0..1.

    The background becomes 0 and ink positive, whether the picture is dark on light or light on
    dark. The digit is cropped, scaled to the full height and centred, and thin strokes are
    thickened. Raises ValueError for a blank picture.
    """
    ink = find_ink(picture)
    rows = np.flatnonzero((ink > FAINTEST).any(axis=1))
    columns = np.flatnonzero((ink > FAINTEST).any(axis=0))
    digit = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]

    height, width = digit.shape
    width = min(WIDEST, max(1, round(BITMAP * width / height)))
    scaled = Image.fromarray(digit).resize((width, BITMAP), Image.Resampling.BILINEAR)
    bitmap = Image.new("L", (BITMAP, BITMAP))
    levels = np.asarray(scaled) * (255 / np.asarray(scaled).max())
    bitmap.paste(Image.fromarray(levels.astype(np.uint8)), ((BITMAP - width) // 2, 0))
    for _ in range(4):
        if np.asarray(bitmap).mean() >= LEAST_INK * 255:
            break
        bitmap = bitmap.filter(ImageFilter.MaxFilter(3))
    small = bitmap.resize((SIZE, SIZE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255


def find_ink(picture: Image.Image) -> np.ndarray:
    """The difference of every pixel from the background, [height, width] in 0..1.

    The background is the median brightness of the picture's border. Transparent parts count as
    white paper, unless the drawing is white.
    """
    for paper in ("white", "black"):
        grey = to_grey(picture, paper)
        border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
        distance = np.abs(grey - np.median(border))
        if distance.max() > 0.05:
            return distance / distance.max()
    raise ValueError("the picture is blank: no digit stands out from its background")


def to_grey(picture: Image.Image, paper: str) -> np.ndarray:
    """Brightness of a picture, [height, width] in 0..1. Where it is transparent, the colour
    ``paper`` shows through."""
    if picture.mode.startswith("I"):
        # Pixels have 16 bits. Pillow's conversion would clip them to 8 bits.
        return np.asarray(picture, dtype=np.float32) / 65535
    colours = picture.convert("RGBA")
    colours = Image.alpha_composite(Image.new("RGBA", colours.size, paper), colours)
    return np.asarray(colours.convert("L"), dtype=np.float32) / 255


def draw_curve(path: Path, histories: dict[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Plot training loss and test accuracy by epoch, for each named (losses, accuracies)."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    # The curves of one cell should coincide, so each curve is thinner than the one below it.
    widths = np.linspace(8, 1.5, len(histories))
    for (name, (losses, accuracies)), width in zip(histories.items(), widths, strict=True):
        style = {"lw": width, "alpha": 0.6, "ls": "-" if name.startswith("treadle") else "--"}
        epochs = range(1, len(losses) + 1)
        left.plot(epochs, losses, label=name, **style)
        right.plot(epochs, [100 * accuracy for accuracy in accuracies], label=name, **style)
    left.set(xlabel="epoch", ylabel="cross-entropy in nats", title="Training loss")
    right.set(xlabel="epoch", ylabel="digits read right, %", title="Accuracy on 360 test digits")
    right.set_ylim(bottom=min(80, right.get_ylim()[0]), top=101)
    right.axhline(95, color="grey", lw=0.8)
    right.annotate("95 %", (1, 95), (0, 3), textcoords="offset points", color="grey")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend()
    figure.savefig(path, dpi=120)


def draw_sheet(path: Path, images: np.ndarray, read: Sequence[int], truth: Sequence[int]) -> None:
    """Draw every image [N, 8, 8] with the predicted digit below it. Wrong predictions are red."""
    across, step_x, step_y = 24, SIZE + 3, SIZE + 7
    down = -(-len(images) // across)
    sheet = np.zeros((down * step_y, across * step_x), dtype=np.float32)
    figure = Figure(figsize=(across / 2, down * step_y / step_x / 2 + 0.4), layout="constrained")
    axes = figure.subplots()
    for index, (image, label, written) in enumerate(zip(images, read, truth, strict=True)):
        top, left = index // across * step_y, index % across * step_x
        sheet[top : top + SIZE, left : left + SIZE] = image
        right = label == written
        axes.text(
            left + SIZE / 2,
            top + SIZE,
            str(label) if right else f"{label} ({written})",
            color="black" if right else "red",
            weight="normal" if right else "bold",
            ha="center",
            va="top",
            fontsize=10,
        )
    axes.imshow(sheet, cmap="gray_r", vmin=0, vmax=1)
    axes.axis("off")
    count = sum(label == written for label, written in zip(read, truth, strict=True))
    axes.set_title(
        f"{count} of {len(truth)} test digits read right; "
        "mistakes are red, with the right digit in brackets"
    )
    figure.savefig(path, dpi=120)
