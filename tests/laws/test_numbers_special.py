"""lltm_cell and recurrent layers return NaN and inf where the composition does."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    Lengths,
    layer,
    layer_arguments,
    layer_reference,
)
from tests.support.cases import DEVICES, FLOATING, HALVES
from tests.support.inputs import Make
from treadle import reference

INF, NAN = float("inf"), float("nan")
FINITE = (0.0, -0.0, 1.0, -1.0, 20.0, -20.0, 1e4, -1e4)
GATES = (*FINITE, INF, -INF, NAN)
CELLS = (*FINITE, INF, -INF, NAN)
STATES = [(d, d) for d in FLOATING] + [(d, torch.float32) for d in HALVES]


def kind(t: Tensor) -> Tensor:
    """0 for finite numbers, 1 for inf, 2 for -inf, 3 for NaN."""
    return t.isnan() * 3 + (t == INF) * 1 + (t == -INF) * 2


def same_kind(actual: Tensor, expected: Tensor, at: Tensor, what: str) -> None:
    different = (kind(actual) != kind(expected)).nonzero().flatten().tolist()
    first = [
        f"{at[n].tolist()}: {actual[n].item()} where torch has {expected[n].item()}"
        for n in different[:5]
    ]
    assert not different, f"{what}, {len(different)} of {len(actual)}: {first}"


def cells_of(values: Tensor, dtype: torch.dtype, state: torch.dtype) -> tuple[Tensor, ...]:
    """Returns the arguments of lltm_cell for one cell per row (g0, g1, g2, old_cell). Each cell has
    one unit, and its bias is g0, g1 and g2."""
    n = len(values)
    weights = torch.zeros(n, 3, 2, dtype=dtype, device=values.device)
    zeros = torch.zeros(n, 1, 1, dtype=dtype, device=values.device)
    return zeros, weights, values[:, :3].to(dtype), zeros.clone(), values[:, 3:, None].to(state)


def results(function: object, arguments: tuple[Tensor, ...], grads: tuple[float, float]) -> dict:
    """Returns new_h, new_cell and the gradients of the three gates and of old_cell, each with one
    value per cell."""
    leaves = [t.detach().requires_grad_() for t in arguments]
    new_h, new_cell = function(*leaves)
    chosen = [(t, g) for t, g in zip((new_h, new_cell), grads, strict=True) if g != 0]
    found = torch.autograd.grad(
        [t for t, _ in chosen], leaves, [torch.full_like(t, g) for t, g in chosen]
    )
    gates = dict(zip(("g0", "g1", "g2"), found[2].unbind(1), strict=True))
    return {
        "new_h": new_h.detach().flatten(),
        "new_cell": new_cell.detach().flatten(),
        "grad_old_cell": found[4].flatten(),
        **{f"grad_{name}": grad for name, grad in gates.items()},
    }


def matrix(gates: tuple[float, ...], cells: tuple[float, ...], device: str) -> Tensor:
    rows = list(itertools.product(gates, gates, gates, cells))
    return torch.tensor(rows, dtype=torch.float64, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grads", [(1.0, 1.0), (-2.0, 0.0), (0.0, 0.5)], ids=str)
@pytest.mark.parametrize(("dtype", "state"), STATES)
def test_same_kind_everywhere(
    dtype: torch.dtype, state: torch.dtype, grads: tuple[float, float], device: str
) -> None:
    values = matrix(GATES, CELLS, device)
    arguments = cells_of(values, dtype, state)
    ours = results(treadle.lltm_cell, arguments, grads)
    theirs = results(torch.vmap(reference.lltm_cell), arguments, grads)
    # The gradient of torch's elu for NaN is NaN in vectorised loops, but not in scalar loops.
    theirs["grad_g2"] = torch.where(values[:, 2].isnan(), NAN, theirs["grad_g2"])
    for name, actual in ours.items():
        same_kind(actual, theirs[name], values, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [INF, -INF, NAN, 100.0])
@pytest.mark.parametrize(("dtype", "state"), STATES)
def test_same_kind_of_gradients_that_come_in(
    dtype: torch.dtype, state: torch.dtype, grad: float, device: str
) -> None:
    # With these values no gate underflows in float16, no product overflows and no sum is 0.
    values = matrix((0.0, 1.0, -1.0, 10.0, -10.0, INF, -INF), (0.0, 2.5, -3.25, INF), device)
    arguments = cells_of(values, dtype, state)
    for grads in ((grad, 0.0), (0.0, grad), (grad, 1.0)):
        ours = results(treadle.lltm_cell, arguments, grads)
        theirs = results(torch.vmap(reference.lltm_cell), arguments, grads)
        for name, actual in ours.items():
            same_kind(actual, theirs[name], values, f"{name} for {grads}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "state"), STATES)
def test_finite_gates_have_finite_gradients(
    dtype: torch.dtype, state: torch.dtype, device: str
) -> None:
    wide = (*FINITE, 88.0, 89.0, -88.0, -104.0, 710.0, -746.0, 6e4, -6e4, 1e-7)
    values = matrix(wide, (0.0, 3.0, -3.0, 1e4), device)
    found = results(treadle.lltm_cell, cells_of(values, dtype, state), (1.0, 1.0))
    for name, actual in found.items():
        if not name.startswith("grad"):
            continue
        assert actual.isfinite().all(), (name, values[~actual.isfinite()][:5].tolist())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "state"), STATES)
def test_same_kind_in_one_wide_cell(dtype: torch.dtype, state: torch.dtype, device: str) -> None:
    """Tests the vectorised loops, with one unit per triple of gates and one row per old_cell."""
    gates = torch.tensor(list(itertools.product(GATES, GATES, GATES))[:1000], device=device)
    hidden = len(gates)
    old_cell = torch.tensor(CELLS, dtype=state, device=device)[:, None].expand(-1, hidden)
    arguments = (
        torch.zeros(len(CELLS), 0, dtype=dtype, device=device),
        torch.zeros(3 * hidden, hidden, dtype=dtype, device=device),
        gates.t().reshape(-1).to(dtype),
        torch.zeros(len(CELLS), hidden, dtype=dtype, device=device),
        old_cell,
    )
    at = torch.arange(len(CELLS) * hidden, device=device)
    names = ("new_h", "new_cell")
    for name, ours, theirs in zip(
        names, treadle.lltm_cell(*arguments), reference.lltm_cell(*arguments), strict=True
    ):
        same_kind(ours.flatten(), theirs.flatten(), at, name)


@pytest.mark.parametrize("position", range(5))
def test_a_value_that_is_not_finite_stays_in_its_row(position: int) -> None:
    torch.manual_seed(0)
    arguments = [torch.randn(s) for s in ((4, 3), (15, 8), (15,), (4, 5), (4, 5))]
    arguments[position].view(-1)[1] = NAN
    for ours, theirs in zip(
        treadle.lltm_cell(*arguments), reference.lltm_cell(*arguments), strict=True
    ):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert ours.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("lengths", [None, (3, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(("cell", "position"), [(c, i) for c in ARGUMENTS for i in ARGUMENTS[c]])
def test_a_value_that_is_not_finite_goes_the_layers_way(
    cell: str, position: int, value: float, lengths: Lengths, recompute: bool, device: str
) -> None:
    """NaN and inf spread along their row and to later steps, in results and gradients."""
    make = Make("special", device, torch.float32)
    call = layer_arguments(make, (3, 4, 3, 5), cell=cell, directions=2, lengths=lengths)
    call.args[position].view(-1)[1] = value
    found = []
    for function in (layer, layer_reference):
        leaves = call.map(lambda t: t.detach().requires_grad_())
        results = leaves.with_options(recompute=recompute).run(function)
        grads = torch.autograd.grad(
            sum(t.sum() for t in results), [leaves.args[i] for i in ARGUMENTS[cell]]
        )
        found.append([*results, *grads])
    saturates = position >= 6 and value in (INF, -INF)  # a bias that saturates one gate
    unread = position == 3 and cell not in ("lltm", "lstm", "gru")  # c0 of an RNN
    if not (saturates or unread):
        assert any(not t.isfinite().all() for t in found[0])
    for n, (ours, theirs) in enumerate(zip(*found, strict=True)):
        at = torch.arange(ours.numel(), device=device)
        same_kind(ours.detach().flatten(), theirs.detach().flatten(), at, f"result {n}")


def test_another_kind_is_noticed() -> None:
    t = torch.tensor([0.0, INF, -INF, NAN])
    for n, value in itertools.product(range(4), (1.0, INF, -INF, NAN)):
        planted = t.clone()
        planted[n] = value
        if kind(planted[n : n + 1]) == kind(t[n : n + 1]):
            same_kind(planted, t, t, "planted")
        else:
            with pytest.raises(AssertionError, match="1 of 4"):
                same_kind(planted, t, t, "planted")
