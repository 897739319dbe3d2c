"""Makes the generated blocks of docs/language_model.md and docs/dev/language_model_numbers.md.

The numbers are from the files that the examples wrote to docs/figures. `make readme-numbers` writes
the blocks.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.pages.tables import Facts, Machine, Row, commit, filled, line, links, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "language_model.md"
NUMBERS = ROOT / "docs" / "dev" / "language_model_numbers.md"
FIGURES = ROOT / "docs" / "figures"
NONE_YET = "None have been committed yet."


def read(pattern: str) -> list[tuple[Path, Row]]:
    """The files that match `pattern`, and their contents. Files from GPUs come first."""
    found = [(path, json.loads(path.read_text())) for path in sorted(FIGURES.glob(pattern))]
    return sorted(found, key=lambda file: file[1]["machine"]["device"] != "cuda")


def where(path: Path, facts: Facts) -> str:
    """The machine and the versions with which a file was made."""
    threads = "1 thread" if facts.get("threads") == 1 else f"{facts['cores']} cores"
    load = f"load average before the run {facts.get('load_before')}"
    name = facts.get("gpu") or f"{facts['cpu']}, {threads}, {load}"
    versions = f"torch {facts['torch']}"
    if "transformers" in facts:
        versions += f", transformers {facts['transformers']}"
    link = links([path], NUMBERS.parent)
    return f"{name}, {versions}, {commit(facts)}, {facts['date'][:10]}, {link}"


def lines_of(record: Row) -> Iterator[str]:
    """A table with a line for each timed task, and two lines about training at its end."""
    sides = list(record["speeds"][0]["tokens_per_s"])
    yield from table("", *sides)
    for row in record["speeds"]:
        speeds = [f"{row['tokens_per_s'][side]:,.0f} tokens/s" for side in sides]
        what = f"{row['task']}, {row['dtype']}, {row['batch']} rows of {row['length']}"
        yield line(what, *speeds)
    runs = record["runs"]
    if runs:
        bits = [f"{runs[side]['held_out']:.3f}" for side in sides]
        yield line("bits per byte of held-out text, after training", *bits)
        yield line("seconds of training", *(f"{runs[side]['seconds']:.0f}" for side in sides))


def speeds(files: list[tuple[Path, Row]]) -> Iterator[str]:
    """A table of the tokens per second on the first machine, for each task."""
    if not files:
        yield NONE_YET
        return
    record = files[0][1]
    facts, sides = record["machine"], list(record["speeds"][0]["tokens_per_s"])
    name = facts.get("gpu") or facts["cpu"]
    yield from table(f"{name}, tokens per second", *sides)
    for row in record["speeds"]:
        what = f"{row['task']}, {row['dtype']}, {row['batch']} × {row['length']}"
        yield line(what, *(f"{row['tokens_per_s'][side]:,.0f}" for side in sides))


def language_model(files: list[tuple[Path, Row]]) -> Iterator[str]:
    for path, record in files:
        yield f"{where(path, record['machine'])}:"
        yield ""
        shown = "Loss over steps, and tokens per second" if record["runs"] else "Tokens per second"
        yield f"![{shown}](../figures/{path.stem}.png)"
        yield ""
        yield from lines_of(record)
        yield ""
    if not files:
        yield NONE_YET


def apart(record: Row) -> str:
    """The largest relative difference between two models' losses."""
    losses = record["losses"]
    most = max(abs(a - b) / abs(a) for a, b in zip(*losses.values(), strict=True))
    return f"at most {most:.0e} in {len(next(iter(losses.values())))} steps"


def times(record: Row) -> str:
    return " / ".join(f"{statistics.median(found):.3g}" for found in record["seconds"].values())


def machine(facts: Facts) -> str:
    return facts.get("gpu") or f"{facts['cpu']}, 1 thread"


def replaced(files: list[tuple[Path, Row]]) -> Iterator[str]:
    """A table of the difference of losses and the time of a step, for each script and machine."""
    if not files:
        yield NONE_YET
        return
    sides = " / ".join(files[0][1]["losses"])
    yield from table(
        "script, machine", "relative difference of losses", f"seconds per step, {sides}"
    )
    for path, record in files:
        script = "words" if "words" in path.stem else "waves"
        yield line(f"{script}, {machine(record['machine'])}", apart(record), times(record))


def drop_in(files: list[tuple[Path, Row]]) -> Iterator[str]:
    if not files:
        yield NONE_YET
        return
    yield from table(
        "machine", "first loss", "last loss", "relative difference of losses", "seconds per step"
    )
    for _, record in files:
        losses = record["losses"]
        first, last = (
            " / ".join(f"{found[at]:.6g}" for found in losses.values()) for at in (0, -1)
        )
        yield line(machine(record["machine"]), first, last, apart(record), times(record))
    yield ""
    for path, record in files:
        yield f"{where(path, record['machine'])}."
    yield ""
    yield f"Each pair of numbers is {' / '.join(files[0][1]['losses'])}. Times are medians."
    yield ""


def rewritten(text: str, _: Iterable[Machine]) -> str:
    """The users' page with its generated blocks."""
    blocks = {
        "speeds": lambda: speeds(read("causal_lm_*.json")),
        "replaced": lambda: replaced(read("drop_in_words*.json") + read("drop_in_waves*.json")),
    }
    return filled(PAGE, text, blocks)


def rewritten_numbers(text: str, _: Iterable[Machine]) -> str:
    """The page of all numbers with its generated blocks."""
    blocks = {
        "speeds": lambda: language_model(read("causal_lm_*.json")),
        "words": lambda: drop_in(read("drop_in_words*.json")),
        "waves": lambda: drop_in(read("drop_in_waves*.json")),
    }
    return filled(NUMBERS, text, blocks)
