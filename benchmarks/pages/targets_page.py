"""Makes the generated blocks of docs/dev/targets.md from all committed results.

The page has missed targets, and then summaries. Each line of a summary is about a group of rows.
A ratio is treadle's time divided by that of the fastest baseline. `make readme-numbers` writes the
blocks.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from benchmarks.harness import means
from benchmarks.pages import rl_page, sweep_page
from benchmarks.pages.tables import (
    Machine,
    Row,
    commit,
    filled,
    gpu_name,
    line,
    links,
    missed,
    table,
)

PAGE = sweep_page.PAGE
NONE_YET = "None have been committed yet."
# The ratio of the times of two equal runs differs from 1 by about this much, even on an idle
# machine.
NOISE = 0.03
LAYER = "lltm layer"
# How the page describes candidates of the suite `layer`.
OTHERS = {
    "recompute=True": f"the {LAYER} with recompute=True",
    "padded": f"the {LAYER} on the same batch, padded instead of packed",
    "nn.LSTM, packed": "nn.LSTM on the same packed batch",
    "bytes of a loop of lltm_cell": f"{LAYER} / loop of lltm_cell",
    "the default's bytes": f"{LAYER} with recompute=True / without it",
}
SWEEP = "lltm layer sweep (baselines: its algorithms, forced)"

# Patterns of group names, and what replaces them in the name of the summary's line.
LINES = {
    r"^(vector_add|scale|sine|cosine)$": "elementwise",
    r"^\w+ of large arguments$": "sine and cosine of large arguments",
    r"^\w+ by argument, ": "",
    r"^\w+ on views$": "views and mixed dtypes",
    r"^\w+, in cache$": "elementwise, in cache",
    r"^lltm layer, .*$": LAYER,
    r"^lltm layer sweep, .*$": SWEEP,
    r"^(lstm|gru) layer sweep, .*$": r"\1 layer sweep",
    r"^(lstm|gru) layers of public models, .*$": r"\1 layers of public models",
}


def group(row: Row) -> str:
    """The name of the summary's line to which a row belongs. It is the name of the row's group,
    without some details, such as the op and the number of threads."""
    name = re.sub(r", (cuda|CUDA|CPU, \d+ threads?|cpu|CPU)$", "", row["group"])
    for pattern, short in LINES.items():
        name = re.sub(pattern, short, name)
    return name


def is_front(row: Row) -> bool:
    """Whether the row compares a Python function with the op that it calls. Tables omit such
    rows."""
    return bool(row["label"].startswith("treadle."))


def groups(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not is_front(row):
            found.setdefault(group(row), []).append(row)
    return found


def targets(rows: list[Row]) -> str:
    with_target = [row["target"]["reached"] for row in rows if "target" in row]
    return f"{sum(with_target)} of {len(with_target)}" if with_target else "none"


def lines(rows: list[Row]) -> Iterator[str]:
    """A table with a line for each group of rows: treadle's time divided by that of the fastest
    baseline. Smaller is better."""
    yield from table(
        "what", "rows", "time / fastest baseline's: median", "best", "worst", "targets reached"
    )
    for name, members in groups(rows).items():
        ratios = [row["ratio"] for row in members if "ratio" in row]
        cells = ["", "", ""]
        if ratios:
            middle = statistics.median(ratios)
            cells = [f"{value:.2f}" for value in (middle, min(ratios), max(ratios))]
        yield line(name, str(len(members)), *cells, targets(members))


def beside(rows: list[Row]) -> Iterator[str]:
    """Compares the layer's time and memory with those of other candidates."""
    times: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    for row in rows:
        if group(row) != LAYER:
            continue
        for name in row.get("yardsticks", []):
            other = OTHERS.get(name, name)
            times.setdefault(other, []).append(row["times"][name]["ratio"])
        if "against" in row:
            name = row["against"]["name"]
            name = OTHERS.get(name, f"{LAYER} / {name}")
            sizes.setdefault(name, []).append(row["against"]["ratio"])
    for begin, found in (
        (f"Times of the {LAYER} divided by other times", times),
        ("Bytes that are kept for the backward pass, as ratios", sizes),
    ):
        parts = [
            f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            for name, ratios in found.items()
        ]
        if parts:
            yield f"{begin}, median (best to worst): {'; '.join(parts)}."


def losses(rows: list[Row]) -> Iterator[str]:
    """The rows that missed their target, the worst first, and then other rows that are slower than
    the fastest baseline."""
    late = sorted((row for row in rows if missed(row)), key=means.excess, reverse=True)
    count = sum("target" in row for row in rows)
    yield f"Targets missed: {len(late)} of {count}."
    yield ""
    if late:
        yield from table("row", "over the limit by", "target")
        for row in late:
            yield line(row["key"], f"{means.excess(row):.1%}", row["target"]["text"])
        yield ""
    slower = [row for row in rows if row.get("ratio", 0) > 1 + NOISE and not missed(row)]
    slower = sorted((r for r in slower if not is_front(r)), key=lambda r: r["ratio"], reverse=True)
    if slower:
        yield (
            f"Rows that are slower than the fastest baseline by more than {NOISE:.0%}, without a "
            "missed target:"
        )
        yield ""
        for row in slower:
            yield f"- {row['key']}: {row['ratio']:.2f} × {row['fastest_baseline']}"
        yield ""
    for row in rows:
        if "refused" in row:
            reason = row["refused"].removeprefix("lltm: ")  # the name of treadle's layer there
            yield f"This row was not timed: {row['key']} ({reason})."
            yield ""
    timed = [row for row in rows if "times" in row]
    busy = sum(bool(row.get("busy")) for row in timed)
    if busy:
        yield f"Other programs ran while {busy} of {len(timed)} rows were timed."


def name_of(machine: Machine) -> str:
    _, facts, _ = machine
    return gpu_name(facts) or f"{facts['cpu']}, {facts['cores']} cores"


def summary(machine: Machine) -> Iterator[str]:
    """The summary for one machine: its description, its table, and means over many rows."""
    paths, facts, rows = machine
    versions = [f"torch {facts['torch']}"]
    if facts.get("gpu"):
        versions += [f"driver {facts['driver']}", f"built with CUDA {facts['built_with_cuda']}"]
        versions.append(f"host {facts['cpu']}, {facts['cores']} cores")
    versions += [f"Python {facts['python']}", commit(facts), facts["date"][:10]]
    yield f"{', '.join(versions)}; {links(paths, PAGE.parent)}."
    yield ""
    yield from lines(rows)
    for sentence in (*(f"{means.sentence(mean)}." for mean in means.of(rows)), *beside(rows)):
        yield ""
        yield sentence


def each(found: list[Machine], part: str) -> Iterator[str]:
    """One part of the page ("missed" or "numbers"), with a section for each machine."""
    if not found:
        yield NONE_YET
    for machine in found:
        yield f"### {name_of(machine)}"
        yield ""
        yield from summary(machine) if part == "numbers" else losses(machine[2])
        yield ""


def rewritten(text: str, found: list[Machine]) -> str:
    """The page with its generated blocks."""
    blocks = {
        "missed": lambda: each(found, "missed"),
        "numbers": lambda: each(found, "numbers"),
        "layer": lambda: sweep_page.figures(found),
        "resets": lambda: rl_page.every_row(found, PAGE.parent),
    }
    return filled(PAGE, text, blocks)
