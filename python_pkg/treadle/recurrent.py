"""The recurrent ops: a step of the LLTM, and whole sequences of LLTM, LSTM and GRU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

__all__ = ["gru", "lltm", "lltm_cell", "lstm"]

_lltm = torch.ops.treadle.lltm.input
_lltm_packed = torch.ops.treadle.lltm.data
_lstm = torch.ops.treadle.lstm.input
_lstm_packed = torch.ops.treadle.lstm.data
_gru = torch.ops.treadle.gru.input
_gru_packed = torch.ops.treadle.gru.data
_lltm_cell = torch.ops.treadle.lltm_cell.default


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the LLTM recurrent cell of PyTorch's C++ extension tutorial, fused.

    ``gates = [old_h, input] @ weights.T + bias``, cut into i, o, z;
    ``new_cell = old_cell + elu(z) * sigmoid(i)``; ``new_h = tanh(new_cell) * sigmoid(o)``.

    Args:
        input: [B, I], float64, float32, float16 or bfloat16.
        weights: [3H, H+I], rows i, o, z; columns first old_h, then input.
        bias: [3H], [1, 3H] or None.
        old_h: [B, H].
        old_cell: [B, H], of input's dtype, or float32 beside half-precision inputs (the cell adds
            up over the steps, and half types run out of digits).

        All arguments together may have one more leading dimension N, for N independent cells.

    Returns:
        new_h [B, H] of input's dtype, and new_cell [B, H] of old_cell's dtype. Every argument is
        differentiable, twice. Under autocast input, weights, bias and old_h take the lower
        precision, old_cell keeps its own.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit.

    Source: csrc/recurrent/lltm_cell/cell.cpp, kernels/recurrent/lltm_cell/cell.cu.
    """
    return _lltm_cell(input, weights, bias, old_h, old_cell)  # type: ignore[no-any-return]


