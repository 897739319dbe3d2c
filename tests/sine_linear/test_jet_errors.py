"""Jets reject bad arguments, with the same messages for CPU, CUDA and meta tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.support.inputs import DEVICES
from treadle import Jet
from treadle.nn import SineLinear, Siren

WHERE = sorted({*DEVICES, "meta"})
N, I, D = 5, 3, 2  # noqa: E741


def jet(device: str, **changed: Any) -> Jet:
    parts = {"value": (N, I), "gradient": (N, I, D), "laplacian": (N, I)}
    made = {name: torch.zeros(shape, device=device) for name, shape in parts.items()}
    return Jet(**{**made, **{k: v(device) if callable(v) else v for k, v in changed.items()}})


def zeros(*shape: int, **options: Any) -> Callable[[str], Tensor]:
    return lambda device: torch.zeros(shape, **{"device": device, **options})


GRADIENT = f"jet.gradient must have shape [..., O, d] = [{N}, {I}, d] with d of at least 1, got"
# A jet with a wrong part, the error's class, and its text after the function's name.
JETS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no gradient": (
        {"gradient": None},
        TypeError,
        "jet.gradient must be a tensor, got NoneType",
    ),
    "a list": ({"value": [1.0]}, TypeError, "jet.value must be a tensor, got list"),
    "integers": (
        {"value": zeros(N, I, dtype=torch.int64)},
        TypeError,
        "jet.value must have a floating-point dtype, got int64",
    ),
    "a number": ({"value": zeros()}, ValueError, "jet.value must have shape [..., O], got []"),
    "no coordinates": ({"gradient": zeros(N, I, 0)}, ValueError, f"{GRADIENT} [{N}, {I}, 0]"),
    "gradient of other points": (
        {"gradient": zeros(4, I, D)},
        ValueError,
        f"{GRADIENT} [4, {I}, {D}]",
    ),
    "gradient, coordinates first": (
        {"gradient": zeros(D, N, I)},
        ValueError,
        f"{GRADIENT} [{D}, {N}, {I}]",
    ),
    "Laplacian": (
        {"laplacian": zeros(N, I, 1)},
        ValueError,
        f"jet.laplacian must have the shape of jet.value, [{N}, {I}], got [{N}, {I}, 1]",
    ),
    "Hessian": (
        {"hessian_diagonal": zeros(N, I, D, D)},
        ValueError,
        f"jet.hessian_diagonal must have the shape of jet.gradient, [{N}, {I}, {D}], "
        f"got [{N}, {I}, {D}, {D}]",
    ),
    "dtypes": (
        {"laplacian": zeros(N, I, dtype=torch.float64)},
        TypeError,
        "jet.laplacian must have the dtype of jet.value, float32, got float64",
    ),
    "devices": (
        {"gradient": lambda device: torch.zeros(N, I, D, device=other(device))},
        RuntimeError,
        "jet.gradient must be on the device of jet.value, {device}, got {other}",
    ),
}


def other(device: str) -> str:
    return "meta" if device == "cpu" else "cpu"


def full(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("case", JETS)
def test_parts_that_do_not_go_together(case: str, device: str) -> None:
    changed, error, words = JETS[case]
    wrong = jet(device, **changed)
    layer = SineLinear(I, 4, device=device)
    weight = torch.zeros(4, I, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "SineLinear.jet": lambda: layer.jet(wrong),
        "jet_linear": lambda: treadle.jet_linear(wrong, weight),
        "Jet.map": lambda: wrong.map(torch.tanh),
        "Jet.cat": lambda: Jet.cat([wrong]),
        "Jet.split": lambda: wrong.split([1, 2]),
    }
    if case != "no gradient":
        calls["Jet"] = lambda: wrong * wrong
    for name, call in calls.items():
        said = f"{name}: {words.format(device=full(device), other=other(device))}"
        with pytest.raises(error, match=f"^{re.escape(said)}$"):
            call()


COORDINATES: dict[str, tuple[Any, type[Exception], str]] = {
    "integers": (
        zeros(N, D, dtype=torch.int64),
        TypeError,
        "must have a floating-point dtype, got int64: call x.float()",
    ),
    "complex": (
        zeros(N, D, dtype=torch.complex64),
        TypeError,
        "must have a floating-point dtype, got complex64: call x.float()",
    ),
    "none": (
        zeros(N, 0),
        ValueError,
        f"must have shape [..., d] with d of at least 1, got [{N}, 0]",
    ),
    "0-dim": (zeros(), ValueError, "must have shape [..., d] with d of at least 1, got []"),
    "a list": (lambda _: [0.5], TypeError, "must be a tensor, got list"),
}


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("case", COORDINATES)
def test_coordinates(case: str, device: str) -> None:
    make, error, words = COORDINATES[case]
    x = make(device)
    for name, call in (("of", Jet.of), ("affine", lambda x: Jet.affine(x, 2.0))):
        with pytest.raises(error, match=f"^{re.escape(f'Jet.{name}: x {words}')}$"):
            call(x)


@pytest.mark.parametrize("device", WHERE)
def test_scales_of_coordinates(device: str) -> None:
    x = torch.zeros(N, D, device=device)
    for name, given in (("scale", (x[:, 0], 1.0)), ("shift", (1.0, x))):
        shape = list(given[0].shape) if name == "scale" else list(x.shape)
        said = f"Jet.affine: {name} must be a number or have shape [d] = [{D}], got {shape}"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            Jet.affine(x, *given)


@pytest.mark.parametrize("device", WHERE)
def test_siren_blames_its_input(device: str) -> None:
    net = Siren(D, 8, 1, 1, device=device)
    dtype = "must have the dtype of the parameters, float32, got"
    cases: tuple[tuple[Any, type[Exception], str], ...] = (
        (torch.zeros(N, D, dtype=torch.int64), RuntimeError, f"x {dtype} int64: call x.float()"),
        (torch.zeros(N, D).double(), RuntimeError, f"x {dtype} float64: call x.float()"),
        (torch.zeros(N, 3), ValueError, f"x must have shape [..., {D}], got [{N}, 3]"),
        ([0.5], TypeError, "x must be a tensor, got list"),
        (Jet.of(torch.zeros(N, D)), TypeError, "x must be a tensor, got Jet"),
    )
    for x, error, words in cases:
        x = x.to(device) if type(x) is Tensor else x
        with pytest.raises(error, match=f"^{re.escape(f'Siren.jet: {words}')}$"):
            net.jet(x)
    for k, name in enumerate(("gradient", "laplacian", "hessian_diagonal")):
        flags: list[Any] = [True, True, True]
        flags[k] = 1
        with pytest.raises(TypeError, match=f"^Siren.jet: {name} must be a bool, got int$"):
            net.jet(torch.zeros(N, D, device=device), *flags)


@pytest.mark.parametrize("device", WHERE)
def test_what_is_no_jet(device: str) -> None:
    x = torch.zeros(N, I, device=device)
    layer, weight = SineLinear(I, 4, device=device), torch.zeros(4, I, device=device)
    for given in (x, (x, None, None, None), None):
        found = type(given).__name__
        words = f"jet must be a treadle.Jet, got {found}: call treadle.Jet.of(x) for coordinates x"
        for name, call in (
            ("SineLinear.jet", lambda j: layer.jet(j)),
            ("jet_linear", lambda j: treadle.jet_linear(j, weight)),
        ):
            with pytest.raises(TypeError, match=f"^{re.escape(f'{name}: {words}')}$"):
                call(given)
    with pytest.raises(TypeError, match="^Jet.cat: jets must hold a treadle.Jet, got none$"):
        Jet.cat([x, x])
    for wrong in ("a", [1.0], None):
        with pytest.raises(TypeError, match="unsupported operand|can't multiply"):
            jet(device) * wrong
        with pytest.raises(TypeError, match="unsupported operand|can only concatenate"):
            wrong + jet(device)


@pytest.mark.parametrize("device", WHERE)
def test_jets_of_other_parts(device: str) -> None:
    one, without = jet(device), jet(device, laplacian=None)
    by_three = jet(device, gradient=zeros(N, I, 3))
    by = f"with respect to {D} coordinates"
    held = f"must have the parts value, gradient, laplacian {by}, got"
    for two, found in (
        (without, f"value, gradient {by}"),
        (by_three, "value, gradient, laplacian with respect to 3 coordinates"),
    ):
        for name, call in (
            ("Jet: other", lambda t: one + t),
            ("Jet: other", lambda t: one * t),
            ("Jet.cat: jets", lambda t: Jet.cat([one, t])),
        ):
            with pytest.raises(ValueError, match=f"^{re.escape(f'{name} {held} {found}')}$"):
                call(two)


@pytest.mark.parametrize("device", WHERE)
def test_weights_that_do_not_fit(device: str) -> None:
    given, weight = jet(device), torch.zeros(4, I, device=device)
    for args, words in (
        ((weight.T,), f"weight must have shape [O, I] with I = {I}, got [{I}, 4]"),
        ((weight[0],), f"weight must have shape [O, I] with I = {I}, got [{I}]"),
        ((weight, weight), f"bias must have shape [O] = [4], got [4, {I}]"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(f'jet_linear: {words}')}$"):
            treadle.jet_linear(given, *args)
    said = f"SineLinear.jet: jet.value must have shape [..., 7], got [{N}, {I}]"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        SineLinear(7, 4, device=device).jet(given)
    said = "SineLinear.jet: jet.value must have the dtype of the parameters, float64, got float32"
    with pytest.raises(RuntimeError, match=f"^{re.escape(said)}: call jet.value.double"):
        SineLinear(I, 4, device=device, dtype=torch.float64).jet(given)


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("omega", [0.0, math.inf, math.nan])
def test_omega_of_a_jet(omega: float, device: str) -> None:
    """Jets do not support an omega of 0. A module accepts 0 in its first layer, but its jet
    raises."""
    packed, weight = torch.zeros(3, N, I, device=device), torch.zeros(4, I, device=device)
    found = {0.0: "0", math.inf: "inf"}.get(omega, "nan")
    said = f"sine_linear_jet: omega must be finite and not 0 in float32, got {found}"
    with pytest.raises(RuntimeError, match=f"^{said}"):
        treadle.sine_linear_jet(packed, weight, None, omega, D)
    if omega == 0:
        with pytest.raises(RuntimeError, match=f"^{said}"):
            Siren(I, 8, 1, 1, first_omega_0=0.0, device=device).jet(packed[0])


def test_what_the_op_takes_is_named() -> None:
    packed, weight = torch.zeros(3, N, I), torch.zeros(4, I)
    for k, name in enumerate(("jet", "weight", "bias")):
        args: list[Any] = [packed, weight, weight[:, 0]]
        args[k] = [1.0]
        said = f"sine_linear_jet: {name} must be a tensor, got list"
        with pytest.raises(TypeError, match=f"^{said}$"):
            treadle.sine_linear_jet(*args, 2.0, D)


@pytest.mark.parametrize("op", ["sine_linear", "sine_linear_jet"])
def test_omega_is_a_number_without_a_gradient(op: str) -> None:
    packed, weight = torch.zeros(3, N, I), torch.zeros(4, I)
    rest = (D,) if op == "sine_linear_jet" else ()
    for omega, found in (
        (torch.tensor(2.0, requires_grad=True), "a tensor that requires grad"),
        ("2", "str"),
    ):
        with pytest.raises(TypeError, match=f"^{op}: omega must be a number, .*got {found}$"):
            getattr(treadle, op)(packed, weight, None, omega, *rest)


def test_nested_coordinates_are_refused() -> None:
    rows = [torch.rand(k, D) for k in (2, 3)]
    net = Siren(D, 8, 1, 1)
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.nested_tensor(rows, layout=layout)
        with pytest.raises(NotImplementedError, match="^Jet.of: x must be dense"):
            Jet.of(nested)
    with pytest.raises(NotImplementedError, match="^Siren.jet: x must be dense"):
        net.jet(nested)


def test_a_module_that_fails_says_so_itself() -> None:
    """An error that a final activation raises is not replaced by ours."""
    net = Siren(D, 8, 1, 2, True, final_activation=nn.Unflatten(1, (3, 1)))
    with pytest.raises(RuntimeError, match="^unflatten: "):
        net.jet(torch.zeros(N, D))
