"""The blocks of docs/sine_layer.md, from docs/sine_layer.json and the committed results of the
suites sine_linear and siren: `make readme-numbers`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.sine_page import Machine, Row, filled
from benchmarks.sweep_page import bold, runs, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sine_layer.md"
FIGURES = ROOT / "docs" / "sine_layer.json"
NO_SPEEDS = "No measurements of the layer on a GPU have been committed yet."
LAYER, NETWORK = "cuda/sine_linear/", "cuda/siren/"
COMPILED, EAGER = "torch.compile", "composition"


def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def cosine() -> Iterator[str]:
    """The error of cos that each format gives back."""
    found = figures()["cosine"]
    sets = list(next(iter(found["formats"].values())))
    yield f"| error of cos, largest / root mean square | {' | '.join(sets)} |"
    yield "|---" * (len(sets) + 1) + "|"
    for label, row in found["formats"].items():
        yield f"| {label} | {' | '.join(f'{a:.1e} / {b:.1e}' for a, b in row.values())} |"
    yield ""
    margin = found["margin"]
    yield f"Of |cos| the root is off by {margin:.1e} at worst; low bits allow {2**-10:.1e}."


def worst(case: dict[str, Any], who: str, kind: int) -> float:
    """The largest ratio to eager's error, of all gradients."""
    pairs = zip(case[who], case["eager"], strict=True)
    return float(max(ours[kind] / eager[kind] for ours, eager in pairs))


def gradients() -> Iterator[str]:
    """Errors over eager's, of the gradient where that is worst: norm-wise, and the largest."""
    found = figures()
    sizes, facts = found["sizes"], found["machine"]
    yield (
        f"{sizes['rows']:,} rows, width {sizes['width']}, omega {sizes['omega']:g}, "
        f"{sizes['seeds']} seeds; torch {facts['torch']}, {facts['cpu']}, on the CPU."
    )
    for dtype, cases in found["gradients"].items():
        yield ""
        yield f"| {dtype}, error over eager's | {' | '.join(cases)} |"
        yield "|---" * (len(cases) + 1) + "|"
        for who in next(iter(cases.values())):
            if who == "eager":
                spans = [[g[0] for g in case[who]] for case in cases.values()]
                cells = [f"{min(span):.1e} to {max(span):.1e}" for span in spans]
                yield f"| eager: the error itself, norm-wise | {' | '.join(cells)} |"
                continue
            cells = [f"{worst(c, who, 0):.3g} / {worst(c, who, 1):.3g}" for c in cases.values()]
            yield f"| {who} | {' | '.join(cells)} |"


def times_as_fast(row: Row, rival: str) -> float | None:
    """As the fastest of those that are called so: torch.compile has two modes."""
    times = row["times"]
    rivals = [time["median_us"] for name, time in times.items() if name.startswith(rival)]
    return float(min(rivals) / times["treadle"]["median_us"]) if rivals else None


def cells(row: Row | None, unit: float = 1) -> list[str]:
    """Our time, then how many times as fast as the compiler and as the composition it is."""
    if row is None:
        return [""] * 3
    ours = row["times"]["treadle"]["median_us"] / unit
    ratios = [times_as_fast(row, rival) for rival in (COMPILED, EAGER)]
    return [
        bold(row, f"{ours:,.0f}" if ours >= 1000 else f"{ours:.4g}"),
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]


def layers(rows: list[Row]) -> Iterator[str]:
    """One line a width and dtype: forward, and both passes."""
    by_key = {row["key"]: row for row in rows if row["key"].startswith(LAYER)}
    rivals = ("× compiler", "× composition")
    yield from table("width, dtype", "forward, µs", *rivals, "both passes, µs", *rivals)
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
        f"Geometric mean of the speed over the compiler's: {mean:.2f}, "
        f"of half types {of_halves:.2f}."
    )


def networks(rows: list[Row]) -> Iterator[str]:
    """A training step of a Siren."""
    yield from table(
        "network, dtype, loss", "a step, ms", "× compiler", "× composition", "its bytes, ×"
    )
    by_key = {row["key"]: row for row in rows if row["key"].startswith(NETWORK)}
    for key, row in by_key.items():
        if "times" in row:
            memory = by_key[f"{key}/memory"]
            share = bold(memory, f"{memory['against']['ratio']:.2f}")
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
    """The page with its blocks made anew."""
    blocks = {"cosine": cosine, "gradients": gradients, "speeds": lambda: speeds(machines)}
    return filled(PAGE.name, text, blocks)
