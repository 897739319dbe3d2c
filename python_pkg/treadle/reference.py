"""The ops of treadle in plain PyTorch: specification, oracle of the tests, benchmark baseline.

Every function has the name, the arguments and the result of its fused twin ``treadle.<name>``,
runs on any device in any floating dtype, and is differentiated by autograd. In float64 it is the
truth that the kernels are measured against; in a kernel's own dtype it says how much rounding is
reasonable.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "cosine",
    "cosine_backward",
    "lltm_cell",
    "scale",
    "sine",
    "sine_backward",
    "vector_add",
]


def vector_add(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Tensor:
    """``a + alpha * b``.

    Args:
        a: [...], broadcast against ``b``.
        b: [...] or a number.
        alpha: the number that ``b`` is multiplied by.

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
        x: [...], what ``sine`` was given.

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
        x: [...], what ``cosine`` was given.

    Returns:
        [...].
    """
    return -grad * torch.sin(x)


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the LLTM ("long long-term memory"), an LSTM that never forgets.

    With ``X = [old_h, input]`` and the gates ``X W^T + b`` cut into three parts of H::

        i = sigmoid(gates[0])    o = sigmoid(gates[1])    z = elu(gates[2])
        new_cell = old_cell + z * i
        new_h    = tanh(new_cell) * o

    Args:
        input: [B, I].
        weights: [3H, H+I]: rows i, o, z; columns first ``old_h``, then ``input``.
        bias: [3H], or [1, 3H] as in the tutorial, or None.
        old_h: [B, H].
        old_cell: [B, H], in the dtype of ``input`` or wider: a cell that only ever grows is worth
            keeping in float32 beside half-precision inputs. The wider dtype computes the update.

    Returns:
        ``new_h`` [B, H] in the dtype of ``input`` (under autocast: of the matrix product), and
        ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: the LLTM of PyTorch's tutorial on C++ and CUDA extensions.
    """
    gates = F.linear(
        torch.cat([old_h, input], dim=-1), weights, None if bias is None else bias.flatten()
    )
    state = gates.to(torch.promote_types(gates.dtype, old_cell.dtype))
    i, o, z = state.chunk(3, dim=-1)
    new_cell = old_cell + F.elu(z) * torch.sigmoid(i)
    new_h = torch.tanh(new_cell) * torch.sigmoid(o)
    return new_h.to(gates.dtype), new_cell.to(old_cell.dtype)
