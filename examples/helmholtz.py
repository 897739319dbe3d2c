"""Solve a Helmholtz equation with a Siren that is trained on the equation, not on a solution.

    python examples/helmholtz.py

The equation is Δu + k² u = f on the square from -1 to 1, with u = 0 at its border. f is chosen so
that the solution is sin(πx) sin(4πy) and the network's error is known. The loss is the mean square
of the residual at random points. The residual contains second derivatives of the network with
respect to its input, which Siren.jet computes in one forward pass. At the end the script times
training steps with jets, and training steps in which autograd differentiates the network twice.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from device_check import pick_device
from treadle import Jet
from treadle.nn import Siren

Residual = Callable[[Siren, Tensor], Tensor]
K, WAVES = 1.0, (1, 4)
# The solution has long waves, so omega is smaller than for a picture. With a larger omega the
# network starts as noise.
OMEGA, POINTS, LEARNING_RATE = 5.0, 512, 5e-3
TARGET = 0.01
# The Laplacian of the solution is the solution times -SCALE.
SCALE = (math.pi * WAVES[0]) ** 2 + (math.pi * WAVES[1]) ** 2


def answer(x: Tensor) -> Tensor:
    """The exact solution u at points [N, 2]: [N]."""
    return (math.pi * WAVES[0] * x[:, 0]).sin() * (math.pi * WAVES[1] * x[:, 1]).sin()


def solution(net: Siren, x: Tensor) -> Jet:
    """The network's u at points [N, 2]: [N, 1]."""
    place = Jet.of(x)
    # These factors are 0 at the border, so the border needs no loss term.
    across, along = (1 - place * place).split([1, 1])
    return net.jet(x) * across * along


def residual(net: Siren, x: Tensor) -> Tensor:
    """The residual of the equation divided by SCALE, which is close to f's largest value: [N]."""
    u = solution(net, x)
    f = (K**2 - SCALE) * answer(x)
    return ((u.laplacian + K**2 * u.value).squeeze(1) - f) / SCALE


def residual_by_autograd(net: Siren, x: Tensor) -> Tensor:
    """The same residual without jets."""
    x = x.detach().requires_grad_()
    u = net(x).squeeze(1) * (1 - x.square()).prod(dim=1)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    twice = [torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in (0, 1)]
    f = (K**2 - SCALE) * answer(x)
    return (twice[0] + twice[1] + K**2 * u - f) / SCALE


@torch.no_grad()
def error(net: Siren, device: torch.device) -> float:
    """The norm of the error of u divided by the norm of the solution, on a grid."""
    axis = torch.linspace(-1, 1, 101, device=device)
    x = torch.cartesian_prod(axis, axis)
    exact = answer(x)
    return float((solution(net, x).value.squeeze(1) - exact).norm() / exact.norm())


def take_step(
    net: Siren, optimizer: torch.optim.Optimizer, residual: Residual, points: int = POINTS
) -> Tensor:
    """Takes a training step at new random points. Returns the loss before the step."""
    x = 2 * torch.rand(points, 2, device=net.net[0].weight.device) - 1
    loss = residual(net, x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def step_times(net: Siren, points: int, rounds: int = 20) -> list[float]:
    """Median seconds of a step with jets and of a step with autograd; the steps alternate."""
    spent: list[list[float]] = [[], []]
    nets = [copy.deepcopy(net) for _ in spent]
    optimizers = [torch.optim.Adam(each.parameters(), 1e-5) for each in nets]
    for _ in range(rounds):
        for k, way in enumerate((residual, residual_by_autograd)):
            start = time.perf_counter()
            # item() waits for the GPU.
            take_step(nets[k], optimizers[k], way, points).item()
            spent[k].append(time.perf_counter() - start)
    return [statistics.median(seconds[2:]) for seconds in spent]


def solve(steps: int = 1000, seed: int = 0) -> float:
    """Solve, and return the error."""
    torch.manual_seed(seed)
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = pick_device()
    net = Siren(2, 64, 2, 1, True, OMEGA, OMEGA, device=device)
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    start = time.perf_counter()
    with tqdm(range(steps), unit="step", desc="Solving", disable=None) as bar:
        for step in bar:
            loss = take_step(net, optimizer, residual)
            schedule.step()
            if step % 20 == 0:
                bar.set_postfix(residual=f"{loss.item() ** 0.5:.1e}")
    found = error(net, device)
    print(
        f"Δu + {K:g}²u = f on {device}: {steps} steps in {time.perf_counter() - start:.1f} s; "
        f"u is off by {found:.2%} of its norm."
    )
    by_jets, by_autograd = step_times(net, POINTS)
    print(
        f"A step takes {1e3 * by_jets:.2f} ms by jets and {1e3 * by_autograd:.2f} ms by autograd: "
        f"{by_autograd / by_jets:.1f} x as fast."
    )
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = solve(options.steps, options.seed)
    if found > TARGET:
        print(f"helmholtz.py: the error {found:.2%} is above {TARGET:.0%}", file=sys.stderr)
    return 0 if found <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
