"""Compares what a sine layer could keep for its backward pass, and writes docs/sine_layer.json.

    python docs/sine_layer_phase.py                 docs/sine_layer.json and docs/sine_layer.png
    python docs/sine_layer_phase.py --output DIR    the same files in another folder

It emulates the op: float32 phases, float32 sums, each format of docs/sine_layer_formats.py packed
and unpacked. Every gradient is compared with that of the same numbers in float64, and so is that of
eager PyTorch in the same dtype. It takes the CPU, under a minute and the same random numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import treadle  # noqa: E402
from benchmarks import machine  # noqa: E402
from docs.sine_layer_formats import (  # noqa: E402
    TURN,
    Format,
    LowBits,
    RootAndRest,
    SignOrCosine,
    Turn,
    cosine_of,
    waves,
)

FORMATS: dict[str, Format] = {
    "16-bit turn": Turn(16),
    "24-bit turn": Turn(24),
    "32-bit turn": Turn(32),
    "sign, or cos below 0.044": SignOrCosine(0.044),
    "sign and low bits of cos": LowBits(),
    "sign and rest of the root": RootAndRest(),
}
CHOSEN = "sign and rest of the root"
OF_HALVES = {
    "16-bit turn": (Turn(16), False),
    "32-bit turn": (Turn(32), False),
    "16-bit turn of a product rounded to the half type": (Turn(16), True),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROWS, WIDTH, OMEGA, SEEDS = 4096, 256, 30.0, 3
LARGE = 1e4
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


class Sine(torch.autograd.Function):
    """sin(u) whose derivatives of every order are made of s and c, the sine and cosine kept."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, s: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(u, s, c)
        return s.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * Cosine.apply(*ctx.saved_tensors), None, None


class Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, s: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(u, s, c)
        return c.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return -grad * Sine.apply(*ctx.saved_tensors), None, None


def kept(form: Format, u: Tensor) -> tuple[Tensor, Tensor]:
    """The sine and the cosine of u as they come back in the backward pass."""
    y, c = waves(u.numpy())
    s, c = form.unpack(form.pack(u.numpy(), y, c), y)
    return torch.from_numpy(s), torch.from_numpy(c)


