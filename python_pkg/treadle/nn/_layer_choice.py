"""Decides whether torch's op runs a layer without projections faster than treadle's kernels.

This is so for an LSTM in bfloat16 on a CPU that multiplies bfloat16 in hardware, without gradients.
Then torch.lstm runs all steps in oneDNN, whose op has no second derivatives and no forward mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._cell_choice import IN_HARDWARE
from ._projected_torch import steps_of, torchs_may_run
from ._sequence import Options, States

__all__ = ["torchs_is_faster"]

# With fewer units, the activations take most of the time.
_UNITS, _UNITS_OF_FEW_ROWS, _FEW_ROWS = 128, 256, 16


def torchs_is_faster(
    layer: Any,
    input: tuple[Tensor, ...],
    states: States | None,
    net: tuple[Any, ...],
    rest: tuple[bool, ...],
    options: Options,
) -> bool:
    """Whether torch.lstm supports this call and is faster."""
    x = input[0]
    if not x.is_cpu or layer.mode != "LSTM" or layer.hidden_size < _UNITS:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if dtype is not torch.bfloat16 or dtype not in IN_HARDWARE:
        return False
    if not torchs_may_run(x, states, options) or forward_ad._current_level >= 0:
        return False
    if getattr(layer, "groups", 1) > 1:
        return False
    tensors = (x, *(states or ()), *net[0])
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None):
        return False
    if layer.hidden_size >= _UNITS_OF_FEW_ROWS:
        return True
    return x.numel() >= x.size(-1) * steps_of(input, rest) * _FEW_ROWS
