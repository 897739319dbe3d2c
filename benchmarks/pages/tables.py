"""Functions that the scripts of this folder share: reading results, and writing Markdown."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
WIDTH = 100

Row = dict[str, Any]
Facts = dict[str, Any]
Machine = tuple[list[Path], Facts, list[Row]]
File = tuple[Path, Facts]
Blocks = dict[str, Callable[[], Iterator[str]]]


@lru_cache(maxsize=64)
def _read(path: Path, written: int) -> Any:
    del written  # only a part of the cache's key, so that a changed file is read again
    return json.loads(path.read_text())


def read(path: Path) -> Any:
    """Parses a file of results, once per process, because many pages read the same files."""
    return _read(path, path.stat().st_mtime_ns)


def machines() -> list[Machine]:
    """The files, facts and rows of every machine and device. GPUs come before CPUs, then machines
    with more rows before those with fewer, then newer results before older ones.

    If two files of a folder timed the same row, the newer one is used. Quick runs are left out.
    """
    merged: dict[tuple[str, str], list[tuple[str, Path, Facts]]] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        data = read(path)
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
    found.sort(key=lambda machine: (len(machine[2]), machine[1]["date"]), reverse=True)
    return sorted(found, key=lambda machine: machine[1]["device"] != "cuda")


def runs(
    machines: Iterable[Machine], keys: str | tuple[str, ...]
) -> list[tuple[list[File], list[Row]]]:
    """For each machine that has rows whose key begins with one of ``keys``: the files with these
    rows, the newest last, and the rows."""
    found = []
    for paths, _, rows in machines:
        own = [row for row in rows if row["key"].startswith(keys)]
        if own:
            parsed = [(path, read(path)) for path in paths]
            files = [
                (path, data["machine"])
                for path, data in parsed
                if any(row["key"].startswith(keys) for row in data["rows"])
            ]
            found.append((files, own))
    return found


def sections(
    page: Path,
    machines: Iterable[Machine],
    keys: str | tuple[str, ...],
    none_yet: str,
    what: Callable[[Facts, list[Row]], list[str]],
    table_of: Callable[[list[Row]], Iterator[str]],
) -> Iterator[str]:
    """For each machine that has such rows: what was measured, when, links to the files, and the
    table of the rows. ``none_yet`` if there is no such machine."""
    measured = runs(machines, keys)
    if not measured:
        yield none_yet
    for files, rows in measured:
        facts = files[-1][1]
        paths = links([path for path, _ in files], page.parent)
        yield f"{', '.join([*what(facts, rows), commit(facts), facts['date'][:10], paths])}:"
        yield ""
        yield from table_of(rows)
        yield ""


def of(rows: list[Row], suite: str) -> list[Row]:
    return [row for row in rows if row.get("suite") == suite]


def gpu_name(facts: Facts) -> str | None:
    """The GPU's name, and also that of another GPU if layers were planned for it. None on a CPU."""
    imposed = facts.get("imposed_gpu")
    return f"{facts['gpu']} as {imposed}" if imposed else facts.get("gpu")


def commit(facts: Facts) -> str:
    """The measured commit."""
    name = facts["treadle_commit"]
    if not name:
        return "treadle without a recorded commit"
    return f"treadle {name[:10]}{' with changes' if name.endswith('-modified') else ''}"


def links(paths: Iterable[Path], folder: Path) -> str:
    """Links to these files, for a page in `folder`."""
    return ", ".join(f"[{p.name}]({Path(os.path.relpath(p, folder)).as_posix()})" for p in paths)


def missed(row: Row) -> bool:
    return "target" in row and not row["target"]["reached"]


def bold(row: Row | None, text: str) -> str:
    """The text, in bold if the row missed its target."""
    return f"**{text}**" if row and missed(row) else text


def table(*columns: str) -> Iterator[str]:
    yield line(*columns)
    yield "|---" * len(columns) + "|"


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def as_prose(text: str) -> list[str]:
    """Wraps a line of a block at 100 characters, except tables, headings and pictures."""
    if len(text) <= WIDTH or text.startswith(("|", "#", "!", "<")):
        return [text]
    indent = "  " if text.startswith(("- ", "  ")) else ""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, **options)


def filled(page: Path, text: str, blocks: Blocks) -> str:
    """The text of `page`, with each block of `blocks` between the two comments with its name."""
    for name, lines in blocks.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{page.name} must have one line {begin} and one {end}")
        before, rest = text.split(begin)
        made = "\n".join(wrapped for made in lines() for wrapped in as_prose(made)).strip()
        text = f"{before}{begin}\n{made}\n{end}{rest.split(end)[1]}"
    return text
