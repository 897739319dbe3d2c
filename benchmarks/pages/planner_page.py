"""Makes the blocks and the picture of docs/recurrent.md about the planner's choices.

    python benchmarks/pages/planner_page.py                 draw docs/figures/planner.png
    python benchmarks/pages/planner_page.py --output DIR    draw planner.png in another folder

Nothing is measured: the script calls the library's planner, which chooses the algorithm for given
sizes, with the properties of an H200. `make readme-numbers` writes the blocks.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pages.tables import line, table  # noqa: E402
from treadle import _build  # noqa: E402

PICTURE = ROOT / "docs" / "figures" / "planner.png"
COLOURS = 64
HOPPER = {"multiprocessors": 132, "l2_bytes": 50 << 20, "architecture": 90}
STEPS = 256
HALF, FLOAT = 2, 4  # bytes per element
PASSES = {
    "half types, forward": (HALF, False),
    "half types, backward": (HALF, True),
    "float32, forward": (FLOAT, False),
    "float32, backward": (FLOAT, True),
}
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
BATCHES = tuple(2**power for power in range(15))
WIDEST = 4096
BLOCK = "cluster, one block"
COLOUR = {
    BLOCK: "#9ecae1",
    "cluster": "#3182bd",
    "grid": "#fd8d3c",
    "tiles": "#74c476",
    "step": "#bdbdbd",
}


def chosen(cell: str, batch: int, hidden: int, element: int, backward: bool) -> str:
    """The planner's choice for a dense batch in one direction. TF32 is allowed, as it is by default
    in torch's layers."""
    found = _build.bindings().plan_recurrence(
        *(cell, STEPS, batch, hidden, element),
        cuda=True,
        forced="auto",
        tf32=True,
        backward=backward,
        **HOPPER,
    )
    alone = found.algorithm == "cluster" and found.clusters[1] == 1
    return BLOCK if alone else str(found.algorithm)


def fits(cell: str, algorithm: str, hidden: int, element: int, backward: bool) -> bool:
    try:
        found = _build.bindings().plan_recurrence(
            *(cell, STEPS, 16, hidden, element),
            cuda=True,
            forced=algorithm,
            tf32=True,
            backward=backward,
            **HOPPER,
        )
    except RuntimeError:
        return False
    # For the backward pass, the planner may choose another algorithm than the forced one.
    return str(found.algorithm) == algorithm


def widest(cell: str, algorithm: str, element: int, backward: bool) -> str:
    """The largest H that fits, by bisection: if one H fits, so do all smaller ones."""
    low, high = 0, WIDEST + 64
    while high - low > 64:
        middle = (low + high) // 128 * 64
        if fits(cell, algorithm, middle, element, backward):
            low = middle
        else:
            high = middle
    return "any" if low >= WIDEST else str(low) if low else "–"


def limits() -> Iterator[str]:
    """A table of the largest H that each algorithm supports."""
    yield from table("largest H", *PASSES)
    for algorithm in ("cluster", "grid"):
        for cell in ("lstm", "gru"):
            found = (widest(cell, algorithm, *kind) for kind in PASSES.values())
            yield line(f"`{algorithm}`, {cell.upper()}", *found)


def switches(cell: str, hidden: int, element: int, backward: bool) -> str:
    """The algorithm for one row, and the numbers of rows at which the algorithm changes."""
    parts: list[str] = []
    last = ""
    for batch in BATCHES:
        now = chosen(cell, batch, hidden, element, backward)
        if now != last:
            parts.append(now if not last else f"{now} from {batch}")
            last = now
    return "; ".join(parts)


def which() -> Iterator[str]:
    """A table for each cell, with a row for each H and a column for each pass."""
    for cell in ("lstm", "gru"):
        if cell != "lstm":
            yield ""
        yield from table(f"{cell.upper()}, H", *PASSES)
        for hidden in WIDTHS:
            yield line(str(hidden), *(switches(cell, hidden, *kind) for kind in PASSES.values()))


def draw(path: Path, points: int = 96) -> None:
    """Draws which algorithm runs for each H and B: LSTM, bfloat16 and float32, both passes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from PIL import Image

    names = list(COLOUR)
    spread = [8 * (3072 / 8) ** (n / (points - 1)) for n in range(points)]
    # Above 64, H is a multiple of 64, as in most models: `tiles` supports only these.
    widths = sorted({round(h) if h < 64 else round(h / 64) * 64 for h in spread})
    batches = sorted({round(8192 ** (n / (points - 1))) for n in range(points)})
    figure, panels = plt.subplots(2, 2, figsize=(8.4, 6.2), sharex=True, sharey=True)
    figure.set_layout_engine("constrained")
    for axes, (title, kind) in zip(panels.flat, PASSES.items(), strict=True):
        grid = [[names.index(chosen("lstm", b, h, *kind)) for h in widths] for b in batches]
        axes.pcolormesh(
            *(widths, batches, grid),
            cmap=ListedColormap(list(COLOUR.values())),
            vmin=-0.5,
            vmax=len(names) - 0.5,
            shading="nearest",
        )
        axes.set_title(title.replace("half types", "bfloat16"), loc="left", fontsize=10)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks([8, 32, 128, 512, 2048], ["8", "32", "128", "512", "2048"])
        axes.set_yticks([1, 8, 64, 512, 4096], ["1", "8", "64", "512", "4096"])
        axes.minorticks_off()
    for axes in panels[1]:
        axes.set_xlabel("H")
    for axes in panels[:, 0]:
        axes.set_ylabel("rows B")
    patches = [Patch(color=colour, label=name) for name, colour in COLOUR.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(names), frameon=False)
    file = io.BytesIO()
    figure.savefig(file, dpi=90)
    plt.close(figure)
    with Image.open(file) as made:
        made.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PICTURE.parent, metavar="DIR")
    output: Any = parser.parse_args(arguments).output
    draw(output / PICTURE.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
