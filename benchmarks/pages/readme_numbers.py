"""Write the numbers in README.md and docs/*.md from committed files: `make readme-numbers`.

    python benchmarks/pages/readme_numbers.py          rewrite the blocks between the comment lines
    python benchmarks/pages/readme_numbers.py --check  fail if a block is out of date

A block is the text between two such comment lines. The block of README.md has four sentences about
the GPU with the most rows. The other blocks, with the scripts that make them, are in
docs/performance.md (performance_page.py), docs/dev/targets.md (targets_page.py, sweep_page.py),
docs/recurrent.md (rl_page.py), docs/sine.md (sine_page.py), docs/sine_linear.md
(sine_linear_page.py), docs/jets.md (jets_page.py), docs/interop.md (jax_page.py),
docs/language_model.md (lm_page.py), docs/agent.md (agent_page.py), docs/dev/scaling.md
(scale_page.py), docs/other_gpus.md (other_gpus_page.py), docs/training_step.md
(training_step_page.py) and docs/recurrent_numbers.md (cpu_layers_page.py). docs/dev/*_numbers.md
have all numbers about jets, language models and the agent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.pages import (  # noqa: E402
    agent_page,
    cpu_layers_page,
    jax_page,
    jets_page,
    lm_page,
    other_gpus_page,
    performance_page,
    rl_page,
    scale_page,
    sine_linear_page,
    sine_page,
    sweep_page,
    targets_page,
    training_step_page,
)
from benchmarks.pages.tables import Machine, Row, filled, machines, of  # noqa: E402

README = ROOT / "README.md"
WIDTH = 100
LARGE = "1e6"
# A median needs at least this many shapes.
FEWEST = 3


def speeds(rows: Iterable[Row], baseline: str) -> list[float]:
    """treadle's speed relative to the baseline, for the rows that timed it."""
    times = [row["times"] for row in rows if baseline in row.get("times", {})]
    return [time[baseline]["median_us"] / time["treadle"]["median_us"] for time in times]


def short(value: float) -> str:
    return f"{value:.{1 if value < 10 else 0}f}"


def layer(rows: list[Row]) -> Iterator[str]:
    """A sentence about LSTM and one about GRU: the training speed relative to torch's, by dtype."""
    for cell, baseline in (("LSTM", sweep_page.LSTM), ("GRU", "nn.GRU")):
        parts = []
        for digits in ("float16", "bfloat16", "float32"):
            training = [
                row
                for row in of(rows, "sweep_cells")
                if (row["op"], row["digits"], row["mode"]) == (cell.lower(), digits, "training")
            ]
            found = speeds(training, baseline)
            if len(found) >= FEWEST:
                span = f"{short(min(found))} to {short(max(found))} over {len(found)} shapes"
                parts.append(f"{short(statistics.median(found))} × in {digits} ({span})")
        if parts:
            yield (
                f"The median training speed of `treadle.nn.{cell}` relative to `{baseline}` is "
                f"{', '.join(parts)}."
            )


def sine(rows: list[Row]) -> Iterator[str]:
    """A sentence about the speed of the sine of large numbers, relative to a copy's."""
    for row in rows:
        if (row.get("op"), row.get("dtype"), row.get("argument")) != ("sine", "float32", LARGE):
            continue
        ours, torch = (sine_page.share(row, who) for who in ("treadle", "torch.sin"))
        yield (
            f"For 1 GiB of float32 near {LARGE}, `treadle.sine` has {float(ours):.0%} of a copy's "
            f"speed, and `torch.sin` has {float(torch):.0%}."
        )


def siren(rows: list[Row]) -> Iterator[str]:
    """A sentence about the speed and memory of training steps whose loss contains the Laplacian,
    relative to plain PyTorch. If there are rows that compute the Laplacian by jets, they are used;
    otherwise rows that compute it by autograd."""
    for keys, eager, by in (
        (jets_page.KEYS, jets_page.EAGER, " (by `Siren.jet`)"),
        (sine_linear_page.NETWORK, sine_linear_page.EAGER, ""),
    ):
        networks = [row for row in rows if row["key"].startswith(keys)]
        found = speeds([row for row in networks if row["key"].endswith("/Laplacian")], eager)
        memory = [row for row in networks if row["key"].endswith("/Laplacian/memory")]
        shares = [row["against"]["ratio"] for row in memory if "against" in row]
        if len(found) >= FEWEST and shares:
            yield (
                f"A training step of a `treadle.nn.Siren` whose loss contains the Laplacian{by} "
                f"needs {min(shares):.0%} to {max(shares):.0%} of plain PyTorch's memory, and is "
                f"{short(min(found))} to {short(max(found))} × as fast."
            )
            return


def headline(found: list[Machine]) -> Iterator[str]:
    """The name of the GPU with the most rows, and the sentences about it."""
    gpus = [machine for machine in found if machine[1]["device"] == "cuda"]
    if not gpus:
        yield performance_page.NONE_YET
        return
    _, facts, rows = gpus[0]
    versions = f"torch {facts['torch']}, driver {facts['driver']}, {facts['date'][:10]}"
    yield f"{facts['gpu']}, {versions}:"
    yield ""
    for make in (layer, sine, siren):
        for text in make(rows):
            yield from textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")


def rewritten(text: str, found: list[Machine]) -> str:
    """README.md with its generated block."""
    return filled(README, text, {"headline": lambda: headline(found)})


PAGES: dict[Path, Callable[[str, list[Machine]], str]] = {
    README: rewritten,
    performance_page.PAGE: performance_page.rewritten,
    targets_page.PAGE: targets_page.rewritten,
    sine_page.PAGE: sine_page.rewritten,
    sine_linear_page.PAGE: sine_linear_page.rewritten,
    jets_page.PAGE: jets_page.rewritten,
    jets_page.NUMBERS: jets_page.rewritten_numbers,
    jax_page.PAGE: jax_page.rewritten,
    rl_page.PAGE: rl_page.rewritten,
    lm_page.PAGE: lm_page.rewritten,
    lm_page.NUMBERS: lm_page.rewritten_numbers,
    agent_page.PAGE: agent_page.rewritten,
    agent_page.NUMBERS: agent_page.rewritten_numbers,
    scale_page.PAGE: scale_page.rewritten,
    other_gpus_page.PAGE: other_gpus_page.rewritten,
    training_step_page.PAGE: training_step_page.rewritten,
    cpu_layers_page.PAGE: cpu_layers_page.rewritten,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    chosen = parser.parse_args(arguments)
    found, stale = machines(), False
    for path, make in PAGES.items():
        text = path.read_text()
        new = make(text, found)
        if new == text:
            continue
        stale = True
        if chosen.check:
            print(f"{path.name}'s numbers are out of date: make readme-numbers", file=sys.stderr)
        else:
            path.write_text(new)
    return int(chosen.check and stale)


if __name__ == "__main__":
    raise SystemExit(main())
