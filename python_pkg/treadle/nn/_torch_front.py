"""The forward pass of layers with the interface of torch.nn.LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from .._check.tensors import dtype_name
from ..recurrent import gru, lstm, rnn_relu, rnn_tanh
from . import _layer_choice
from ._onnx_nodes import onnx_layers
from ._projected_torch import run_torchs, torchs_is_faster
from ._projections import run_projected
from ._sequence import Front, Options, States
from ._tracers import is_tracing

__all__ = ["GRU_FRONT", "LSTM_FRONT", "RNN_FRONT", "TorchFront"]

Op = Callable[..., tuple[Tensor, ...]]

# The dtypes of ONNX's LSTM and GRU for which onnxruntime has kernels; float64 is not one.
_ONNX_DTYPES = {torch.float32, torch.float16}


class TorchFront(Front):
    """A Front that reads weights like torch.nn.RNNBase, exports to ONNX like torch's layers, and
    calls torch for complex numbers."""

    def __init__(
        self, name: str, states: tuple[str, ...], op: Op, torchs: Callable[..., Any]
    ) -> None:
        super().__init__(name, states, op)
        # The forward pass of torch's module, saved because some programs later replace
        # torch.nn.LSTM by treadle's class.
        self.torchs = torchs

    def called(self, layer: Any, input: object, hx: object, *options: object) -> tuple[Any, ...]:
        data = input.data if isinstance(input, PackedSequence) else input
        # The input is read before the weight, which nn.utils.parametrize may compute at each read.
        if not (isinstance(data, Tensor) and data.is_complex() and layer.weight_ih_l0.is_complex()):
            return super().called(layer, input, hx, *options)
        if getattr(layer, "groups", 1) != 1:
            raise ValueError(
                f"{self.name}: groups must be 1 in a layer of {dtype_name(data.dtype)}, which "
                f"torch runs, got {layer.groups}"
            )
        if any(option is not None and option is not False for option in options):
            raise ValueError(
                f"{self.name}: a layer of {dtype_name(data.dtype)}, which torch runs, must be "
                "called without reset, reset_hx, lengths and return_cells"
            )
        return self.torchs(layer, input, hx)  # type: ignore[no-any-return]

    def _check_input(self, layer: Any, input: object) -> Tensor:
        checked = super()._check_input(layer, input)
        steps = checked.size(1 if layer.batch_first and checked.dim() == 3 else 0)
        if isinstance(steps, int) and steps == 0:  # not a compiler's symbol or a tracer's tensor
            raise RuntimeError(
                f"{self.name}: Expected sequence length to be larger than 0 in RNN, got input "
                f"{list(checked.shape)}"
            )
        return checked

    def run(
        self,
        layer: Any,
        input: tuple[Tensor, ...],
        states: States | None,
        net: tuple[Any, ...],
        rest: tuple[bool, ...],
        options: Options,
    ) -> tuple[Tensor, ...]:
        if not layer.proj_size:
            if _layer_choice.torchs_is_faster(layer, input, states, net, rest, options):
                return run_torchs(layer, input, states, net, rest)
            return self._run_op(layer, input, states, net, rest, options)
        if torchs_is_faster(layer, input, states, rest, options):
            return run_torchs(layer, input, states, net, rest)
        return run_projected(self._run_op, layer, input, states, net, rest, options)

    def _run_op(
        self,
        layer: Any,
        input: tuple[Tensor, ...],
        states: States | None,
        net: tuple[Any, ...],
        rest: tuple[bool, ...],
        options: Options,
    ) -> tuple[Tensor, ...]:
        """The forward pass of a layer without projections."""
        exports = is_tracing() or torch.compiler.is_exporting()
        if exports and states is not None and torch.onnx.is_in_onnx_export():
            arguments = (*input, self.given(states), *net, *rest)
            found = self._to_onnx(layer, arguments, options)
            if found is not None:
                return found
        return super().run(layer, input, states, net, rest, options)

    def _to_onnx(
        self, layer: Any, arguments: tuple[Any, ...], options: Options
    ) -> tuple[Tensor, ...] | None:
        """Calls ops that torch.onnx.export can translate without a table, or returns None."""
        op, groups = self.op_of(layer).__name__, getattr(layer, "groups", 1)
        torchs: Op = getattr(torch, op)
        plain = options.reset is None and options.lengths is None and not options.return_cells
        if is_tracing():  # dynamo=False, which accepts no table
            if groups > 1:
                raise RuntimeError(
                    f"{self.name}: a layer with groups must be exported by torch.onnx.export(..., "
                    "dynamo=True, custom_translation_table=treadle.onnx.translation_table()), got "
                    "dynamo=False"
                )
            if not plain:
                raise RuntimeError(
                    f"{self.name}: calls with reset, lengths or return_cells must be exported by "
                    "torch.onnx.export(..., dynamo=True, custom_translation_table="
                    "treadle.onnx.translation_table()), got dynamo=False"
                )
            return torchs(*arguments)
        input, states, *_ = arguments
        each = (states,) if isinstance(states, Tensor) else states
        dtypes = {input.dtype, *(state.dtype for state in each)}
        if not plain or groups > 1 or len(dtypes) > 1 or not dtypes <= _ONNX_DTYPES:
            return None
        # torch.export would make the number of steps of torch's op a constant.
        any_steps = isinstance(input.size(1 if arguments[-1] else 0), torch.SymInt)
        return onnx_layers(op, *arguments) if any_steps else torchs(*arguments)

    def parameters(self, layer: Any) -> list[Tensor]:
        # torch.nn.RNNBase also keeps its parameters in this list.
        flat: list[Tensor] = layer._flat_weights
        if all(map(is_, map(layer._parameters.get, layer._flat_weights_names), flat)) and (
            torch.compiler.is_compiling()
            # weakref.ref returns the same object each time that it is called with a tensor.
            or all(map(is_, layer._flat_weight_refs, map(ref, flat)))
        ):
            return flat
        return self._compared(layer)

    def _compared(self, layer: Any) -> list[Tensor]:
        """The parameters if one was replaced since the last call, else _flat_weights, to which a
        program may have written. torch.nn.RNNBase has the same rule."""
        found, own = super().parameters(layer), layer.__dict__
        flat: list[Tensor] = layer._flat_weights
        pairs = zip(layer._flat_weight_refs, found, strict=True)
        changed = any(r is not None and r() is not weight for r, weight in pairs)
        if torch.compiler.is_compiling():
            return found if changed else flat  # must not store a tracer's tensors in the layer
        if changed:
            held = own["_parameters"]
            if not all(name in held or name in own for name in layer._flat_weights_names):
                return found  # nn.utils.parametrize computes a parameter at every call
            layer._flat_weights, layer._flat_weight_refs = found, [ref(w) for w in found]
            return found
        return flat


class RnnFront(TorchFront):
    """Chooses the op by the module's nonlinearity."""

    def op_of(self, layer: Any) -> Op:
        return rnn_relu if layer.mode == "RNN_RELU" else self.op


LSTM_FRONT = TorchFront("LSTM", ("h0", "c0"), lstm, nn.LSTM.forward)
GRU_FRONT = TorchFront("GRU", ("h0",), gru, nn.GRU.forward)
RNN_FRONT = RnnFront("RNN", ("h0",), rnn_tanh, nn.RNN.forward)
