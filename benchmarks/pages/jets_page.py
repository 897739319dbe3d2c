"""The generated block of docs/jets.md: `make readme-numbers`.

Its rows are the committed results of the suite jets, those of a GPU first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.pages.tables import Machine, Row, filled, line, links, runs, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "jets.md"
KEYS = ("cuda/jets/", "cpu/jets/")
NO_SPEEDS = "No measurements of jets have been committed yet."
EAGER = "autograd"
BASELINES = {
    EAGER: "autograd",
    "treadle by autograd": "own autograd",
    "torch.func": "torch.func",
    "torch.func, compiled": "compiled",
    "torch-jet": "torch-jet",
}


def times(rows: list[Row]) -> Iterator[str]:
    """Our time, and how many times as fast as each baseline it is."""
    columns = [f"× {name}" for name in BASELINES.values()]
    yield from table("network, dtype, what", "treadle, ms", *columns)
    for row in rows:
        if "times" not in row:
            continue
        taken = {name: time["median_us"] for name, time in row["times"].items()}
        ours = taken["treadle"]
        ratios = [f"{taken[name] / ours:.2f}" if name in taken else "–" for name in BASELINES]
        yield line(row["label"], f"{ours / 1000:.4g}", *ratios)


def memory(rows: list[Row]) -> Iterator[str]:
    """The most bytes of a step, as shares of eager autograd's."""
    weighed = [row for row in rows if "memory" in row]
    if not weighed:
        return
    yield ""
    yield from table("most bytes of a step", "treadle, MiB", "of autograd's", "own autograd's")
    for row in weighed:
        held = {name: found["kept"] for name, found in row["memory"].items()}
        ours, eager, own = (held[name] for name in ("treadle", EAGER, "treadle by autograd"))
        share = f"{ours / eager:.0%}"
        yield line(row["label"], f"{ours / 2**20:.4g}", share, f"{own / eager:.0%}")


def speeds(machines: Iterable[Machine]) -> Iterator[str]:
    measured = runs(machines, KEYS)
    if not measured:
        yield NO_SPEEDS
    for number, (files, rows) in enumerate(measured):
        if number:
            yield ""
        facts = files[-1][1]
        where = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
        load = facts.get("load_before")
        busy = "" if load is None or load < 1 else f", of which other programs took a part ({load})"
        paths = links((path for path, _ in files), PAGE.parent)
        yield f"{where}{busy}, torch {facts['torch']}, {paths}:"
        yield ""
        yield from times(rows)
        yield from memory(rows)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"speeds": lambda: speeds(machines)})
