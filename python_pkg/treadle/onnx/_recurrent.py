"""The recurrent ops in ONNX, for treadle.onnx.

LSTM, GRU and RNN become ONNX's own nodes. An LLTM, a cell of a formula, and a layer with resets
become a Scan over the steps. So does a layer in float64, which onnxruntime does not support in its
nodes. A Scan computes float16 and bfloat16 in float32. Block-diagonal weights become whole
matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import opset18 as op

from .._formula.cell import _sources
from ._formulas import formula_step
from ._graph import Ops, Value, cast, constant, narrowed, scan, wide_dtype

__all__ = ["affine_scan", "lltm_cell", "lltm_cell_forward", "recurrent_layer"]

Cell = tuple[Any, Any]  # h and c

# For each of ONNX's gates, the index of the same gate in treadle. The order of ONNX's LSTM is
# i, o, f, c, and that of its GRU is z, r, h.
ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}

# ---- one step. `gates` [B, GH] are sums of the products with input and state; c is [B, H].


def _elu(op: Ops, z: Value, dtype: Any) -> Value:
    if dtype != ir.DataType.DOUBLE:
        return op.Elu(z)
    # onnxruntime has no Elu for float64.
    zero, one = constant(0.0, dtype), constant(1.0, dtype)
    return op.Where(op.Less(z, zero), op.Sub(op.Exp(z), one), z)


def _lltm_step(op: Ops, gates: Value, c: Value, dtype: Any) -> Cell:
    i, o, z = op.Split(gates, axis=-1, num_outputs=3)
    new_c = op.Add(c, op.Mul(_elu(op, z, dtype), op.Sigmoid(i)))
    return op.Mul(op.Tanh(new_c), op.Sigmoid(o)), new_c


def _lstm_step(op: Ops, gates: Value, c: Value, dtype: Any) -> Cell:
    i, f, z, o = op.Split(gates, axis=-1, num_outputs=4)
    new_c = op.Add(op.Mul(op.Sigmoid(f), c), op.Mul(op.Sigmoid(i), op.Tanh(z)))
    return op.Mul(op.Sigmoid(o), op.Tanh(new_c)), new_c


def _gru_step(op: Ops, of_input: Value, of_state: Value, c: Value) -> Cell:
    x_r, x_z, x_n = op.Split(of_input, axis=-1, num_outputs=3)
    h_r, h_z, h_n = op.Split(of_state, axis=-1, num_outputs=3)
    r, z = op.Sigmoid(op.Add(x_r, h_r)), op.Sigmoid(op.Add(x_z, h_z))
    n = op.Tanh(op.Add(x_n, op.Mul(r, h_n)))
    new_c = op.Add(n, op.Mul(z, op.Sub(c, n)))
    return op.Identity(new_c), new_c


def _rnn_tanh_step(op: Ops, gate: Value, c: Value, dtype: Any) -> Cell:
    return op.Tanh(gate), op.Tanh(gate)


def _rnn_relu_step(op: Ops, gate: Value, c: Value, dtype: Any) -> Cell:
    return op.Relu(gate), op.Relu(gate)


# In these cells, a gate depends only on the sum of its products with input and state. A GRU needs
# both products separately, and so does a formula in which some gates have only one product.
_STEPS = {
    "lltm": _lltm_step,
    "lstm": _lstm_step,
    "rnn_tanh": _rnn_tanh_step,
    "rnn_relu": _rnn_relu_step,
}


def lltm_cell_forward(
    input: Value, weights: Value, bias: Value, old_h: Value, old_cell: Value
) -> Sequence[Value]:
    """``treadle::lltm_cell_forward``. Its last result is the gates without their bias."""
    dtype = wide_dtype(input.dtype)
    rows = cast(op.Concat(old_h, input, axis=-1), dtype)
    sums = op.MatMul(rows, op.Transpose(cast(weights, dtype), perm=[1, 0]))
    gates = sums if bias is None else op.Add(sums, cast(bias, dtype))
    found = (*_lltm_step(op, gates, cast(old_cell, dtype), dtype), sums)
    dtypes = input.dtype, old_cell.dtype, input.dtype
    return [narrowed(value, dtype, to) for value, to in zip(found, dtypes, strict=True)]


def lltm_cell(*args: Value) -> Sequence[Value]:
    """``treadle::lltm_cell``."""
    return lltm_cell_forward(*args)[:2]


def affine_scan(
    keep: Value, add: Value, start: Value, *, reset: Value = None, reverse: bool = False
) -> Value:
    """``treadle::affine_scan``."""
    dtype = add.dtype
    rows = [(keep, dtype), (add, dtype)]
    if reset is not None:
        rows.append((reset, ir.DataType.BOOL))

    def step(op: Ops, sum: Value, keep: Value, add: Value, *mark: Value) -> Sequence[Value]:
        new = op.Add(op.Mul(keep, sum), add)
        if mark:
            new = op.Where(mark[0], add, new)
        return new, op.Identity(new)

    return scan(step, [start], rows, dtype, reverse)[1]


# ---- a layer


class _Layer(NamedTuple):
    """The arguments of ``recurrent_layer``, in the op's form, and the dtype to compute in."""

    cell: str
    dtype: Any
    input: Value
    states: Sequence[Value]  # h0, c0
    weights: Sequence[Value]  # weight_ih, weight_hh
    biases: Sequence[Value]  # bias_ih, bias_hh
    reset: Value
    starts: Sequence[Value]  # reset_h, reset_c

    @property
    def directions(self) -> int:
        return int(self.states[0].shape[0])

    @property
    def hidden(self) -> int:
        return int(self.states[0].shape[-1])

    def cast(self, value: Value) -> Value:
        return cast(value, self.dtype)

    def of_directions(self, value: Value, rank: int) -> Value:
        """A parameter with the leading dimension D. If it is missing, D = 1 is added."""
        found = self.cast(value)
        return found if len(value.shape) == rank else op.Unsqueeze(found, [0])

    def of_direction(self, value: Value, d: int, rank: int) -> Value:
        """Direction d of a parameter. ``rank`` is the parameter's rank without dimension D."""
        found = self.cast(value)
        if len(value.shape) == rank:
            return found
        return op.Gather(found, constant(d, ir.DataType.INT64), axis=0)

    def zeros(self, *shape: int) -> Value:
        return op.Constant(value=ir.tensor(np.zeros(shape, self.dtype.numpy())))


