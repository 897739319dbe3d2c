"""Decides whether torch's op, or on a GPU ``cell_step``, runs a cell faster than the op of layers.

They are chosen only for calls whose derivatives they support.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._check import HALVES
from ._tracers import is_tracing

# The half types that oneDNN multiplies in this CPU's hardware. treadle's kernels convert them to
# float32.
IN_HARDWARE = frozenset(
    dtype
    for dtype, found in (
        (
            torch.bfloat16,
            torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
        ),
        (torch.float16, torch.ops.mkldnn._is_mkldnn_fp16_supported()),
    )
    if found
)
# On such a CPU, treadle's kernels are faster than torch's up to this H. But if B * H is less than
# _SMALL_STEP, torch's RNN cell (two products and an activation) is faster. Without gradients, so
# are torch's other cells with a single row, except in bfloat16 from _ONEDNN_UNITS units on, for
# which torch calls oneDNN.
_FEW_UNITS = 64
_SMALL_STEP = 1024
_ONEDNN_UNITS = 33
# torch's RNN cell in wider types is faster for every size. With gradients, its other cells are
# faster on an Intel CPU, and as fast on an AMD CPU, if B * H is at least _LARGE_STEP; on an Intel
# CPU they are also faster for a single row of more than _FEW_UNITS units. Without gradients, its
# GRU cell is faster, and its LSTM cell with fewer than _ROWS_OF_FEW_UNITS rows, or _ROWS of more
# than _FEW_UNITS units.
_LARGE_STEP = 2048
_ROWS_OF_FEW_UNITS, _ROWS = 64, 256
# cell_step runs treadle's kernels, which are faster than torch's, up to this number of rows
# (kCellStepRows in kernels/recurrent/cell_step/args.h).
_FEW_ROWS = 32

_innermost_transform = torch._C._functorch.peek_interpreter_stack


def torchs_is_faster(
    kind: str, hidden: int, input: Tensor, h: Tensor, c: Tensor, parameters: list[Any]
) -> bool:
    """Whether torch's op, or on a GPU cell_step, runs this step faster. For a cell without c, ``c``
    is h. ``parameters`` has the weights, and biases or None."""
    if input.is_cpu:  # reading device.type takes five times as long
        return _on_a_cpu(kind, hidden, input, c, records_gradients(input, h, c, parameters))
    return input.is_cuda and _on_a_gpu(input, c)


def _on_a_cpu(kind: str, hidden: int, input: Tensor, state: Tensor, training: bool) -> bool:
    # Under autocast, the results have the dtypes that torch's op gives them.
    if torch.is_autocast_enabled("cpu"):
        return True
    rnn = kind.startswith("rnn")
    if input.dtype in HALVES:
        if state.dtype is not input.dtype:  # a float32 c stays float32
            return False
        if not _half_on_a_cpu(rnn, hidden, input.dtype, state.numel(), training):
            return False
    elif not rnn:
        # Compiled programs and traces contain treadle's op, because they run for other sizes, too.
        # torch's op does not support DTensors.
        if torch.compiler.is_compiling() or is_tracing() or type(input) is not Tensor:
            return False
        if not _wide_on_a_cpu(kind, hidden, state.numel(), training):
            return False
    # torch's op has no batching rule, so vmap would run it once for each element of the batch.
    return torch.compiler.is_compiling() or _innermost_transform() is None


def _wide_on_a_cpu(kind: str, hidden: int, elements: int, training: bool) -> bool:
    """The choice for LSTM and GRU in float32 and float64. ``elements`` is B * H."""
    if training:
        return elements >= _LARGE_STEP or (elements <= hidden and hidden > _FEW_UNITS)
    most = _ROWS_OF_FEW_UNITS if hidden <= _FEW_UNITS else _ROWS
    return kind == "gru" or elements < most * hidden


def _half_on_a_cpu(
    rnn: bool, hidden: int, dtype: torch.dtype, elements: int, training: bool
) -> bool:
    """The choice for half types. ``elements`` is B * H."""
    if rnn and elements < _SMALL_STEP:
        return True
    in_hardware = dtype in IN_HARDWARE
    # Without such hardware, torch's products are slow, except those with a single row.
    if elements <= hidden and not training:
        by_onednn = in_hardware and dtype is torch.bfloat16
        return not (by_onednn and _ONEDNN_UNITS <= hidden <= _FEW_UNITS)
    return hidden > _FEW_UNITS and in_hardware


def _on_a_gpu(input: Tensor, c: Tensor) -> bool:
    # cell_step has no forward mode and no rule for vmap, and does not support DTensors. Compiled
    # programs and exported graphs contain the op of layers.
    if torch.compiler.is_compiling() or type(input) is not Tensor:
        return False
    if _innermost_transform() is not None or forward_ad._current_level >= 0:
        return False
    # A float32 c stays float32.
    return c.dtype is input.dtype or torch.is_autocast_enabled("cuda")


def takes_cell_step(input: Tensor, h: Tensor, c: Tensor, parameters: list[Any]) -> bool:
    """Whether cell_step runs this step [B, I] faster than torch's op."""
    if not input.is_cuda or is_tracing():  # a trace consists of torch's ops
        return False
    return h.size(0) <= _FEW_ROWS or records_gradients(input, h, c, parameters)


def records_gradients(input: Tensor, h: Tensor, c: Tensor, parameters: list[Any]) -> bool:
    """Whether autograd records this step."""
    return torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (*parameters, input, h, c)
    )
