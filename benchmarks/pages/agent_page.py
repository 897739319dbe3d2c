"""Makes the generated blocks of docs/agent.md and docs/dev/agent_numbers.md.

The numbers are from docs/figures/agent_*.json, which examples/agent writes. `make readme-numbers`
writes the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.pages.tables import ROOT, Machine, commit, filled, line, links, table

PAGE = ROOT / "docs" / "agent.md"
NUMBERS = ROOT / "docs" / "dev" / "agent_numbers.md"
FIGURES = ROOT / "docs" / "figures"
Record = dict[str, Any]


def records() -> list[tuple[str, Record]]:
    """The names and contents of the existing records, with the GPU's record first."""
    paths = [FIGURES / f"agent_{device}.json" for device in ("cuda", "cpu")]
    return [(path.name, json.loads(path.read_text())) for path in paths if path.exists()]


def where(name: str, record: Record) -> str:
    """The machine and versions of the measurement, with a link from NUMBERS to its file."""
    facts = record["machine"]
    what = (
        facts.get("gpu") or f"{facts['cpu']}, one thread on a machine with {facts['cores']} cores"
    )
    versions = f"torch {facts['torch']}, {commit(facts)}, {facts['date'][:10]}"
    load = f"load average before the run {facts['load_before']}"
    return f"{what}, {versions},\n{load}, {links([FIGURES / name], NUMBERS.parent)}"


def share(value: float) -> str:
    return f"{value:.1%}"


def success(found: list[tuple[str, Record]]) -> Iterator[str]:
    """A table of the fraction of rooms that each agent solves, and of its steps per room."""
    if not found:
        return
    names = [str(r["machine"].get("gpu") or r["machine"]["cpu"]) for _, r in found]
    yield from table("", *(f"{name}: {what}" for name in names for what in ("right", "steps")))
    for label, key in (
        ("the agent", "agent"),
        ("its memory wiped after the first frame", "cue forgotten"),
        ("its eyes shut", "eyes shut"),
        ("random moves", "random"),
    ):
        who = [record["success"][key] for _, record in found]
        cells = [(share(one["success"]), f"{one['steps']:.1f}") for one in who]
        yield line(label, *(cell for pair in cells for cell in pair))


def training(found: list[tuple[str, Record]]) -> Iterator[str]:
    """A line for each machine: how long training took, and how well the agent reads digits."""
    for name, record in found:
        settings, seconds = record["settings"], record["seconds"]
        frames = settings["updates"] * settings["rows"] * settings["steps"]
        yield (
            f"- {where(name, record)}. Perception was trained for {seconds['eye']:.0f} s and reads "
            f"{share(record['eye'])} of unseen digits correctly. Reasoning was trained for "
            f"{seconds['mind']:.0f} s, on {frames:,} frames."
        )


def shown(record: Record) -> Iterator[Record]:
    """The rows with the fewest and with the most rooms. Rows whose world is simulated by one thread
    are left out."""
    sizes = [row["rows"] for row in record["speeds"]]
    for row in record["speeds"]:
        if row["rows"] in (min(sizes), max(sizes)) and not row["way"].endswith("threads: 1"):
            yield row


def plain(row: Record) -> list[str]:
    numbers = (f"{row[key]:,.0f}" for key in ("frames_per_s", "us"))
    return [f"{row['rows']:,}", row["way"], *numbers]


def ways(found: list[tuple[str, Record]]) -> Iterator[str]:
    """A table of the frames per second on the first machine, for each way to run the loop."""
    for _, record in found[:1]:
        facts = record["machine"]
        name = facts.get("gpu") or facts["cpu"]
        yield from table("rooms", f"way on {name}", "frames a second", "µs a step")
        for row in shown(record):
            yield line(*plain(row))


def speed(found: list[tuple[str, Record]]) -> Iterator[str]:
    """A table for each machine, with a line for each way to run the loop. It has the frames per
    second and the times of host and device."""
    for name, record in found:
        yield f"{where(name, record)}:"
        yield ""
        cuda = record["machine"]["device"] == "cuda"
        alone = ("host alone", "device alone") if cuda else ()
        yield from table("rooms", "way", "frames a second", "µs a step", *alone)
        for row in shown(record):
            cells = plain(row)
            if "host_us" in row:
                cells += [f"{row[key]:,.0f}" for key in ("host_us", "device_us")]
            yield line(*cells, *["–"] * (4 + len(alone) - len(cells)))
        yield ""


def rewritten(text: str, _: list[Machine]) -> str:
    """The users' page with its generated blocks."""
    found = records()
    return filled(PAGE, text, {"success": lambda: success(found), "speed": lambda: ways(found)})


def rewritten_numbers(text: str, _: list[Machine]) -> str:
    """The page of all numbers with its generated blocks."""
    found = records()
    blocks = {"training": lambda: training(found), "speed": lambda: speed(found)}
    return filled(NUMBERS, text, blocks)
