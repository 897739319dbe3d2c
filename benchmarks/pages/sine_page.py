"""Makes the generated blocks of docs/sine.md.

The numbers are from the kernels' sources, from docs/figures/sine_error.json and from committed
results. `make readme-numbers` writes the blocks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.pages.tables import ROOT, Machine, Row, filled, line, links, read, table

PAGE = ROOT / "docs" / "sine.md"
FIGURES = ROOT / "docs" / "figures" / "sine_error.json"
MATH = ROOT / "kernels" / "math"
NO_SPEEDS = "No measurements by argument have been committed yet."


def in_source(file: str, pattern: str) -> str:
    found = re.search(pattern, (MATH / file).read_text())
    if found is None:
        raise SystemExit(f"sine_page: kernels/math/{file} has nothing like {pattern}")
    return found[1]


def near(file: str, name: str) -> float:
    """A constant kNear of the sources: the largest magnitude for which multiples of pi are
    subtracted in parts."""
    return float.fromhex(in_source(file, rf"\bkNear{name} = (0x[\w.+-]+?)f?;"))


def float32_limit() -> float:
    return near("sine_float.h", "")


def power(x: float) -> str:
    return f"2^{math.log2(x):g}"


def entries(name: str) -> int:
    """The number of exponents in a table. The float table has an entry for each sign of each
    exponent."""
    table = in_source("sine_tables.h", rf"(?s)k{name}HalfTurns\[\d+\] = (\{{.*?\n\}});")
    found = len(re.findall(r"\{-?0x", table))
    return found // 2 if name == "Float" else found


def ways() -> Iterator[str]:
    """A table of the argument reduction of each dtype."""
    exponents = {name: entries(name) for name in ("Float", "BFloat16")}
    words = int(in_source("sine_tables.h", r"kInverseTwoPi\[(\d+)\]"))
    without = in_source("sine_double.h", r"kNear<double> = (\d[\de]+);")
    float64 = f"{power(near('sine_double.h', '<double>'))} ({without} on CPUs without FMA)"
    yield "| dtype | computed in | limit | beyond the limit |"
    yield "|---|---|---|---|"
    for dtype, limit, beyond in (
        (
            "float32",
            power(float32_limit()),
            f"a table of {exponents['Float']} exponents, two float64 for each",
        ),
        (
            "bfloat16",
            power(near("sine_float.h", "<BFloat16>")),
            f"a table of {exponents['BFloat16']} exponents, two float32 for each",
        ),
        ("float16", "none", "–"),
        ("float64", float64, f"integer arithmetic with a table of {words} 64-bit words"),
    ):
        computed = "float64" if dtype == "float64" else "float32"
        yield f"| {dtype} | {computed} | {limit} | {beyond} |"


def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def accuracy() -> Iterator[str]:
    found = figures()
    drawn, facts = found["arguments"], found["machine"]
    parts = drawn["pieces_a_decade"]
    part = {4: "quarter"}.get(parts, f"1/{parts}")
    halves = "every finite number of the half types"
    yield (
        f"The arguments are {drawn['numbers_a_piece']:,} random floats in each {part} of a decade, "
        f"from {drawn['from']:g} to the largest float, and {halves}. Both libraries ran on the CPU "
        f"(torch {facts['torch']}, {facts['cpu']}, {facts['cpu_capability']})."
    )
    yield ""
    yield "| | treadle | torch |"
    yield "|---|---|---|"
    for name, pair in found["float32"].items():
        cells = " | ".join(f"{pair[who]['ulp']:.2f} ulp" for who in ("treadle", "torch"))
        yield f"| {name} float32, largest error | {cells} |"
    for dtype, half in found["halves"].items():
        for name in found["float32"]:
            cells = " | ".join(str(half[name][who]) for who in ("treadle", "torch"))
            yield f"| {name} {dtype}, not rounded correctly, of {half['numbers']:,} | {cells} |"


def nearest() -> Iterator[str]:
    found = figures()["nearest"]
    lost = -math.log2(found["distance"])
    yield (
        f"{found['x']:.10g} is closer to a nonzero multiple of pi/2 than any other float32: "
        f"the distance is {found['distance']:.2g}."
    )
    yield (
        f"So about {lost:.0f} bits after the binary point may cancel, and the code must compute "
        "them in addition to those of the result."
    )


def magnitude(argument: str) -> tuple[bool, float]:
    """A sort key: first the arguments that are numbers, in order, and then the mixtures."""
    try:
        return False, float(argument)
    except ValueError:
        return True, 0.0


def share(row: Row, who: str) -> str:
    times = row["times"]
    return f"{times['copy']['median_us'] / times[who]['median_us']:.2f}" if who in times else "–"


def by_argument(rows: list[Row]) -> list[Row]:
    """The rows that timed a size of argument, and a copy for comparison."""
    return [
        row for row in rows if row.get("series") == "argument" and "copy" in row.get("times", {})
    ]


def speed_table(timed: list[Row]) -> Iterator[str]:
    """A table of a copy's time divided by treadle's and by torch's, so larger is better."""
    arguments = sorted({row["argument"] for row in timed}, key=magnitude)
    yield from table("arguments: this × N(0,1)", *arguments)
    for op, dtype in dict.fromkeys((row["op"], row["dtype"]) for row in timed):
        found = {
            row["argument"]: " / ".join(
                share(row, who) for who in ("treadle", f"torch.{TWINS[op]}")
            )
            for row in timed
            if (row["op"], row["dtype"]) == (op, dtype)
        }
        yield line(f"{op} {dtype}", *(found.get(argument, "") for argument in arguments))


def speeds(machines: Iterable[Machine]) -> Iterator[str]:
    """A table for each machine that measured speeds."""
    none = True
    for paths, facts, rows in machines:
        timed = by_argument(rows)
        if not timed:
            continue
        none = False
        what = f"{facts.get('gpu') or facts['cpu']}, torch {facts['torch']}"
        used = [path for path in paths if by_argument(read(path)["rows"])]
        yield f"{what}, {links(used, PAGE.parent)}:"
        yield ""
        yield from speed_table(timed)
        yield ""
    if none:
        yield NO_SPEEDS


TWINS = {"sine": "sin", "cosine": "cos"}


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its generated blocks."""
    blocks = {
        "ways": ways,
        "nearest": nearest,
        "accuracy": accuracy,
        "speeds": lambda: speeds(machines),
    }
    return filled(PAGE, text, blocks)
