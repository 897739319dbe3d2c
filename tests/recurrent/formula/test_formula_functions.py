"""Compares every function that a formula may call, and its first and second derivatives, with
torch's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import treadle
from tests.support.cases import DEVICES
from tests.support.installed import ROOT
from treadle._formula.calls import NAMES

# Calls of all supported functions, operators and methods, where a and b are two gates.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sigmoid": lambda a, b: torch.sigmoid(a),
    "sigmoid of F": lambda a, b: F.sigmoid(a),
    "tanh": lambda a, b: torch.tanh(a),
    "tanh of F": lambda a, b: F.tanh(a),
    "exp": lambda a, b: torch.exp(a),
    "expm1": lambda a, b: torch.expm1(a),
    "log": lambda a, b: torch.log(a),
    "log1p": lambda a, b: torch.log1p(a),
    "sqrt": lambda a, b: torch.sqrt(a),
    "sin": lambda a, b: torch.sin(a),
    "cos": lambda a, b: torch.cos(a),
    "erf": lambda a, b: torch.erf(a),
    "abs": lambda a, b: torch.abs(a),
    "abs of Python": lambda a, b: abs(a),
    "neg": lambda a, b: torch.neg(a),
    "square": lambda a, b: torch.square(a),
    "relu": lambda a, b: torch.relu(a),
    "relu of F": lambda a, b: F.relu(a),
    "maximum": lambda a, b: torch.maximum(a, b),
    "minimum": lambda a, b: torch.minimum(a, b),
    "clamp": lambda a, b: torch.clamp(a, -1.0, 1.0),
    "clamp below": lambda a, b: torch.clamp(a, min=0.5),
    "clamp above": lambda a, b: a.clamp(max=1.5),
    "where": lambda a, b: torch.where(a > b, a * a, b),
    "where of numbers": lambda a, b: torch.where(a <= 0.5, 0.0, a) + torch.where(b >= a, b, 1.0),
    "elu": lambda a, b: F.elu(a),
    "elu, alpha": lambda a, b: F.elu(a, alpha=0.5),
    "softplus": lambda a, b: F.softplus(a),
    "logsigmoid": lambda a, b: F.logsigmoid(a),
    "leaky_relu": lambda a, b: F.leaky_relu(a, 0.2),
    "silu": lambda a, b: F.silu(a),
    "gelu": lambda a, b: F.gelu(a),
    "hardtanh": lambda a, b: F.hardtanh(a),
    "hardsigmoid": lambda a, b: F.hardsigmoid(a),
    "add": lambda a, b: torch.add(a, b) + 2,
    "sub": lambda a, b: 2 - torch.sub(a, b),
    "mul": lambda a, b: torch.mul(a, b) * 3,
    "div": lambda a, b: torch.div(a, b) / 4 + 1 / a,
    "comparisons as numbers": lambda a, b: torch.exp(a > b) + 2.0 * (a > 0) + a * (b >= 1),
    "powers": lambda a, b: a**3 + a**-2 + torch.pow(b, 2) + abs(b) ** 0.5,
    "signs": lambda a, b: -a + (+b) - a.neg(),
    "methods": lambda a, b: a.sigmoid() * b.tanh() + a.abs().sqrt(),
}
POINTS = (0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, -3.0, 3.0, 11.0, -19.0, 40.0, -40.0, 1e3, -1e3)
# Calls with an infinite derivative at some point. Each is tested in a cell of its own: a call that
# torch.where does not select gets a gradient of 0, and 0 times an infinite derivative is NaN.
SINGULAR = ("exp", "expm1", "log", "log1p", "sqrt", "div", "powers", "methods")
GROUPS = ([name for name in CALLS if name not in SINGULAR], *([name] for name in SINGULAR))


def cell_of(names: list[str]) -> treadle.Cell:
    """A cell whose gate k selects the call that computes h from gates a and b."""

    def forward(a: Any, b: Any, k: Any, h: Any) -> Any:
        found = CALLS[names[0]](a, b)
        for number, name in enumerate(names[1:], 1):
            found = torch.where(torch.abs(k - number) < 0.5, CALLS[name](a, b), found)
        return found

    return treadle.Cell("functions", gates=("a", "b", "k"), forward=forward)


def test_all_functions_are_here() -> None:
    words = {word for name in CALLS for word in name.replace(",", "").split()}
    assert set(NAMES) <= words | {"pow"}


def derivatives(run: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> list[Tensor]:
    """The values, the derivatives with respect to a and b, and the second derivatives: those of the
    weighted sum of the two first derivatives, with weights 1 and 2."""
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    y = run(a, b)
    first = torch.autograd.grad(y.sum(), (a, b), create_graph=True, materialize_grads=True)
    total = (first[0] + 2 * first[1]).sum()
    second = [torch.zeros_like(a)] * 2
    # torch raises for the second derivative of hardsigmoid, which is 0.
    if total.requires_grad and run is not CALLS["hardsigmoid"]:
        second = list(torch.autograd.grad(total, (a, b), materialize_grads=True))
    return [t.detach() for t in (y, *first, *second)]


def differing(names: list[str], device: str, dtype: torch.dtype) -> list[str]:
    """The names of calls whose results differ from torch's, with the points where they differ."""
    layer = treadle.nn.Recurrent(cell_of(names), 3, 1, bias=False, dtype=dtype, device=device)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
        layer.weight_ih_l0.copy_(torch.eye(3))
    points = torch.tensor(POINTS, device=device, dtype=dtype)
    grid, wrong = torch.cartesian_prod(points, points).unbind(1), []
    for number, name in enumerate(names):

        def ours(a: Tensor, b: Tensor, number: int = number) -> Tensor:
            rows = torch.stack([a, b, torch.full_like(a, number)], -1)
            return layer(rows.unsqueeze(0))[0].flatten()  # type: ignore[no-any-return]

        both = derivatives(ours, *grid), derivatives(CALLS[name], *grid)
        # If one gradient is infinite, the product with W_ih turns all gradients of its row into
        # NaN.
        infinite = torch.stack([~t.isfinite() for t in both[1]]).any(0)
        # At 0, torch's second derivative of elu is not the derivative of its first derivative.
        odd = (grid[0] == 0) & ("elu" in name)
        for order, (found, expected) in enumerate(zip(*both, strict=True)):
            # Even in float64, torch computes hardsigmoid's 1/6 and exp of a comparison in float32.
            single = name in ("hardsigmoid", "comparisons as numbers")
            eps = torch.finfo(torch.float32 if single else dtype).eps
            rtol, atol = ((8, 4), (64, 4), (64, 4), (512, 64), (512, 64))[order]
            same = torch.isclose(found, expected, rtol * eps, atol * eps, equal_nan=True)
            if order > 0:
                same |= infinite | odd if order > 2 else infinite
            for at in (~same).nonzero().flatten()[:2].tolist():
                where = f"{name}, result {order}, at {[float(t[at]) for t in grid]}"
                wrong.append(f"{where}: {float(found[at])}, torch {float(expected[at])}")
    return wrong


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_each_function(names: list[str], device: str, dtype: torch.dtype) -> None:
    assert differing(names, device, dtype) == []


