"""The blocks of docs/sine_layer.md, from docs/sine_layer.json: `make readme-numbers`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sine_page import filled

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sine_layer.md"
FIGURES = ROOT / "docs" / "sine_layer.json"


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


def rewritten(text: str) -> str:
    """The page with its blocks made anew."""
    return filled(PAGE.name, text, {"cosine": cosine, "gradients": gradients})
