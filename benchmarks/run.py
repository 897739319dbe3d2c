"""Verifies every op, then times it against its baselines.

    python benchmarks/run.py                       every suite, on the GPU if there is one
    python benchmarks/run.py --suite sine views    some suites
    python benchmarks/run.py --compare OLD.json    every suite, compared with an older run

Results (JSON, PNG) are written to build/benchmarks; those worth keeping are committed under
benchmarks/results. The exit status is 1 if an op was wrong and therefore not timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.elementwise import chain, dense, overhead, sine, snake, views  # noqa: E402
from benchmarks.harness import machine, plot, report, spread  # noqa: E402
from benchmarks.harness.cases import Plan, Row, Settings, run  # noqa: E402
from benchmarks.recurrent import (  # noqa: E402
    cell,
    formulas,
    jax_layer,
    layer,
    layer_overhead,
    models,
    projections,
    rl,
    rnn_cells,
    sweep,
    sweep_cells,
    training_step,
)
from benchmarks.sine_linear import jets, siren  # noqa: E402
from benchmarks.sine_linear import layer as sine_linear  # noqa: E402
from treadle import _build  # noqa: E402

SUITES: dict[str, Callable[[Settings], Iterator[Plan]]] = {
    "overhead": overhead.plans,
    "chain": chain.plans,
    "dense": dense.plans,
    "sine": sine.plans,
    "snake": snake.plans,
    "views": views.plans,
    "sizes": dense.size_plans,
    "cell": cell.plans,
    "layer": layer.plans,
    "layer_overhead": layer_overhead.plans,
    "training_step": training_step.plans,
    "sine_linear": sine_linear.plans,
    "siren": siren.plans,
    "jets": jets.plans,
    **sweep.SUITES,
    **sweep_cells.SUITES,
    "models": models.plans,
    rnn_cells.SUITE: rnn_cells.plans,
    projections.SUITE: projections.plans,
    formulas.SUITE: formulas.plans,
    **rl.SUITES,
    "jax": jax_layer.plans,
}
SEVERAL = {
    "elementwise": ("dense", "sine", "snake", "views", "sizes"),
    "sweep": (*sweep.SUITES, *sweep_cells.SUITES),
    "all": tuple(name for name in SUITES if name != "jax"),  # few environments have JAX
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--suite", choices=(*SUITES, *SEVERAL), nargs="+", default=["all"])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "benchmarks")
    parser.add_argument("--name", help="name of the files (default: DEVICE-SUITES)")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="an older run's results")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="rows whose key contains any TEXT"
    )
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs that share the rows")
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of torch's threads, on a CPU",
    )
    parser.add_argument("--quick", action="store_true", help="a trial: tiny inputs, few rounds")
    parser.add_argument("--list", action="store_true", help="print the rows' keys and stop")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; use --device cpu")
    if chosen.device == "cuda" and not 1 <= chosen.gpus <= torch.cuda.device_count():
        parser.error(f"--gpus must be from 1 to {torch.cuda.device_count()}, got {chosen.gpus}")
    return chosen


def progress(plans: list[Plan]) -> Iterable[Plan]:
    """The plans, with a progress display if stderr is a terminal and tqdm is installed."""
    if not sys.stderr.isatty():
        return plans
    try:
        from tqdm import tqdm
    except ImportError:
        return plans
    bar: Iterable[Plan] = tqdm(plans, unit="row", leave=False)
    return bar


def say(row: Row) -> None:
    """Prints the row as one line immediately, so that the log of an interrupted run has it."""
    if not sys.stderr.isatty():
        print("  ".join([row["key"], *filter(None, report.cells(row)[1:6])]), flush=True)


def plans_of(suites: list[str], settings: Settings, only: list[str]) -> list[Plan]:
    names = {name: None for suite in suites for name in SEVERAL.get(suite, [suite])}
    plans = (plan for name in names for plan in SUITES[name](settings))
    return [plan for plan in plans if any(text in plan.key for text in only)]


def measured(plans: list[Plan], again: Callable[[], list[Plan]], gpus: int) -> Iterator[Row]:
    """Yields the rows of these plans. Plans that may run on any GPU come first, in a process per
    GPU. Each of these processes calls `again` to make the same plans."""
    shared = [plan.key for plan in plans if plan.on_any_gpu] if gpus > 1 else []
    yield from spread.measure(shared, again, spread.visible(gpus))
    for plan in progress([plan for plan in plans if plan.key not in shared]):
        yield run(plan)
        if plan.key.startswith("cuda"):
            torch.cuda.empty_cache()


def measure_all(rows: Iterator[Row], order: list[str], results: dict[str, Any], path: Path) -> None:
    for row in rows:
        results["rows"].append(row)
        results["rows"].sort(key=lambda row: order.index(row["key"]))
        say(row)
        # Written after every row, so that an interrupted run keeps its results.
        path.write_text(json.dumps(results, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    settings = Settings(chosen.device, chosen.quick, tuple(chosen.threads))
    again = partial(plans_of, chosen.suite, settings, chosen.only)
    plans = again()
    if not plans:
        print("no such rows on this device; --list without --only prints all keys", file=sys.stderr)
        return 2
    if chosen.list:
        print("\n".join(plan.key for plan in plans))
        return 0
    if chosen.device == "cuda" and not chosen.quick and _build.facts().get("for_checking"):
        print("treadle is compiled for checking, so only --quick may run", file=sys.stderr)
        return 2
    old = json.loads(chosen.compare.read_text()) if chosen.compare else None
    chosen.output.mkdir(parents=True, exist_ok=True)
    name = chosen.name or "-".join([chosen.device, *chosen.suite])
    path = chosen.output / f"{name}.json"
    torch.manual_seed(0)
    results: dict[str, Any] = {"machine": machine.facts(chosen.device), "quick": chosen.quick}
    results["rows"] = []
    rows = measured(plans, again, chosen.gpus)
    measure_all(rows, [plan.key for plan in plans], results, path)
    report.print_rows(results["rows"])
    plot.draw(results, path.with_suffix(".png"))
    print()
    if old is not None:
        report.print_comparison(old, results)
    print(f"{machine.name(results['machine'])}\n{path}, {path.with_suffix('.png').name}")
    print("\n".join(report.summary(results["rows"])))
    return 1 if any("refused" in row for row in results["rows"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
