"""PINA trains a Siren to the same weights with Siren.jet (docs/physics.md) as with PINA's own
operators.

Runs only if pina-mathlab is installed.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.pages import snippets


def source(x: Tensor) -> Tensor:
    """The Laplacian of sin(pi x) sin(pi y)."""
    waves = torch.sin(torch.pi * x.as_subclass(Tensor))
    return -2 * torch.pi**2 * waves[:, :1] * waves[:, 1:]


def trained(equation: Callable[[Any, Any], Tensor], net: torch.nn.Module) -> list[Tensor]:
    """Trains on points that are the same in each call, and returns the parameters."""
    from pina import Condition, Trainer
    from pina.domain import CartesianDomain
    from pina.equation import Equation, FixedValue
    from pina.optim import TorchOptimizer
    from pina.problem import SpatialProblem
    from pina.solver import PhysicsInformedSingleModelSolver

    square = CartesianDomain({"x": [-1, 1], "y": [-1, 1]})

    class Poisson(SpatialProblem):  # type: ignore[misc]
        output_variables = ["u"]
        spatial_domain = square
        domains = {"inside": square, "border": square.partial()}
        conditions = {
            "inside": Condition(domain="inside", equation=Equation(equation)),
            "border": Condition(domain="border", equation=FixedValue(0.0)),
        }

    torch.manual_seed(0)
    problem = Poisson()
    for domain in problem.domains:
        problem.discretise_domain(n=64, mode="random", domains=domain)
    solver = PhysicsInformedSingleModelSolver(
        problem, net, optimizer=TorchOptimizer(torch.optim.SGD, lr=1e-4)
    )
    quiet = ("progress_bar", "checkpointing", "model_summary")
    options: dict[str, Any] = {f"enable_{name}": False for name in quiet}
    Trainer(solver, max_epochs=5, accelerator="cpu", logger=False, **options).train()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.skipif(importlib.util.find_spec("pina") is None, reason="needs pina-mathlab")
@pytest.mark.filterwarnings("ignore")
def test_both_ways_learn_the_same() -> None:
    from pina.operator import laplacian

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    (code,) = (code for _, code in snippets("physics.md") if "from pina" in code)
    found = []
    for by_jet in (True, False):
        names: dict[str, Any] = {"torch": torch, "treadle": treadle, "source": source}
        exec(code, names)
        torch.manual_seed(1)
        options = {"outermost_linear": True, "first_omega_0": 4.0, "hidden_omega_0": 4.0}
        net = names["net"] = names["Net"](2, 16, 1, 1, **options)
        before = [p.detach().clone() for p in net.parameters()]

        def by_operator(x: Any, u: Any) -> Any:
            return laplacian(u, x, components=["u"], d=["x", "y"]) - source(x)

        found.append(trained(names["equation"] if by_jet else by_operator, net))
    assert (found[0][0] - before[0]).abs().max() > 3e-3
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
