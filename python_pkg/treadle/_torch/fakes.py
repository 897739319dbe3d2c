"""Fake kernels of ops with arguments on two devices, for torch.compile and meta tensors.

A packed batch has its ``batch_sizes`` on the CPU and its data on any device. torch derives the
device of a traced result from the arguments and refuses two devices, unless the op has its own fake
kernel. A layer's fake kernel also warns if an ONNX export lacks the translation table.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

_ops = torch.ops.treadle


def _forward(*args: Any, **kwargs: Any) -> Any:
    return _ops.recurrent_layer_forward_empty(*args, **kwargs)


def _layer(*args: Any, **kwargs: Any) -> Any:
    _lead_to_onnx()
    return _ops.recurrent_layer_forward_empty(*args, **kwargs)[:3]


def _backward(*args: Any, **kwargs: Any) -> Any:
    return _ops.recurrent_layer_backward_empty(*args, **kwargs)


def _lead_to_onnx() -> None:
    """Warns if an ONNX export lacks the translation table, which torch's error does not mention."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is None or "treadle.onnx" in sys.modules or not onnx.is_in_onnx_export():
        return
    warnings.warn(
        "treadle: torch.onnx.export must get custom_translation_table="
        "treadle.onnx.translation_table(), after import treadle.onnx; see docs/deploy.md",
        stacklevel=2,
    )


def register() -> None:
    """Registers the fake kernels; called once per process, after the ops have been loaded."""
    torch.library.register_fake("treadle::recurrent_layer_forward", _forward)
    torch.library.register_fake("treadle::recurrent_layer", _layer)
    torch.library.register_fake("treadle::recurrent_layer_backward", _backward)
