"""Tests elementwise ops of treadle.jax: values, derivatives, jit, vmap, errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import treadle
from tests.interop.with_jax import calls, float64, functions, jax  # noqa: F401

jnp = jax.numpy
pytestmark = pytest.mark.usefixtures("float64")

DTYPES = ["float64", "float32", "float16", "bfloat16"]
TRIG = ["sine", "cosine"]


def bits(x) -> np.ndarray:
    """Returns the bytes of an array or tensor on the CPU."""
    if isinstance(x, torch.Tensor):
        return x.contiguous().view(torch.uint8).numpy().ravel()
    return np.asarray(x).view(np.uint8).ravel()


def pair(dtype: str, *shape: int) -> tuple:
    """Returns the same values for JAX and for torch."""
    x = np.random.default_rng(0).normal(scale=20, size=shape)
    tensor = torch.tensor(x).to(getattr(torch, dtype))
    return jnp.asarray(tensor.double().numpy()).astype(dtype), tensor


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TRIG)
def test_trig_has_the_bits_of_the_torch_op(name: str, dtype: str, jit: bool) -> None:
    f = getattr(functions, name)
    array, tensor = pair(dtype, 7, 1001)
    ours = (jax.jit(f) if jit else f)(array)
    assert ours.dtype == dtype and ours.shape == (7, 1001)
    assert np.array_equal(bits(ours), bits(getattr(treadle, name)(tensor)))


@pytest.mark.parametrize("name", TRIG)
def test_trig_is_that_of_jax_to_the_third_derivative(name: str) -> None:
    f, g = getattr(functions, name), {"sine": jnp.sin, "cosine": jnp.cos}[name]
    x = jnp.linspace(-9, 9, 101)
    for _ in range(4):
        assert np.allclose(jax.vmap(f)(x), jax.vmap(g)(x), rtol=0, atol=1e-14)
        f, g = jax.grad(f), jax.grad(g)


@pytest.mark.parametrize("name", TRIG)
def test_trig_of_integers_is_floating(name: str) -> None:
    f, g = getattr(functions, name), {"sine": jnp.sin, "cosine": jnp.cos}[name]
    for x in (jnp.arange(9), jnp.arange(9, dtype=jnp.int8), jnp.ones(3, dtype=bool), 2, np.ones(3)):
        assert np.allclose(f(x), g(x), rtol=0, atol=1e-6)
        assert jnp.issubdtype(f(x).dtype, jnp.floating)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (2, 3, 4, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = jnp.full(shape, 0.5)
    assert functions.sine(x).shape == shape
    assert np.allclose(functions.vector_add(x, x, 3), 2.0)
    assert np.allclose(jax.grad(lambda x: functions.scale(x, 3).sum())(x), 3.0)


@pytest.mark.parametrize("factor", [3, 0.1, -2.5, 2**40 + 1])
@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "int32", "int8", "uint8", "bool"])
def test_scale(dtype: str, factor: float) -> None:
    if isinstance(factor, int) and factor > 127 and dtype in ("int32", "int8", "uint8", "float16"):
        pytest.skip("JAX itself refuses the factor")
    x = (jnp.arange(12) % 5).astype(dtype).reshape(3, 4)
    ours, theirs = functions.scale(x, factor), x * factor
    assert ours.dtype == theirs.dtype
    # JAX rounds the factor to a half type first; treadle computes in float32 and rounds once.
    tolerance = 2.0**-7 if dtype in ("float16", "bfloat16") else 0
    assert np.allclose(np.float64(ours), np.float64(theirs), rtol=tolerance, atol=0)


def test_numbers_keep_all_their_bits() -> None:
    assert functions.scale(jnp.ones((), jnp.int64), 2**62 + 1) == 2**62 + 1
    assert functions.vector_add(jnp.int64(1), jnp.int64(1), -(2**62)) == 1 - 2**62
    assert float(functions.scale(jnp.float64(3), 0.1)) == 3 * 0.1


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4,)), ((), (2, 3)), ((3, 1, 2), (5, 1)), ((2,), (2,))]
)
def test_vector_add_broadcasts_and_so_do_its_gradients(shapes: tuple) -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    weight = jnp.asarray(rng.normal(size=np.broadcast_shapes(*shapes)))

    def ours(a, b):
        return (weight * functions.vector_add(a, b, -0.5) ** 2).sum()

    def theirs(a, b):
        return (weight * (a - 0.5 * b) ** 2).sum()

    assert calls(lambda a, b: functions.vector_add(a, b), a, b) == 1
    assert np.allclose(ours(a, b), theirs(a, b), rtol=1e-13)
    for mine, other in zip(
        jax.grad(ours, (0, 1))(a, b), jax.grad(theirs, (0, 1))(a, b), strict=True
    ):
        assert mine.shape == other.shape and np.allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_integers_have_no_gradient() -> None:
    def f(x):
        whole = x.astype("int32")
        return (functions.vector_add(functions.scale(whole, 2), whole, 3) * x).sum()

    assert np.array_equal(jax.grad(f)(jnp.arange(4.0)), 5 * np.arange(4.0))


def test_vector_add_promotes_as_jax() -> None:
    a, b = jnp.arange(4), jnp.ones(4, jnp.bfloat16)
    assert functions.vector_add(a, b, 2).dtype == (a + 2 * b).dtype == jnp.bfloat16
    assert functions.vector_add(a, a, 0.5).dtype == (a + 0.5 * a).dtype


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)])
def test_vmap_is_one_call(axes: tuple) -> None:
    a, b = jnp.arange(9.0).reshape(3, 3), jnp.arange(3.0, 12).reshape(3, 3)

    def ours(a, b):
        return functions.sine(functions.vector_add(a, b, 2.0))

    mapped = jax.vmap(ours, axes)
    assert calls(mapped, a, b) == 2 and "while" not in str(jax.make_jaxpr(mapped)(a, b))
    theirs = jax.vmap(lambda a, b: jnp.sin(a + 2 * b), axes)(a, b)
    assert np.allclose(mapped(a, b), theirs, rtol=0, atol=1e-14)
    twice = jax.vmap(jax.vmap(ours, (None, 0)), (0, None))(a, b)
    assert np.allclose(twice, jnp.sin(a[:, None] + 2 * b[None]), rtol=0, atol=1e-14)
    each = jax.vmap(jax.grad(lambda a, b: ours(a, b).sum()), axes)(a, b)
    assert np.allclose(
        each, jax.vmap(jax.grad(lambda a, b: jnp.sin(a + 2 * b).sum()), axes)(a, b), atol=1e-14
    )


def test_nothing_is_copied() -> None:
    x = jnp.ones((64, 64))
    made = jax.jit(lambda x: functions.sine(functions.scale(x, 2.0))).lower(x).compile().as_text()
    assert made.count("custom-call(") == 2
    assert not re.search(r"\b(copy|transpose|broadcast)\(", made)


def test_wrong_arguments() -> None:
    x = jnp.ones(3)
    with pytest.raises(TypeError, match="sine: x must have a real dtype, got complex"):
        functions.sine(x + 1j)
    with pytest.raises(
        TypeError, match="scale: arrays must promote to .* or uint8 dtype, got uint"
    ):
        functions.scale(x.astype(jnp.uint32), 2)
    for wrong in (True, x, "2", np.float32(2), None):
        with pytest.raises(TypeError, match="scale: factor must be a Python int or float"):
            functions.scale(x, wrong)
    with pytest.raises(TypeError, match="vector_add: alpha must be a Python int or float"):
        jax.jit(functions.vector_add)(x, x, 2.0)
    with pytest.raises(ValueError, match="[Ii]ncompatible shapes"):
        functions.vector_add(x, jnp.ones(4))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(functions.sine, (x,), (x,))
