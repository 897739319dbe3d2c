"""Measures training steps of SIRENs, forward and backward, for losses on values or the Laplacian.

The baselines are the same net in plain PyTorch, eager and compiled. torch.compile does not support
double backward, so the loss on the Laplacian has no compiled baseline. Memory is the peak of a step
minus the memory in use before it.
"""

from __future__ import annotations

import gc
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
from benchmarks.recurrent.cell import COMPILED, PLAIN
from benchmarks.recurrent.layer_calls import set_tf32
from benchmarks.recurrent.layer_memory import Weighing, requested, step
from benchmarks.sine_linear.jet_ways import Layer, drawn, uniform, values
from treadle import reference

COORDINATES = 2
ROWS = {"cuda": 1 << 18, "cpu": 1 << 12}
# The width, and the number of hidden layers after the first.
NETS = {"cuda": ((256, 3), (512, 5)), "cpu": ((64, 3), (256, 3))}
LOSSES = ("values", "Laplacian")
# Targets: the minimum speed relative to the compiled net and to plain PyTorch (on CUDA and on the
# CPU), and the maximum memory relative to plain PyTorch.
OF_COMPILED, OF_PLAIN, OF_PLAIN_CPU = 1.0, 1.3, 1.1
OF_MEMORY = {torch.float32: 0.8, torch.bfloat16: 1.0}


@dataclass(frozen=True)
class Net:
    name: str  # for keys and labels: the full sizes, even in quick runs, which use smaller ones
    width: int
    hidden: int
    dtype: torch.dtype
    loss: str
    rows: int

    def arguments(self, device: str) -> tuple[Tensor, ...]:
        """Coordinates, the target values, and weight and bias of each layer."""
        x = uniform(device, 1, self.rows, COORDINATES).to(self.dtype)
        made = drawn(device, [COORDINATES, *[self.width] * (self.hidden + 1), 1])
        target = torch.randn(self.rows, 1, device=device).to(self.dtype)
        params = [t.to(self.dtype).requires_grad_() for t in made]
        # A Laplacian does not depend on a constant that is added to all values.
        params[-1].requires_grad_(self.loss == "values")
        return x, target, *params

    def of(self, layer: Layer) -> Callable[..., Tensor]:
        """The loss as a function of the arguments."""

        def fit(x: Tensor, target: Tensor, *params: Tensor) -> Tensor:
            return F.mse_loss(values(layer, x, params), target)

        def laplacian(x: Tensor, target: Tensor, *params: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            y = values(layer, x, params)
            (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            found = torch.zeros_like(y)
            for k in range(COORDINATES):
                along = slope[:, k]
                (second,) = torch.autograd.grad(along, x, torch.ones_like(along), create_graph=True)
                found = found + second[:, k : k + 1]
            return F.mse_loss(found, 1e3 * target)

        return fit if self.loss == "values" else laplacian


def nets(settings: Settings) -> Iterator[Net]:
    on_gpu = settings.device == "cuda"
    rows = 64 if settings.quick else ROWS[settings.device]
    for width, hidden in NETS[settings.device]:
        for dtype in (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,):
            for loss in LOSSES:
                name = f"{width}×{hidden}/{dtype_name(dtype)}/{loss}"
                yield Net(name, 32 if settings.quick else width, hidden, dtype, loss, rows)


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        for count in settings.threads:
            for net in nets(settings):
                key = f"cpu/siren/{net.name}/{count} threads"
                yield Plan(key, partial(case, settings, net, count))
        return
    for net in nets(settings):
        yield Plan(f"cuda/siren/{net.name}", partial(case, settings, net))
    for net in nets(settings):
        yield Plan(f"cuda/siren/{net.name}/memory", partial(weighing, net))


def facts(net: Net, device: str) -> dict[str, Any]:
    return {
        "group": f"Siren, training step, {device.upper()}",
        "label": net.name.replace("/", " "),
        "dtype": dtype_name(net.dtype),
        "shape": [net.rows, net.width, net.hidden],
    }


def check(net: Net, args: tuple[Tensor, ...]) -> Callable[..., float]:
    return partial(verify, op="siren", args=args, plain=net.of(reference.sine_linear))


def case(settings: Settings, net: Net, count: int | None = None) -> Case:
    set_tf32(False)
    device = settings.device
    args, plain = net.arguments(device), net.of(reference.sine_linear)
    functions: dict[str, Callable[..., Any]] = {OURS: net.of(ours("sine_linear")), PLAIN: plain}
    share = OF_PLAIN if device == "cuda" else OF_PLAIN_CPU
    target = Target(f"at least {share:g} × the {PLAIN}'s speed", lambda m: m[PLAIN] / share)
    if device == "cuda" and net.loss == "values" and not settings.quick:
        functions[COMPILED] = baselines.compiled(plain)
        text = f"at least {OF_COMPILED:g} × {COMPILED}'s"
        target = both(target, Target(text, lambda m: m[COMPILED] / OF_COMPILED))
    found = facts(net, device)
    if count is not None:
        found["label"] += f", {count} thr"
    return Case(
        op="siren",
        functions=functions,
        inputs=[args],
        timer=settings.wall(16e-3, seconds=0.3),
        target=target,
        check=check(net, args),
        threads=count,
        facts=found,
    )


def weighing(net: Net) -> Weighing:
    """Compares the peak bytes of a step with those of plain PyTorch."""
    set_tf32(False)
    args, plain = net.arguments("cuda"), net.of(reference.sine_linear)
    return Weighing(
        functions={OURS: (net.of(ours("sine_linear")), args), PLAIN: (plain, args)},
        check=check(net, args),
        against=PLAIN,
        part=1.0,
        text=f"the {PLAIN}'s bytes",
        most=OF_MEMORY[net.dtype],
        facts=facts(net, "cuda") | {"group": "Siren, most bytes of a training step, CUDA"},
        op="siren",
        weigh=lambda function, args: {"kept": peak(function, args)},
    )


def peak(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    # Libraries allocate workspaces in the first call and keep them.
    step(function, args)
    gc.collect()
    before = requested("current")
    torch.cuda.reset_peak_memory_stats()
    step(function, args)
    return requested("peak") - before
