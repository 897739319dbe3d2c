"""Write the numbers of README.md and docs/*.md from committed files: `make readme-numbers`.

    python benchmarks/readme_numbers.py            rewrite the blocks between the comment lines
    python benchmarks/readme_numbers.py --check    fail if a block is not what it would write

README.md has one table each of the GPU and of the processor that ran last, one line a group of
rows. What is slower than a rival, missed its bar or was refused is listed below the table. Tables
of other machines are in benchmarks/results/README.md. Pages below docs: sine_page.py,
sine_layer_page.py and sweep_page.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import means, sine_layer_page, sine_page, sweep_page  # noqa: E402

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
OTHERS = RESULTS / "README.md"
BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"
NONE_YET = "None have been committed yet."
# Two runs of one program differ by about this much even on an idle machine.
NOISE = 0.03
MOST_LISTED = 4
LAYER = "lltm layer"
SWEEP = "lltm layer sweep (rivals: its regimes, forced)"

# Groups of one op each that are one line together.
LINES = {
    r"^(vector_add|scale|sine|cosine)$": "elementwise",
    r"^\w+ of large arguments$": "sine and cosine of large arguments",
    r"^\w+ by argument, ": "",
    r"^\w+ on views$": "views and mixed dtypes",
    r"^\w+, in cache$": "elementwise, in cache",
    r"^lltm layer, .*$": LAYER,
    r"^lltm layer sweep, .*$": SWEEP,
}

Row = dict[str, Any]
Machine = tuple[list[Path], dict[str, Any], list[Row]]


def machines() -> list[Machine]:
    """Files, facts and rows of every machine and device, those with a GPU first, the newest first.

    Where two files of a folder timed the same row, the newer one counts. Trials are left out.
    """
    merged: dict[tuple[str, str], list[tuple[str, Path, dict[str, Any]]]] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or not data.get("rows") or data.get("quick"):
            continue
        facts = data["machine"]
        key = (path.parent.name, facts["device"])
        merged.setdefault(key, []).append((facts["date"], path, data))
    found = []
    for runs in merged.values():
        runs.sort(key=lambda run: run[0])
        rows = {row["key"]: row for _, _, data in runs for row in data["rows"]}
        found.append(([path for _, path, _ in runs], runs[-1][2]["machine"], list(rows.values())))
    found.sort(key=lambda machine: machine[1]["date"], reverse=True)
    return sorted(found, key=lambda machine: machine[1]["device"] != "cuda")


def newest(found: list[Machine]) -> list[Machine]:
    """One machine a device: README.md may have so many lines."""
    first = {facts["device"]: index for index, (_, facts, _) in reversed([*enumerate(found)])}
    return [found[index] for index in sorted(first.values())]


def group(row: Row) -> str:
    """The line that a row counts in: the plots' groups, over all ops and numbers of threads."""
    name = re.sub(r", (cuda|CUDA|CPU, \d+ threads?|cpu|CPU)$", "", row["group"])
    for pattern, line in LINES.items():
        name = re.sub(pattern, line, name)
    return name


def is_front(row: Row) -> bool:
    """Of a Python function, whose only rival is the op that it calls: no line of the table."""
    return bool(row["label"].startswith("treadle."))


