"""treadle's kernels for JAX, on the CPU and on CUDA. They support jit, grad and vmap.

``import treadle`` does not import this module, so write ``import treadle.jax``. The functions call
libtreadle_kernels.so through jax.ffi, which passes JAX's arrays to the kernels without copies. In
reverse mode (``jax.grad``, ``jax.vjp``), a layer that runs on the kernels can be differentiated
once, and an elementwise function any number of times. In forward mode (``jax.jvp``), both raise. A
layer that the kernels do not support runs as a ``jax.lax.scan`` in plain JAX, which can be
differentiated any number of times, in both modes.
"""

from __future__ import annotations

from typing import Any

from . import _ffi, _recurrent

# isort: split
import jax
import jax.numpy as jnp

Array = Any  # jax.Array: mypy does not know JAX's types

__all__ = ["cosine", "gru", "lstm", "rnn_relu", "rnn_tanh", "scale", "sine", "vector_add"]

_ffi.register()


def _elementwise(name: str, shape: Any, dtype: Any, *arrays: Any, **attributes: Any) -> Any:
    # Under vmap, an array without the batch dimension gets one of size 1, which the kernels
    # broadcast.
    result = jax.ShapeDtypeStruct(shape, dtype)
    return _ffi.call(name, result, *arrays, vmap_method="expand_dims", **attributes)


def _like(name: str, *arrays: Any) -> Any:
    return _elementwise(name, arrays[0].shape, arrays[0].dtype, *arrays)


# ---- sine and cosine. The gradient of each uses the other.

_sine = jax.custom_vjp(lambda x: _like("sine", x))
_cosine = jax.custom_vjp(lambda x: _like("cosine", x))
_grad_sine = jax.custom_vjp(lambda grad, x: _like("sine_backward", grad, x))  # grad cos(x)
_grad_cosine = jax.custom_vjp(lambda grad, x: _like("cosine_backward", grad, x))  # -grad sin(x)

_sine.defvjp(lambda x: (_sine(x), x), lambda x, g: (_grad_sine(g, x),))
_cosine.defvjp(lambda x: (_cosine(x), x), lambda x, g: (_grad_cosine(g, x),))
_grad_sine.defvjp(
    lambda grad, x: (_grad_sine(grad, x), (grad, x)),
    lambda saved, g: (_grad_sine(g, saved[1]), _grad_cosine(g * saved[0], saved[1])),
)
_grad_cosine.defvjp(
    lambda grad, x: (_grad_cosine(grad, x), (grad, x)),
    lambda saved, g: (_grad_cosine(g, saved[1]), -_grad_sine(g * saved[0], saved[1])),
)


def _floating(op: str, x: Any) -> Any:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{op}: x must have a real dtype, got {x.dtype}")
    return x.astype(jnp.result_type(x, 1.0))


def sine(x: Array) -> Array:
    """sin(x), x in radians and of any magnitude.

    Args:
        x: any shape, float64, float32, float16 or bfloat16. bool and integers are cast to JAX's
            default floating-point dtype.

    Returns:
        An array of the shape of x and of its dtype after the cast. Its errors are at most 1.6 ulp
        in float32 and 2 ulp in float64. Under vmap, one call processes the whole batch.

    Raises:
        TypeError: x is complex.

    Source: kernels/jax/handlers.cpp, kernels/math/sine_float.h.
    """
    return _sine(_floating("sine", x))


def cosine(x: Array) -> Array:
    """cos(x), x in radians and of any magnitude; otherwise like `sine`.

    Args:
        x: any shape, float64, float32, float16 or bfloat16. bool and integers are cast to JAX's
            default floating-point dtype.

    Returns:
        An array of the shape of x and of its dtype after the cast. Its errors are at most 1.6 ulp
        in float32 and 2 ulp in float64.

    Raises:
        TypeError: x is complex.

    Source: kernels/jax/handlers.cpp, kernels/math/sine_float.h.
    """
    return _cosine(_floating("cosine", x))


# ---- scale and vector_add

_scale = jax.custom_vjp(
    lambda factor, x: _elementwise("scale", x.shape, x.dtype, x, **_ffi.number(factor)),
    nondiff_argnums=(0,),
)
_scale.defvjp(
    lambda factor, x: (_scale(factor, x), None),
    lambda factor, saved, g: (_scale(factor, g),),
)


