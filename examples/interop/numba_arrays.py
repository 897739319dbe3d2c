"""Runs treadle's kernels and Numba's @vectorize (CPU) and @cuda.jit (GPU) on the same arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda, vectorize

import kernels
from kernels import array, call, number


@vectorize(["float32(float32, float32, float32)"])
def add_scaled(a: Any, b: Any, alpha: Any) -> Any:
    return a + alpha * b


@vectorize(["float32(float32)"])
def sine(x: Any) -> Any:
    return math.sin(x)


def on_cpu() -> None:
    a = np.linspace(-9, 9, 10_007, dtype=np.float32)
    b = np.cos(a)
    out = np.empty_like(a)
    call("vector_add", kernels.device(), array(a), array(b), number(2.0), array(out))
    # Doubling is exact, so the sum is rounded once, whether or not the compiler uses an fma.
    assert np.array_equal(out, add_scaled(a, b, np.float32(2)))
    call("sine", kernels.device(), array(a), array(out))
    assert np.allclose(out, sine(a), rtol=0, atol=2e-7)


@cuda.jit
def add_on_gpu(a: Any, b: Any, alpha: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + alpha * b[i]


def on_gpu() -> None:
    host = np.linspace(-9, 9, 10_007, dtype=np.float32)
    stream = cuda.stream()
    a, b = cuda.to_device(host, stream=stream), cuda.to_device(np.cos(host), stream=stream)
    ours, numbas = cuda.device_array_like(a), cuda.device_array_like(a)
    here = kernels.device(int(stream), cuda.get_current_device().id)
    call("vector_add", here, array(a), array(b), number(2.0), array(ours))
    add_on_gpu[(host.size + 255) // 256, 256, stream](a, b, np.float32(2), numbas)
    call("sine", here, array(b), array(b))  # in place
    result = [x.copy_to_host(stream=stream) for x in (ours, numbas, b)]
    stream.synchronize()
    assert np.array_equal(result[0], result[1])
    assert np.allclose(result[2], np.sin(np.cos(host)), rtol=0, atol=2e-7)


def main() -> None:
    on_cpu()
    if not cuda.is_available():
        print("Numba: @vectorize beside our kernels on the CPU; no GPU: skipped")
        return
    on_gpu()
    print("Numba: @vectorize on the CPU and @cuda.jit on a GPU beside our kernels, in one stream")


if __name__ == "__main__":
    main()
