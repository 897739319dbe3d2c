"""ONNX export of treadle's ops: ``translation_table()`` for torch.onnx.export.

``import treadle`` does not import this module, which needs onnxscript. So write
``import treadle.onnx``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

try:
    import onnx_ir as ir
    from onnxscript import opset18 as op
except ModuleNotFoundError as error:
    raise ImportError(f"treadle.onnx needs {error.name}: pip install onnxscript") from error

from . import _recurrent as recurrent
from ._graph import Value, cast, constant, narrowed, wide_dtype

__all__ = ["translation_table"]


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Returns the functions that translate treadle's ops to ONNX, for ``torch.onnx.export``::

        torch.onnx.export(
            model, args, "model.onnx", dynamo=True,
            custom_translation_table=treadle.onnx.translation_table(),
        )

    LSTM, GRU and RNN become ONNX's nodes of these names. With ``reset`` or in float64 they become a
    Scan over the steps. An LLTM and a layer whose cell is a formula always become a Scan.
    ``lengths`` of a layer in two directions, of an RNN with relu or of a formula are exported as
    resets. Block-diagonal weights become whole matrices. The sine layer becomes MatMul, Add, Mul
    and Sin; its jets also use Cos. If an op computes half types in float32 and rounds only its
    result, it is exported in float32, between two Casts. Any size except the number of features may
    be dynamic.

    Returns:
        A new dict of functions by op; you can add entries for your own ops.

    Raises (the functions, while a model is exported):
        NotImplementedError: the model has a packed batch; use ``lengths`` instead.

    Ops that write into a given tensor (``sine_``, ``out=``) cannot be exported, and neither can
    derivatives.
    """
    ops = torch.ops.treadle
    return {
        ops.recurrent_layer.default: recurrent.recurrent_layer,
        ops.affine_scan.default: recurrent.affine_scan,
        ops.lltm_cell.default: recurrent.lltm_cell,
        ops.lltm_cell_forward.default: recurrent.lltm_cell_forward,
        ops.sine_linear.default: _sine_linear,
        ops.sine_linear_jet.default: _sine_linear_jet,
        ops.sine.default: _sine,
        ops.cosine.default: _cosine,
        ops.snake.default: _snake,
        ops.scale.default: _scale,
        ops.vector_add.default: _vector_add,
        ops.vector_add.Scalar: _vector_add,
    }


def _sine_linear(input: Value, weight: Value, bias: Value, omega: float) -> Value:
    dtype, rank = wide_dtype(input.dtype), len(input.shape)
    x, w = cast(input, dtype), cast(weight, dtype)
    b = None if bias is None else cast(bias, dtype)
    if len(weight.shape) == 2:
        product = op.MatMul(x, op.Transpose(w, perm=[1, 0]))
    else:
        # N layers: input [N, ..., I], weight [N, O, I], bias [N, O].
        w = op.Transpose(w, perm=[0, 2, 1])
        if rank > 3:
            w = op.Unsqueeze(w, list(range(1, rank - 2)))
        if b is not None:
            b = op.Unsqueeze(b, list(range(1, max(rank, 3) - 1)))
        product = op.MatMul(x if rank > 2 else op.Unsqueeze(x, [1]), w)
    if b is not None:
        product = op.Add(product, b)
    found = op.Sin(op.Mul(product, constant(omega, dtype)))
    if len(weight.shape) == 3 and rank == 2:
        found = op.Squeeze(found, [1])
    return narrowed(found, dtype, input.dtype)


