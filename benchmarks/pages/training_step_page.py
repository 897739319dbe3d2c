"""Makes the generated block of docs/training_step.md from results of the suite training_step.

`make readme-numbers` writes the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.pages.sweep_page import number
from benchmarks.pages.tables import ROOT, Facts, Machine, Row, filled, line, sections, table

PAGE = ROOT / "docs" / "training_step.md"
NONE_YET = "It has not been measured yet: `benchmarks/gpu.sh OUTDIR bench --suite training_step`."
KEYS = "cuda/training_step/"
NAMES = {
    "loop of nn.GRUCell": "loop, nn.GRUCell",
    "torch.compile of the step": "loop, step compiled",
    "loop of treadle's GRU": "loop, treadle.nn.GRU",
    "make_training_step of one step": "make_training_step of a step",
    "treadle": "make_training_step of the loop",
}


def table_of(rows: list[Row]) -> Iterator[str]:
    """A table of milliseconds per call, with the speed relative to the loop of torch's cell."""
    timed = [row for row in rows if "times" in row]
    yield from table("", *(f"{row['dtype']}: ms (times as fast)" for row in timed))
    loop = next(iter(NAMES))
    for name, shown in NAMES.items():
        cells = []
        for row in timed:
            medians = {who: time["median_us"] for who, time in row["times"].items()}
            if name in medians:
                ratio = medians[loop] / medians[name]
                cells.append(f"{number(medians[name] / 1000)} ({ratio:.2f})")
            else:
                cells.append("–")
        yield line(shown, *cells)


def figures(machines: Iterable[Machine]) -> Iterator[str]:
    def what(facts: Facts, _: list[Row]) -> list[str]:
        return [facts["gpu"], f"torch {facts['torch']}"]

    return sections(PAGE, machines, KEYS, NONE_YET, what, table_of)


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"training_step": lambda: figures(machines)})
