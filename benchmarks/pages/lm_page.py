"""The blocks of docs/language_model.md, from what the examples wrote to docs/figures.

`make readme-numbers` writes them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.pages.tables import Facts, Machine, Row, commit, filled, line, links, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "language_model.md"
FIGURES = ROOT / "docs" / "figures"
NONE_YET = "None have been committed yet."


def read(pattern: str) -> list[tuple[Path, Row]]:
    """Files and what is in them, those of a GPU first."""
    found = [(path, json.loads(path.read_text())) for path in sorted(FIGURES.glob(pattern))]
    return sorted(found, key=lambda file: file[1]["machine"]["device"] != "cuda")


def where(path: Path, facts: Facts) -> str:
    """The machine and versions of a file's numbers."""
    threads = "1 thread" if facts.get("threads") == 1 else f"{facts['cores']} cores"
    name = facts.get("gpu") or f"{facts['cpu']}, {threads}, load before {facts['load_before']}"
    versions = f"torch {facts['torch']}"
    if "transformers" in facts:
        versions += f", transformers {facts['transformers']}"
    return (
        f"{name}, {versions}, {commit(facts)}, {facts['date'][:10]}, {links([path], PAGE.parent)}"
    )


def language_model(files: list[tuple[Path, Row]]) -> Iterator[str]:
    for path, record in files:
        sides = list(record["speeds"][0]["tokens_per_s"])
        yield f"{where(path, record['machine'])}:"
        yield ""
        shown = "Loss over steps, and tokens per second" if record["runs"] else "Tokens per second"
        yield f"![{shown}](figures/{path.stem}.png)"
        yield ""
        yield from table("", *sides)
        for row in record["speeds"]:
            speeds = [f"{row['tokens_per_s'][side]:,.0f} tokens/s" for side in sides]
            what = f"{row['task']}, {row['dtype']}, {row['batch']} rows of {row['length']}"
            yield line(what, *speeds)
        runs = record["runs"]
        if runs:
            bits = [f"{runs[side]['held_out']:.3f}" for side in sides]
            yield line("bits a byte of held-out text, after training", *bits)
            yield line("seconds of training", *(f"{runs[side]['seconds']:.0f}" for side in sides))
        yield ""
    if not files:
        yield NONE_YET


def drop_in(files: list[tuple[Path, Row]]) -> Iterator[str]:
    if not files:
        yield NONE_YET
        return
    yield from table(
        "machine", "first loss", "last loss", "losses differ by, relative", "seconds a step"
    )
    for _, record in files:
        losses, seconds = record["losses"], record["seconds"]
        apart = max(abs(a - b) / abs(a) for a, b in zip(*losses.values(), strict=True))
        first, last = (
            " / ".join(f"{found[at]:.6g}" for found in losses.values()) for at in (0, -1)
        )
        times = " / ".join(f"{statistics.median(found):.3g}" for found in seconds.values())
        count = len(next(iter(losses.values())))
        facts = record["machine"]
        name = facts.get("gpu") or f"{facts['cpu']}, 1 thread"
        yield line(name, first, last, f"at most {apart:.0e} in {count} steps", times)
    yield ""
    for path, record in files:
        yield f"{where(path, record['machine'])}."
    yield ""
    yield f"Pairs are {' / '.join(files[0][1]['losses'])}; a time is the median."
    yield ""


def rewritten(text: str, _: Iterable[Machine]) -> str:
    """The page with its generated blocks."""
    blocks = {
        "speeds": lambda: language_model(read("causal_lm_*.json")),
        "words": lambda: drop_in(read("drop_in_words*.json")),
        "waves": lambda: drop_in(read("drop_in_waves*.json")),
    }
    return filled(PAGE, text, blocks)
