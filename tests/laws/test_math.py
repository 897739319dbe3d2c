"""Tests the formulas of the CPU kernels, in every instruction set that this machine supports.

Errors in ulp against float64 or mpmath are bounded, for a sample of all floats and for all values
of half types. The results and gradients of `lltm_cell` are NaN or inf exactly where those of its
composition are. To test one activation, the arguments of `lltm_cell` are chosen so that its result
is that of the activation.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import mpmath
import pytest
import torch
from torch import Tensor

import treadle
from tests.elementwise.waves import (
    EACH_WAVE,
    OPS_OF,
    WAVES,
    Exact,
    as_promised,
    every_half,
    hard_doubles,
    hard_floats,
    rounded_correctly,
)
from tests.support import installed
from tests.support.compare import ulp, within_ulps
from tests.support.inputs import FLOATING, HALVES

INF, NAN = math.inf, math.nan


def floats(low: float, high: float, count: int) -> Tensor:
    """float32 numbers spread evenly over the bit patterns from `low` to `high`, of both signs."""
    ends = torch.tensor([low, high]).view(torch.int32).tolist()
    x = torch.linspace(*ends, count, dtype=torch.float64).int().view(torch.float32)
    return torch.where(torch.arange(count) % 2 == 0, x, -x)


def doubles(high: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, dtype=torch.float64, generator=generator) * 2 - 1
    return torch.cat([x * high, x, x * torch.exp2(-60 * x.flip(0).abs())])


def exact(function: str, x: Tensor) -> Tensor:
    """mpmath's `function` at float64 `x`, rounded to float64."""
    with mpmath.workdps(40):
        if function == "sigmoid":
            values = [1 / (1 + mpmath.exp(-v)) for v in x.tolist()]
        else:
            values = [getattr(mpmath, function)(v) for v in x.tolist()]
        return torch.tensor([float(v) for v in values], dtype=torch.float64)


