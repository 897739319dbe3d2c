"""Tests the layers of treadle.jax: values, gradients, jit, vmap, missing kernels, errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.interop.with_jax import calls, float64, functions, jax, needs_gpu, on_cpu  # noqa: F401
from tests.support import gpus
from treadle.jax import _ffi

jnp = jax.numpy
pytestmark = pytest.mark.usefixtures("float64", "on_cpu")
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
CELLS = list(GATES)


def draw(cell: str, directions: int, biases: bool, dtype: str = "float64", sizes=(6, 5, 3, 8)):
    """Returns the arguments of a layer. `sizes` are T, B, I and H. In half types, rounding decides
    whether relu has a gradient near 0, so all arguments of rnn_relu are positive, and so small that
    h does not grow from step to step."""
    steps, batch, inputs, hidden = sizes
    rng = np.random.default_rng(1)
    rows, lead = GATES[cell] * hidden, () if directions == 1 else (2,)
    states = [(directions, batch, hidden)] * (2 if cell == "lstm" else 1)
    shapes = [(steps, batch, inputs), *states, (*lead, rows, inputs), (*lead, rows, hidden)]
    shapes += [(*lead, rows)] * 2 * biases
    values = [rng.normal(size=s) / max(s[-1], 4) ** 0.5 for s in shapes]
    if cell == "rnn_relu" and "16" in dtype:
        values = [np.abs(array) / 8 for array in values]
    return [jnp.asarray(array, dtype=dtype) for array in values]


def reference(cell: str, x, h0, *rest):
    """Computes the layer with jax.lax.scan and torch's formulas."""
    states = [h0] + ([rest[0]] if cell == "lstm" else [])
    weights = rest[len(states) - 1 :]
    if h0.shape[0] == 1:
        weights = [array[None] for array in weights]
    ends, outputs = [], []
    for d in range(h0.shape[0]):
        w_ih, w_hh, b_ih, b_hh = [array[d] for array in weights] + [0.0] * (4 - len(weights))

        def step(state, x, w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh):
            of_x, of_h = x @ w_ih.T + b_ih, state[0] @ w_hh.T + b_hh
            if cell == "lstm":
                i, f, g, o = jnp.split(of_x + of_h, 4, axis=1)
                c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
                state = (jax.nn.sigmoid(o) * jnp.tanh(c), c)
            elif cell == "gru":
                (r, z, n), (rh, zh, nh) = jnp.split(of_x, 3, axis=1), jnp.split(of_h, 3, axis=1)
                z = jax.nn.sigmoid(z + zh)
                n = jnp.tanh(n + jax.nn.sigmoid(r + rh) * nh)
                state = ((1 - z) * n + z * state[0],)
            else:
                state = ((jnp.tanh if cell == "rnn_tanh" else jax.nn.relu)(of_x + of_h),)
            return state, state[0]

        begin = tuple(state[d] for state in states)
        end, output = jax.lax.scan(step, begin, x[::-1] if d else x)
        ends.append(end)
        outputs.append(output[::-1] if d else output)
    return jnp.concatenate(outputs, axis=2), *(jnp.stack(part) for part in zip(*ends, strict=True))


def loss_of(f):
    """The sum of all results, with a different weight for each element."""

    def loss(*arguments):
        results = f(*arguments)
        return sum((r * jnp.cos(jnp.arange(r.size)).reshape(r.shape)).sum() for r in results)

    return loss


