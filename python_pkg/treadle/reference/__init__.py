"""The ops of treadle in plain PyTorch, as a specification and for tests and benchmarks.

A function with the name of a fused function or op of treadle takes the same arguments and returns
the same results. Every function runs on any device in any floating-point dtype, and is
differentiated by autograd. Tests compare kernels with its results in float64. Its errors in a
kernel's own dtype show how large the kernel's rounding errors may be.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._cells import gru_cell, lltm_cell, lstm_cell, rnn_cell
from ._recurrent import gru, lltm, lstm, recurrent_layer, rnn_relu, rnn_tanh

__all__ = [
    "cosine",
    "cosine_backward",
    "gru",
    "gru_cell",
    "lltm",
    "lltm_cell",
    "lstm",
    "lstm_cell",
    "recurrent_layer",
    "rnn_cell",
    "rnn_relu",
    "rnn_tanh",
    "scale",
    "sine",
    "sine_backward",
    "sine_linear",
    "sine_linear_jet",
    "snake",
    "vector_add",
]


def vector_add(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Tensor:
    """``a + alpha * b``.

    Args:
        a: [...], broadcast against ``b``.
        b: [...] or a number.
        alpha: the factor of ``b``.

    Returns:
        [...], in the dtype that ``a`` and ``b`` promote to.

    Source: ``torch.add``.
    """
    return torch.add(a, b, alpha=alpha)


def scale(x: Tensor, factor: float) -> Tensor:
    """``factor * x``.

    Args:
        x: [...].
        factor: a number.

    Returns:
        [...], in the dtype that ``x`` and ``factor`` promote to.

    Source: ``torch.mul`` with a number.
    """
    return torch.mul(x, factor)


def sine(x: Tensor) -> Tensor:
    """``sin(x)``, in radians.

    Args:
        x: [...]; integers are computed in the default floating dtype.

    Returns:
        [...].

    Source: ``torch.sin``.
    """
    return torch.sin(x)


def sine_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`sine` with respect to ``x``: ``grad * cos(x)``.

    Args:
        grad: [...], the gradient of the result of ``sine(x)``.
        x: [...], the argument of ``sine``.

    Returns:
        [...].
    """
    return grad * torch.cos(x)


def cosine(x: Tensor) -> Tensor:
    """``cos(x)``, in radians.

    Args:
        x: [...]; integers are computed in the default floating dtype.

    Returns:
        [...].

    Source: ``torch.cos``.
    """
    return torch.cos(x)


def cosine_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`cosine` with respect to ``x``: ``-grad * sin(x)``.

    Args:
        grad: [...], the gradient of the result of ``cosine(x)``.
        x: [...], the argument of ``cosine``.

    Returns:
        [...].
    """
    return -grad * torch.sin(x)


def snake(
    x: Tensor,
    alpha: Tensor,
    beta: Tensor | None = None,
    eps: float | None = None,
    *,
    logscale: bool = False,
) -> Tensor:
    """``x + sin(alpha * x)**2 / (beta + eps)``, or ``x + alpha * (x * sinc(alpha * x))**2``.

    Args:
        x: [N, C, ...]. If it has fewer than two dimensions, there is one channel.
        alpha: [C] or [1].
        beta: [C] or [1]. If it is None, alpha is used.
        eps: a number that is added to beta. None means 0; if beta is None too, the second formula
            is used, with sinc(t) = sin(t) / t and sinc(0) = 1.
        logscale: whether alpha and beta are given as their logarithms.

    Returns:
        [N, C, ...], in the dtype that x, alpha and beta promote to.

    Source: L. Ziyin and others: Neural networks fail to learn periodic functions and how to fix
    it. NeurIPS 2020. DAC and BigVGAN use an alpha for each channel, and eps.
    """

    def along(parameter: Tensor) -> Tensor:
        shaped = parameter.reshape((-1, *[1] * (x.dim() - 2)) if x.dim() else ())
        return torch.exp(shaped) if logscale else shaped

    phase = along(alpha) * x
    wave = torch.sin(phase)
    if beta is None and eps is None:
        # For a tiny phase, wave / phase is replaced by 1, because its derivative would overflow in
        # half types.
        tiny = phase.abs() < torch.finfo(wave.dtype).eps
        scaled = x * torch.where(tiny, 1, wave / torch.where(tiny, 1, phase))
        return x + along(alpha) * scaled * scaled
    factor = along(alpha if beta is None else beta).to(wave.dtype) + (eps or 0.0)
    return x + wave * wave / factor


def sine_linear(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    """``sin(omega * (input @ weight.T + bias))``, a layer of a SIREN.

    Args:
        input: [..., I].
        weight: [O, I].
        bias: [O] or None.
        omega: a number.

    Returns:
        [..., O].

    Source: Sitzmann et al., Implicit Neural Representations with Periodic Activation Functions;
    ``torch.nn.functional.linear``.
    """
    return torch.sin(omega * F.linear(input, weight, bias))


def sine_linear_jet(
    jet: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    omega: float,
    coordinates: int,
    second: str = "none",
) -> Tensor:
    """Passes a jet through :func:`sine_linear`, by the chain rule.

    Args:
        jet: [P, ..., I], the value, its first derivatives with respect to d coordinates, and the
            second derivatives that ``second`` selects.
        weight: [O, I].
        bias: [O] or None.
        omega: a number.
        coordinates: d, the number of coordinates.
        second: ``"none"``; ``"laplacian"`` for one part, the sum of the second derivatives; or
            ``"hessian_diagonal"`` for d parts, these derivatives themselves.

    Returns:
        [P, ..., O].

    Source: Li et al., A computational framework for neural network-based variational Monte Carlo
    with Forward Laplacian.
    """
    z = jet @ weight.T
    value, first, last = z[:1], z[1 : 1 + coordinates], z[1 + coordinates :]
    angle = omega * (value if bias is None else value + bias)
    slope = omega * torch.cos(angle)
    parts = [torch.sin(angle), slope * first]
    if second != "none":
        squares = first.square()
        if second == "laplacian":
            squares = squares.sum(0, keepdim=True)
        parts.append(slope * last - omega**2 * torch.sin(angle) * squares)
    return torch.cat(parts)
