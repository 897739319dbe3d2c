"""The ops of a sine layer, for values and for jets."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check.numbers import as_number
from ._check.tensors import check_tensor

__all__ = ["sine_linear", "sine_linear_jet"]

_sine_linear = torch.ops.treadle.sine_linear.default
_sine_linear_jet = torch.ops.treadle.sine_linear_jet.default


def sine_linear(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    """``sin(omega * (input @ weight.T + bias))``, fused; a layer of a SIREN.

    It replaces ``torch.sin(omega * torch.nn.functional.linear(input, weight, bias))``. For the
    backward pass it saves its arguments, the result, and 2 bytes (float64: 8) for each element of
    the result.

    Args:
        input: [..., I], float64, float32, float16 or bfloat16.
        weight: [O, I].
        bias: [O] or None.
        omega: a number; 30 in the SIREN paper. Not differentiable.

        For N layers in one call: input [N, ..., I], weight [N, O, I], bias [N, O].

    Returns:
        [..., O] of input's dtype, contiguous. In half types the products are multiplied by omega
        before any rounding. input, weight and bias are differentiable any number of times. Under
        autocast all three are cast to the lower precision, as for ``linear``. float32 products use
        TF32 if torch's matrix products do. If the caller overwrites the result before the backward
        pass, that pass recomputes it.

    Raises:
        RuntimeError: shapes, dtypes or devices are invalid.
        TypeError: ``input``, ``weight`` or ``bias`` is not a tensor, or ``omega`` is not a number
            or is a tensor that requires grad.

    Source: csrc/sine_linear/forward.cpp, kernels/sine_linear/forward.cu.
    """
    if type(input) is not Tensor:
        check_tensor("sine_linear", "input", input)
    if not isinstance(weight, Tensor):
        check_tensor("sine_linear", "weight", weight)
    if bias is not None and not isinstance(bias, Tensor):
        check_tensor("sine_linear", "bias", bias)
    _refuse_grad("sine_linear", omega)
    try:
        return _sine_linear(input, weight, bias, omega)  # type: ignore[no-any-return]
    except RuntimeError:
        as_number("sine_linear", "omega", omega, real=True)
        raise


def sine_linear_jet(
    jet: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    omega: float,
    coordinates: int,
    second: str = "none",
) -> Tensor:
    """Passes a jet through ``sin(omega * (x @ weight.T + bias))``, fused; a layer of a SIREN.

    :meth:`treadle.nn.SineLinear.jet` packs the parts and calls this function. For the value x, let
    z = x @ weight.T + bias. For the derivatives x_i and x_ii of x with respect to coordinate i, let
    z_i = x_i @ weight.T and z_ii = x_ii @ weight.T. Then y = sin(omega z),
    y_i = omega cos(omega z) z_i, and
    y_ii = omega cos(omega z) z_ii - omega^2 sin(omega z) z_i^2. The Laplacian is the sum of y_ii.

    Args:
        jet: [P, ..., I], float64, float32, float16 or bfloat16. Its P = 1 + d + n2 parts are the
            value, its derivatives with respect to d coordinates, and n2 second derivatives.
        weight: [O, I].
        bias: [O] or None.
        omega: a number other than 0. Not differentiable.
        coordinates: d, at least 1.
        second: ``"none"``, n2 = 0; ``"laplacian"``, n2 = 1; ``"hessian_diagonal"``, n2 = d.

    Returns:
        [P, ..., O] of jet's dtype, contiguous. jet, weight and bias are differentiable any number
        of times; under autocast they are cast to the lower precision, as in :func:`sine_linear`.

    Raises:
        RuntimeError: shapes, dtypes or devices are invalid.
        TypeError: ``jet``, ``weight`` or ``bias`` is not a tensor, or ``omega`` is not a number or
            is a tensor that requires grad.

    Source: csrc/sine_linear/, kernels/math/sine_jet.h.
    """
    check_tensor("sine_linear_jet", "jet", jet)
    check_tensor("sine_linear_jet", "weight", weight)
    if bias is not None:
        check_tensor("sine_linear_jet", "bias", bias)
    _refuse_grad("sine_linear_jet", omega)
    try:
        return _sine_linear_jet(jet, weight, bias, omega, coordinates, second)  # type: ignore[no-any-return]
    except RuntimeError:
        as_number("sine_linear_jet", "omega", omega, real=True)
        raise


def _refuse_grad(op: str, omega: object) -> None:
    if isinstance(omega, Tensor) and omega.requires_grad:
        raise TypeError(
            f"{op}: omega must be a number, because it is not differentiable, got a tensor that "
            "requires grad"
        )