def close(ours, theirs, tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        difference = np.abs(np.float64(mine) - np.float64(other)).max(initial=0)
        assert difference <= tolerance * max(np.abs(np.float64(other)).max(initial=0), 1)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_values_and_gradients(cell: str, directions: int, biases: bool, jit: bool) -> None:
    arguments = draw(cell, directions, biases)
    ours, every = getattr(functions, cell), tuple(range(len(arguments)))
    assert calls(ours, *arguments) == 1

    def theirs(*arguments):
        return reference(cell, *arguments)

    gradient = jax.grad(loss_of(ours), every)
    assert calls(gradient, *arguments) == 2
    close((jax.jit(ours) if jit else ours)(*arguments), theirs(*arguments), 1e-13)
    made = (jax.jit(gradient) if jit else gradient)(*arguments)
    close(made, jax.grad(loss_of(theirs), every)(*arguments), 1e-13)


@pytest.mark.parametrize("cell", CELLS)
def test_many_rows_in_float32(cell: str) -> None:
    """The batch is so large that several threads share it."""
    arguments = draw(cell, 2, True, "float32", (33, 67, 19, 40))
    ours = getattr(functions, cell)
    wide = [array.astype("float64") for array in arguments]
    close(ours(*arguments), reference(cell, *wide), 1e-6)
    every = tuple(range(len(arguments)))
    theirs = jax.jit(jax.grad(loss_of(lambda *a: reference(cell, *a)), every))(*wide)
    made = jax.jit(jax.grad(loss_of(ours), every))(*arguments)
    assert all(array.dtype == jnp.float32 for array in made)
    close(made, theirs, 2e-5)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_arguments_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, name)(3, 8, bidirectional=True).double()
    x = torch.randn(6, 5, 3, dtype=torch.float64)
    states = [torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(2 if name == "LSTM" else 1)]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    both = [
        torch.stack([getattr(module, n), getattr(module, f"{n}_reverse")]).detach() for n in names
    ]
    given = [jnp.asarray(tensor.numpy()) for tensor in (x, *states, *both)]
    ours = getattr(functions, "rnn_tanh" if name == "RNN" else name.lower())(*given)
    output, ends = module(x, tuple(states) if name == "LSTM" else states[0])
    theirs = (output, *(ends if name == "LSTM" else [ends]))
    close(ours, [tensor.detach().numpy() for tensor in theirs], 1e-13)


