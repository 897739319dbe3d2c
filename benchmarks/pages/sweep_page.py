"""Makes the LLTM layer's tables and picture of docs/dev/targets.md, from the suites sweep_*.

    python benchmarks/pages/sweep_page.py                 draw docs/figures/layer.png
    python benchmarks/pages/sweep_page.py --output DIR    draw layer.png in another folder

`make readme-numbers` writes the tables. They have every row; times that missed a target are bold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pages.tables import (  # noqa: E402
    Machine,
    Row,
    bold,
    commit,
    line,
    links,
    machines,
    of,
    runs,
    table,
)

PAGE = ROOT / "docs" / "dev" / "targets.md"
PICTURE = ROOT / "docs" / "figures" / "layer.png"
NONE_YET = "No measurements of the suites `sweep_*` have been committed yet."
KEYS = "cuda/sweep_"
MODES = ("inference", "training")
OURS, LSTM = "treadle", "nn.LSTM"


def distinct(rows: list[Row], fact: str) -> list[str]:
    return list(dict.fromkeys(row[fact] for row in rows))


def found(rows: list[Row], **facts: str) -> Row | None:
    matching = (row for row in rows if all(row[name] == fact for name, fact in facts.items()))
    return next(matching, None)


def number(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def plain(row: Row | None, *names: str, value: str = "us_per_step") -> str:
    """The times of the named candidates, or the reason why there are none."""
    if row is None:
        return ""
    if "refused" in row:
        return "wrong"
    times, bad = row["times"], row.get("baseline_wrong", {})
    missing = {name: "wrong" if name in bad else "–" for name in names}
    return " / ".join(
        number(times[name][value]) if name in times else missing[name] for name in names
    )


def cell(row: Row | None, *names: str, value: str = "us_per_step") -> str:
    """The text of `plain`, in bold if the row missed its target."""
    return bold(row, plain(row, *names, value=value))


def target_tables(rows: list[Row]) -> Iterator[str]:
    yield f"Targets, µs per step, treadle / {LSTM}:"
    yield ""
    columns = [name for mode in MODES for name in (f"target, {mode}", mode)]
    yield from table("B, T, H", "", *columns)
    for digits in distinct(rows, "digits"):
        for what in distinct([row for row in rows if row["digits"] == digits], "what"):
            own = [found(rows, what=what, digits=digits, mode=mode) for mode in MODES]
            pairs = ((target(row), cell(row, OURS, LSTM)) for row in own)
            yield line(what, digits, *(text for pair in pairs for text in pair))


def target(row: Row | None) -> str:
    return number(row["target"]["limit_us"] / row["steps"]) if row and "target" in row else ""


def shapes(rows: list[Row]) -> Iterator[str]:
    digits = distinct(rows, "digits")
    for mode in MODES:
        if mode != MODES[0]:
            yield ""
        yield f"All shapes, {mode}, µs per step, treadle / {LSTM}:"
        yield ""
        yield from table("B, T, H", *digits)
        for what in distinct(rows, "what"):
            cells = [cell(found(rows, what=what, digits=d, mode=mode), OURS, LSTM) for d in digits]
            yield line(what, *cells)


def choice(row: Row | None) -> str:
    """The planner's choice, and its time divided by that of the best algorithm. The brackets have
    the times of the other algorithms, divided by that of the best one."""
    if row is None or "refused" in row:
        return plain(row)
    forced = {name: times["median_us"] for name, times in row["times"].items() if name != OURS}
    if not forced:
        return "none"
    best, *others = sorted(forced, key=lambda name: forced[name])
    most, short = forced[best], {name: name.removeprefix("algorithm ") for name in forced}
    over = row["times"][OURS]["median_us"] / most
    text = f"{row.get('algorithm') or 'auto'}: {over:.2f} × {short[best]}"
    rest = [f"{short[name]} {number(forced[name] / most)}" for name in others]
    return bold(row, f"{text} ({', '.join(rest)})" if rest else text)


def planner(rows: list[Row]) -> Iterator[str]:
    yield (
        "Each entry has the planner's choice for the forward pass, and its time divided by that of "
        "the best algorithm that can be forced. The brackets have the times of the other "
        "algorithms, divided by that of the best one:"
    )
    yield ""
    columns = [(digits, mode) for digits in distinct(rows, "digits") for mode in MODES]
    yield from table("B, T, H", *(f"{digits}, {mode}" for digits, mode in columns))
    for what in distinct(rows, "what"):
        yield line(what, *(choice(found(rows, what=what, digits=d, mode=m)) for d, m in columns))


def tiny(rows: list[Row]) -> Iterator[str]:
    yield f"Time of one call with B,T,H of {rows[0]['what']}, in µs, treadle / {LSTM}:"
    yield ""
    columns = [(front, mode) for mode in MODES for front in distinct(rows, "front")]
    yield from table("", *(f"{mode}, {front}" for front, mode in columns))
    for digits in distinct(rows, "digits"):
        own = [found(rows, digits=digits, front=front, mode=mode) for front, mode in columns]
        yield line(digits, *(cell(row, OURS, LSTM, value="median_us") for row in own))


def beside_torch(row: Row | None) -> str:
    """The times of treadle's layer and of torch's layer. For an LLTM, torch's layer is nn.LSTM."""
    others = [name for name in (row or {}).get("times", {}) if name != OURS]
    return cell(row, OURS, *others[:1])