SPECIAL = (0.0, -0.0, 1e-45, 1e-40, -2e-38, 1e-30, 0.3, -0.7, 1.0, 3.0, 7e30, 1e38, 3e38)
SPECIAL += (float("inf"), float("-inf"), float("nan"), -1.0, -1 + 2**-24, 1e-10, 1e-4, 2.0**127)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of", [lambda b: 1.0 / b, torch.log1p], ids=["1/b", "log1p"])
def test_slopes_of_special_values(of: Callable[[Any], Any], device: str) -> None:
    """The gradient of the bias is of(b), because tanh'(0) is 1. On a GPU, slopes have variants of
    the division and of log1p without branches. A CPU's kernels round subnormals to 0."""
    cell = treadle.Cell(
        "special", gates=("a",), values=("b",), forward=lambda a, h, b: torch.tanh(a) * of(b)
    )
    layer = treadle.nn.Recurrent(cell, 1, len(SPECIAL), device=device)
    b = torch.tensor(SPECIAL, device=device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.b_l0.copy_(b)
    layer(torch.zeros(1, 1, 1, device=device))[0].sum().backward()
    found, expected = layer.bias_ih_l0.grad, of(b)
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=5e-7, atol=2e-38)
    assert not found[~finite].isfinite().any()


def test_each_function_without_a_compiler() -> None:
    """Without a compiler, torch's operations compute the steps."""
    code = (
        "import torch; from tests.recurrent.formula import test_formula_functions as tests;"
        "assert tests.differing(tests.GROUPS[0], 'cpu', torch.float64) == []"
    )
    environment = {**os.environ, "CXX": "no-such-compiler", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "runs with torch's op" in done.stderr
    assert "no C++ compiler was found (no-such-compiler" in done.stderr
