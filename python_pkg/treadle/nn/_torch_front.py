"""The forward pass of layers with the interface of torch.nn.LSTM and GRU."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..recurrent import gru, lstm
from ._sequence import Front
from ._tracers import is_tracing

__all__ = ["GRU_FRONT", "LSTM_FRONT", "TorchFront"]

# What ONNX's LSTM and GRU compute in. In float64 onnxruntime refuses them.
_ONNX_DTYPES = {torch.float32, torch.float16}


class TorchFront(Front):
    """Reads weights as torch.nn.RNNBase does, and exports to ONNX as torch's layer."""

    def __init__(
        self,
        torchs: type[nn.RNNBase],
        states: tuple[str, ...],
        op: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        super().__init__(torchs.__name__, states, op)
        self.torchs: Any = torchs

    def called(
        self, layer: Any, input: object, hx: object, *options: object
    ) -> tuple[Any, ...]:
        exports = is_tracing() or torch.compiler.is_exporting()
        if exports and torch.onnx.is_in_onnx_export() and self._is_torchs(layer, input, hx, options):
            found: tuple[Any, ...] = self.torchs.forward(layer, input, hx)
            return found
        return super().called(layer, input, hx, *options)

    def _is_torchs(self, layer: Any, input: object, hx: object, options: tuple[object, ...]) -> bool:
        """Whether torch's layer does for a call what ours does, so that torch.onnx.export, which
        knows torch's ops, needs no translation table."""
        if any(option is not None and option is not False for option in options):
            return False
        if is_tracing():  # dynamo=False, which takes no table
            return True
        states = hx if isinstance(hx, (tuple, list)) else (hx,)
        dtypes = {t.dtype for t in (input, *states) if isinstance(t, Tensor)}
        return not isinstance(input, PackedSequence) and len(dtypes) == 1 and dtypes <= _ONNX_DTYPES

    def parameters(self, layer: Any) -> list[Tensor]:
        # torch.nn.RNNBase keeps its parameters in this list, too.
        flat: list[Tensor] = layer._flat_weights
        if all(map(is_, map(layer._parameters.get, layer._flat_weights_names), flat)) and (
            torch.compiler.is_compiling()
            or all(map(is_, layer._flat_weight_refs, map(ref, flat)))  # a tensor has one
        ):
            return flat
        return self._compared(layer)

    def _compared(self, layer: Any) -> list[Tensor]:
        """The parameters; or _flat_weights, which counts where it was written to and no parameter
        has become another tensor since the last call. It is the rule of torch.nn.RNNBase."""
        found, own = super().parameters(layer), layer.__dict__
        flat: list[Tensor] = layer._flat_weights
        pairs = zip(layer._flat_weight_refs, found, strict=True)
        changed = any(r is not None and r() is not weight for r, weight in pairs)
        if torch.compiler.is_compiling():
            return found if changed else flat  # what it traces with is not to stay
        if changed:
            held = own["_parameters"]
            if not all(name in held or name in own for name in layer._flat_weights_names):
                return found  # nn.utils.parametrize computes one at every call
            layer._flat_weights, layer._flat_weight_refs = found, [ref(w) for w in found]
            return found
        return flat


LSTM_FRONT = TorchFront(nn.LSTM, ("h0", "c0"), lstm)
GRU_FRONT = TorchFront(nn.GRU, ("h0",), gru)
