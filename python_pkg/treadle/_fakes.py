"""What torch.compile and meta tensors see of ops that take tensors of two devices.

A packed batch has its ``batch_sizes`` on the CPU beside data on any device. torch derives the
device of a traced result from those of the arguments, and refuses two, unless an op has a fake
kernel of its own.
"""

from __future__ import annotations

from typing import Any

import torch

_ops = torch.ops.treadle


def _forward(*args: Any, **kwargs: Any) -> Any:
    return _ops.recurrent_layer_forward_empty(*args, **kwargs)


def _layer(*args: Any, **kwargs: Any) -> Any:
    return _ops.recurrent_layer_forward_empty(*args, **kwargs)[:3]


def _backward(*args: Any, **kwargs: Any) -> Any:
    return _ops.recurrent_layer_backward_empty(*args, **kwargs)


def register() -> None:
    """Once in a process, after the ops have been loaded."""
    torch.library.register_fake("treadle::recurrent_layer_forward", _forward)
    torch.library.register_fake("treadle::recurrent_layer", _layer)
    torch.library.register_fake("treadle::recurrent_layer_backward", _backward)
