"""The op of the snake activation."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check.numbers import as_number
from ._check.tensors import check_bool, check_tensor

__all__ = ["snake", "snake_"]

_snake = torch.ops.treadle.snake.default
_snake_out = torch.ops.treadle.snake.out
_snake_ = torch.ops.treadle.snake_.default


def snake(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor | None = None,
    eps: float | None = None,
    *,
    logscale: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The snake activation ``x + sin(alpha * x)**2 / alpha`` with an alpha for each channel, fused.

    It was proposed by L. Ziyin and others (Neural networks fail to learn periodic functions and how
    to fix it. NeurIPS 2020). Without ``beta`` and ``eps`` it is computed as ``x + alpha * w**2``
    with ``w = sin(alpha * x) / alpha``; if alpha is 0, w is x. So values and derivatives are
    correct for every alpha, including 0 and negative values. With ``beta`` or ``eps`` it is
    ``x + sin(alpha * x)**2 / (beta + eps)``, which divides by 0 where ``beta + eps`` is 0. Audio
    decoders such as DAC and BigVGAN compute this formula with ``eps=1e-9``.

    Args:
        x: [N, C, ...] of any integer, bool or floating-point dtype. With fewer than 2 dimensions it
            has one channel, as in ``torch.prelu``.
        alpha: [C], or [1] for all channels, of an integer or floating-point dtype.
        beta: [C] or [1]. If it is None, alpha is used.
        eps: a number added to beta. None means 0. If ``beta`` is None too, the result for alpha = 0
            is the limit, x. Not differentiable.
        logscale: if True, ``alpha`` and ``beta`` are logarithms. The kernel computes their
            exponentials (for half types in float32), and gradients are with respect to the
            logarithms.
        out: the output tensor, resized if its shape does not match. Not differentiable.

    Returns:
        [N, C, ...] of the dtype that x, alpha and beta promote to; the default floating-point dtype
        if all are integers. Half types are computed in float32, and only the result is rounded.
        ``1 / (beta + eps)`` is computed first, so that 0 and inf appear where they do in plain
        PyTorch. x, alpha and beta are differentiable any number of times. The first backward pass
        is one pass over x, and the gradients of alpha and beta have the same bits in every run.

    Raises:
        TypeError: ``x``, ``alpha``, ``beta`` or ``out`` is not a tensor, ``eps`` is not a number,
            or ``logscale`` is not a bool.
        RuntimeError: shapes, dtypes or devices are invalid.

    Source: csrc/elementwise/snake.cpp, kernels/elementwise/snake.cu.
    """
    _check_tensors("snake", x, alpha, beta)
    eps, logscale = _number("snake", eps), check_bool("snake", "logscale", logscale)
    if out is not None:
        check_tensor("snake", "out", out)
        _snake_out(x, alpha, beta, eps, logscale=logscale, out=out)
        return out
    return _snake(x, alpha, beta, eps, logscale=logscale)  # type: ignore[no-any-return]


def snake_(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor | None = None,
    eps: float | None = None,
    *,
    logscale: bool = False,
) -> Tensor:
    """:func:`snake` in place.

    Args:
        x: [N, C, ...], overwritten. The result's dtype must be castable to that of ``x``.
        alpha, beta, eps, logscale: as in :func:`snake`.

    Returns:
        ``x``.

    Raises:
        TypeError: as for :func:`snake`.
        RuntimeError: as for :func:`snake`; or ``x`` is a leaf that requires grad, or expanded.

    Source: csrc/elementwise/snake.cpp, kernels/elementwise/snake.cu.
    """
    _check_tensors("snake_", x, alpha, beta)
    logscale = check_bool("snake_", "logscale", logscale)
    _snake_(x, alpha, beta, _number("snake_", eps), logscale=logscale)
    return x


def _check_tensors(op: str, x: Tensor, alpha: Tensor, beta: Tensor | None) -> None:
    if type(x) is not Tensor:
        check_tensor(op, "x", x)
    if not isinstance(alpha, Tensor):
        check_tensor(op, "alpha", alpha)
    if beta is not None and not isinstance(beta, Tensor):
        check_tensor(op, "beta", beta)


def _number(op: str, eps: float | None) -> float | None:
    if eps is None or type(eps) is float:
        return eps
    return as_number(op, "eps", eps, real=True)  # type: ignore[return-value]
