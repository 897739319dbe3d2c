"""Makes the generated blocks of docs/jets.md and docs/dev/jets_numbers.md.

The numbers are the committed results of the suite `jets`; results of GPUs come first.
`make readme-numbers` writes the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.pages.tables import Machine, Row, filled, line, links, runs, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "jets.md"
NUMBERS = ROOT / "docs" / "dev" / "jets_numbers.md"
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


def figures(rows: list[Row]) -> Iterator[str]:
    """A table of our time, our speed relative to each baseline, and the peak memory of a step.

    The memory is also shown relative to that of autograd in plain PyTorch. A baseline without any
    timings gets no column.
    """
    timed = [row for row in rows if "times" in row]
    weighed = {row["key"].removesuffix("/memory"): row["memory"] for row in rows if "memory" in row}
    names = [name for name in BASELINES if any(name in row["times"] for row in timed)]
    columns = [f"× {BASELINES[name]}" for name in names]
    yield from table("network, dtype, task", "treadle, ms", *columns, "MiB", "memory / autograd's")
    for row in timed:
        taken = {name: time["median_us"] for name, time in row["times"].items()}
        ours = taken["treadle"]
        cells = [f"{taken[name] / ours:.2f}" if name in taken else "–" for name in names]
        held = weighed.get(row["key"])
        if held is not None:
            most = held["treadle"]["kept"]
            cells += [f"{most / 2**20:,.0f}", f"{most / held[EAGER]['kept']:.0%}"]
        yield line(
            row["label"], f"{ours / 1000:.4g}", *cells, *["–"] * (len(names) + 2 - len(cells))
        )


def summary(machines: Iterable[Machine]) -> Iterator[str]:
    """A table of our speed and memory relative to autograd in plain PyTorch, on the first
    machine."""
    measured = runs(machines, KEYS)
    if not measured:
        yield NO_SPEEDS
        return
    files, rows = measured[0]
    facts = files[-1][1]
    weighed = {row["key"].removesuffix("/memory"): row["memory"] for row in rows if "memory" in row}
    name = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
    yield from table(name, "ms", "× autograd", "memory / autograd's")
    for row in rows:
        if "times" in row:
            ours, eager = (row["times"][name]["median_us"] for name in ("treadle", EAGER))
            held = weighed.get(row["key"])
            share = f"{held['treadle']['kept'] / held[EAGER]['kept']:.0%}" if held else "–"
            yield line(row["label"], f"{ours / 1000:.3g}", f"{eager / ours:.2f}", share)


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
        busy = "" if load is None or load < 1 else f", while other programs ran (load {load})"
        paths = links((path for path, _ in files), NUMBERS.parent)
        yield f"{where}{busy}, torch {facts['torch']}, {paths}:"
        yield ""
        yield from figures(rows)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The users' page with its generated block."""
    return filled(PAGE, text, {"speeds": lambda: summary(machines)})


def rewritten_numbers(text: str, machines: Iterable[Machine]) -> str:
    """The page of all numbers with its generated block."""
    return filled(NUMBERS, text, {"speeds": lambda: speeds(machines)})
