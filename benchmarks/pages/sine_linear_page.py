"""Makes the generated block of docs/sine_linear.md.

The numbers are the committed results of the suites sine_linear and siren. `make readme-numbers`
writes the block.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.pages.tables import Machine, Row, filled, runs, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sine_linear.md"
NO_SPEEDS = "No measurements of the layer on a GPU have been committed yet."
LAYER, NETWORK = "cuda/sine_linear/", "cuda/siren/"
COMPILED, EAGER = "torch.compile", "composition"


def times_as_fast(row: Row, baseline: str) -> float | None:
    """The time of the baseline divided by ours. `baseline` is a prefix: torch.compile has two
    modes, and the faster one counts."""
    times = row["times"]
    baselines = [time["median_us"] for name, time in times.items() if name.startswith(baseline)]
    return float(min(baselines) / times["treadle"]["median_us"]) if baselines else None


def cells(row: Row | None, unit: float = 1) -> list[str]:
    """Our time, and the times of torch.compile and of eager PyTorch, each divided by ours."""
    if row is None:
        return [""] * 3
    ours = row["times"]["treadle"]["median_us"] / unit
    ratios = [times_as_fast(row, baseline) for baseline in (COMPILED, EAGER)]
    return [
        f"{ours:,.0f}" if ours >= 1000 else f"{ours:.4g}",
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]


def layers(rows: list[Row]) -> Iterator[str]:
    """A table with a line for each width and dtype, for the forward pass and for both passes."""
    by_key = {row["key"]: row for row in rows if row["key"].startswith(LAYER)}
    baselines = ("× compiler", "× composition")
    yield from table("width, dtype", "forward, µs", *baselines, "both passes, µs", *baselines)
    timed = []
    for key, row in by_key.items():
        size, dtype, *what = key.removeprefix(LAYER).split("/")
        if what == ["forward"]:
            both = by_key.get(f"{key} + backward")
            timed += [row] if both is None else [row, both]
            width = size.split(",")[1]
            yield f"| {' | '.join([f'{width}, {dtype}', *cells(row), *cells(both)])} |"
    halves = [row for row in timed if "float16" in row["dtype"]]
    mean, of_halves = (
        statistics.geometric_mean(filter(None, (times_as_fast(row, COMPILED) for row in these)))
        for these in (timed, halves)
    )
    yield ""
    yield (
        f"The geometric mean of *× compiler* is {mean:.2f} over all rows, "
        f"and {of_halves:.2f} over rows in half types."
    )


def networks(rows: list[Row]) -> Iterator[str]:
    """A table with a line for each network: the time and memory of its training step."""
    yield from table(
        "network, dtype, loss",
        "a step, ms",
        "× compiler",
        "× composition",
        "memory / eager PyTorch's",
    )
    by_key = {row["key"]: row for row in rows if row["key"].startswith(NETWORK)}
    for key, row in by_key.items():
        if "times" in row:
            memory = by_key[f"{key}/memory"]
            share = f"{memory['against']['ratio']:.2f}"
            yield f"| {' | '.join([row['label'], *cells(row, 1000), share])} |"


def speeds(machines: Iterable[Machine]) -> Iterator[str]:
    measured = runs(machines, (LAYER, NETWORK))
    if not measured:
        yield NO_SPEEDS
    for files, rows in measured:
        links = ", ".join(f"[{p.name}](../{p.relative_to(ROOT).as_posix()})" for p, _ in files)
        facts = files[-1][1]
        yield f"{facts['gpu']}, torch {facts['torch']}, {links}:"
        yield ""
        yield from layers(rows)
        yield ""
        yield from networks(rows)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"speeds": lambda: speeds(machines)})
