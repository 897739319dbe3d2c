"""Makes the generated block of docs/interop.md from the committed results of the suite jax.

`make readme-numbers` writes the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.pages.sweep_page import number
from benchmarks.pages.tables import ROOT, Facts, Machine, Row, filled, line, sections, table

PAGE = ROOT / "docs" / "interop.md"
NONE_YET = "No results of a GPU have been committed yet."
KEYS = "cuda/jax/"


def table_of(rows: list[Row]) -> Iterator[str]:
    """A table of our microseconds per step and those of the fastest baseline."""
    yield from table("B, T, H", "treadle.jax", "fastest baseline", "times as fast", "run by")
    for row in rows:
        name = row["key"].removeprefix(KEYS).replace("/", " ")
        if "times" not in row:
            yield line(name, row["refused"], "", "", "")
            continue
        baseline, times = row["fastest_baseline"], row["times"]
        ours, theirs = (times[who]["median_us"] / row["steps"] for who in ("treadle", baseline))
        cells = number(ours), f"{number(theirs)} ({baseline})", f"{theirs / ours:.2f}"
        yield line(name, *cells, row["algorithm"])


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    def what(facts: Facts, rows: list[Row]) -> list[str]:
        versions = {
            f"JAX {row['jax']}, flax {row['flax'] or 'missing'}" for row in rows if "jax" in row
        }
        return [facts["gpu"], *sorted(versions)]

    return sections(PAGE, machines, KEYS, NONE_YET, what, table_of)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"figures": lambda: figures(machines)})