def _number(op: str, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise TypeError(f"{op}: {name} must be a Python int or float, got {kind}")
    return value


def _common(op: str, number: Any, *arrays: Any) -> tuple[Any, ...]:
    """Casts the arrays to the dtype that JAX's arithmetic would use."""
    dtype = jnp.result_type(*arrays, number)
    if jnp.issubdtype(dtype, jnp.complexfloating) or jnp.issubdtype(dtype, jnp.unsignedinteger):
        if dtype != jnp.uint8:
            raise TypeError(
                f"{op}: arrays must promote to a bool, floating-point, signed integer or uint8 "
                f"dtype, got {dtype}"
            )
    return tuple(array.astype(dtype) for array in arrays)


def scale(x: Array, factor: float) -> Array:
    """x * factor.

    Args:
        x: any shape. The dtype of ``x * factor`` in JAX must be floating-point, a signed integer
            or uint8.
        factor: a Python number, static under jit. Its full precision is used.

    Returns:
        An array of the shape of x and of the dtype of ``x * factor`` in JAX.

    Raises:
        TypeError: ``x * factor`` has another dtype in JAX, or factor is not a Python number.

    Source: kernels/jax/handlers.cpp, kernels/math/scale.h.
    """
    factor = _number("scale", "factor", factor)
    (x,) = _common("scale", factor, jnp.asarray(x))
    return _scale(factor, x)


def _summed(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sums `grad` over the dimensions in which an argument of `shape` was broadcast."""
    axes = tuple(i for i, (n, of) in enumerate(zip(shape, grad.shape, strict=True)) if n != of)
    return jnp.sum(grad, axis=axes, keepdims=True) if axes else grad


def _add(alpha: float, shapes: Any, a: Any, b: Any) -> Any:
    shape = jnp.broadcast_shapes(*shapes)
    return _elementwise("vector_add", shape, a.dtype, a, b, **_ffi.number(alpha))


_vector_add = jax.custom_vjp(_add, nondiff_argnums=(0, 1))
_vector_add.defvjp(
    lambda alpha, shapes, a, b: (_vector_add(alpha, shapes, a, b), None),
    lambda alpha, shapes, saved, g: (_summed(g, shapes[0]), _summed(_scale(alpha, g), shapes[1])),
)


def vector_add(a: Array, b: Array, alpha: float = 1) -> Array:
    """a + alpha * b, rounded once where the processor has an fma instruction.

    Args:
        a, b: shapes that broadcast. The dtype of ``a + alpha * b`` in JAX must be floating-point,
            a signed integer or uint8.
        alpha: a Python number, static under jit. Its full precision is used.

    Returns:
        An array of the broadcast shape and of the dtype of ``a + alpha * b`` in JAX. Broadcasting
        copies nothing, even under vmap.

    Raises:
        TypeError: ``a + alpha * b`` has another dtype in JAX, or alpha is not a Python number.
        ValueError: the shapes do not broadcast.

    Source: kernels/jax/handlers.cpp, kernels/math/vector_add.h.
    """
    alpha = _number("vector_add", "alpha", alpha)
    a, b = _common("vector_add", alpha, jnp.asarray(a), jnp.asarray(b))
    ndim = max(a.ndim, b.ndim)
    # vmap makes the batch the first dimension of both arrays, so both must have the same number of
    # other dimensions.
    a, b = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (a, b))
    return _vector_add(alpha, (a.shape, b.shape), a, b)


# ---- recurrent layers


def lstm(
    x: Array,
    h0: Array,
    c0: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array | None = None,
    bias_hh: Array | None = None,
) -> tuple[Array, Array, Array]:
    """One LSTM layer over T steps in one or two directions, like torch.nn.LSTM.

    Args:
        x: [T, B, I], float64, float32, float16 or bfloat16; the other arrays have the same dtype.
        h0: [D, B, H] for D = 1 or 2 directions. The second reads the sequence from its end.
        c0: [D, B, H]; with half types, float32 is also allowed.
        weight_ih: [4H, I], weight_hh: [4H, H]; bias_ih, bias_hh: [4H], both or neither. The gates
            are in torch's order: i, f, g, o. With two directions, all have a leading dimension 2.

    Returns:
        output [T, B, D H], h_n [D, B, H] and c_n [D, B, H]. c_n has the dtype of c0.

        The kernels support float32 and float64 on the CPU. On GPUs of sm_80 and later they support
        float16, bfloat16 and float32 if H is a multiple of 8 and the weights fit on the chip. In
        all other cases a jax.lax.scan in plain JAX runs, which computes float16 and bfloat16 in
        float32. The choice is made when JAX traces the call. It depends on the device of x or, in
        traced code, on JAX's default device. If the kernels run, the results can be differentiated
        once with respect to every array, in reverse mode. If the scan runs, they can be
        differentiated any number of times, in both modes. Under vmap the kernels are called once
        for each element of the batch.

    Raises:
        ValueError: a shape is not as above.
        TypeError: a dtype is not as above.

    Source: kernels/jax/handlers.cpp, kernels/c_api/recurrent.cpp.
    """
    weights, biases = (weight_ih, weight_hh), (bias_ih, bias_hh)
    output, h_n, c_n = _recurrent.layer("lstm", x, h0, c0, weights, biases)
    return output, h_n, c_n


def _without_c(cell: str, x: Any, h0: Any, weights: Any, biases: Any) -> tuple[Array, Array]:
    """Calls a layer whose only state is h."""
    output, h_n, _ = _recurrent.layer(cell, x, h0, None, weights, biases)
    return output, h_n


def gru(
    x: Array,
    h0: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array | None = None,
    bias_hh: Array | None = None,
) -> tuple[Array, Array]:
    """One GRU layer over T steps in one or two directions, like torch.nn.GRU.

    Args:
        x: [T, B, I], float64, float32, float16 or bfloat16; the other arrays have the same dtype.
        h0: [D, B, H] for D = 1 or 2 directions. The second reads the sequence from its end.
        weight_ih: [3H, I], weight_hh: [3H, H]; bias_ih, bias_hh: [3H], both or neither. The gates
            are in torch's order: r, z, n. With two directions, all have a leading dimension 2.

    Returns:
        output [T, B, D H] and h_n [D, B, H]. What `lstm` says about kernels and derivatives applies
        here as well.

    Raises:
        ValueError: a shape is not as above.
        TypeError: a dtype is not as above.

    Source: kernels/jax/handlers.cpp, kernels/c_api/recurrent.cpp.
    """
    return _without_c("gru", x, h0, (weight_ih, weight_hh), (bias_ih, bias_hh))


def rnn_tanh(
    x: Array,
    h0: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array | None = None,
    bias_hh: Array | None = None,
) -> tuple[Array, Array]:
    """One layer of h = tanh(W_ih x + b_ih + W_hh h + b_hh), like torch.nn.RNN.

    Args:
        x: [T, B, I], float64, float32, float16 or bfloat16; the other arrays have the same dtype.
        h0: [D, B, H] for D = 1 or 2 directions. The second reads the sequence from its end.
        weight_ih: [H, I], weight_hh: [H, H]; bias_ih, bias_hh: [H], both or neither. With two
            directions, all have a leading dimension 2.

    Returns:
        output [T, B, D H] and h_n [D, B, H]. What `lstm` says about kernels and derivatives applies
        here as well.

    Raises:
        ValueError: a shape is not as above.
        TypeError: a dtype is not as above.

    Source: kernels/jax/handlers.cpp, kernels/c_api/recurrent.cpp.
    """
    return _without_c("rnn_tanh", x, h0, (weight_ih, weight_hh), (bias_ih, bias_hh))


def rnn_relu(
    x: Array,
    h0: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array | None = None,
    bias_hh: Array | None = None,
) -> tuple[Array, Array]:
    """One layer of h = relu(W_ih x + b_ih + W_hh h + b_hh); otherwise like `rnn_tanh`.

    Args:
        x, h0, weight_ih, weight_hh, bias_ih, bias_hh: as in `rnn_tanh`.

    Returns:
        output [T, B, D H] and h_n [D, B, H].

    Raises:
        ValueError: a shape is not as in `rnn_tanh`.
        TypeError: a dtype is not as in `rnn_tanh`.

    Source: kernels/jax/handlers.cpp, kernels/c_api/recurrent.cpp.
    """
    return _without_c("rnn_relu", x, h0, (weight_ih, weight_hh), (bias_ih, bias_hh))
