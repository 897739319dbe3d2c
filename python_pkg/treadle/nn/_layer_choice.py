"""Decides whether torch's op runs a layer without projections faster than treadle's kernels.

This is so for an LSTM in bfloat16 on a CPU that multiplies bfloat16 in hardware, without gradients.
Then torch.lstm runs all steps in oneDNN, whose op has no second derivatives and no forward mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._cell_choice import IN_HARDWARE, innermost_transform
from ._sequence import Options, States
from ._tracers import is_tracing

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
    x, given = input[0], states or ()
    if not x.is_cpu or layer.mode != "LSTM" or layer.hidden_size < _UNITS:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if dtype is not torch.bfloat16 or dtype not in IN_HARDWARE:
        return False
    if type(x) is not Tensor or torch.compiler.is_compiling() or is_tracing():
        return False
    if options.reset is not None or options.lengths is not None or options.return_cells:
        return False
    if getattr(layer, "groups", 1) > 1 or innermost_transform() is not None:
        return False
    if forward_ad._current_level >= 0 or x.numel() == 0:
        return False
    if len(given) == 1 or any(state.dtype is not x.dtype for state in given):
        return False
    tensors = (x, *given, *net[0])
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None):
        return False
    if layer.hidden_size >= _UNITS_OF_FEW_ROWS:
        return True
    steps = len(input[1]) if len(input) == 2 else x.size(1 if rest[0] else 0)
    return x.numel() >= x.size(-1) * steps * _FEW_ROWS
