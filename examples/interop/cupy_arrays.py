"""Runs treadle's kernels and CuPy's ElementwiseKernel and RawKernel on the same CuPy arrays."""

from __future__ import annotations

import cupy
import numpy as np

import kernels
from kernels import array, call, number

elementwise_add = cupy.ElementwiseKernel(
    "T a, T b, T alpha", "T out", "out = fma(alpha, b, a)", "add_scaled_elementwise"
)

RAW_ADD = r"""
extern "C" __global__ void add_scaled(const float* a, const float* b, float alpha, float* out,
                                      long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = fmaf(alpha, b[i], a[i]);
}
"""


def here() -> object:
    """The current GPU and CuPy's current stream, which CuPy's memory pool also uses."""
    return kernels.device(cupy.cuda.get_current_stream().ptr, cupy.cuda.Device().id)


def add(a: cupy.ndarray, b: cupy.ndarray, alpha: float) -> cupy.ndarray:
    out = cupy.empty_like(a)
    call("vector_add", here(), array(a), array(b), number(alpha), array(out))
    return out


def raw_add(a: cupy.ndarray, b: cupy.ndarray, alpha: float) -> cupy.ndarray:
    out = cupy.empty_like(a)
    blocks = (a.size + 255) // 256
    arguments = (a, b, np.float32(alpha), out, np.int64(a.size))
    cupy.RawKernel(RAW_ADD, "add_scaled")((blocks,), (256,), arguments)
    return out


def main() -> None:
    if not cupy.cuda.is_available():
        print("CuPy: no GPU: skipped")
        return
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = cupy.linspace(-9, 9, 100_003, dtype=cupy.float32)
        b = cupy.cos(a)
        ours = add(a, b, 0.3)
        # All three kernels compute an fma, which rounds once, so the results are bitwise equal.
        assert bool((ours == elementwise_add(a, b, np.float32(0.3))).all())
        assert bool((ours == raw_add(a, b, 0.3)).all())

        matrix = cupy.linspace(-3, 3, 6_000, dtype=cupy.float32).reshape(60, 100)
        view = matrix[::2, ::-3]
        address, expected = view.data.ptr, np.sin(view.get())
        call("sine", here(), array(view), array(view))
        assert view.data.ptr == address
        assert np.allclose(view.get(), expected, rtol=0, atol=2e-7)
        stream.synchronize()
    print("CuPy: sum and sine on CuPy's stream, ElementwiseKernel and RawKernel with the same bits")


if __name__ == "__main__":
    main()