def _node(a: _Layer) -> Sequence[Value]:
    """ONNX's LSTM, GRU or RNN."""
    # A Gather puts the rows of treadle's weights into ONNX's order, because the exporter folds a
    # Gather of constants, but not a Split.
    order = [gate * a.hidden + row for gate in ORDERS[a.cell] for row in range(a.hidden)]
    rows = constant(order, ir.DataType.INT64)

    def ordered(value: Value) -> Value:
        return op.Gather(value, rows, axis=1)

    weights = [ordered(a.of_directions(value, 3)) for value in a.weights]
    biases = None
    if any(bias is not None for bias in a.biases):
        none = a.zeros(a.directions, len(order))
        given = [none if b is None else ordered(a.of_directions(b, 2)) for b in a.biases]
        biases = op.Concat(*given, axis=1)
    options = {
        "hidden_size": a.hidden,
        "direction": "bidirectional" if a.directions == 2 else "forward",
    }
    h0, c0 = (a.cast(state) for state in a.states)
    x = a.cast(a.input)
    if a.cell == "lstm":
        output, h_n, c_n = op.LSTM(x, *weights, biases, None, h0, c0, **options)
    else:
        if a.cell == "gru":
            output, h_n = op.GRU(x, *weights, biases, None, h0, linear_before_reset=1, **options)
        else:
            activations = [a.cell.removeprefix("rnn_").capitalize()] * a.directions
            output, h_n = op.RNN(x, *weights, biases, None, h0, activations=activations, **options)
        c_n = op.Identity(h_n)
    if a.directions == 1:  # output is [T, D, B, H]
        return op.Squeeze(output, [1]), h_n, c_n
    output = op.Transpose(output, perm=[0, 2, 1, 3])
    return op.Reshape(output, [0, 0, 2 * a.hidden]), h_n, c_n


