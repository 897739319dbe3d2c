"""The recurrent layers of treadle.jax, run by the kernels or by a scan in plain JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _ffi as ffi
from ._ffi import Layer

Arrays = tuple[Any, ...]
# For each cell, the number of gates that have a product with h.
_STATE_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_SAVED = _STATE_GATES | {"gru": 4}  # values that the kernels save per unit and step


def _forward(layer: Layer, save: bool, *inputs: Any) -> Arrays:
    """Returns output, h_n, c_n and the gates, which are empty unless `save`. `inputs` are the
    products W_ih x, and weight_hh, bias_ih, bias_hh, h0 and c0."""
    d, t, b, h = layer.directions, layer.steps, layer.batch, layer.hidden
    gates = (d, t, b, _SAVED[layer.cell] * h) if save else (0,)
    results = (
        jax.ShapeDtypeStruct((t, b, d * h), layer.dtype),
        jax.ShapeDtypeStruct((d, b, h), layer.dtype),
        jax.ShapeDtypeStruct((d, b, h), layer.c_dtype),
        jax.ShapeDtypeStruct(gates, layer.dtype),
        ffi.workspace_result(layer, backward=False),
    )
    cell = np.int32(ffi.CELLS[layer.cell])
    made = ffi.call("recurrent_forward", results, *inputs, vmap_method="sequential", cell=cell)
    return tuple(made[:4])


def _result(layer: Layer, *inputs: Any) -> Arrays:
    return _forward(layer, False, *inputs)[:3]


def _result_and_saved(layer: Layer, *inputs: Any) -> tuple[Arrays, Arrays]:
    output, h_n, c_n, gates = _forward(layer, True, *inputs)
    _, weight_hh, _, _, h0, c0 = inputs
    return (output, h_n, c_n), (gates, weight_hh, h0, c0, output)


def _h_before(layer: Layer, h0: Any, output: Any) -> Any:
    """The h before each step, [D, T, B, H]."""
    h = layer.hidden
    parts = [jnp.concatenate([h0[:1], output[:-1, :, :h]])]
    if layer.directions == 2:
        parts.append(jnp.concatenate([output[1:, :, h:], h0[1:]]))
    return jnp.stack(parts)


def _gradients(layer: Layer, saved: Arrays, grads: Arrays) -> Arrays:
    """The gradients of the inputs of `_result`. The kernel runs the steps; then XLA computes the
    products and sums over all steps."""
    gates, weight_hh, h0, c0, output = saved
    results = (
        jax.ShapeDtypeStruct(gates.shape, layer.dtype),
        jax.ShapeDtypeStruct(h0.shape, layer.dtype),
        jax.ShapeDtypeStruct(c0.shape, layer.c_dtype),
        ffi.workspace_result(layer, backward=True),
    )
    cell = np.int32(ffi.CELLS[layer.cell])
    inputs = (gates, weight_hh, c0, *grads)
    of_gates, of_h0, of_c0, _ = ffi.call(
        "recurrent_backward", results, *inputs, vmap_method="sequential", cell=cell
    )
    h = layer.hidden
    if layer.cell == "gru":  # the blocks are n's part from h, then r, z, and n's part from x
        of_x = of_gates[..., h:]
        of_h = jnp.concatenate([of_gates[..., h : 3 * h], of_gates[..., :h]], axis=-1)
    else:
        of_x = of_h = of_gates
    before = _h_before(layer, h0, output)
    of_weight = jnp.einsum("dtbg,dtbh->dgh", of_h, before, preferred_element_type=_wide(layer))
    if layer.biases:
        of_bias_ih, of_bias_hh = jnp.sum(of_x, axis=(1, 2)), jnp.sum(of_h, axis=(1, 2))
    else:
        of_bias_ih = of_bias_hh = jnp.zeros((0,), layer.dtype)
    return of_x, of_weight.astype(layer.dtype), of_bias_ih, of_bias_hh, of_h0, of_c0


by_kernels = jax.custom_vjp(_result, nondiff_argnums=(0,))
by_kernels.defvjp(_result_and_saved, _gradients)


# ---- plain JAX


def _wide(layer: Layer) -> Any:
    """The dtype to compute in: float32 for half types, else the layer's."""
    return jnp.promote_types(layer.dtype, jnp.float32)


