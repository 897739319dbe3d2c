"""The blocks of docs/sine_layer.md, from docs/sine_layer.json and the committed results of the
suites sine_linear and siren: `make readme-numbers`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.sine_page import Machine, Row, filled

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sine_layer.md"
FIGURES = ROOT / "docs" / "sine_layer.json"
NO_SPEEDS = "No measurements of the layer on a GPU have been committed yet."
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


def times_as_fast(row: Row | None, rival: str) -> float | None:
    """As the fastest of those that are called so: torch.compile has two."""
    times = {} if row is None else row["times"]
    rivals = [time["median_us"] for name, time in times.items() if name.startswith(rival)]
    return min(rivals) / times["treadle"]["median_us"] if rivals else None


def cells(row: Row | None, unit: float = 1) -> list[str]:
    """Our time, then how many times as fast as the compiler and as the composition it is; in bold
    where a bar was missed."""
    if row is None:
        return [""] * 3
    ours = row["times"]["treadle"]["median_us"] / unit
    time = f"{ours:,.0f}" if ours >= 1000 else f"{ours:.4g}"
    missed = "bar" in row and not row["bar"]["reached"]
    ratios = [times_as_fast(row, rival) for rival in (COMPILED, EAGER)]
    return [f"**{time}**" if missed else time, *("–" if r is None else f"{r:.2f}" for r in ratios)]


def layers(rows: dict[str, Row]) -> Iterator[str]:
    """One line a width and dtype: forward, and both passes."""
    front = "cuda/sine_linear/"
    both = " + backward"
    pairs = [
        (key, rows.get(key + both)) for key in rows if key.startswith(front) and "forward" in key
    ]
    pairs = [(key, pair) for key, pair in pairs if key.endswith("/forward")]
    head = "µs | × compiler | × composition"
    yield f"| width, dtype | forward, {head} | both passes, {head} |"
    yield "|---" * 7 + "|"
    for key, pair in pairs:
        _, _, size, dtype, _ = key.split("/")
        width = size.split(",")[1]
        yield f"| {width}, {dtype} | {' | '.join([*cells(rows[key]), *cells(pair)])} |"
    yield ""
    everything = [row for key, pair in pairs for row in (rows[key], pair)]
    halves = [row for row in everything if row is not None and "float16" in row["dtype"]]
    means = []
    for these in (everything, halves):
        ratios = [r for r in (times_as_fast(row, COMPILED) for row in these) if r is not None]
        means.append(math.exp(sum(map(math.log, ratios)) / len(ratios)))
    yield (
        f"Geometric mean of the speed over the compiler's: {means[0]:.2f}, "
        f"of half types {means[1]:.2f}."
    )


def networks(rows: dict[str, Row]) -> Iterator[str]:
    """A training step of a Siren."""
    yield "| network, dtype, loss | a step, ms | × compiler | × composition | its bytes, × |"
    yield "|---" * 5 + "|"
    for key, row in rows.items():
        if not key.startswith("cuda/siren/") or "times" not in row:
            continue
        bytes_over = rows[f"{key}/memory"]
        share = f"{bytes_over['against']['ratio']:.2f}"
        share = share if bytes_over["bar"]["reached"] else f"**{share}**"
        yield f"| {row['label']} | {' | '.join([*cells(row, 1000), share])} |"


def speeds(machines: Iterable[Machine]) -> Iterator[str]:
    any_yet = False
    for paths, facts, all_rows in machines:
        rows = {
            row["key"]: row
            for row in all_rows
            if row["key"].startswith(("cuda/sine_linear/", "cuda/siren/"))
        }
        if not rows:
            continue
        any_yet = True
        names = [path for path in paths if any(k in path.read_text() for k in rows)]
        links = ", ".join(f"[{p.name}](../{p.relative_to(ROOT)})" for p in names)
        yield f"{facts['gpu']}, torch {facts['torch']}, {links}:"
        yield ""
        yield from layers(rows)
        yield ""
        yield from networks(rows)
    if not any_yet:
        yield NO_SPEEDS


def rewritten(text: str, machines: Iterable[Machine]) -> str:
    """The page with its blocks made anew."""
    blocks = {"cosine": cosine, "gradients": gradients, "speeds": lambda: speeds(machines)}
    return filled(PAGE.name, text, blocks)
