"""The kernels read and write NumPy arrays in place. This needs neither torch nor a GPU."""

from __future__ import annotations

import ctypes

import numpy as np

import kernels
from kernels import array, call, number


def add() -> None:
    a, b = np.arange(12.0).reshape(3, 4), np.arange(4, dtype=np.int32)
    out = np.empty_like(a)
    # b is broadcast and converted to float64. The call computes a + 2 b; 2 is passed as an integer.
    call("vector_add", kernels.device(), array(a), array(b), number(2), array(out))
    assert np.array_equal(out, a + 2 * b)


def sine_in_place() -> None:
    base = np.linspace(-3, 3, 60, dtype=np.float32).reshape(6, 10)
    view = base[::2, ::-3]  # every second row; every third column, backwards from the last
    before, expected = base.copy(), np.sin(view)
    call("sine", kernels.device(), array(view), array(view))
    assert np.allclose(view, expected, rtol=0, atol=2e-7)
    assert np.array_equal(base[1::2], before[1::2]), "rows outside of the view have changed"


def gru_forward() -> None:
    """One GRU layer: NumPy computes the input products of all steps, and the kernel runs the
    steps."""
    steps, batch, inputs, hidden = 5, 3, 4, 8
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    x, h0 = draw(steps, batch, inputs), draw(1, batch, hidden)
    weight_ih, weight_hh = draw(3 * hidden, inputs), draw(3 * hidden, hidden)
    bias_ih, bias_hh = draw(3 * hidden), draw(3 * hidden)
    output, h_n, c_n = np.empty((steps, batch, hidden)), np.empty_like(h0), np.empty_like(h0)

    dtype = array(x).dtype
    layer = kernels.make(kernels.Recurrent, cell=kernels.GRU, directions=1, dtype=dtype)
    layer.c_dtype, layer.steps, layer.batch, layer.hidden = dtype, steps, batch, hidden
    needed = ctypes.c_size_t()
    call("recurrent_workspace", kernels.device(), layer, 0, ctypes.byref(needed))
    room = np.empty(needed.value + 256, dtype=np.uint8)
    workspace = ctypes.c_void_p(-(-room.ctypes.data // 256) * 256)  # the next multiple of 256
    products = x @ weight_ih.T
    given = {"products": products, "weight_hh": weight_hh, "h0": h0, "c0": h0}
    given |= {"bias_ih": bias_ih, "bias_hh": bias_hh}
    read = kernels.make(kernels.Inputs, **{name: a.ctypes.data for name, a in given.items()})
    written = {"output": output, "h_n": h_n, "c_n": c_n}
    wrote = kernels.make(kernels.Outputs, **{name: a.ctypes.data for name, a in written.items()})
    call("recurrent_forward", kernels.device(), layer, read, wrote, workspace, needed)

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    h = h0[0]
    for t in range(steps):
        of_x = np.split(products[t] + bias_ih, 3, axis=1)
        of_h = np.split(h @ weight_hh.T + bias_hh, 3, axis=1)
        r, z = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
        n = np.tanh(of_x[2] + r * of_h[2])
        h = n + z * (h - n)
        assert np.allclose(output[t], h, rtol=0, atol=1e-12)
    assert np.array_equal(h_n[0], output[-1])


def main() -> None:
    add()
    sine_in_place()
    gru_forward()
    try:
        call("sine", kernels.device(), array(np.ones(2)), array(np.ones(2, dtype=np.int32)))
    except RuntimeError as error:
        assert "out.dtype must be floating-point, got int32" in str(error)
    print("NumPy: sum, sine in place on a strided view and a GRU layer, nothing copied")


if __name__ == "__main__":
    main()
