"""The examples of jets learn the signed distance of a heart, and solve Poisson's equation."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.package.test_examples import EXAMPLES, device, example  # noqa: F401
from treadle import Jet
from treadle.nn import Siren

FIGURES = EXAMPLES.parent / "docs" / "figures"
CPU = torch.device("cpu")


def test_outline_is_a_heart(example) -> None:  # noqa: F811
    """The outline is closed, evenly spaced and symmetric, with outward normals and two lobes."""
    points, normals = example("signed_distance").outline(400)
    steps = (points.roll(-1, 0) - points).norm(dim=1)
    assert steps.max() < 1.2 * steps.median() and points.abs().max() < 1
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(400))
    distance = example("signed_distance").distance
    assert (distance(points + 0.02 * normals) > 0).float().mean() > 0.97
    assert (distance(points - 0.02 * normals) < 0).float().mean() > 0.97
    mirrored = points * torch.tensor([-1.0, 1.0])
    assert torch.cdist(points, mirrored).min(dim=1).values.max() < 0.01
    top = points[points[:, 1] > 0.6, 0]
    assert (top.abs() > 0.1).all() and top.min() < 0 < top.max()


def test_distance_is_that_of_the_outline(example) -> None:  # noqa: F811
    distance = example("signed_distance").distance
    x = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 0.3], [0.0, -0.9], [0.4, 0.3]])
    found = distance(x)
    assert (found > 0).tolist() == [False, True, True, True, False]
    # Outside, the distance grows by 1 per unit of length.
    steps = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    torch.testing.assert_close(
        distance(x[1:3] + steps) - found[1:3], torch.ones(2), atol=0.1, rtol=0
    )


def test_heart_is_learnt(example) -> None:  # noqa: F811
    module = example("signed_distance")
    torch.set_num_threads(1)
    net, _ = module.learn(400, 0, CPU)
    errors, learnt, exact = module.compare(net, CPU)
    assert errors["mean error"] < 0.04 and errors["wrong side"] < 0.03, errors
    assert learnt.shape == exact.shape and (learnt - exact).abs().mean() < 0.04


def test_losses_of_the_heart_are_zero_for_the_distance_alone(example) -> None:  # noqa: F811
    """Compares a circle's distance, computed exactly by a jet, with twice that distance."""
    module = example("signed_distance")

    class Circle:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def jet(self, x: torch.Tensor) -> Jet:
            square = Jet.of(x) * Jet.of(x)
            left, right = square.split([1, 1])
            return ((left + right).map(torch.sqrt) - 0.5) * self.factor

    angle = torch.linspace(0, 6, 50)
    normals = torch.stack([angle.cos(), angle.sin()], dim=1)
    off = 3 + torch.rand(50, 2)
    for factor in (1.0, 2.0):
        found = module.loss(Circle(factor), 0.5 * normals, normals, off, 1.0)
        assert (found < 1e-4) == (factor == 1), found
    early = module.loss(Circle(1.0), 0.5 * normals, normals, off, 0.0)
    # The Laplacian of the distance |x| - 1/2 is 1 / |x|.
    assert float(early) == pytest.approx(0.2 * float((1 / off.norm(dim=1)).mean()), rel=0.01)


def test_poisson_is_solved(example) -> None:  # noqa: F811
    module = example("poisson")
    torch.set_num_threads(1)
    net, _ = module.solve(250, 0, CPU)
    errors, potential, exact, slope = module.compare(net, CPU)
    assert errors["u"] < 0.02 and errors["Laplacian"] < 0.1, errors
    # Rows of the picture are y, so differences along a row approximate ∂u/∂x.
    step = 2 / (module.SIDE - 1)
    along = (potential[:, 2:] - potential[:, :-2]) / (2 * step)
    assert (along - slope[:, 1:-1, 0]).abs().max() < 0.1 * along.abs().max()
    top, left = np.unravel_index(int(exact.argmax()), exact.shape)
    assert math.hypot(left * step - 1 - 0.4, top * step - 1 - 0.2) < 0.05


def test_the_answer_of_poisson_solves_it(example) -> None:  # noqa: F811
    module = example("poisson")
    x = (2 * torch.rand(20, 2) - 1).double()
    hessian = torch.func.vmap(torch.func.hessian(lambda p: module.answer(p[None])[0].sum()))(x)
    torch.testing.assert_close(hessian.diagonal(dim1=1, dim2=2).sum(1), module.answer(x)[1])
    border = module.at_border(500, CPU)
    assert (border.abs().max(dim=1).values == 1).all()
    assert all((border[:, k] == side).sum() > 80 for k in (0, 1) for side in (-1, 1))


@pytest.mark.parametrize("script", ["signed_distance", "poisson"])
def test_scripts_draw_and_fail_above_the_target(
    script: str,
    device: str,  # noqa: F811
    example,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.png"
    assert example(script).main(["--steps", "2", "--figure", str(path)]) == 1
    said = capsys.readouterr()
    assert re.search(rf"^{script}.py: the error \S+ is above \S+$", said.err, re.M)
    assert f" on {device}: 2 steps in " in said.out
    with Image.open(path) as picture:
        assert picture.format == "PNG" and min(picture.size) > 250
    record = json.loads(path.with_suffix(".json").read_text())
    assert record["steps"] == 2 and record["machine"]["threads"] == 1


@pytest.mark.parametrize("script", ["signed_distance", "poisson"])
def test_committed_figures_reached_the_target(example, script: str) -> None:  # noqa: F811
    record = json.loads((FIGURES / f"{script}.json").read_text())
    error = record["errors"]["u" if script == "poisson" else "mean error"]
    assert error <= example(script).TARGET
    assert (FIGURES / f"{script}.png").stat().st_size < 250_000


def test_residuals_of_helmholtz_are_the_same_by_both_ways(example) -> None:  # noqa: F811
    module = example("helmholtz")
    torch.manual_seed(0)
    net = Siren(2, 8, 1, 1, True, 5.0, 5.0, dtype=torch.float64)
    x = 2 * torch.rand(30, 2, dtype=torch.float64) - 1
    both = module.residual(net, x), module.residual_by_autograd(net, x)
    assert float(both[0].detach().abs().max()) > 0.01
    torch.testing.assert_close(*both)
    times = module.step_times(net.float(), 16, rounds=4)
    assert len(times) == 2 and min(times) > 0
