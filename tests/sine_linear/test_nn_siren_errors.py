"""SineLinear and Siren reject bad arguments with their own messages."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treadle
from treadle.nn import SineLinear, Siren

B, I, O = 6, 5, 7  # noqa: E741

COUNT = "an integer of at least"
FLOATS = "float64, float32, float16 or bfloat16"
CONSTRUCTION = [
    *((SineLinear, name, 0, ValueError, f"{COUNT} 1") for name in ("in_features", "out_features")),
    (SineLinear, "in_features", 2.0, TypeError, f"{COUNT} 1"),
    (SineLinear, "out_features", True, TypeError, f"{COUNT} 1"),
    (SineLinear, "bias", 1, TypeError, "a bool"),
    (SineLinear, "is_first", None, TypeError, "a bool"),
    (SineLinear, "omega_0", "30", TypeError, "a number"),
    (SineLinear, "omega_0", True, TypeError, "a number"),
    (SineLinear, "omega_0", math.nan, ValueError, "a finite number other than 0"),
    (SineLinear, "omega_0", 0.0, ValueError, "a finite number other than 0"),
    *((Siren, n, -1, ValueError, f"{COUNT} 1") for n in ("in_features", "hidden_features")),
    (Siren, "out_features", None, TypeError, f"{COUNT} 1"),
    (Siren, "hidden_layers", -1, ValueError, f"{COUNT} 0"),
    (Siren, "outermost_linear", 0, TypeError, "a bool"),
    (Siren, "first_omega_0", math.inf, ValueError, "a finite number"),
    (Siren, "hidden_omega_0", 0, ValueError, "a finite number other than 0"),
    (Siren, "bias", None, TypeError, "a bool"),
    (Siren, "dropout", 1.5, ValueError, "a number between 0 and 1"),
    *((kind, "dtype", "float32", TypeError, FLOATS) for kind in (SineLinear, Siren)),
]


@pytest.mark.parametrize("kind, name, value, error, rule", CONSTRUCTION)
def test_errors_of_construction(
    kind: type[nn.Module], name: str, value: object, error: type[Exception], rule: str
) -> None:
    sizes = {"in_features": 2, "out_features": 3}
    if kind is Siren:
        sizes |= {"hidden_features": 4, "hidden_layers": 1}
    fact = type(value).__name__ if rule == "a bool" else repr(value)
    words = f"{kind.__name__}: {name} must be {rule}, got {fact}"
    with pytest.raises(error, match=f"^{re.escape(words)}$"):
        kind(**{**sizes, name: value})


@pytest.mark.parametrize("kind", [SineLinear, Siren])
@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e4m3fn])
def test_parameters_have_a_dtype_of_the_op(kind: type[nn.Module], dtype: torch.dtype) -> None:
    sizes = (2, 3) if kind is SineLinear else (2, 8, 1, 3)
    words = f"{kind.__name__}: dtype must be {FLOATS}, got {str(dtype)[6:]}"
    with pytest.raises(ValueError, match=f"^{words}$"):
        kind(*sizes, dtype=dtype)


def test_a_final_activation_is_a_module_behind_a_linear_layer() -> None:
    words = "Siren: final_activation must be a torch.nn.Module or None, got builtin_function_or_m"
    with pytest.raises(TypeError, match=f"^{words}"):
        Siren(2, 8, 1, 1, True, final_activation=torch.sigmoid)
    words = "Siren: outermost_linear must be True if final_activation is given, got False"
    with pytest.raises(ValueError, match=f"^{words}$"):
        Siren(2, 8, 1, 1, final_activation=nn.Sigmoid())


def wrong_inputs() -> dict[str, tuple[Any, type[Exception], str]]:
    x = torch.zeros(B, I)
    dtype, tensor = "must have the dtype of the parameters, float32, got", "must be a tensor, got"
    cast = "call input.float()"
    return {
        "coordinates": (torch.zeros(B, 3), ValueError, f"must have shape [..., {I}], got [{B}, 3]"),
        "0-dim": (torch.tensor(1.0), ValueError, f"must have shape [..., {I}], got []"),
        "float64": (x.double(), RuntimeError, f"{dtype} float64: {cast}"),
        "bfloat16": (x.bfloat16(), RuntimeError, f"{dtype} bfloat16: {cast}"),
        "int64": (x.long(), RuntimeError, f"{dtype} int64: {cast}"),
        "NumPy": (x.numpy(), TypeError, f"{tensor} ndarray"),
        "list": (x.tolist(), TypeError, f"{tensor} list"),
        "dict": ({"coords": x}, TypeError, f"{tensor} dict"),
        "float": (0.5, TypeError, f"{tensor} float"),
        "None": (None, TypeError, f"{tensor} NoneType"),
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("case", wrong_inputs())
def test_errors_of_a_call_blame_the_input(case: str, device: str) -> None:
    x, error, words = wrong_inputs()[case]
    if isinstance(x, Tensor):
        x = x.to(device)
    for module in (SineLinear(I, O), Siren(I, 8, 1, O)):
        words_of = f"{type(module).__name__}: input {words}"
        with pytest.raises(error, match=f"^{re.escape(words_of)}$"):
            module.to(device)(x)


def test_autocast_takes_other_dtypes() -> None:
    net = Siren(I, 8, 1, O)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.rand(B, I).half()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_error_names_the_cast(dtype: torch.dtype) -> None:
    name = {torch.float64: "double", torch.float16: "half"}.get(dtype, "bfloat16")
    with pytest.raises(RuntimeError, match=rf"got float32: call input\.{name}\(\)$"):
        SineLinear(I, O, dtype=dtype)(torch.rand(B, I))


NOT_TENSORS: tuple[Any, ...] = ([1.0], {"coords": 1}, 0.5, np.zeros(3), None)


@pytest.mark.parametrize("value", NOT_TENSORS, ids=lambda value: type(value).__name__)
def test_the_ops_name_what_is_no_tensor(value: Any) -> None:
    """The message is one line. That of torch.ops would contain the whole value."""
    fact = f"must be a tensor, got {type(value).__name__}"
    for op in ("sine", "sine_", "cosine", "cosine_"):
        with pytest.raises(TypeError, match=f"^{op}: x {fact}$"):
            getattr(treadle, op)(value)
    x, w = torch.rand(2, 3), torch.rand(4, 3)
    for name, arguments in (("input", (value, w, None)), ("weight", (x, value, None))):
        with pytest.raises(TypeError, match=f"^sine_linear: {name} {fact}$"):
            treadle.sine_linear(*arguments, 1.0)
    if value is not None:
        with pytest.raises(TypeError, match=f"^sine_linear: bias {fact}$"):
            treadle.sine_linear(x, w, value, 1.0)
