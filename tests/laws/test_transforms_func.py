"""torch.func on every op: grad, jvp, jacobians, hessians and ensembles equal the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_map

from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import ARGUMENTS, TRACED_CELLS, layer_arguments
from tests.sine_linear.cases import sine_arguments
from tests.sine_linear_jet.cases import SECONDS, jet_arguments
from tests.support.cases import DEVICES, OPS
from tests.support.forms import FORMS
from tests.support.inputs import Make, outputs
from treadle import reference
from treadle.nn import LLTMCell

pytestmark = pytest.mark.usefixtures("no_slow_vmap")

Function = Callable[..., Any]


def layer_call(
    make: Make, cell: str, **options: Any
) -> tuple[Function, Function, tuple[Tensor, ...]]:
    op = OPS[f"recurrent_layer {cell}"]
    call = layer_arguments(make, (2, 2, 2, 2), cell=cell, **options)
    positions = [i for i in ARGUMENTS[cell] if call.args[i] is not None]

    def of_tensors(f: Function) -> Function:
        return lambda *t: call.with_args(dict(zip(positions, t, strict=True))).run(f)

    return of_tensors(op.function), of_tensors(op.reference), tuple(call.args[i] for i in positions)


def calls(device: str) -> dict[str, tuple[Function, Function, tuple[Tensor, ...]]]:
    """Returns each op and its reference as functions of tensors only, and these tensors."""
    make = Make("func", device, torch.float64)
    found = {}
    for name, op in OPS.items():
        if name == "lltm_cell":
            arguments = cell_arguments(make, (2, 3, 2)).args
            found[name] = (op.function, op.reference, arguments)
            no_bias = tuple(a for i, a in enumerate(arguments) if i != 2)
            found["lltm_cell without bias"] = (
                lambda x, w, h, c, f=op.function: f(x, w, None, h, c),
                lambda x, w, h, c, f=op.reference: f(x, w, None, h, c),
                no_bias,
            )
        elif name == "sine_linear":
            for inputs in (2, 5):
                arguments = sine_arguments(make, (2,), (inputs, 2)).args[:3]
                found[f"{name} of {inputs}"] = (
                    lambda x, w, b, f=op.function: f(x, w, b, 1.3),
                    lambda x, w, b, f=op.reference: f(x, w, b, 1.3),
                    arguments,
                )
            found["sine_linear without bias"] = (
                lambda x, w, f=op.function: f(x, w, None, 1.3),
                lambda x, w, f=op.reference: f(x, w, None, 1.3),
                arguments[:2],
            )
        elif name == "sine_linear_jet":
            for second in SECONDS:
                arguments = jet_arguments(make, (2,), (3, 2), second=second).args[:3]
                found[f"{name} {second}"] = (
                    lambda x, w, b, f=op.function, s=second: f(x, w, b, 1.3, 2, s),
                    lambda x, w, b, f=op.reference, s=second: f(x, w, b, 1.3, 2, s),
                    arguments,
                )
        elif op.is_layer:
            cell = name.split()[1]
            found[name] = layer_call(make, cell, directions=2)
            packed = {"lengths": (3, 1), "directions": 2, "bias": False}
            found[f"{name}, packed"] = layer_call(make, cell, **packed)
    for name, form in FORMS.items():
        if form.variant == "row":
            continue  # here y is a row in the plain variant as well
        found[name] = (
            lambda x, y=None, f=form: f.new(x, y),
            lambda x, y=None, f=form: f.reference(x, y),
            (make(3, 2), make(2))[: 2 if form.reads_y else 1],
        )
    return found


NAMES = tuple(calls("cpu"))


def total(function: Function) -> Function:
    """A scalar function that gives each result a different weight."""
    return lambda *t: sum((r.sin() * (n + 2)).sum() for n, r in enumerate(outputs(function(*t))))


def gradient(f: Function, t: tuple[Tensor, ...]) -> Any:
    return grad(total(f), tuple(range(len(t))))(*t)


def tangents(t: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple((x * 3 + 0.5).cos() for x in t)


TRANSFORMS: dict[str, Callable[[Function, tuple[Tensor, ...]], Any]] = {
    "grad": gradient,
    "grad of grad": lambda f, t: gradient(
        lambda *u: sum(g.square().sum() for g in gradient(f, u)), t
    ),
    "vjp": lambda f, t: vjp(f, *t)[1](tree_map(torch.cos, f(*t))),
    "jvp": lambda f, t: jvp(f, t, tangents(t)),
    "jvp of one": lambda f, t: jvp(lambda x: f(x, *t[1:]), t[:1], tangents(t[:1])),
    "jvp of jvp": lambda f, t: jvp(lambda *u: jvp(f, u, tangents(u))[1], t, tangents(t)),
    "jvp of grad": lambda f, t: jvp(lambda *u: gradient(f, u), t, tangents(t)),
    "grad of jvp": lambda f, t: gradient(lambda *u: jvp(f, u, tangents(u))[1], t),
    "linearize": lambda f, t: linearize(f, *t)[1](*tangents(t)),
    "jacrev": lambda f, t: jacrev(f, tuple(range(len(t))))(*t),
    "jacfwd": lambda f, t: jacfwd(f, tuple(range(len(t))))(*t),
    "jacrev of jacrev": lambda f, t: jacrev(jacrev(f))(*t),
    "jacfwd of jacfwd": lambda f, t: jacfwd(jacfwd(f))(*t),
    "jacrev of jacfwd": lambda f, t: jacrev(jacfwd(f))(*t),
    "hessian": lambda f, t: hessian(total(f), tuple(range(len(t))))(*t),
    "vmap of grad": lambda f, t: vmap(lambda *u: gradient(f, u))(*(stacked(x) for x in t)),
    "vmap of hessian": lambda f, t: vmap(hessian(total(f)))(*(stacked(x) for x in t)),
    "grad of vmap": lambda f, t: gradient(vmap(f), tuple(stacked(x) for x in t)),
    "vmap of jvp": lambda f, t: vmap(lambda *u: jvp(f, u, tangents(u)))(*(stacked(x) for x in t)),
    "jvp of vmap": lambda f, t: jvp(
        vmap(f), tuple(stacked(x) for x in t), tuple(stacked(x) for x in tangents(t))
    ),
}


def stacked(t: Tensor) -> Tensor:
    return torch.stack([t, t * 0.5 - 1, t.flip(0)])


# linearize traces the function, which takes seconds for a layer.
UNTRACED = {name for name, op in OPS.items() if op.is_layer and name.split()[1] not in TRACED_CELLS}
CASES = [
    (name, transform)
    for name in NAMES
    for transform in TRANSFORMS
    if transform != "linearize" or name.removesuffix(", packed") not in UNTRACED
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "transform"), CASES)
def test_transform(name: str, transform: str, device: str) -> None:
    ours, theirs, tensors = calls(device)[name]
    run = TRANSFORMS[transform]
    torch.testing.assert_close(run(ours, tensors), run(theirs, tensors), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_functional_call_and_ensemble(device: str) -> None:
    """Runs five cells with different weights in one vmap, and computes their gradients."""
    torch.manual_seed(0)
    cells = [LLTMCell(4, 3, device=device, dtype=torch.float64) for _ in range(5)]
    parameters, buffers = stack_module_state(cells)  # type: ignore[arg-type]
    x = torch.randn(7, 4, dtype=torch.float64, device=device)
    base = LLTMCell(4, 3, device="meta", dtype=torch.float64)

    def run(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(base, (p, b), (x,))

    together = vmap(run, in_dims=(0, 0, None))(parameters, buffers, x)
    for n, cell in enumerate(cells):
        torch.testing.assert_close(tuple(t[n] for t in together), cell(x), rtol=1e-12, atol=1e-12)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return sum(t.square().sum() for t in run(p, b, x))

    grads = vmap(grad(loss), in_dims=(0, 0, None))(parameters, buffers, x)
    for n, cell in enumerate(cells):
        sum(t.square().sum() for t in cell(x)).backward()
        for name, parameter in cell.named_parameters():
            torch.testing.assert_close(grads[name][n], parameter.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_per_sample_gradients(device: str) -> None:
    make = Make("samples", device, torch.float64)
    cell = LLTMCell(4, 3, device=device, dtype=torch.float64)
    parameters = dict(cell.named_parameters())
    x = make(6, 4)

    def loss(function: Function) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
        def run(p: dict[str, Tensor], row: Tensor) -> Tensor:
            zeros = row.new_zeros(1, 3)
            h, c = function(row[None], p["weights"], p["bias"], zeros, zeros)
            return (h * c).sum()

        return run

    ours, theirs = (
        vmap(grad(loss(f)), in_dims=(None, 0))(parameters, x)
        for f in (OPS["lltm_cell"].function, reference.lltm_cell)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_wrong_derivative_is_noticed() -> None:
    ours, _, tensors = calls("cpu")["sine"]
    wrong = TRANSFORMS["hessian"](lambda x: torch.sin(x) * (1 + 1e-7), tensors)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            TRANSFORMS["hessian"](ours, tensors), wrong, rtol=1e-9, atol=1e-9
        )