def _step(layer: Layer, weight: Any, bias: Any, state: Arrays, product: Any) -> tuple[Any, Any]:
    """One step of one direction. `state` is (h, c), and `product` is W_ih x + b_ih."""
    h, c = state
    of_x, c_wide = product.astype(_wide(layer)), c.astype(_wide(layer))
    of_h = jnp.matmul(h, weight.T, preferred_element_type=_wide(layer)) + bias
    if layer.cell == "lstm":
        i, f, g, o = jnp.split(of_x + of_h, 4, axis=-1)
        new_c = jax.nn.sigmoid(f) * c_wide + jax.nn.sigmoid(i) * jnp.tanh(g)
        new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
    elif layer.cell == "gru":  # c is h before rounding, as in an RNN
        (r, z, n), (r_h, z_h, n_h) = (jnp.split(part, 3, axis=-1) for part in (of_x, of_h))
        n = jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)
        new_c = new_h = n + jax.nn.sigmoid(z + z_h) * (c_wide - n)
    else:
        function = jnp.tanh if layer.cell == "rnn_tanh" else jax.nn.relu
        new_c = new_h = function(of_x + of_h)
    new_h, new_c = new_h.astype(layer.dtype), new_c.astype(layer.c_dtype)
    return (new_h, new_c), new_h


def by_scan(layer: Layer, *inputs: Any) -> Arrays:
    """Computes the same as `by_kernels`, but with jax.lax.scan, which JAX can differentiate any
    number of times."""
    products, weight_hh, bias_ih, bias_hh, h0, c0 = inputs
    outputs, states = [], []
    for d in range(layer.directions):
        of_x = products[d].astype(_wide(layer)) + (bias_ih[d] if layer.biases else 0)
        bias = bias_hh[d].astype(_wide(layer)) if layer.biases else 0
        step = partial(_step, layer, weight_hh[d], bias)
        state, output = jax.lax.scan(step, (h0[d], c0[d]), of_x, reverse=d == 1)
        outputs.append(output)
        states.append(state)
    h_n, c_n = (jnp.stack(part) for part in zip(*states, strict=True))
    return jnp.concatenate(outputs, axis=-1), h_n, c_n


# ---- one layer


def _require(cell: str, name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != shape:
        raise ValueError(f"{cell}: {name} must have shape {list(shape)}, got {list(array.shape)}")
    if array.dtype != dtype:
        raise TypeError(f"{cell}: {name} must have dtype {dtype}, got {array.dtype}")


def _checked_biases(cell: str, biases: Arrays, shape: tuple[int, ...], dtype: Any) -> Arrays:
    """Both biases, or two empty arrays if there are none."""
    if (biases[0] is None) != (biases[1] is None):
        raise ValueError(f"{cell}: bias_ih and bias_hh must both be given, or neither")
    if biases[0] is None:
        return jnp.zeros((0,), dtype), jnp.zeros((0,), dtype)
    made = tuple(jnp.asarray(bias) for bias in biases)
    for name, bias in zip(("bias_ih", "bias_hh"), made, strict=True):
        _require(cell, name, bias, shape, dtype)
    return made


def layer(cell: str, x: Any, h0: Any, c0: Any, weights: Arrays, biases: Arrays) -> Arrays:
    """Checks the arguments of one layer and returns its output, h_n and c_n. Only LSTM has c0."""
    x, h0, weight_ih, weight_hh = (jnp.asarray(array) for array in (x, h0, *weights))
    if x.ndim != 3 or h0.ndim != 3 or h0.shape[0] not in (1, 2):
        rule = "x must have shape [T, B, I] and h0 [D, B, H] with D = 1 or 2"
        raise ValueError(f"{cell}: {rule}, got {list(x.shape)} and {list(h0.shape)}")
    if x.dtype.name not in ffi.DTYPES:
        raise TypeError(f"{cell}: x must have dtype {' or '.join(ffi.DTYPES)}, got {x.dtype}")
    (steps, batch, inputs), (directions, _, hidden) = x.shape, h0.shape
    rows = _STATE_GATES[cell] * hidden
    lead = () if directions == 1 else (2,)
    _require(cell, "h0", h0, (directions, batch, hidden), x.dtype)
    _require(cell, "weight_ih", weight_ih, (*lead, rows, inputs), x.dtype)
    _require(cell, "weight_hh", weight_hh, (*lead, rows, hidden), x.dtype)
    given = _checked_biases(cell, biases, (*lead, rows), x.dtype)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    if c0 is None:
        c0 = h0.astype(wide)
    else:
        c0 = jnp.asarray(c0)
        _require(cell, "c0", c0, h0.shape, wide if c0.dtype == wide else x.dtype)

    names = x.dtype.name, c0.dtype.name
    static = Layer(cell, directions, *names, steps, batch, hidden, biases[0] is not None)
    products = jnp.einsum("tbi,dgi->dtbg", x, weight_ih.reshape(directions, rows, inputs))
    run = by_kernels if ffi.has_kernel(static, ffi.platform_of(x)) else by_scan
    weight_hh = weight_hh.reshape(directions, rows, hidden)
    bias_ih, bias_hh = (b.reshape(directions, rows) if static.biases else b for b in given)
    return run(static, products, weight_hh, bias_ih, bias_hh, h0, c0)
