"""Doubles PyCUDA arrays in place, by treadle_scale and by a kernel that PyCUDA compiles.

The library uses CUDA's runtime, which works in a GPU's primary context. So PyCUDA must also use
that context (pycuda.autoprimaryctx, not pycuda.autoinit). The compiled kernel uses a header of
treadle, so it needs this repository and nvcc.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pycuda

import kernels
from kernels import array, call, number

ROOT = Path(__file__).resolve().parents[2]

SOURCE = r"""
#include "kernels/math/scale.h"

extern "C" __global__ void twice(float* x, int n) {
  const treadle::Scale<float> scale{2.0f};
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = scale(x[i]);
}
"""


def gpu() -> bool:
    """Whether there are a driver and a GPU. Without the driver's library the import fails."""
    try:
        import pycuda.driver as driver
    except ImportError:
        return False
    try:
        driver.init()
    except driver.Error:
        return False
    return bool(driver.Device.count())


def here(stream: Any) -> object:
    """Describes the GPU of the current context and ``stream`` for treadle's library."""
    from pycuda import driver

    current, count = driver.Context.get_device(), driver.Device.count()
    index = next(index for index in range(count) if driver.Device(index) == current)
    return kernels.device(stream.handle, index)


def twice_by_treadle(x: Any, stream: Any) -> None:
    call("scale", here(stream), array(x), number(2.0), array(x))


def twice_by_source(x: Any, stream: Any) -> None:
    from pycuda.compiler import SourceModule

    # The header has templates, so SourceModule must not wrap the source in extern "C".
    options = {"no_extern_c": True, "options": ["-std=c++17"], "include_dirs": [str(ROOT)]}
    kernel = SourceModule(SOURCE, **options).get_function("twice")
    blocks = ((x.size + 255) // 256, 1)
    kernel(x.gpudata, np.int32(x.size), block=(256, 1, 1), grid=blocks, stream=stream)


def main() -> None:
    if not gpu():
        print(f"PyCUDA {pycuda.VERSION_TEXT}: no GPU: skipped")
        return
    from pycuda import autoprimaryctx, driver, gpuarray

    assert autoprimaryctx.context is not None  # the import made the primary context current

    host = np.linspace(-1, 1, 1_003, dtype=np.float32)
    stream = driver.Stream()
    x = gpuarray.to_gpu_async(host, stream=stream)
    address = int(x.gpudata)
    twice_by_treadle(x, stream)
    stream.synchronize()
    assert np.array_equal(x.get(), 2 * host)
    twice_by_source(x, stream)
    stream.synchronize()
    assert np.array_equal(x.get(), 4 * host) and int(x.gpudata) == address
    print("PyCUDA: doubled in place by the library, and by SourceModule with kernels/math/scale.h")


if __name__ == "__main__":
    main()