def _sine_linear_jet(
    jet: Value,
    weight: Value,
    bias: Value,
    omega: float,
    coordinates: int,
    second: str = "none",
) -> Value:
    """See ``treadle.reference.sine_linear_jet``."""
    dtype = wide_dtype(jet.dtype)
    factor = constant(omega, dtype)
    z = op.MatMul(cast(jet, dtype), op.Transpose(cast(weight, dtype), perm=[1, 0]))

    def parts(begin: int, end: int) -> Value:
        return op.Slice(z, [begin], [end], [0])

    value, first = parts(0, 1), parts(1, 1 + coordinates)
    angle = op.Mul(value if bias is None else op.Add(value, cast(bias, dtype)), factor)
    sine, slope = op.Sin(angle), op.Mul(op.Cos(angle), factor)
    found = [sine, op.Mul(slope, first)]
    if second != "none":
        squares = op.Mul(first, first)
        if second == "laplacian":
            squares = op.ReduceSum(squares, [0], keepdims=1)
        bend = op.Mul(op.Mul(sine, constant(omega**2, dtype)), squares)
        last = parts(1 + coordinates, 1 + 2 * coordinates)
        found.append(op.Sub(op.Mul(slope, last), bend))
    return narrowed(op.Concat(*found, axis=0), dtype, jet.dtype)


def _wave(node: Callable[..., Value], x: Value) -> Value:
    to = _result_dtype(x, 1.0)
    return narrowed(node(cast(x, wide_dtype(to))), wide_dtype(to), to)


def _sine(x: Value) -> Value:
    return _wave(op.Sin, x)


def _cosine(x: Value) -> Value:
    return _wave(op.Cos, x)


def _snake(
    x: Value,
    alpha: Value,
    beta: Value | None = None,
    eps: float | None = None,
    logscale: bool = False,
) -> Value:
    factor, rank = alpha if beta is None else beta, len(x.shape)
    to = _result_dtype(x, alpha, factor, 1.0)
    dtype = wide_dtype(to)

    def along(parameter: Value) -> Value:
        wide = cast(parameter, dtype)
        wide = op.Exp(wide) if logscale else wide
        return op.Unsqueeze(wide, list(range(1, rank - 1))) if rank > 2 else wide

    wide, divisor = cast(x, dtype), along(factor)
    phase = op.Mul(along(alpha), wide)
    wave = op.Sin(phase)
    square = op.Mul(wave, wave)
    if beta is not None or eps is not None:
        divisor = op.Add(divisor, constant(eps or 0.0, dtype))
        return narrowed(op.Add(wide, op.Div(square, divisor)), dtype, to)
    # If the phase is tiny, sin(phase) rounds to the phase, and sin(phase)^2 / alpha is phase * x.
    # This also gives the limit at alpha = 0.
    tiny = op.Less(op.Abs(phase), constant(2.0**-27, dtype))
    quotient = op.Div(square, op.Where(tiny, constant(1.0, dtype), divisor))
    added = op.Where(tiny, op.Mul(phase, wide), quotient)
    return narrowed(op.Add(wide, added), dtype, to)


def _scale(x: Value, factor: Value | float) -> Value:
    to = _result_dtype(x, factor)
    dtype = wide_dtype(to)
    return narrowed(op.Mul(cast(x, dtype), constant(factor, dtype)), dtype, to)


def _vector_add(a: Value, b: Value | float, *, alpha: Value | float = 1) -> Value:
    to = _result_dtype(a, b)
    dtype = wide_dtype(to)

    def rounded(operand: Value | float) -> Value:
        """Rounds numbers, and tensors of another dtype, as the op does before it computes."""
        return cast(constant(operand, to), dtype)

    addend = rounded(b)
    if isinstance(alpha, ir.Value) or alpha != 1:
        addend = op.Mul(addend, rounded(alpha))
    return narrowed(op.Add(rounded(a), addend), dtype, to)


def _result_dtype(*operands: Value | float) -> Any:
    """The dtype to which torch promotes the operands."""
    first, second, *others = map(_stand_in, operands)
    found = torch.result_type(first, second)
    for other in others:
        found = torch.result_type(torch.empty(1, dtype=found, device="meta"), other)
    return ir.tensor_adapters.from_torch_dtype(found)


def _stand_in(operand: Value | float) -> Any:
    """A meta tensor with the operand's dtype and rank, which determine type promotion."""
    if not isinstance(operand, ir.Value):
        return operand
    dtype = ir.tensor_adapters.to_torch_dtype(operand.dtype)
    return torch.empty([1] * len(operand.shape), dtype=dtype, device="meta")
