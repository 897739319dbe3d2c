"""Solve Poisson's equation in DeepXDE, with DeepXDE's own derivatives and with a Siren's jets.

    pip install deepxde
    python examples/interop/deepxde_poisson.py                  print errors and times
    python examples/interop/deepxde_poisson.py --json PATH      also write them as JSON

The equation is Δu = f on the square from -1 to 1, with u = 0 at its border. The solution is
u = sin(πx) sin(πy).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DDE_BACKEND", "pytorch")

import deepxde as dde  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import treadle  # noqa: E402

SIZES = {"in_features": 2, "hidden_features": 64, "hidden_layers": 2, "out_features": 1}
OPTIONS = {"outermost_linear": True, "first_omega_0": 4.0, "hidden_omega_0": 4.0}


class Net(dde.nn.NN):
    """A Siren that DeepXDE trains. ``jet`` has its value and Laplacian at the points of the last
    call (docs/jets.md)."""

    def __init__(self, by_jet: bool) -> None:
        super().__init__()
        self.by_jet, self.siren = by_jet, treadle.nn.Siren(**SIZES, **OPTIONS)

    def forward(self, x: Tensor) -> Tensor:
        if not self.by_jet:
            return self.siren(x)
        self.jet = self.siren.jet(x, gradient=False)
        return self.jet.value


def source(x: Tensor) -> Tensor:
    waves = torch.sin(torch.pi * x)
    return -2 * torch.pi**2 * waves[:, :1] * waves[:, 1:]


def answer(x: np.ndarray) -> np.ndarray:
    waves = np.sin(np.pi * x)
    return waves[:, :1] * waves[:, 1:]


def equation(net: Net) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the function that computes the residual at x, given the net's values y."""

    def by_jet(x: Tensor, y: Tensor) -> Tensor:
        # DeepXDE calls the net at x before it calls this function.
        return net.jet.laplacian - source(x)

    def by_autograd(x: Tensor, y: Tensor) -> Tensor:
        twice = dde.grad.hessian(y, x, i=0, j=0) + dde.grad.hessian(y, x, i=1, j=1)
        return twice - source(x)

    return by_jet if net.by_jet else by_autograd


def train(by_jet: bool, steps: int) -> tuple[float, float]:
    """Returns the error divided by the norm of the solution, and the CPU time in seconds."""
    dde.config.set_random_seed(0)
    # In float32, rounding errors make the two ways diverge after a few hundred steps.
    dde.config.set_default_float("float64")
    net = Net(by_jet)
    square = dde.geometry.Rectangle([-1, -1], [1, 1])
    border = dde.icbc.DirichletBC(square, lambda x: 0, lambda _, on_border: on_border)
    points = {"num_domain": 1024, "num_boundary": 200, "num_test": 1024}
    data = dde.data.PDE(square, equation(net), border, solution=answer, **points)
    model = dde.Model(data, net)
    model.compile("adam", 2e-3, metrics=["l2 relative error"], loss_weights=[1e-2, 1], verbose=0)
    start = time.process_time()
    history, _ = model.train(iterations=steps, display_every=steps, verbose=0)
    return float(history.metrics_test[-1][0]), time.process_time() - start


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write a record")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, by_jet in (("dde.grad.hessian", False), ("Siren.jet", True)):
        error, seconds = train(by_jet, options.steps)
        found[name] = {"error": error, "processor_seconds": round(seconds, 2)}
        print(f"{name}: {options.steps} steps in {seconds:.1f} s; u is off by {error:.2%}.")
    if options.json:
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        from machine_facts import facts

        record = {"machine": facts("cpu") | {"deepxde": importlib.metadata.version("deepxde")}}
        record |= {"threads": 1, "steps": options.steps, "found": found}
        options.json.write_text(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
