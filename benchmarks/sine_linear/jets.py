"""Measures derivatives of SIRENs by jets: the time and peak memory of training steps whose loss
contains the Laplacian or the gradient, and the time of derivatives without training.

Two baselines apply autograd twice, to plain PyTorch and to treadle's layers. Two others apply the
forward mode of torch.func twice, eager and compiled. If torch-jet (jet-for-pytorch) is installed,
it is also a baseline; it runs traced programs in Taylor mode.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness import baselines
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, both, ours
from benchmarks.harness.verify import verify
from benchmarks.recurrent.layer_calls import set_tf32
from benchmarks.recurrent.layer_memory import Weighing
from benchmarks.sine_linear import jet_ways
from benchmarks.sine_linear.jet_ways import Derive, Wanted, drawn, uniform
from benchmarks.sine_linear.siren import peak
from treadle import reference

EAGER, OWN = "autograd", "treadle by autograd"
FUNC, COMPILED, TORCH_JET = "torch.func", "torch.func, compiled", "torch-jet"
LAPLACIAN, EIKONAL, NO_TRAINING = "Laplacian", "eikonal", "no training"
POINTS = {"cuda": 1 << 18, "cpu": 1 << 14}
COORDINATES = {LAPLACIAN: 2, EIKONAL: 3, NO_TRAINING: 2}
# The maximum milliseconds of a step with a loss on the Laplacian, on an H200.
MOST = {
    "256×3/bfloat16": 6.0,
    "256×3/float32, tf32": 12.0,
    "256×3/float32": 34.0,
    "512×5/bfloat16": 22.0,
    "512×5/float32": 165.0,
}
# The minimum speed relative to eager autograd, for half types and for float32.
LEAST = {LAPLACIAN: (4.0, 2.4), EIKONAL: (2.5, 1.6), NO_TRAINING: (5.0, None)}
LEAST_CPU = 2.0
MOST_MEMORY = 0.5


@dataclass(frozen=True)
class Task:
    name: str  # for keys and labels: the full sizes, even in quick runs, which use smaller ones
    width: int
    hidden: int
    digits: str
    what: str
    points: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.digits == "bfloat16" else torch.float32

    @property
    def wanted(self) -> Wanted:
        training = self.what != NO_TRAINING
        return Wanted(self.what != LAPLACIAN, self.what != EIKONAL, training)

    def arguments(self, device: str) -> tuple[Tensor, ...]:
        """The coordinates, the target of the Laplacian, and weight and bias of each layer."""
        coordinates = COORDINATES[self.what]
        made = drawn(device, [coordinates, *[self.width] * (self.hidden + 1), 1])
        params = [t.to(self.dtype).requires_grad_(self.wanted.training) for t in made]
        # Derivatives do not depend on a constant that is added to all values.
        params[-1].requires_grad_(False)
        x = uniform(device, 1, self.points, coordinates).to(self.dtype)
        return x, torch.randn(self.points, 1, device=device).to(self.dtype), *params

    def of(self, derive: Derive) -> Callable[..., Any]:
        """The loss or, without training, the derivatives, as a function of the arguments."""

        def call(x: Tensor, target: Tensor, *params: Tensor) -> Any:
            value, gradient, laplacian = derive(self.wanted, x, params)
            if self.what == LAPLACIAN:
                assert laplacian is not None
                return F.mse_loss(laplacian, 1e3 * target)
            if self.what == EIKONAL:
                assert gradient is not None
                return (gradient.norm(dim=-1) - 1).square().mean()
            return value, gradient, laplacian

        return call


def tasks(settings: Settings) -> Iterator[Task]:
    points = 64 if settings.quick else POINTS[settings.device]

    def task(width: int, hidden: int, digits: str, what: str) -> Task:
        name = f"{width}×{hidden}/{digits}/{what}"
        return Task(name, 32 if settings.quick else width, hidden, digits, what, points)

    if settings.device == "cpu":
        yield from (task(w, 3, "float32", what) for w in (64, 256) for what in COORDINATES)
        return
    for size in MOST:
        net, _, digits = size.partition("/")
        width, hidden = map(int, net.split("×"))
        yield task(width, hidden, digits, LAPLACIAN)
    yield from (task(256, 3, digits, EIKONAL) for digits in ("bfloat16", "float32"))
    for width, hidden in ((256, 3), (512, 5)):
        yield task(width, hidden, "bfloat16", NO_TRAINING)
    yield task(256, 3, "float32", NO_TRAINING)


def plans(settings: Settings) -> Iterator[Plan]:
    for task in tasks(settings):
        key = f"{settings.device}/jets/{task.name}"
        yield Plan(key, partial(case, settings, task))
    for task in tasks(settings):
        if task.what != NO_TRAINING:
            key = f"{settings.device}/jets/{task.name}/memory"
            yield Plan(key, partial(weighing, task, settings.device))


def ways(settings: Settings, task: Task) -> tuple[dict[str, Derive], list[str]]:
    """The ways to time, with ours first, and the reasons why some are missing."""
    found: dict[str, Derive] = {
        OURS: jet_ways.by_jets,
        EAGER: jet_ways.by_autograd(reference.sine_linear),
        OWN: jet_ways.by_autograd(ours("sine_linear")),
        FUNC: jet_ways.by_func,
    }
    notes = []
    if task.what != LAPLACIAN:
        notes.append(f"{TORCH_JET} left out: it computes only the Laplacian")
    elif importlib.util.find_spec("jet") is None:
        notes.append(f"{TORCH_JET} is not installed (jet-for-pytorch, Python 3.12)")
    else:
        found[TORCH_JET] = jet_ways.by_torch_jet
    return found, notes


def facts(task: Task, device: str) -> dict[str, Any]:
    kind = "without training" if task.what == NO_TRAINING else "training step"
    return {
        "group": f"jets of a Siren, {kind}, {device.upper()}",
        "label": task.name.replace("/", " "),
        "dtype": dtype_name(task.dtype),
        "shape": [task.points, task.width, task.hidden, COORDINATES[task.what]],
    }


def check(task: Task, args: tuple[Tensor, ...]) -> Callable[..., float]:
    plain = task.of(jet_ways.by_autograd(reference.sine_linear))
    return partial(verify, op="jets", args=args, plain=plain)


def target(task: Task, device: str) -> Target | None:
    least: float | None = LEAST_CPU
    if device == "cuda":
        half, single = LEAST[task.what]
        least = half if task.dtype == torch.bfloat16 else single
    elif task.what != LAPLACIAN:
        return None
    # With TF32 there is only a target in ms, because LEAST refers to a baseline without TF32.
    if task.digits.endswith("tf32"):
        least = None
    share = None
    if least is not None:
        factor = least
        share = Target(f"at least {factor:g} × eager autograd's speed", lambda m: m[EAGER] / factor)
    most = MOST.get(task.name.rpartition("/")[0])
    if device == "cpu" or task.what != LAPLACIAN or most is None:
        return share
    limit = Target(f"at most {most:g} ms", lambda m: 1e3 * most)
    return limit if share is None else both(share, limit)


def case(settings: Settings, task: Task) -> Case:
    set_tf32(task.digits.endswith("tf32"))
    args = task.arguments(settings.device)
    derive, notes = ways(settings, task)
    functions = {name: task.of(way) for name, way in derive.items()}
    if not settings.quick:
        functions[COMPILED] = baselines.compiled(functions[FUNC])
    count = max(settings.threads) if settings.device == "cpu" else None
    found = facts(task, settings.device)
    if count is not None:
        found["label"] += f", {count} thr"
    return Case(
        op="jets",
        functions=functions,
        inputs=[args],
        timer=settings.wall(16e-3, seconds=0.3, rounds=(7, 31)),
        target=target(task, settings.device),
        check=check(task, args),
        threads=count,
        facts=found,
        notes=notes,
    )


def weighing(task: Task, device: str) -> Weighing:
    """Compares the peak bytes of a step with those of eager autograd."""
    set_tf32(False)
    args = task.arguments(device)
    derive, _ = ways(Settings(device), task)
    weigh = peak if device == "cuda" else jet_ways.cpu_peak
    return Weighing(
        functions={name: (task.of(derive[name]), args) for name in (OURS, EAGER, OWN, FUNC)},
        check=check(task, args),
        against=EAGER,
        part=1.0,
        text=f"eager {EAGER}'s bytes",
        most=MOST_MEMORY,
        facts=facts(task, device) | {"group": f"jets, most bytes of a step, {device.upper()}"},
        op="jets",
        weigh=lambda function, args: {"kept": weigh(function, args)},
    )