@pytest.mark.parametrize("cell", CELLS)
def test_vmap(cell: str) -> None:
    arguments = draw(cell, 1, True)
    ours = getattr(functions, cell)
    xs = jnp.stack([arguments[0], 2 * arguments[0], arguments[0][::-1]])
    axes = (0, *[None] * (len(arguments) - 1))
    mapped = jax.vmap(ours, axes)(xs, *arguments[1:])
    one_by_one = [ours(x, *arguments[1:]) for x in xs]
    close(mapped, [jnp.stack(parts) for parts in zip(*one_by_one, strict=True)], 1e-15)
    gradient = jax.grad(loss_of(ours), tuple(range(len(arguments))))
    mapped = jax.jit(jax.vmap(gradient, axes))(xs, *arguments[1:])
    one_by_one = [gradient(x, *arguments[1:]) for x in xs]
    close(mapped, [jnp.stack(parts) for parts in zip(*one_by_one, strict=True)], 1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_half_types_take_a_scan_on_the_cpu(cell: str, dtype: str) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        arguments = draw(cell, 2, True, dtype)
        ours = getattr(functions, cell)
        assert calls(ours, *arguments) == 0 and "scan" in str(jax.make_jaxpr(ours)(*arguments))
        wide = [array.astype("float64") for array in arguments]
        tolerance = 8 * float(jnp.finfo(dtype).eps)
        close(jax.jit(ours)(*arguments), reference(cell, *wide), tolerance)
        every = tuple(range(len(arguments)))
        made = jax.jit(jax.grad(loss_of(ours), every))(*arguments)
        assert all(array.dtype == dtype for array in made)
        theirs = jax.jit(jax.grad(loss_of(lambda *a: reference(cell, *a)), every))(*wide)
        close(made, theirs, 3 * tolerance)


def test_c_of_float32_beside_half_types() -> None:
    arguments = draw("lstm", 1, True, "bfloat16")
    arguments[2] = arguments[2].astype("float32")
    output, h_n, c_n = functions.lstm(*arguments)
    assert output.dtype == h_n.dtype == jnp.bfloat16 and c_n.dtype == jnp.float32


@pytest.mark.parametrize("sizes", [(0, 5, 3, 8), (6, 0, 3, 8), (6, 5, 0, 8)])
@pytest.mark.parametrize("cell", CELLS)
def test_empty(cell: str, sizes: tuple[int, ...]) -> None:
    arguments = draw(cell, 2, True, "float64", sizes)
    ours = getattr(functions, cell)
    close(ours(*arguments), reference(cell, *arguments), 1e-14)
    every = tuple(range(len(arguments)))
    theirs = jax.jit(jax.grad(loss_of(lambda *a: reference(cell, *a)), every))(*arguments)
    close(jax.jit(jax.grad(loss_of(ours), every))(*arguments), theirs, 1e-13)


@pytest.mark.parametrize("cell", CELLS)
def test_the_scan_is_the_kernel(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = draw(cell, 2, True)
    by_kernel = getattr(functions, cell)(*arguments)
    monkeypatch.setattr(_ffi, "has_kernel", lambda *layer: False)
    # Passes a lambda, because JAX has cached the trace of the function itself.
    assert calls(lambda *a: getattr(functions, cell)(*a), *arguments) == 0
    close(getattr(functions, cell)(*arguments), by_kernel, 1e-14)


def test_wrong_arguments() -> None:
    x, h0, c0, w_ih, w_hh, b_ih, b_hh = draw("lstm", 1, True)
    with pytest.raises(
        ValueError, match=r"lstm: x must have shape \[T, B, I\] and h0 .* got \[5, 3\]"
    ):
        functions.lstm(x[0], h0, c0, w_ih, w_hh)
    with pytest.raises(ValueError, match=r"lstm: h0 must have shape \[1, 5, 8\], got \[1, 4, 8\]"):
        functions.lstm(x, h0[:, :4], c0, w_ih, w_hh)
    with pytest.raises(
        ValueError, match=r"lstm: weight_ih must have shape \[32, 3\], got \[24, 3\]"
    ):
        functions.lstm(x, h0, c0, w_ih[:24], w_hh)
    with pytest.raises(
        ValueError, match=r"gru: weight_hh must have shape \[24, 8\], got \[32, 8\]"
    ):
        functions.gru(x, h0, w_ih[:24], w_hh)
    with pytest.raises(
        ValueError, match=r"rnn_relu: weight_ih must have shape \[8, 3\], got \[24, 3\]"
    ):
        functions.rnn_relu(x, h0, w_ih[:24], w_hh[:8])
    with pytest.raises(
        ValueError, match="lstm: bias_ih and bias_hh must both be given, or neither"
    ):
        functions.lstm(x, h0, c0, w_ih, w_hh, b_ih)
    with pytest.raises(TypeError, match="lstm: c0 must have dtype float64, got float32"):
        functions.lstm(x, h0, c0.astype("float32"), w_ih, w_hh)
    with pytest.raises(TypeError, match="lstm: bias_hh must have dtype float64, got float32"):
        functions.lstm(x, h0, c0, w_ih, w_hh, b_ih, b_hh.astype("float32"))
    with pytest.raises(TypeError, match="lstm: x must have dtype .*float16.*, got int32"):
        functions.lstm(x.astype("int32"), h0, c0, w_ih, w_hh)
    second = jax.grad(lambda x: jax.grad(loss_of(functions.lstm))(x, h0, c0, w_ih, w_hh).sum())
    with pytest.raises(ValueError, match="cannot be differentiated"):
        second(x)


def test_the_librarys_words_reach_python() -> None:
    layer = _ffi.Layer("lstm", 3, "float64", "float64", 1, 1, 1, False)
    with pytest.raises(ValueError, match="lstm: layer.directions must be 1 or 2, got 3"):
        _ffi.workspace(layer, False, "cpu")
    x = jnp.ones(3, jnp.uint32)
    with pytest.raises(Exception, match="x.dtype must be a dtype of kernels.h"):
        _ffi.call("sine", jax.ShapeDtypeStruct((3,), jnp.float32), x, vmap_method="sequential")


@needs_gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_on_a_gpu(cell: str, directions: int, dtype: str) -> None:
    gpu = jax.devices("gpu")[0]
    arguments = jax.device_put(draw(cell, directions, True, dtype, (9, 16, 32, 64)), gpu)
    ours, every = getattr(functions, cell), tuple(range(len(arguments)))
    wide = [array.astype("float64") for array in arguments]
    with jax.default_device(gpu), jax.default_matmul_precision("highest"):
        assert calls(ours, *arguments) == (1 if gpus.architecture() >= 80 else 0)
        tolerance = 16 * float(jnp.finfo(dtype).eps)
        close(jax.jit(ours)(*arguments), reference(cell, *wide), tolerance)
        theirs = jax.grad(loss_of(lambda *a: reference(cell, *a)), every)(*wide)
        close(jax.grad(loss_of(ours), every)(*arguments), theirs, 8 * tolerance)
