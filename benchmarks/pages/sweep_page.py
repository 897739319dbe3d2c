"""The block of docs/layer.md, and its picture, from the committed results of the suites sweep_*.

    python benchmarks/sweep_page.py                 docs/layer.png
    python benchmarks/sweep_page.py --output DIR    the same file in another folder

`make readme-numbers` writes the block with those of the README. It shows every row that there is,
those that were slower in bold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import means  # noqa: E402
from benchmarks.sine_page import Machine, Row, filled  # noqa: E402

PAGE = ROOT / "docs" / "layer.md"
PICTURE = PAGE.with_suffix(".png")
NONE_YET = "No measurements of the suites `sweep_*` have been committed yet."
KEYS = "cuda/sweep_"
MODES = ("inference", "training")
OURS, LSTM = "treadle", "nn.LSTM"
File = tuple[Path, dict[str, Any]]


def runs(
    machines: Iterable[Machine], keys: str | tuple[str, ...] = KEYS
) -> list[tuple[list[File], list[Row]]]:
    """Of each GPU the files with rows whose key begins so, the newest last, and these rows."""
    found = []
    for paths, _, rows in machines:
        own = [row for row in rows if row["key"].startswith(keys)]
        if own:
            read = [(path, json.loads(path.read_text())) for path in paths]
            files = [
                (path, data["machine"])
                for path, data in read
                if any(row["key"].startswith(keys) for row in data["rows"])
            ]
            found.append((files, own))
    return found


def of(rows: list[Row], suite: str) -> list[Row]:
    return [row for row in rows if row.get("suite") == suite]


def distinct(rows: list[Row], fact: str) -> list[str]:
    return list(dict.fromkeys(row[fact] for row in rows))


def found(rows: list[Row], **facts: str) -> Row | None:
    matching = (row for row in rows if all(row[name] == fact for name, fact in facts.items()))
    return next(matching, None)


def number(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def plain(row: Row | None, *names: str, value: str = "us_per_step") -> str:
    """The times of these."""
    if row is None:
        return ""
    if "refused" in row:
        return "wrong"
    times = row["times"]
    return " / ".join(number(times[name][value]) if name in times else "–" for name in names)


def cell(row: Row | None, *names: str, value: str = "us_per_step") -> str:
    """The same, in bold where the bar was missed."""
    return bold(row, plain(row, *names, value=value))


def bold(row: Row | None, text: str) -> str:
    return f"**{text}**" if row and "bar" in row and not row["bar"]["reached"] else text


def table(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def goals(rows: list[Row]) -> Iterator[str]:
    yield "Goals, µs a step:"
    yield ""
    halves = ("bfloat16", "float16")
    yield from table("B, T, H", "", "goal", *halves, *(f"{LSTM} {half}" for half in halves))
    for what in distinct(rows, "what"):
        for mode in MODES:
            own = [found(rows, what=what, digits=digits, mode=mode) for digits in halves]
            first = own[0] or {}
            goal = number(first["bar"]["limit_us"] / first["steps"]) if "bar" in first else ""
            cells = [cell(row, OURS) for row in own] + [plain(row, LSTM) for row in own]
            yield line(what, mode, goal, *cells)


def shapes(rows: list[Row]) -> Iterator[str]:
    digits = distinct(rows, "digits")
    for mode in MODES:
        if mode != MODES[0]:
            yield ""
        yield f"All shapes, {mode}, µs a step, treadle / {LSTM}:"
        yield ""
        yield from table("B, T, H", *digits)
        for what in distinct(rows, "what"):
            cells = [cell(found(rows, what=what, digits=d, mode=mode), OURS, LSTM) for d in digits]
            yield line(what, *cells)


def choice(row: Row | None) -> str:
    """What the planner chose, its time over the best regime's, and the others'."""
    if row is None or "refused" in row:
        return plain(row)
    forced = {name: times["median_us"] for name, times in row["times"].items() if name != OURS}
    if not forced:
        return "none"
    best, *others = sorted(forced, key=lambda name: forced[name])
    most, short = forced[best], {name: name.removeprefix("regime ") for name in forced}
    over = row["times"][OURS]["median_us"] / most
    text = f"{row.get('regime') or 'auto'}: {over:.2f} × {short[best]}"
    rest = [f"{short[name]} {number(forced[name] / most)}" for name in others]
    return bold(row, f"{text} ({', '.join(rest)})" if rest else text)


def planner(rows: list[Row]) -> Iterator[str]:
    yield "The planner's choice (for forward): its time over the best of the regimes that can be"
    yield "forced here, and in brackets the others' over that one:"
    yield ""
    columns = [(digits, mode) for digits in distinct(rows, "digits") for mode in MODES]
    yield from table("B, T, H", *(f"{digits}, {mode}" for digits, mode in columns))
    for what in distinct(rows, "what"):
        yield line(what, *(choice(found(rows, what=what, digits=d, mode=m)) for d, m in columns))


def tiny(rows: list[Row]) -> Iterator[str]:
    yield f"A call of B, T, H {rows[0]['what']}, µs, treadle / {LSTM}:"
    yield ""
    columns = [(front, mode) for mode in MODES for front in distinct(rows, "front")]
    yield from table("", *(f"{mode}, {front}" for front, mode in columns))
    for digits in distinct(rows, "digits"):
        own = [found(rows, digits=digits, front=front, mode=mode) for front, mode in columns]
        yield line(digits, *(cell(row, OURS, LSTM, value="median_us") for row in own))


def losses(rows: list[Row]) -> Iterator[str]:
    """Every one, the worst first."""
    missed = [row for row in rows if "bar" in row and not row["bar"]["reached"]]
    count = sum("bar" in row for row in rows)
    yield f"Bars missed: {len(missed)} of {count}{':' if missed else '.'}"
    yield ""
    for row in sorted(missed, key=means.excess, reverse=True):
        key = row["key"].removeprefix("cuda/")
        yield f"- {key}: {means.excess(row):.1%} over the limit ({row['bar']['text']})"
    for row in rows:
        if "refused" in row:
            yield f"- {row['key'].removeprefix('cuda/')}: not timed, {row['refused']}"
    busy = sum(bool(row.get("busy")) for row in rows)
    if busy:
        yield f"- Timed while other programs ran: {busy} of {len(rows)} rows."


TABLES = {
    "sweep_bars": goals,
    "sweep_shapes": shapes,
    "sweep_regimes": planner,
    "sweep_launch": tiny,
}


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    measured = runs(machines)
    if not measured:
        yield NONE_YET
    for index, (files, rows) in enumerate(measured):
        for path, facts in files:
            commit = facts["treadle_commit"] or "of no commit"
            changed = " with changes" if commit.endswith("-modified") else ""
            link = f"[{path.name}](../{path.relative_to(ROOT).as_posix()})"
            versions = f"torch {facts['torch']}, driver {facts['driver']}"
            what = f"{versions}, treadle {commit[:10]}{changed}"
            yield f"**{facts['gpu']}**: {what}; {facts['date'][:10]}; {link}."
            yield ""
        if index == 0 and of(rows, "sweep_shapes"):
            yield f"![µs a step over shapes, treadle and {LSTM}]({PICTURE.name})"
            yield ""
        for suite, lines in TABLES.items():
            own = of(rows, suite)
            if own:
                yield from lines(own)
                yield ""
        yield from losses(rows)
        yield ""


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its block made anew."""
    return filled(PAGE.name, text, {"figures": lambda: figures(machines)})


