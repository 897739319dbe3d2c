"""Makes the block of docs/recurrent.md about resets, and a picture, from results of the suite rl.

    python benchmarks/pages/rl_page.py                 draw docs/figures/rl.png
    python benchmarks/pages/rl_page.py --output DIR    draw rl.png in another folder

`make readme-numbers` writes the block, and those of losses_page.py and planner_page.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import plot  # noqa: E402
from benchmarks.pages import losses_page, planner_page  # noqa: E402
from benchmarks.pages.sweep_page import number  # noqa: E402
from benchmarks.pages.tables import (  # noqa: E402
    File,
    Machine,
    Row,
    bold,
    commit,
    filled,
    line,
    links,
    machines,
    runs,
    table,
)

PAGE = ROOT / "docs" / "recurrent.md"
PICTURE = ROOT / "docs" / "figures" / "rl.png"
NONE_YET = "None have been committed yet."
KEYS, SHAPES = ("cuda/rl/", "cuda/rl_shapes/", "cpu/rl/"), "cuda/rl_shapes/"
LITTLE = 0.05
OURS, NONE = "treadle", "treadle without resets"
PADDED, LOOP, TRITON = "cut, padded", "loop of", "Triton"


def over(row: Row, name: str) -> str:
    """The time of the named candidate divided by ours."""
    times = row["times"]
    found = [times[each]["median_us"] for each in times if name in each]
    return f"{found[0] / times[OURS]['median_us']:.2f}" if found else "–"


def table_of(rows: list[Row]) -> Iterator[str]:
    """A table of treadle's µs per step, and of the times of other candidates divided by treadle's.
    Times that missed a target are bold."""
    names = ("without resets", "cut, padded, packed", "loop of cells", "TorchRL's Triton")
    yield from table("B, T, H", "treadle", *names)
    for row in rows:
        _, _, *what = row["key"].split("/")
        if "times" not in row:
            yield line(" ".join(what), row["refused"], "", "", "", "")
            continue
        ours = bold(row, number(row["times"][OURS]["median_us"] / row["steps"]))
        others = [over(row, name) for name in (NONE, PADDED, LOOP, TRITON)]
        yield line(" ".join(what), ours, *others)


def cost_of(rows: list[Row]) -> Iterator[str]:
    """A sentence about the cost of resets, for each fraction of steps at which rows reset: the
    median and the maximum over all shapes."""
    costs: dict[str, list[float]] = {}
    for row in rows:
        if "times" in row:
            ours, none = (row["times"][name]["median_us"] for name in (OURS, NONE))
            costs.setdefault(row["resets"], []).append(ours / none - 1)
    parts = []
    for share, found in costs.items():
        few = sum(cost <= LITTLE for cost in found)
        parts.append(
            f"{share.replace('resets', 'resets at')} of the steps add "
            f"{statistics.median(found):.0%} to the time in the median and {max(found):.0%} in the "
            f"worst row (at most {LITTLE:.0%} in {few} of {len(found)} rows)"
        )
    if parts:
        yield f"For the shapes of `sweep_cells` up to H 512, {'; '.join(parts)}."


def spread(values: list[float]) -> str:
    low, middle, high = (number(f(values)) for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})" if values else "–"


def ratios(rows: list[Row], name: str) -> list[float]:
    return [float(value) for value in (over(row, name) for row in rows) if value != "–"]


def summary_of(rows: list[Row]) -> Iterator[str]:
    """A table with a line for each cell, dtype and mode: the times of other candidates divided by
    ours, as median (worst to best)."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if "times" in row:
            _, _, cell, _, digits, _, mode = row["key"].split("/")
            groups.setdefault((cell, digits, mode), []).append(row)
    others = {"cut, padded, packed": PADDED, "loop of cells": LOOP, "TorchRL's Triton": TRITON}
    shown = {title: name for title, name in others.items() if ratios(rows_of(groups), name)}
    yield from table("", "rows", "without resets", *shown)
    for (cell, digits, mode), own in groups.items():
        cells = [spread(ratios(own, name)) for name in (NONE, *shown.values())]
        yield line(f"{cell.upper()} {digits}, {mode}", str(len(own)), *cells)


def rows_of(groups: dict[tuple[str, str, str], list[Row]]) -> list[Row]:
    return [row for own in groups.values() for row in own]


def machine_line(files: list[File], folder: Path) -> str:
    facts = files[-1][1]
    paths = links([path for path, _ in files], folder)
    name = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
    return f"{name}, torch {facts['torch']}, {commit(facts)}, {facts['date'][:10]}, {paths}:"


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    """The block of docs/recurrent.md, which summarizes the rows by cell, dtype and mode."""
    measured = runs(machines, KEYS)
    if not measured:
        yield NONE_YET
    for files, rows in measured:
        yield machine_line(files, PAGE.parent)
        yield ""
        shapes = [row for row in rows if row["key"].startswith(SHAPES)]
        yield from summary_of([row for row in rows if row not in shapes])
        yield ""
        yield from cost_of(shapes)


def every_row(machines: Iterable[Machine], folder: Path) -> Iterator[str]:
    """The block of docs/dev/targets.md, which has every row."""
    measured = runs(machines, KEYS)
    if not measured:
        yield NONE_YET
    for index, (files, rows) in enumerate(measured):
        yield machine_line(files, folder)
        yield ""
        if index == 0:
            what = "Times of the other candidates divided by treadle's, by row"
            yield f"![{what}](../figures/{PICTURE.name})"
            yield ""
        yield from table_of([row for row in rows if not row["key"].startswith(SHAPES)])
        yield ""


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated blocks."""
    blocks = {
        "limits": planner_page.limits,
        "which": planner_page.which,
        "resets": lambda: figures(machines),
        "losses": losses_page.lines,
    }
    return filled(PAGE, text, blocks)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=PICTURE.parent, help="folder of the picture")
    chosen = parser.parse_args(arguments)
    measured = runs(machines(), KEYS)
    if not measured:
        print("no results of the suite rl have been committed yet", file=sys.stderr)
        return 1
    files, rows = measured[0]
    shown = [row for row in rows if not row["key"].startswith(SHAPES)]
    plot.draw({"machine": files[-1][1], "rows": shown}, chosen.output / PICTURE.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
