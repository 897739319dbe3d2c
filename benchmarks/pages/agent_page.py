"""The block of docs/agent.md: from docs/figures/agent_*.json, which examples/agent writes.

`make readme-numbers` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.pages.tables import ROOT, Machine, commit, filled, line, links, table

PAGE = ROOT / "docs" / "agent.md"
FIGURES = ROOT / "docs" / "figures"
Record = dict[str, Any]


def records() -> list[tuple[str, Record]]:
    """Name and content of the record of each kind of machine that has one, a GPU first."""
    paths = [FIGURES / f"agent_{device}.json" for device in ("cuda", "cpu")]
    return [(path.name, json.loads(path.read_text())) for path in paths if path.exists()]


def where(name: str, record: Record) -> str:
    """On what it was measured, with a link to the numbers."""
    facts = record["machine"]
    what = facts.get("gpu") or f"{facts['cpu']}, one thread of {facts['cores']} cores"
    versions = f"torch {facts['torch']}, {commit(facts)}, {facts['date'][:10]}"
    load = f"load before it {facts['load_before']}"
    return f"{what}, {versions},\n{load}, {links([FIGURES / name], PAGE.parent)}"


def share(value: float) -> str:
    return f"{value:.1%}"


def success(found: list[tuple[str, Record]]) -> Iterator[str]:
    """Who finds how many, and in which time it was learnt."""
    for name, record in found:
        settings, seconds, who = record["settings"], record["seconds"], record["success"]
        frames = settings["updates"] * settings["rows"] * settings["steps"]
        yield f"{where(name, record)}:"
        yield ""
        yield from table("", "right", "steps a room", "rooms")
        for label, key in (
            ("the agent", "agent"),
            ("the same, its memory wiped after the first frame", "cue forgotten"),
            ("the same, its eyes shut", "eyes shut"),
            ("random moves", "random"),
        ):
            one = who[key]
            yield line(label, share(one["success"]), f"{one['steps']:.1f}", f"{one['episodes']:,}")
        yield ""
        yield (
            f"The eye learnt for {seconds['eye']:.0f} s and reads {share(record['eye'])} of unseen "
            f"digits; the mind for {seconds['mind']:.0f} s, of {frames:,} frames."
        )
        yield ""


def speed(found: list[tuple[str, Record]]) -> Iterator[str]:
    """Frames per second of each way to run the loop, and who waits for whom."""
    for name, record in found:
        yield f"{where(name, record)}:"
        yield ""
        cuda = record["machine"]["device"] == "cuda"
        waits = ("host alone", "device alone", "host waits", "device waits") if cuda else ()
        yield from table("rooms", "way", "frames a second", "µs a step", *waits)
        for row in record["speeds"]:
            cells = [f"{row['rows']:,}", row["way"]]
            cells += [f"{row[key]:,.0f}" for key in ("frames_per_s", "us")]
            if "host_us" in row:
                cells += [f"{row[key]:,.0f}" for key in ("host_us", "device_us")]
                cells += [share(row[key]) for key in ("host_waits", "device_waits")]
            yield line(*cells, *["–"] * (4 + len(waits) - len(cells)))
        yield ""


def rewritten(text: str, _: list[Machine]) -> str:
    """The page with its generated blocks."""
    found = records()
    return filled(PAGE, text, {"success": lambda: success(found), "speed": lambda: speed(found)})