def groups(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not is_front(row):
            found.setdefault(group(row), []).append(row)
    return found


def bars(rows: list[Row]) -> str:
    with_bar = [row["bar"]["reached"] for row in rows if "bar" in row]
    return f"{sum(with_bar)} of {len(with_bar)}" if with_bar else "no bar"


def lines(rows: list[Row]) -> Iterator[str]:
    """The table: treadle's time over the fastest rival's, so less is better."""
    yield "| what | rows | time / fastest rival's: median | best | worst | bars reached |"
    yield "|---|---|---|---|---|---|"
    for name, members in groups(rows).items():
        ratios = [row["ratio"] for row in members if "ratio" in row]
        cells = ["", "", ""]
        if ratios:
            middle = statistics.median(ratios)
            cells = [f"{value:.2f}" for value in (middle, min(ratios), max(ratios))]
        yield f"| {' | '.join([name, str(len(members)), *cells, bars(members)])} |"


def listed(what: str, found: list[str]) -> str:
    if not found:
        return f"{what}: none."
    more = f"; and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return f"{what} ({len(found)}): {'; '.join(found[:MOST_LISTED])}{more}."


def beside(rows: list[Row]) -> Iterator[str]:
    """The layer over what is no rival of it, for that computes something else: a line, or none."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if group(row) != LAYER:
            continue
        for name in row.get("yardsticks", []):
            found.setdefault(name, []).append(row["times"][name]["ratio"])
        if "against" in row:
            name = f"{row['against']['name']} (bytes kept for backward)"
            found.setdefault(name, []).append(row["against"]["ratio"])
    parts = [
        f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        for name, ratios in found.items()
    ]
    if parts:
        yield f"The {LAYER} over others, median (best to worst): {'; '.join(parts)}."


def losses(rows: list[Row]) -> Iterator[str]:
    """What went less well, the worst first."""
    timed = [row for row in rows if "times" in row]
    missed = [row for row in rows if "bar" in row and not row["bar"]["reached"]]
    over = {row["key"]: means.excess(row) for row in missed}
    missed.sort(key=lambda row: -over[row["key"]])
    said = [f"{row['key']} by {over[row['key']]:.1%} ({row['bar']['text']})" for row in missed]
    yield listed("Bars missed", said)
    # One line for the rest: README.md may have so many.
    rest = [*(f"{means.sentence(mean)}." for mean in means.of(rows)), *beside(rows)]
    slower = [row for row in timed if row.get("ratio", 0) > 1 + NOISE and row not in missed]
    slower = [row for row in slower if not is_front(row)]
    slower.sort(key=lambda row: -row["ratio"])
    busy = sum(bool(row.get("busy")) for row in timed)
    turns = f" Timed while other programs ran: {busy} of {len(timed)} rows." if busy else ""
    behind = listed(
        f"Slower than the fastest rival by more than {NOISE:.0%}, without a missed bar",
        [f"{row['key']} {row['ratio']:.2f} × {row['fastest_rival']}" for row in slower],
    )
    yield " ".join([*rest, behind + turns])
    refused = [row["key"] for row in rows if "refused" in row]
    if refused:
        yield listed("Wrong, and therefore not timed", refused)


def section(machine: Machine, folder: Path) -> list[str]:
    """One machine, for a page in `folder`: what it is, its table, and what went less well."""
    paths, facts, rows = machine
    what = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
    versions = [f"torch {facts['torch']}"]
    if facts.get("gpu"):
        versions += [f"driver {facts['driver']}", f"built with CUDA {facts['built_with_cuda']}"]
        versions.append(f"host {facts['cpu']}, {facts['cores']} cores")
    commit = facts["treadle_commit"] or "of no commit"
    changed = " with changes" if commit.endswith("-modified") else ""
    versions += [f"Python {facts['python']}", f"treadle {commit[:10]}{changed}"]
    links = [f"[{p.name}]({Path(os.path.relpath(p, folder)).as_posix()})" for p in paths]
    head = f"**{what}**: {', '.join(versions)}; {facts['date'][:10]}; {', '.join(links)}."
    return [head, "", *lines(rows), "", "  \n".join(losses(rows))]


def block(found: list[Machine], folder: Path) -> str:
    text = "\n\n".join("\n".join(section(machine, folder)) for machine in found)
    return f"{BEGIN}\n{text or NONE_YET}\n{END}"


def with_block(page: Path, text: str, found: list[Machine]) -> str:
    """The text of `page` with its block made anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"readme_numbers: {page} must have one line {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    return before + block(found, page.parent) + rest.split(END)[1]


def rewritten(text: str) -> str:
    """README.md with its block made anew."""
    return with_block(README, text, newest(machines()))


def rewritten_others(text: str) -> str:
    """The page of the results with the machines that README.md leaves out."""
    found = machines()
    shown = newest(found)
    return with_block(OTHERS, text, [machine for machine in found if machine not in shown])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if out of date")
    chosen = parser.parse_args(arguments)
    stale = False
    for path, make in (
        (README, rewritten),
        (OTHERS, rewritten_others),
        (sine_page.PAGE, lambda text: sine_page.rewritten(text, machines())),
        (sine_layer_page.PAGE, lambda text: sine_layer_page.rewritten(text, machines())),
        (sweep_page.PAGE, lambda text: sweep_page.rewritten(text, machines())),
    ):
        text = path.read_text()
        new = make(text)
        if new == text:
            continue
        stale = True
        if chosen.check:
            print(f"{path.name}'s numbers are out of date: make readme-numbers", file=sys.stderr)
        else:
            path.write_text(new)
    return int(chosen.check and stale)


if __name__ == "__main__":
    raise SystemExit(main())