def many_rows(rows: list[Row]) -> Iterator[str]:
    yield "Large batches, µs per step, treadle / torch's layer (nn.LSTM for the LLTM):"
    yield ""
    columns = [(digits, mode) for digits in distinct(rows, "digits") for mode in MODES]
    yield from table("cell", "B, T, H", *(f"{digits}, {mode}" for digits, mode in columns))
    for op in distinct(rows, "op"):
        own = [row for row in rows if row["op"] == op]
        for what in distinct(own, "what"):
            cells = [found(own, what=what, digits=d, mode=m) for d, m in columns]
            yield line(op, what, *(beside_torch(row) for row in cells))


TABLES = {
    "sweep_targets": target_tables,
    "sweep_shapes": shapes,
    "sweep_algorithms": planner,
    "sweep_launch": tiny,
    "sweep_wide": many_rows,
}


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    """The block `layer` of docs/dev/targets.md. targets_page.py lists the missed targets."""
    # The tables here have no rows of layers that were planned for another GPU.
    measured = runs([m for m in machines if not m[1].get("imposed_gpu")], KEYS)
    if not measured:
        yield NONE_YET
    for index, (files, rows) in enumerate(measured):
        for path, facts in files:
            versions = f"torch {facts['torch']}, driver {facts['driver']}, {commit(facts)}"
            link = links([path], PAGE.parent)
            yield f"**{facts['gpu']}**: {versions}; {facts['date'][:10]}; {link}."
            yield ""
        if index == 0 and of(rows, "sweep_shapes"):
            yield f"![µs per step over shapes, treadle and {LSTM}](../figures/{PICTURE.name})"
            yield ""
        for suite, lines in TABLES.items():
            own = of(rows, suite)
            if own:
                yield from lines(own)
                yield ""


def draw(rows: list[Row], path: Path) -> None:
    """Draws the µs per step of treadle and nn.LSTM. There is a panel for each dtype and mode, and a
    line with two points for each shape. Ticks mark the targets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    timed = [row for row in of(rows, "sweep_shapes") if "times" in row]
    with_target = [row for row in of(rows, "sweep_targets") if "target" in row]
    names, digits = distinct(timed, "what"), distinct(timed, "digits")
    size = (1.8 + 2.6 * len(digits), 2 * (0.9 + 0.18 * len(names)))
    figure, panels = plt.subplots(
        len(MODES), len(digits), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    figure.set_layout_engine("constrained")
    for line_of_panels, mode in zip(panels, MODES, strict=True):
        for axes, kind in zip(line_of_panels, digits, strict=True):
            own, targets = (
                [row for row in some if (row["digits"], row["mode"]) == (kind, mode)]
                for some in (timed, with_target)
            )
            axes.set_title(f"{kind}, {mode}", fontsize=9, loc="left")
            panel(axes, names, own, targets if kind == "bfloat16" else [])
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].set_ylim(len(names) - 0.5, -0.5)
    panels[0][0].legend(fontsize=7)
    for axes in panels[-1]:
        axes.set_xlabel("µs a step", fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def panel(axes: Any, names: list[str], rows: list[Row], targets: list[Row]) -> None:
    at = [names.index(row["what"]) for row in rows]
    for who, style in ((LSTM, {"color": "C1", "fillstyle": "none"}), (OURS, {"color": "C0"})):
        values = [row["times"][who]["us_per_step"] for row in rows]
        axes.plot(values, at, "o", markersize=4.5, label=who, **style)
    known = [row for row in targets if row["what"] in names]
    values = [row["target"]["limit_us"] / row["steps"] for row in known]
    ticks = [names.index(row["what"]) for row in known]
    axes.plot(values, ticks, "|", color="black", markersize=9, label="target" if known else None)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PICTURE.parent, metavar="DIR")
    output = parser.parse_args(arguments).output
    measured = runs(machines(), KEYS)
    if not measured or not of(measured[0][1], "sweep_shapes"):
        print(NONE_YET, file=sys.stderr)
        return 1
    draw(measured[0][1], output / PICTURE.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