def _direction(a: _Layer, d: int) -> Sequence[Value]:
    """Runs one direction as a Scan. Returns h and c after all steps, and the output."""
    weight_ih, weight = (
        op.Transpose(a.of_direction(value, d, 2), perm=[1, 0]) for value in a.weights
    )
    biases = [None if value is None else a.of_direction(value, d, 1) for value in a.biases]
    of_input = op.MatMul(a.cast(a.input), weight_ih)
    # A GRU multiplies its second bias by r. So the second bias of a GRU, and that of a formula, is
    # added to the product with the state instead.
    for bias in biases[: 2 if a.cell in _STEPS else 1]:
        of_input = of_input if bias is None else op.Add(of_input, bias)
    rows = [(of_input, a.dtype)]
    always: list[Value] = []  # the states after a reset; None where each step has its own
    if a.reset is not None:
        # The second direction runs backward in time, so a reset at t + 1 acts before its step t.
        mark = a.reset if d == 0 else op.Pad(a.reset, [-1, 0, 0, 1, 0, 0])
        rows.append((mark, ir.DataType.BOOL))
        for start in a.starts:
            if start is not None and len(start.shape) == 4:
                rows.append((a.of_direction(start, d, 3), a.dtype))
                always.append(None)
            else:
                always.append(a.zeros(1) if start is None else a.of_direction(start, d, 2))

    def step(op: Ops, h: Value, c: Value, row: Value, *resets: Value) -> Sequence[Value]:
        if resets:
            mark, *each = resets
            h, c = (
                op.Where(mark, each.pop(0) if start is None else start, state)
                for start, state in zip(always, (h, c), strict=True)
            )
        of_state = op.MatMul(h, weight)
        if a.cell in _STEPS:
            new_h, new_c = _STEPS[a.cell](op, op.Add(row, of_state), c, a.dtype)
            return new_h, new_c, op.Identity(new_h)
        of_state = of_state if biases[1] is None else op.Add(of_state, biases[1])
        if a.cell == "gru":
            new_h, new_c = _gru_step(op, row, of_state, c)
        else:
            new_h, new_c = formula_step(_sources[a.cell], op, row, of_state, c, a.dtype)
        return new_h, new_c, op.Identity(new_h)

    states = [a.of_direction(state, d, 2) for state in a.states]
    return scan(step, states, rows, a.dtype, d == 1)


def _steps(a: _Layer) -> Sequence[Value]:
    """A layer as one Scan for each of its directions."""
    found = [_direction(a, d) for d in range(a.directions)]
    h_n, c_n, output = zip(*found, strict=True)
    if a.directions == 1:
        return output[0], op.Unsqueeze(h_n[0], [0]), op.Unsqueeze(c_n[0], [0])
    h_n, c_n = (
        op.Concat(*(op.Unsqueeze(state, [0]) for state in states), axis=0) for states in (h_n, c_n)
    )
    return op.Concat(*output, axis=-1), h_n, c_n


def _whole(weight: Value, hidden: int, dtype: Any) -> Value:
    """[..., GH, H] from the blocks [..., GH, H / groups] of a block-diagonal matrix, in which the
    units of a group read only each other's h."""
    *directions, rows, own = weight.shape
    if own == hidden:
        return weight
    unit = np.arange(hidden)
    same = unit[:, None] // own == unit[None] // own
    mask = op.Constant(value=ir.tensor(np.tile(same, (rows // hidden, 1))))
    repeated = op.Concat(*[cast(weight, dtype)] * (hidden // own), axis=-1)
    found = op.Where(mask, repeated, constant(0.0, dtype))
    found.dtype, found.shape = dtype, ir.Shape([*directions, rows, hidden])
    return found


def recurrent_layer(
    input: Value,
    batch_sizes: Value,
    h0: Value,
    c0: Value,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value,
    bias_hh: Value,
    *,
    cell: str,
    recompute: bool = False,
    algorithm: str = "auto",
    reset: Value = None,
    reset_h: Value = None,
    reset_c: Value = None,
) -> Sequence[Value]:
    """``treadle::recurrent_layer``."""
    if batch_sizes is not None:
        raise NotImplementedError(
            f"{cell}: input must be padded for ONNX, got a packed batch: pass lengths=, the number "
            "of steps of each row"
        )
    if cell != "lltm" and cell not in ORDERS and cell not in _sources:
        raise NotImplementedError(
            f"{cell}: the Cell must exist in the process that exports to ONNX, got a key without a "
            "Cell: create it by treadle.Cell before the export"
        )
    # onnxruntime's LSTM and GRU raise for float64.
    by_steps = cell not in ORDERS or reset is not None or input.dtype == ir.DataType.DOUBLE
    # The nodes of ONNX's opset 18 do not support bfloat16, and require c in the dtype of x.
    half = input.dtype == ir.DataType.FLOAT16 and (cell != "lstm" or c0.dtype == input.dtype)
    dtype = input.dtype if half and not by_steps else wide_dtype(input.dtype)
    weight_hh = _whole(weight_hh, int(h0.shape[-1]), dtype)
    biases, starts = (bias_ih, bias_hh), (reset_h, reset_c)
    layer = _Layer(cell, dtype, input, (h0, c0), (weight_ih, weight_hh), biases, reset, starts)
    found = _steps(layer) if by_steps else _node(layer)
    dtypes = input.dtype, h0.dtype, c0.dtype
    return [narrowed(value, dtype, to) for value, to in zip(found, dtypes, strict=True)]
