"""Makes the generated block of docs/recurrent.md about the losses that each cell reaches.

The numbers are from docs/figures/recurrent_losses.json. `make readme-numbers` writes the block,
together with those of rl_page.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.pages.tables import ROOT, commit, line, table

FIGURES = ROOT / "docs" / "figures" / "recurrent_losses.json"
COLUMNS = ("LLTM", "LLTM, c pulled back", "LSTM", "GRU")


def short(value: float) -> str:
    return f"{value:.2g}" if 1e-3 < value < 1e3 else f"{value:.0e}"


def column(row: dict[str, Any]) -> str:
    return COLUMNS[1] if row.get("pull") else row["cell"].upper()


def rows(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields, for each line of the table, its title and its losses by column."""
    texts: dict[str, dict[str, str]] = {}
    for row in found["rows"]:
        if row["program"] == "waves":
            key = f"waves, {row['after']} steps of LBFGS: squared error"
            text = short(row["loss"])
        else:
            key = f"characters, {row['after']:,} steps of Adam, rate {row['rate']:g}: bits"
            text = f"{row['bits']:.2f}"
        if "largest_c" in row:
            text += f" (c to {short(row['largest_c'])})"
        texts.setdefault(key, {})[column(row)] = text
    yield from texts.items()


def lines() -> Iterator[str]:
    found = json.loads(FIGURES.read_text())
    facts, waves, text = found["machine"], found["waves"], found["text"]
    yield (
        f"{facts['cpu']}, torch {facts['torch']}, {commit(facts)}, {facts['date'][:10]}, "
        f"[{FIGURES.name}](figures/{FIGURES.name}) ({waves['rows']} sequences of "
        f"{waves['length']:,} values; a text of {text['characters']:,} characters). The table has "
        "losses on held-out data and the largest c after the last step:"
    )
    yield ""
    yield from table("program", *COLUMNS)
    for name, losses in rows(found):
        yield line(name, *(losses.get(which, "–") for which in COLUMNS))
