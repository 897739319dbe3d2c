"""Learn the signed distance to a heart's outline from points of the outline and an eikonal loss.

    python examples/signed_distance.py                      learn, and print the error
    python examples/signed_distance.py --figure IMAGE.png   also draw the distance, and write JSON

A signed distance u is 0 on the outline, grows by 1 per unit of length (|∇u| = 1, the eikonal
equation) and is negative inside. The network is trained on points of the outline and their normals,
which a scanner could measure, and on random points, where only the equation is known. The loss is
that of the SIREN paper plus a term with |Δu|, which keeps the function smooth at first and then
fades out (DiGS, Ben-Shabat and others, CVPR 2022). Siren.jet computes value, gradient and Laplacian
in one forward pass.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from device_check import pick_device
from treadle.nn import Siren

HIDDEN, LAYERS, OMEGA = 64, 2, 5.0
POINTS, LEARNING_RATE = 256, 2e-3
TARGET = 0.02
SIDE = 121


def outline(count: int) -> tuple[Tensor, Tensor]:
    """Equidistant points of a heart's outline within ±1, and outward normals: [N, 2] each."""
    t = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    x = 16 * t.sin() ** 3
    y = 13 * t.cos() - 5 * (2 * t).cos() - 2 * (3 * t).cos() - (4 * t).cos()
    curve = torch.stack([x, y + 2.5], dim=1) / 20
    steps = curve.diff(dim=0)
    way = torch.cat([torch.zeros(1, dtype=t.dtype), steps.norm(dim=1).cumsum(0)])
    wanted = (torch.arange(count, dtype=t.dtype) + 0.5) * (way[-1] / count)
    at = torch.searchsorted(way, wanted) - 1
    share = ((wanted - way[at]) / (way[at + 1] - way[at]))[:, None]
    along = steps[at] / steps[at].norm(dim=1, keepdim=True)
    # The curve runs clockwise, so the outside is on its left.
    normals = torch.stack([-along[:, 1], along[:, 0]], dim=1)
    return (curve[at] + share * steps[at]).float(), normals.float()


def distance(x: Tensor, count: int = 2000) -> Tensor:
    """The signed distance of points [N, 2] to the outline: [N]."""
    corners = outline(count)[0].to(x)
    after = corners.roll(-1, 0)
    # A point is inside if a ray to its right crosses the outline an odd number of times.
    above = (corners[:, 1] > x[:, 1:]) != (after[:, 1] > x[:, 1:])
    slope = (after[:, 0] - corners[:, 0]) / (after[:, 1] - corners[:, 1])
    right = x[:, :1] < corners[:, 0] + slope * (x[:, 1:] - corners[:, 1])
    inside = (above & right).sum(1) % 2 == 1
    away = torch.cdist(x, corners).min(dim=1).values
    return torch.where(inside, -away, away)


def loss(net: Siren, on: Tensor, normals: Tensor, off: Tensor, done: float) -> Tensor:
    """The loss: u = 0 and the given normals on the outline, and |∇u| = 1 everywhere.

    ``done`` is the fraction of the training steps that have been taken.
    """
    u = net.jet(torch.cat([on, off]))
    value, gradient = u.value[:, 0], u.gradient[:, 0]
    here, there = value.split([len(on), len(off)])
    turned = 1 - torch.cosine_similarity(gradient[: len(on)], normals)
    eikonal = gradient.norm(dim=1) - 1
    return (
        60 * here.abs().mean()
        + 2 * turned.mean()
        + 5 * eikonal.abs().mean()
        # Penalizes values near 0 at points that are not on the outline.
        + 0.5 * torch.exp(-100 * there.abs()).mean()
        + 0.2 * max(0, 1 - 2 * done) * u.laplacian[len(on) :].abs().mean()
    )


def learn(steps: int, seed: int, device: torch.device) -> tuple[Siren, float]:
    """The network, and the seconds that learning took."""
    torch.manual_seed(seed)
    net = Siren(2, HIDDEN, LAYERS, 1, True, OMEGA, OMEGA, device=device)
    points, normals = (t.to(device) for t in outline(4 * POINTS))
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    start = time.perf_counter()
    with tqdm(range(steps), unit="step", desc="Learning", disable=None) as bar:
        for step in bar:
            chosen = torch.randint(len(points), (POINTS,), device=device)
            off = 2 * torch.rand(POINTS, 2, device=device) - 1
            found = loss(net, points[chosen], normals[chosen], off, step / steps)
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            schedule.step()
            if step % 50 == 0:
                bar.set_postfix(loss=f"{found.item():.2f}")
    # item() waits for the GPU, so the time includes all the work.
    found.item()
    return net, time.perf_counter() - start


@torch.no_grad()
def compare(net: Siren, device: torch.device) -> tuple[dict[str, float], Tensor, Tensor]:
    """Returns the errors, and both distances on a grid [SIDE, SIDE], the learnt one first."""
    axis = torch.linspace(-1, 1, SIDE, device=device)
    x = torch.cartesian_prod(axis, axis)
    u, exact = net.jet(x, laplacian=False), distance(x)
    errors = {
        "mean error": float((u.value[:, 0] - exact).abs().mean()),
        "on the outline": float(net(outline(500)[0].to(device)).abs().mean()),
        "mean of ||gradient| - 1|": float((u.gradient[:, 0].norm(dim=1) - 1).abs().mean()),
        "wrong side": float(((u.value[:, 0] > 0) != (exact > 0)).float().mean()),
    }
    # In pictures, rows correspond to y.
    grids = (t.reshape(SIDE, SIDE).T.cpu() for t in (u.value[:, 0], exact))
    return errors, *grids  # type: ignore[return-value]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, metavar="IMAGE.png", help="draw both distances")
    options = parser.parse_args(arguments)
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = pick_device()
    net, seconds = learn(options.steps, options.seed, device)
    errors, learnt, exact = compare(net, device)
    error = errors["mean error"]
    print(
        f"A heart on {device}: {options.steps} steps in {seconds:.1f} s. The mean error is "
        f"{error:.4f} in a\nsquare of side 2, and {errors['on the outline']:.4f} on the outline. "
        f"{errors['wrong side']:.2%} of the square has the wrong sign."
    )
    if options.figure:
        from field_pictures import draw_distance
        from machine_facts import facts

        record: dict[str, Any] = {"machine": facts(device.type) | {"threads": 1}}
        record |= {"steps": options.steps, "seconds": round(seconds, 2), "errors": errors}
        options.figure.with_suffix(".json").write_text(json.dumps(record) + "\n")
        draw_distance(options.figure, learnt.numpy(), exact.numpy())
    if error > TARGET:
        print(f"signed_distance.py: the error {error:.4f} is above {TARGET:g}", file=sys.stderr)
    return 0 if error <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
