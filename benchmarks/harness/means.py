"""Computes how far rows exceed their targets, and geometric means of rows that share a target.

The rows are dicts as in a JSON file of results, because the scripts that write the pages also use
these functions.
"""

from __future__ import annotations

import statistics
from typing import Any

Row = dict[str, Any]


def excess(row: Row) -> float:
    """How far treadle's time or bytes exceed the target's limit, as a fraction of the limit."""
    if "memory" in row:
        return float(row["memory"]["treadle"]["kept"] / row["target"]["limit_bytes"] - 1)
    return float(row["times"]["treadle"]["median_us"] / row["target"]["limit_us"] - 1)


def of(rows: list[Row]) -> list[dict[str, Any]]:
    """For each set of rows with a common target: the geometric mean over its timed rows, and
    whether it reaches the target."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        if "mean_target" in row and "ratio" in row:
            sets.setdefault(row["mean_target"]["over"], []).append(row)
    found = []
    for over, members in sets.items():
        parts: dict[str, list[Row]] = {}
        for row in members:
            parts.setdefault(row["mean_target"]["part"], []).append(row)
        least, value = members[0]["mean_target"]["least"], speed(members)
        found.append(
            {
                "over": over,
                "rows": len(members),
                "parts": {part: speed(some) for part, some in parts.items()},
                "least": least,
                "value": value,
                "reached": value >= least,
            }
        )
    return found


def speed(rows: list[Row]) -> float:
    return statistics.geometric_mean(1 / row["ratio"] for row in rows)


def sentence(mean: dict[str, Any]) -> str:
    verdict = "was reached" if mean["reached"] else "was NOT REACHED"
    parts = ", ".join(f"{part} {value:.3f}" for part, value in mean["parts"].items())
    return (
        f"Over the {mean['rows']} rows of {mean['over']}, the geometric mean of treadle's speed "
        f"divided by torch's is {mean['value']:.3f} ({parts}); the target, at least "
        f"{mean['least']:g}, {verdict}"
    )
