"""Solve Poisson's equation for two opposite charges with a Siren, and print its error.

    python examples/poisson.py                      solve, and print the error
    python examples/poisson.py --figure IMAGE.png   also draw potential and field, and write JSON

The equation is Δu = f on the square from -1 to 1, with u given at its border. f is the Laplacian of
two Gaussian hills of opposite sign, so the solution and the network's error are known. Siren.jet
computes the potential u, its gradient (the field is -∇u) and Δu in one forward pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from device_check import pick_device
from treadle.nn import Siren

CHARGES = (((0.4, 0.2), 1.0), ((-0.4, -0.2), -1.0))  # position and sign
WIDTH = 0.25
HIDDEN, LAYERS, OMEGA = 64, 2, 4.0
INSIDE, BORDER, LEARNING_RATE = 512, 128, 5e-3
TARGET = 0.01
SIDE = 101


def answer(x: Tensor) -> tuple[Tensor, Tensor]:
    """The exact solution u, and Δu = f, at points [N, 2]: [N] each."""
    u, f = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    for place, sign in CHARGES:
        square = (x - torch.tensor(place, device=x.device)).square().sum(1)
        hill = sign * torch.exp(-square / (2 * WIDTH**2))
        u, f = u + hill, f + (square / WIDTH**4 - 2 / WIDTH**2) * hill
    return u, f


def at_border(count: int, device: torch.device) -> Tensor:
    """Random points on the four sides: [N, 2]."""
    x = 2 * torch.rand(count, 2, device=device) - 1
    side = torch.randint(4, (count,), device=device)
    fixed = torch.where(side % 2 == 0, -1.0, 1.0)
    return torch.where(torch.stack([side < 2, side >= 2], dim=1), fixed[:, None], x)


def loss(net: Siren, inside: Tensor, border: Tensor) -> Tensor:
    """The mean square of the equation's residual, relative to f's largest value, plus the mean
    square of u's error at the border."""
    left = net.jet(inside, gradient=False).laplacian[:, 0] - answer(inside)[1]
    off = net(border)[:, 0] - answer(border)[0]
    return (left * WIDTH**2 / 2).square().mean() + off.square().mean()


def solve(steps: int, seed: int, device: torch.device) -> tuple[Siren, float]:
    """The network, and the seconds that solving took."""
    torch.manual_seed(seed)
    net = Siren(2, HIDDEN, LAYERS, 1, True, OMEGA, OMEGA, device=device)
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    start = time.perf_counter()
    with tqdm(range(steps), unit="step", desc="Solving", disable=None) as bar:
        for step in bar:
            inside = 2 * torch.rand(INSIDE, 2, device=device) - 1
            found = loss(net, inside, at_border(BORDER, device))
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                bar.set_postfix(loss=f"{found.item():.1e}")
    # item() waits for the GPU, so the time includes all the work.
    found.item()
    return net, time.perf_counter() - start


@torch.no_grad()
def compare(net: Siren, device: torch.device) -> tuple[dict[str, float], Tensor, Tensor, Tensor]:
    """Returns the errors and, on a grid, u and the exact solution, [SIDE, SIDE] each, and ∇u."""
    axis = torch.linspace(-1, 1, SIDE, device=device)
    x = torch.cartesian_prod(axis, axis)
    u, (exact, f) = net.jet(x), answer(x)
    errors = {
        "u": float((u.value[:, 0] - exact).norm() / exact.norm()),
        "Laplacian": float((u.laplacian[:, 0] - f).norm() / f.norm()),
        "largest of u": float((u.value[:, 0] - exact).abs().max()),
    }
    # In pictures, rows correspond to y.
    potential, wanted = (t.reshape(SIDE, SIDE).T.cpu() for t in (u.value[:, 0], exact))
    return errors, potential, wanted, u.gradient[:, 0].reshape(SIDE, SIDE, 2).transpose(0, 1).cpu()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, metavar="IMAGE.png", help="draw potential and field")
    options = parser.parse_args(arguments)
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = pick_device()
    net, seconds = solve(options.steps, options.seed, device)
    errors, potential, exact, slope = compare(net, device)
    print(
        f"Δu = f on {device}: {options.steps} steps in {seconds:.1f} s; u is off by "
        f"{errors['u']:.2%} of its norm, Δu by {errors['Laplacian']:.2%}."
    )
    if options.figure:
        from field_pictures import draw_potential
        from machine_facts import facts

        record: dict[str, Any] = {"machine": facts(device.type) | {"threads": 1}}
        record |= {"steps": options.steps, "seconds": round(seconds, 2), "errors": errors}
        options.figure.with_suffix(".json").write_text(json.dumps(record) + "\n")
        draw_potential(options.figure, potential.numpy(), exact.numpy(), slope.numpy())
    if errors["u"] > TARGET:
        print(f"poisson.py: the error {errors['u']:.2%} is above {TARGET:.0%}", file=sys.stderr)
    return 0 if errors["u"] <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
