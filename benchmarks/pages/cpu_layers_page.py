"""Makes the generated block of docs/recurrent_numbers.md from results of the suite layer on a CPU.

`make readme-numbers` writes the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.pages.sweep_page import number
from benchmarks.pages.tables import ROOT, Facts, Machine, Row, bold, filled, line, sections, table

PAGE = ROOT / "docs" / "recurrent_numbers.md"
NONE_YET = "It has not been measured yet: `benchmarks/run.py --device cpu --suite layer`."
CELLS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN"}
KEYS = tuple(f"cpu/layer/{cell}/" for cell in CELLS)


def entry(row: Row) -> str:
    ours = row["times"]["treadle"]["median_us"] / 1000
    ratio = row["times"][row["fastest_baseline"]]["median_us"] / 1000 / ours
    return bold(row, f"{number(ours)} ({ratio:.2f})")


def table_of(rows: list[Row]) -> Iterator[str]:
    """A table of milliseconds per call, with the speed relative to torch's layer."""
    threads = max(row["threads"] for row in rows)
    found = {
        (tuple(row["shape"]), row["op"], row["label"].split(", ")[0].split()[-1]): row
        for row in rows
        if row["threads"] == threads
    }
    shapes = list(dict.fromkeys(shape for shape, _, _ in found))
    columns = [(cell, mode) for cell in CELLS for mode in ("inference", "training")]
    yield from table("B,T,I,H", *(f"{CELLS[cell]}, {mode}" for cell, mode in columns))
    for shape in shapes:
        cells = (found.get((shape, *column)) for column in columns)
        yield line(",".join(map(str, shape)), *("–" if r is None else entry(r) for r in cells))


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    def what(facts: Facts, rows: list[Row]) -> list[str]:
        threads = max(row["threads"] for row in rows)
        cpu = f"{facts['cpu']} ({facts['cpu_capability']})"
        return [cpu, f"{threads} threads", f"torch {facts['torch']}"]

    return sections(PAGE, machines, KEYS, NONE_YET, what, table_of)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"cpu_layers": lambda: figures(machines)})