def cells(gates: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """Runs lltm_cell on N independent cells with one unit each, for gates [N, 3] and old_cell [N].
    Each row of gates is the bias of one cell."""
    n = len(old_cell)
    zeros = gates.new_zeros(n, 1, 1)
    new_h, new_cell = treadle.lltm_cell(
        zeros, gates.new_zeros(n, 3, 2), gates, zeros, old_cell.view(n, 1, 1)
    )
    return new_h.view(n), new_cell.view(n)


def with_gates(x: Tensor, *gates: float | None, old_cell: float | None) -> tuple[Tensor, Tensor]:
    """Gates [N, 3] and old_cell [N], which require gradients. Each column is the given constant, or
    `x` in place of None."""
    columns = [x if g is None else torch.full_like(x, g) for g in (*gates, old_cell)]
    return torch.stack(columns[:3], 1).requires_grad_(), columns[3].clone().requires_grad_()


def sigmoid(x: Tensor) -> Tensor:
    return cells(*with_gates(x, 0, None, 0, old_cell=INF))[0].detach()


def tanh(x: Tensor) -> Tensor:
    return cells(*with_gates(x, 0, 100, 0, old_cell=None))[0].detach()


def elu(x: Tensor) -> Tensor:
    return cells(*with_gates(x, 1000, 0, None, old_cell=0))[1].detach()


def sigmoid_slope(x: Tensor) -> Tensor:
    gates, old_cell = with_gates(x, None, 0, 1, old_cell=0)
    return torch.autograd.grad(cells(gates, old_cell)[1].sum(), gates)[0][:, 0]


def elu_slope(x: Tensor) -> Tensor:
    gates, old_cell = with_gates(x, 1000, 0, None, old_cell=0)
    return torch.autograd.grad(cells(gates, old_cell)[1].sum(), gates)[0][:, 2]


def tanh_slope(x: Tensor) -> Tensor:
    gates, old_cell = with_gates(x, 0, 100, 0, old_cell=None)
    return torch.autograd.grad(cells(gates, old_cell)[0].sum(), old_cell)[0]


@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_a_smaller_instruction_set(isa: str) -> None:
    """Runs the other tests of this file again, in a process limited to `isa`."""
    others = ("-m", "pytest", "-q", "-x", __file__, "-k", "not smaller_instruction_set")
    done = installed.held_to(isa, *others)
    assert done.returncode == 0, done.stdout[-3000:]


def waves(name: str, x: Tensor) -> list[Tensor]:
    """sine or cosine computed in two ways: by its op, and by the backward op that multiplies a
    gradient by it."""
    return [function(x) for function in OPS_OF[name]]


def test_exponential() -> None:
    """With logscale=True, snake computes exp(log(alpha)). The test recovers this value as the
    gradient with respect to log(alpha) divided by that with respect to alpha."""
    for low, high, by in ((-87.0, -9.1, 1.0), (-3.0, 74.0, 2.0**-120)):
        logs = torch.linspace(low, high, 20_000).requires_grad_()
        alpha = logs.detach().exp().requires_grad_()
        found = []
        for leaf, logscale in ((logs, True), (alpha, False)):
            # The phases are so small that alpha's gradient does not depend on alpha.
            y = treadle.snake(torch.full((1, len(leaf)), by), leaf, logscale=logscale)
            found += torch.autograd.grad(y, leaf, torch.full_like(y, 1 / by))
        ours = found[0].double() / found[1].double()
        exact = logs.detach().double().exp()
        # The error of exp is at most 0.66 ulp, and that of the product at most 0.5 ulp.
        assert float(((ours - exact).abs() / ulp(exact, torch.float32)).max()) <= 1.2


@EACH_WAVE
def test_waves_in_single_precision(name: str) -> None:
    x = torch.cat([floats(0.0, 3e38, 1 << 20), hard_floats()])
    for y in waves(name, x):
        as_promised(name, y, WAVES[name][1](x.double()))


@cache
def easy_and_hard_doubles() -> Exact:
    multiples = torch.arange(-300, 300, dtype=torch.float64) * (math.pi / 2) * 1009
    return Exact(torch.cat([doubles(3e6), multiples, doubles(1e12), hard_doubles()]))


@EACH_WAVE
def test_waves_in_double_precision(name: str) -> None:
    exact = easy_and_hard_doubles()
    for y in waves(name, exact.x):
        exact.check(name, y)


@EACH_WAVE
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_waves_of_every_half(dtype: torch.dtype, name: str) -> None:
    x = every_half(dtype)
    for y in waves(name, x):
        rounded_correctly(name, x, y)


@EACH_WAVE
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_waves_of_zeros_infinities_and_nan(dtype: torch.dtype, name: str) -> None:
    # Puts each special value among ordinary numbers, at every position of a vector and in the tail.
    for place in range(70):
        x = torch.linspace(-3, 3, 70, dtype=dtype)
        for special in (0.0, -0.0, INF, -INF, NAN):
            x[place] = special
            for y in waves(name, x):
                within_ulps(y, WAVES[name][1](x.double()), 2, (place, special))


SINGLE = floats(1e-30, 80.0, 1 << 16)


@pytest.mark.parametrize(
    ("ours", "truth", "bound"),
    [
        (sigmoid, torch.sigmoid, 2.5),
        (tanh, torch.tanh, 3),
        (elu, torch.nn.functional.elu, 1.1),
        (sigmoid_slope, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), 6),
        (tanh_slope, lambda x: 1 / torch.cosh(x) ** 2, 6),
        (elu_slope, lambda x: torch.exp(x.clamp(max=0)), 1.1),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_activation_in_single_precision(ours, truth, bound: float) -> None:
    near = {tanh_slope: SINGLE.abs() < 22, sigmoid_slope: SINGLE < 44}
    x = SINGLE[near[ours]] if ours in near else SINGLE
    within_ulps(ours(x), truth(x.double()), bound, ours.__name__)


def test_slopes_far_out_are_zero() -> None:
    """Slopes become 0 before they would be subnormal. torch computes them from 1 - y or 1 - y**2,
    where y is the activation. This difference becomes 0 much earlier."""
    x = floats(23.0, 100.0, 1 << 10)
    assert not tanh_slope(x).any() and not sigmoid_slope(2 * x.abs()).any()
    x = 2 * x.double()
    assert not tanh_slope(x).any() and not sigmoid_slope(2 * x.abs()).any()


@pytest.mark.parametrize(
    ("ours", "function", "bound"),
    [(sigmoid, "sigmoid", 2.6), (tanh, "tanh", 3), (elu, "expm1", 1.3)],
)
def test_activation_in_double_precision(ours, function: str, bound: float) -> None:
    x = doubles(700.0)
    if ours is elu:
        x = -x.abs()
    within_ulps(ours(x), exact(function, x), bound, function)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_gradients_are_finite_for_finite_gates(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    values = (0, 1, -1, 20, -20, 95, -95, 800, -800, largest, -largest)
    grid = torch.tensor(list(itertools.product(values, repeat=3)), dtype=dtype)
    gates, old_cell = grid.requires_grad_(), torch.ones(len(grid), dtype=dtype).requires_grad_()
    new_h, new_cell = cells(gates, old_cell)
    for output in (new_h, new_cell):
        for grad in torch.autograd.grad(output.sum(), (gates, old_cell), retain_graph=True):
            # No gradient exceeds elu(largest), because all other factors are at most 1.
            assert bool(grad.isfinite().all())


def composition(gates: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """Computes reference.lltm_cell without its matrix product, for comparison with `cells`."""
    i, o, z = gates.t().contiguous()
    new_cell = old_cell + torch.nn.functional.elu(z) * torch.sigmoid(i)
    return torch.tanh(new_cell) * torch.sigmoid(o), new_cell


def kind(t: Tensor) -> Tensor:
    return t.isnan().int() * 3 + (t == INF).int() + (t == -INF).int() * 2


@pytest.mark.parametrize("state", FLOATING, ids=str)
def test_nan_and_inf_are_where_the_composition_has_them(state: torch.dtype) -> None:
    gate = (0.0, 1, -1, 9, -9, 30, -30, -95, -200, 200, INF, -INF, NAN)
    cell = (0.0, 2, -6, INF, -INF, NAN)
    grid = torch.tensor(list(itertools.product(gate, gate, gate, cell)), dtype=torch.float64)
    # Pads the grid to whole SIMD vectors. In the scalar tail of a tensor, torch's elu returns 1 as
    # the slope at NaN.
    grid = torch.cat([grid, grid[: -len(grid) % 64]])
    grid = grid.to(state)

    results = []
    for run in (cells, composition):
        gates, old_cell = grid[:, :3].clone().requires_grad_(), grid[:, 3].clone().requires_grad_()
        outputs = run(gates, old_cell)
        found = {"forward": kind(torch.stack(outputs).detach())}
        for grads in itertools.product((None, 1.0, INF, NAN), repeat=2):
            used = [k for k in (0, 1) if grads[k] is not None]
            if not used:
                continue
            of_gates, of_cell = torch.autograd.grad(
                [outputs[k] for k in used],
                (gates, old_cell),
                [torch.full_like(outputs[k], grads[k]) for k in used],
                retain_graph=True,
            )
            found[str(grads)] = kind(torch.cat([of_gates, of_cell.unsqueeze(1)], 1))
        results.append(found)
    for name, ours in results[0].items():
        assert torch.equal(ours, results[1][name]), name
