"""Makes the table of docs/other_gpus.md, from times of layers that were planned as on other GPUs.

These results are in separate folders, such as h200-as-a100. `make readme-numbers` writes the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchmarks.pages.performance_page import DIGITS, MODELS, OTHER_GPUS, SLOWER, name, over
from benchmarks.pages.sweep_page import MODES, number
from benchmarks.pages.tables import ROOT, Machine, Row, filled, line, links, of, table

PAGE = ROOT / "docs" / "other_gpus.md"
NONE_YET = "Nothing has been measured yet."


def other_gpus(machines: list[Machine]) -> Iterator[str]:
    imposed = [machine for machine in machines if of(machine[2], OTHER_GPUS)]
    if not imposed:
        yield NONE_YET
        return
    columns = [(digits, mode) for digits in DIGITS for mode in MODES]
    yield from table("", *(f"{digits}, {mode}" for digits, mode in columns))
    for _, facts, rows in imposed:
        cells = []
        for digits, mode in columns:
            own = [r for r in of(rows, OTHER_GPUS) if (r["digits"], r["mode"]) == (digits, mode)]
            speeds = [1 / ratio for ratio in map(over, own) if ratio is not None]
            cells.append(geometric(speeds) if speeds else "")
        yield line(name(facts), *cells)
    yield ""
    files = ", ".join(links(paths, PAGE.parent) for paths, _, _ in imposed)
    yield f"The measurements, of torch {imposed[0][1]['torch']}, are in {files}."
    yield ""
    yield " ".join(lost(machine, OTHER_GPUS) for machine in imposed)
    models = [machine for machine in imposed if of(machine[2], MODELS)]
    if models:
        yield ""
        losses = " ".join(lost(machine, MODELS) for machine in models)
        yield f"Layers of public models were timed in half types and in float32 with TF32. {losses}"


def geometric(speeds: list[float]) -> str:
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    return f"{number(mean)} × ({number(min(speeds))} to {number(max(speeds))})"


def lost(machine: Machine, suite: str) -> str:
    """A sentence about the rows in which treadle is slower than torch by more than noise."""
    _, facts, rows = machine
    ratios = [(ratio, row) for row in of(rows, suite) if (ratio := over(row)) is not None]
    named = [f"{title(row)} ({ratio:.2f} times as long)" for ratio, row in ratios if ratio > SLOWER]
    among = f": {'; '.join(named)}" if named else ""
    count = f"{len(named)} of {len(ratios)} measurements"
    return f"{name(facts)}: treadle took over 3 % longer than torch in {count}{among}."


def title(row: Row) -> str:
    if row["suite"] == MODELS:
        return f"{row['what']}, {row['digits']} {row['mode']}"
    b, t, h = row["what"].split(",")
    return f"{row['op'].upper()} with {b} rows, {t} steps and H {h}, {row['digits']} {row['mode']}"


def rewritten(text: str, machines: list[Machine]) -> str:
    """The page with its generated block."""
    return filled(PAGE, text, {"other_gpus": lambda: other_gpus(machines)})