@overload
def lltm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def lltm(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


def lltm(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Layers of LLTM cells over whole sequences; arguments in the order of ``torch.lstm``.

    ``lltm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``lltm(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``. Every step is :func:`lltm_cell`. D is 2 if bidirectional, else 1;
    :class:`treadle.nn.LLTM` holds the parameters and calls this. On GPUs of sm_90 one kernel launch
    runs all steps of a layer if its weight_hh fits on the chip; docs/recurrent.md says when, and
    :func:`treadle.launch_info` shows which ``algorithm`` ran.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data, batch_sizes: [S, I] and [T], a packed batch, as :func:`lstm`.
        hx: (h0, c0), as :func:`lstm`; c adds up over the steps, and half types run out of digits.
        params: for each layer, and in it for each direction, weight_ih [3H, I] (after the first
            layer [3H, D*H]), weight_hh [3H, H] and, if ``has_biases``, one bias [3H].
            Rows are those of the gates i, o and the candidate z, in this order; ``[weight_hh |
            weight_ih]`` is what ``lltm_cell`` calls weights.
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as :func:`lstm`.
        recompute: if False, a layer keeps its output (H) and the gates (3H) of each direction,
            step and row for the backward pass, in input's dtype: 16H bytes in float32, 8H in half
            types, 32H in float64. If True it keeps the output alone (4H, 2H, 8H bytes), and the
            backward pass takes one more matrix product.
        reset, reset_hx: as :func:`lstm`.

    Returns:
        output, h_n, c_n: as :func:`lstm`. Every tensor but batch_sizes and reset is differentiable,
        twice. Under autocast all of them but c0 take the lower precision.

    Raises:
        RuntimeError: shapes, dtypes, devices or counts that do not fit.

    Source: csrc/recurrent/layers.cpp, csrc/recurrent/forward.cpp, kernels/recurrent/plan.cpp,
    kernels/recurrent/cpu/rows_forward.h, kernels/recurrent/step.cuh, kernels/recurrent/cluster.cuh,
    kernels/recurrent/grid.cuh.
    """
    # Without this choice torch would try the first overload at every call.
    return (_lltm_packed if _packed(args, kwargs) else _lltm)(*args, **kwargs)  # type: ignore[no-any-return]


@overload
def lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def lstm(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...


def lstm(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Layers of LSTM cells over whole sequences; ``torch.lstm`` on treadle's kernels.

    ``lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``. D is 2 if bidirectional, else 1; :class:`treadle.nn.LSTM` holds the
    parameters and calls this. The gates ``x W_ih^T + b_ih + h W_hh^T + b_hh`` are i, f, g, o;
    ``c = sigmoid(f) c + sigmoid(i) tanh(g)``; ``h = sigmoid(o) tanh(c)``.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows of all steps, the longest sequence
            first; ``batch_sizes`` [T], int64 on the CPU, is how many rows each step has.
        hx: (h0, c0), each [num_layers * D, B, H]: h0 of input's dtype; c0 of input's dtype, or
            float32 beside half-precision inputs.
        params: for each layer, and in it for each direction, weight_ih [4H, I] (after the first
            layer [4H, D*H]), weight_hh [4H, H] and, if ``has_biases``, bias_ih and bias_hh [4H].
        has_biases: whether ``params`` has biases.
        num_layers: each layer after the first reads the output of the one before.
        dropout: the probability of dropping an element between two layers, if ``train``.
        train: False leaves the dropout out.
        bidirectional: a second direction in each layer reads the sequence from its end.
        batch_first: input and output are [B, T, ...]; hx never is.
        recompute: if False, a layer keeps its output (H) and the gates (4H) of each direction,
            step and row for the backward pass, in input's dtype: 20H bytes in float32, 10H in half
            types, 40H in float64. If True it keeps the output alone (4H, 2H, 8H bytes), and the
            backward pass takes one more matrix product.
        reset: [T, B] ([B, T] if ``batch_first``; [S] of a packed batch), bool on input's device:
            where it is true a row starts anew, as if its sequence began with that step. Sequences
            that follow each other in a row need no padding and no second call. The second
            direction, which reads from the end, starts anew before step t where step t + 1 is
            marked.
        reset_hx: the state that a row starts anew with instead of zeros: as ``hx``, or one for each
            step, [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``;
            [num_layers * D, S, H] of a packed batch). Gradients stop at a reset and flow in here.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype.
        h_n, c_n: [num_layers * D, B, H], h and c after each row's last step (of the second
            direction: its first). Of h0's and c0's dtypes.

        Every tensor but batch_sizes and reset is differentiable, twice. Under autocast all of them
        take the lower precision; on a CPU those of a packed batch stay float32 if c0 is, as torch's
        do.

    Raises:
        RuntimeError: shapes, dtypes, devices or counts that do not fit.

    Source: csrc/recurrent/layers.cpp, csrc/recurrent/forward.cpp, kernels/recurrent/plan.cpp,
    kernels/math/cells/lstm.h.
    """
    return (_lstm_packed if _packed(args, kwargs) else _lstm)(*args, **kwargs)  # type: ignore[no-any-return]


@overload
def gru(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def gru(
    data: Tensor,
    batch_sizes: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...


def gru(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Layers of GRU cells over whole sequences; ``torch.gru`` on treadle's kernels.

    ``gru(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``gru(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``. D is 2 if bidirectional, else 1; :class:`treadle.nn.GRU` holds the
    parameters and calls this. ``r, z = sigmoid(x W_ih^T + b_ih + h W_hh^T + b_hh)``;
    ``n = tanh(x W_in^T + b_in + r (h W_hn^T + b_hn))``; ``h = (1 - z) n + z h``, whose own h is not
    rounded to input's dtype.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows of all steps, the longest sequence
            first; ``batch_sizes`` [T], int64 on the CPU, is how many rows each step has.
        hx: h0, [num_layers * D, B, H], of input's dtype.
        params: for each layer, and in it for each direction, weight_ih [3H, I] (after the first
            layer [3H, D*H]), weight_hh [3H, H] and, if ``has_biases``, bias_ih and bias_hh [3H],
            rows r, z, n.
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as :func:`lstm`.
        recompute: as :func:`lstm`; the gates are 4H here, too.
        reset, reset_hx: as :func:`lstm`.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype.
        h_n: [num_layers * D, B, H], h after each row's last step (of the second direction: its
            first).

        Every tensor but batch_sizes and reset is differentiable, twice. Under autocast all of them
        take the lower precision; on a CPU they stay float32 if hx is, as torch's do.

    Raises:
        RuntimeError: shapes, dtypes, devices or counts that do not fit.

    Source: csrc/recurrent/layers.cpp, csrc/recurrent/forward.cpp, kernels/recurrent/plan.cpp,
    kernels/math/cells/gru.h.
    """
    return (_gru_packed if _packed(args, kwargs) else _gru)(*args, **kwargs)  # type: ignore[no-any-return]


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call has batch_sizes, the only int64 tensor that may come second."""
    if "batch_sizes" in kwargs:
        return True
    return len(args) > 1 and isinstance(args[1], Tensor) and args[1].dtype == torch.int64