def draw(rows: list[Row], path: Path) -> None:
    """Ours and nn.LSTM's µs a step: a panel a dtype and mode, a line a shape; goals as ticks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    timed = [row for row in of(rows, "sweep_shapes") if "times" in row]
    set_goals = [row for row in of(rows, "sweep_bars") if "bar" in row]
    names, digits = distinct(timed, "what"), distinct(timed, "digits")
    size = (1.8 + 2.6 * len(digits), 2 * (0.9 + 0.18 * len(names)))
    figure, panels = plt.subplots(
        len(MODES), len(digits), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    figure.set_layout_engine("constrained")
    for line_of_panels, mode in zip(panels, MODES, strict=True):
        for axes, kind in zip(line_of_panels, digits, strict=True):
            own, goal = (
                [row for row in some if (row["digits"], row["mode"]) == (kind, mode)]
                for some in (timed, set_goals)
            )
            axes.set_title(f"{kind}, {mode}", fontsize=9, loc="left")
            panel(axes, names, own, goal if kind == "bfloat16" else [])
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].set_ylim(len(names) - 0.5, -0.5)
    panels[0][0].legend(fontsize=7)
    for axes in panels[-1]:
        axes.set_xlabel("µs a step", fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def panel(axes: Any, names: list[str], rows: list[Row], goal: list[Row]) -> None:
    at = [names.index(row["what"]) for row in rows]
    for who, style in ((LSTM, {"color": "C1", "fillstyle": "none"}), (OURS, {"color": "C0"})):
        values = [row["times"][who]["us_per_step"] for row in rows]
        axes.plot(values, at, "o", markersize=4.5, label=who, **style)
    known = [row for row in goal if row["what"] in names]
    values = [row["bar"]["limit_us"] / row["steps"] for row in known]
    ticks = [names.index(row["what"]) for row in known]
    axes.plot(values, ticks, "|", color="black", markersize=9, label="goal" if known else None)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)


def main(arguments: list[str] | None = None) -> int:
    from benchmarks.readme_numbers import machines

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=PAGE.parent, metavar="DIR")
    output = parser.parse_args(arguments).output
    measured = runs(machines())
    if not measured or not of(measured[0][1], "sweep_shapes"):
        print(NONE_YET, file=sys.stderr)
        return 1
    draw(measured[0][1], output / PICTURE.name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
