"""The sine layer's op, typed and documented as those of ``treadle.ops``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sine_linear"]

_sine_linear = torch.ops.treadle.sine_linear.default


def sine_linear(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    """``sin(omega * (input @ weight.T + bias))``, fused; a layer of a SIREN.

    Stands for ``torch.sin(omega * torch.nn.functional.linear(input, weight, bias))``. For the
    derivatives it keeps its arguments, the result, and 2 bytes more an element of it (float64: 8).

    Args:
        input: [..., I], float64, float32, float16 or bfloat16.
        weight: [O, I].
        bias: [O] or None.
        omega: a number; 30 in the paper. Not differentiable.

        For N layers in one call: input [N, ..., I], weight [N, O, I], bias [N, O].

    Returns:
        [..., O] of input's dtype, contiguous. Products of half types are not rounded before omega
        multiplies them. input, weight and bias are differentiable any number of times. Under
        autocast all three take the lower precision, as ``linear`` does; float32 products are in
        tf32 where torch's are.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit.
        TypeError: ``omega`` is a tensor that requires grad, which it would not get.

    Source: csrc/sine_linear.cpp, kernels/sine_linear.cu.
    """
    if isinstance(omega, Tensor) and omega.requires_grad:
        raise TypeError(
            "sine_linear: omega must be a number, for it is not differentiable, got a tensor that "
            "requires grad"
        )
    return _sine_linear(input, weight, bias, omega)  # type: ignore[no-any-return]
