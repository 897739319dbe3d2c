"""The op of the snake activation."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check_tensor import check_tensor
from ._numbers import as_number

__all__ = ["snake", "snake_"]

_snake = torch.ops.treadle.snake.default
_snake_out = torch.ops.treadle.snake.out
_snake_ = torch.ops.treadle.snake_.default


def snake(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor | None = None,
    eps: float = 0.0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``x + sin(alpha * x)**2 / (beta + eps)``, alpha and beta by channel; fused.

    The snake activation of L. Ziyin and others (Neural networks fail to learn periodic functions
    and how to fix it. NeurIPS 2020), as audio decoders such as DAC and BigVGAN have it: both write
    ``x + 1 / (alpha + 1e-9) * sin(alpha * x)**2``, which is ``eps=1e-9``.

    Args:
        x: [N, C, ...] of any integer, bool or floating-point dtype. With fewer than 2 dimensions it
            has one channel, as in ``torch.prelu``.
        alpha: [C], or [1] for all channels, of an integer or floating-point dtype.
        beta: [C] or [1]; None: alpha.
        eps: a number that is added to beta. Not differentiable.
        out: written and returned if given, resized if its shape does not fit. No autograd.

    Returns:
        [N, C, ...] of the dtype that x, alpha and beta promote to, of integers alone the default
        floating-point dtype. Half types are computed in
        float32 and rounded once. 1 / (beta + eps) is computed first, so that 0 and inf go where
        they go in the composition. x, alpha and beta are differentiable any number of times; the
        first backward pass is one pass over x, and the sums of the parameters' gradients have the
        same bits every time.

    Raises:
        TypeError: ``x``, ``alpha``, ``beta`` or ``out`` is no tensor, or ``eps`` no number.
        RuntimeError: shapes, dtypes or devices that do not fit.

    Source: csrc/elementwise/snake.cpp, kernels/elementwise/snake.cu.
    """
    _check_tensors("snake", x, alpha, beta)
    if out is not None:
        check_tensor("snake", "out", out)
        _snake_out(x, alpha, beta, _number("snake", eps), out=out)
        return out
    return _snake(x, alpha, beta, _number("snake", eps))  # type: ignore[no-any-return]


def snake_(x: Tensor, alpha: Tensor, beta: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """``x += sin(alpha * x)**2 / (beta + eps)`` in place. See :func:`snake`.

    Args:
        x: [N, C, ...], written and returned; the result must cast to its dtype.
        alpha, beta, eps: as there.

    Returns:
        ``x``.

    Raises:
        TypeError, RuntimeError: what does not fit; a leaf that requires grad; an expanded ``x``.

    Source: csrc/elementwise/snake.cpp, kernels/elementwise/snake.cu.
    """
    _check_tensors("snake_", x, alpha, beta)
    _snake_(x, alpha, beta, _number("snake_", eps))
    return x


def _check_tensors(op: str, x: Tensor, alpha: Tensor, beta: Tensor | None) -> None:
    if type(x) is not Tensor:
        check_tensor(op, "x", x)
    if not isinstance(alpha, Tensor):
        check_tensor(op, "alpha", alpha)
    if beta is not None and not isinstance(beta, Tensor):
        check_tensor(op, "beta", beta)


def _number(op: str, eps: float) -> float:
    return eps if type(eps) is float else as_number(op, "eps", eps, real=True)  # type: ignore[return-value]
