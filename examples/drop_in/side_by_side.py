"""Trains a model with torch's recurrent layers and a copy with treadle's; their steps alternate."""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import treadle

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from device_check import pick_device  # noqa: E402
from machine_facts import facts  # noqa: E402

Step = Callable[[int], float]  # takes the training step with this number, and returns its loss


def compare(model: nn.Module, learner: Callable[[nn.Module], Step], steps: int) -> dict[str, Any]:
    """Train ``model`` and a copy of it changed by ``treadle.nn.replace``.

    Args:
        model: a model with torch.nn.LSTM or GRU somewhere in it.
        learner: returns a function that trains the model by one step at each call.
        steps: the number of steps.

    Returns:
        The loss and the seconds of each step on both sides, and the names of replaced modules.
    """
    ours = copy.deepcopy(model)
    replaced = treadle.nn.replace(ours).replaced
    print(
        f"replaced: {', '.join(replaced)}\n  step  loss: torch    treadle  seconds: torch  treadle"
    )
    sides = {"torch": learner(model), "treadle": learner(ours)}
    losses: dict[str, list[float]] = {name: [] for name in sides}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(steps):
        for name, take in sides.items():
            torch.manual_seed(step)  # so that dropout drops the same elements on both sides
            begun = time.perf_counter()
            losses[name].append(take(step))
            seconds[name].append(round(time.perf_counter() - begun, 6))
        if (step + 1) % max(1, steps // 10) == 0:
            words = [f"{found[-1]:11.6f}" for found in losses.values()]
            words += [f"{statistics.median(found):8.3f}" for found in seconds.values()]
            print(f"{step + 1:6} {words[0]}{words[1]}        {words[2]} {words[3]}", flush=True)
    return {"replaced": replaced, "losses": losses, "seconds": seconds}


def summary(found: dict[str, Any]) -> str:
    apart = max(abs(a - b) / abs(a) for a, b in zip(*found["losses"].values(), strict=True))
    theirs, ours = (statistics.median(times) for times in found["seconds"].values())
    return (
        f"The relative difference of losses is at most {apart:.1e}; "
        f"a step takes {theirs:.3f} s with torch's layers, {ours:.3f} s with treadle's."
    )


def options(doc: str | None, given: list[str] | None, **defaults: int) -> argparse.Namespace:
    """Parses the options of either script. Each size in ``defaults`` becomes an option of the same
    name. Also sets the seed and the number of threads."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write losses and times there")
    chosen = parser.parse_args(given)
    chosen.device = torch.device(chosen.device) if chosen.device else pick_device()
    # A second thread helps little with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    chosen.machine = facts(chosen.device.type) | {"threads": 1}
    torch.manual_seed(chosen.seed)
    return chosen


def keep(found: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """Adds the machine and the settings to ``found``, and writes it to the file of ``--json``."""
    print(summary(found))
    settings = {n: v for n, v in vars(chosen).items() if isinstance(v, int)}
    record = {"machine": chosen.machine, "settings": settings} | found
    if chosen.json:
        chosen.json.write_text(json.dumps(record) + "\n")
    return record