class HalfLayer(torch.autograd.Function):
    """The op in a half type: products of halves with float32 sums, one rounding at each end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, form: Format, rounded: bool) -> Tensor:
        product = (x @ w.T).float() if rounded else x.float() @ w.float().T
        u = OMEGA * (product + b.float())
        ctx.save_for_backward(x, w, kept(form, u)[1])
        return treadle.sine(u).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, w, c = ctx.saved_tensors
        grad_z = grad.float() * c * OMEGA
        rounded = grad_z.to(x.dtype)
        return rounded @ w, rounded.T @ x, grad_z.sum(0).to(x.dtype), None, None


def emulated(form: Format, rounded: bool = False) -> Layer:
    """The layer; `rounded`: its product is a half type before the bias is added."""

    def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return HalfLayer.apply(x, w, b, form, rounded)
        u = OMEGA * F.linear(x, w, b)
        # s is y itself for the formats that lie beside it, and the output always is.
        return Sine.apply(u, *kept(form, u.detach()))

    return layer


def eager(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sin(OMEGA * F.linear(x, w, b))


def uniform(generator: torch.Generator, bound: float, *shape: int) -> Tensor:
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) * bound


Case = tuple[list[Tensor], Callable[[Layer, list[Tensor]], list[Tensor]]]


def single(kind: str, generator: torch.Generator) -> Case:
    """One layer: inputs, and its gradients of x, w, b for random gradients of its output."""
    inputs, bound = (2, 1 / 2) if kind == "first layer" else (WIDTH, math.sqrt(6 / WIDTH) / OMEGA)
    x = uniform(generator, 1.0, ROWS, inputs)
    if inputs == WIDTH:
        # What a hidden layer gets: sines of uniformly distributed phases.
        x = torch.sin(math.pi * x)
    w, b = uniform(generator, bound, WIDTH, inputs), uniform(generator, bound, WIDTH)
    if kind == "phases to 1e4":
        w, b = (t * LARGE / (OMEGA * F.linear(x, w, b)).abs().max() for t in (w, b))
    grad = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    def run(layer: Layer, leaves: list[Tensor]) -> list[Tensor]:
        *arguments, grad = leaves
        arguments = [t.requires_grad_() for t in arguments]
        return list(torch.autograd.grad(layer(*arguments), arguments, grad))

    return [x, w, b, grad], run


def network(kind: str, generator: torch.Generator) -> Case:
    """A Siren of three layers: gradients of all parameters, of a loss of values or Laplacians."""
    sizes = [2, WIDTH, WIDTH, WIDTH, 1]
    leaves = [uniform(generator, 1.0, ROWS // 4, 2), uniform(generator, 1.0, ROWS // 4, 1)]
    for number, (fan_in, out) in enumerate(zip(sizes, sizes[1:], strict=False)):
        bound = math.sqrt(6 / fan_in) / OMEGA if number else 1 / fan_in
        leaves += [uniform(generator, bound, out, fan_in)]
        leaves += [uniform(generator, 1 / math.sqrt(fan_in), out)]

    def run(layer: Layer, leaves: list[Tensor]) -> list[Tensor]:
        x, target, *parameters = leaves
        x, *parameters = (t.requires_grad_() for t in (x, *parameters))
        h = x
        for w, b in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
            h = layer(h, w, b)
        value = F.linear(h, *parameters[-2:])
        if kind == "Laplacian":
            (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            value = sum(
                torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] / OMEGA**2
                for i in range(2)
            ).unsqueeze(1)
        loss = (value - target).square().mean()
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    return leaves, run


CASES: dict[str, tuple[Callable[[str, torch.Generator], Case], str]] = {
    "first layer, omega 30": (single, "first layer"),
    "hidden layer, phases N(0, 1)": (single, "hidden layer"),
    "phases to 1e4": (single, "phases to 1e4"),
    "Siren of 3 layers, all parameters": (network, "values"),
    "the same, loss of the Laplacian": (network, "Laplacian"),
}


def errors(found: list[Tensor], exact: list[Tensor]) -> list[list[float]]:
    """Of each gradient: the error's norm, and its largest entry, of those of the exact one. Not of
    one that is a single number, whose error is chance."""
    pairs = [
        (f.double() - e, e)
        for f, e in zip(found, exact, strict=True)
        if f is not None and e is not None and e.numel() > 1 and e.abs().max() > 0
    ]
    return [[float(d.norm() / e.norm()), float(d.abs().max() / e.abs().max())] for d, e in pairs]


def gradients(dtype: torch.dtype) -> dict[str, Any]:
    """Of each case and format: errors of every gradient, the mean over seeds."""
    if dtype == torch.float32:
        layers = {name: emulated(form) for name, form in FORMATS.items()}
    else:
        layers = {name: emulated(*how) for name, how in OF_HALVES.items()}
    layers = {"eager": eager, **layers}
    table: dict[str, Any] = {}
    for name, (case, kind) in CASES.items():
        if dtype != torch.float32 and kind == "Laplacian":
            continue
        rows: dict[str, list[list[list[float]]]] = {who: [] for who in layers}
        for seed in range(SEEDS):
            leaves, run = case(kind, torch.Generator().manual_seed(seed))
            leaves = [t.to(dtype) for t in leaves]
            exact = run(eager, [t.double() for t in leaves])
            for who, layer in layers.items():
                rows[who].append(errors(run(layer, [t.clone() for t in leaves]), exact))
        # [gradients, 2]: norm-wise, largest.
        means = {who: np.mean(row, axis=0) for who, row in rows.items()}
        table[name] = {who: [[float(f"{e:.3g}") for e in g] for g in m] for who, m in means.items()}
    return table


def phases() -> dict[str, np.ndarray]:
    """Phases in float32, and among them every one near enough to a zero of cos to be hard."""
    random = np.random.default_rng(0)
    near = [np.float32(q * np.pi / 2 + d) for q in (1, 3) for d in (-0.02, 0.02)]
    first, last = np.array(near).view(np.int32).reshape(2, 2).T
    every = [np.arange(a, b, dtype=np.int32) for a, b in zip(first, last, strict=True)]
    return {
        "N(0, 1)": random.standard_normal(1_000_000).astype(np.float32),
        "up to 1e4": random.uniform(-LARGE, LARGE, 1_000_000).astype(np.float32),
        "all near pi/2 and 3 pi/2": np.concatenate(every).view(np.float32),
    }


def cosines() -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The error of the cosine that each format gives back: largest, root mean square; of a turn."""
    found: dict[str, Any] = {"formats": {}, "margin": 0.0}
    curves = {}
    for name, u in {**phases(), "turn": np.linspace(0, TURN, 1_000_001, dtype=np.float32)}.items():
        exact = np.cos(u.astype(np.float64))
        y, c = waves(u)
        given = {label: form.unpack(form.pack(u, y, c), y)[1] for label, form in FORMATS.items()}
        for label, cosine in {"none: cos as computed": c, **given}.items():
            error = np.abs(cosine - exact)
            if name == "turn":
                curves[label] = error[:-1].reshape(200, -1).max(axis=1)
                continue
            row = found["formats"].setdefault(label, {})
            row[name] = [float(f"{e:.3g}") for e in (error.max(), np.sqrt(np.mean(error**2)))]
        apart = float(np.abs(cosine_of(y) - np.abs(exact)).max())
        found["margin"] = max(found["margin"], float(f"{apart:.3g}"))
    return found, curves


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for index, (label, curve) in enumerate(curves.items()):
        style = {"color": "black", "lw": 4, "alpha": 0.3} if label not in FORMATS else {}
        if label == CHOSEN:
            style = {"color": "black", "lw": 1.4}
        edges = np.linspace(0, 1, len(curve) + 1)
        axes.stairs(curve, edges, baseline=None, label=label, **({"color": f"C{index}"} | style))
    axes.set_yscale("log")
    axes.set(xlim=(0, 1), ylim=(1e-9, 1e-3), xlabel="phase in turns", ylabel="largest error of cos")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2, loc="upper center")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs", metavar="DIR")
    output = parser.parse_args().output
    facts = machine.facts("cpu")
    cosine, curves = cosines()
    figures = {
        "machine": {key: facts[key] for key in ("cpu", "cpu_capability", "torch", "treadle")},
        "sizes": {"rows": ROWS, "width": WIDTH, "omega": OMEGA, "seeds": SEEDS},
        "cosine": cosine,
        "gradients": {label: gradients(dtype) for label, dtype in DTYPES.items()},
    }
    draw(curves, output / "sine_layer.png")
    (output / "sine_layer.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
