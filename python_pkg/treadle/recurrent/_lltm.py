"""The LLTM: a single step, and whole sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._check.tensors import check_tensor
from ._overloads import overloads, with_cells

_lltm = overloads("lltm")
_lltm_cell = torch.ops.treadle.lltm_cell.default


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """One fused step of the LLTM, the recurrent cell of PyTorch's C++ extension tutorial.

    The gates i, o and z are the three parts of ``[old_h, input] @ weights.T + bias``. Then
    ``new_cell = old_cell + elu(z) * sigmoid(i)`` and ``new_h = tanh(new_cell) * sigmoid(o)``.

    Args:
        input: [B, I], float64, float32, float16 or bfloat16.
        weights: [3H, H+I]. Rows are in the order i, o, z; columns for old_h come first, then those
            for input.
        bias: [3H], [1, 3H] or None.
        old_h: [B, H].
        old_cell: [B, H], of input's dtype, or float32 with half-precision inputs. c accumulates
            over the steps, and half types have too few digits for that, so keep c in float32.

        All arguments may have one more leading dimension N, for N independent cells in one call.

    Returns:
        new_h [B, H] of input's dtype, and new_cell [B, H] of old_cell's dtype. Every argument is
        differentiable twice. Under autocast input, weights, bias and old_h are cast to the lower
        precision; old_cell keeps its dtype.

    Raises:
        TypeError: an argument is not a tensor.
        RuntimeError: shapes, dtypes or devices are invalid.

    Source: csrc/recurrent/lltm_cell/cell.cpp, kernels/recurrent/lltm_cell/cell.cu.
    """
    try:
        return _lltm_cell(input, weights, bias, old_h, old_cell)  # type: ignore[no-any-return]
    except RuntimeError:
        given = {"input": input, "weights": weights, "old_h": old_h, "old_cell": old_cell}
        for name, value in (given if bias is None else given | {"bias": bias}).items():
            check_tensor("lltm_cell", name, value)
        raise


@with_cells
def lltm(*args: Any, **kwargs: Any) -> Any:
    """Layers of LLTM cells over whole sequences; arguments in the order of ``torch.lstm``.

    Call it as ``lltm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch as ``lltm(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. :class:`treadle.nn.LLTM` has the parameters and
    calls this. Every step computes :func:`lltm_cell`. D is 2 if bidirectional, else 1.

    On GPUs of sm_80 and later, one kernel launch runs all steps of a layer if its weight_hh fits on
    the chip. On an H100 it fits up to H = 1024, and in the forward pass in half types, or with TF32
    allowed, up to H = 2048. :func:`treadle.launch_info` shows which ``algorithm`` ran, and why.

    The LLTM has no forget gate: :class:`treadle.nn.LLTM` explains what that means for a model.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data, batch_sizes: [S, I] and [T], a packed batch, as in :func:`lstm`.
        hx: (h0, c0), as in :func:`lstm`. c accumulates over the steps, and half types have too few
            digits for that, so pass a float32 c0.
        params: for each layer and each of its directions, weight_ih [3H, I] ([3H, D*H] after the
            first layer), weight_hh [3H, H] and, if ``has_biases``, one bias [3H]. Rows are in the
            order i, o (gates), z (candidate); ``[weight_hh | weight_ih]`` is the ``weights`` of
            ``lltm_cell``.
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as in :func:`lstm`.
        recompute: if False, a layer saves its output (H) and the gates (3H) of each direction, step
            and row for the backward pass, in input's dtype: 16H bytes in float32, 8H in half types,
            32H in float64. If True, it saves only the output (4H, 2H or 8H bytes), and the backward
            pass computes one more matrix product.
        reset, reset_hx, lengths, return_cells: as in :func:`lstm`.

    Returns:
        output, h_n, c_n, and cells if ``return_cells``: as in :func:`lstm`. All tensors except
        batch_sizes, reset and lengths are differentiable twice. Under autocast all of them except
        c0 are cast to the lower precision.

    Raises:
        TypeError: input is not a tensor, hx is not a pair, or params is not a list.
        RuntimeError: shapes, dtypes, devices or counts are invalid.

    Source: csrc/recurrent/lists, csrc/recurrent/run/forward.cpp, kernels/recurrent.
    """
    return _lltm(args, kwargs)
