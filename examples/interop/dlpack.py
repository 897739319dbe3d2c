"""Runs treadle's torch ops on memory that torch shares with another package, without a copy.

NumPy, JAX, TensorFlow and CuPy use DLPack. Numba uses NumPy or ``__cuda_array_interface__``.
"""

from __future__ import annotations

import os

import numpy as np
import torch

import treadle


def with_numpy() -> str:
    array = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    expected = np.sin(array)
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.ctypes.data
    treadle.sine_(tensor)
    assert np.allclose(array, expected, rtol=0, atol=2e-7), "the array must now hold its sines"
    assert np.from_dlpack(tensor).ctypes.data == tensor.data_ptr()

    # torch does not export a tensor that requires grad, so detach the tensor first.
    x = torch.from_dlpack(array).requires_grad_()
    treadle.sine(x).sum().backward()
    assert x.grad is not None
    assert np.allclose(np.from_dlpack(x.grad), np.cos(array), rtol=0, atol=2e-7)
    assert np.from_dlpack(x.detach()).ctypes.data == array.ctypes.data
    return f"NumPy {np.__version__}"


def with_jax() -> str:
    # By default JAX allocates three quarters of a GPU's memory, but torch also needs some.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    # Use the CPU if JAX can use the GPU but torch cannot.
    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    array = jax.device_put(
        jnp.linspace(-3, 3, 1024), jax.devices("gpu" if device == "cuda" else "cpu")[0]
    )
    tensor = torch.from_dlpack(array)
    assert tensor.device.type == device and tensor.data_ptr() == array.unsafe_buffer_pointer()
    # JAX's arrays are immutable: do not write into the tensor.
    result = treadle.sine(tensor)
    if device == "cuda":
        torch.cuda.current_stream().synchronize()  # JAX uses other streams
    back = jax.dlpack.from_dlpack(result, copy=False)
    assert back.unsafe_buffer_pointer() == result.data_ptr()
    assert bool(jnp.allclose(back, jnp.sin(array), rtol=0, atol=4e-7))
    return f"JAX {jax.__version__}"


def with_tensorflow() -> str:
    import tensorflow

    with tensorflow.device("CPU"):
        array = tensorflow.linspace(-3.0, 3.0, 1024)
    tensor = torch.from_dlpack(array)  # do not write: TensorFlow's are immutable
    result = treadle.sine(tensor)
    # TensorFlow does not show addresses, so check that two exports of an array have the same one.
    assert torch.from_dlpack(array).data_ptr() == tensor.data_ptr()
    back = tensorflow.experimental.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(result))
    assert torch.from_dlpack(back).data_ptr() == result.data_ptr()
    assert np.allclose(back, np.sin(array), rtol=0, atol=4e-7)
    return f"TensorFlow {tensorflow.__version__}"


def with_cupy() -> str:
    import cupy

    if not (torch.cuda.is_available() and cupy.cuda.is_available()):
        return "CuPy (no GPU: skipped)"
    array = cupy.linspace(-3, 3, 1024, dtype=cupy.float32)
    expected = np.sin(array.get())
    tensor = torch.from_dlpack(array)  # torch's current stream waits for CuPy's
    assert tensor.data_ptr() == array.data.ptr
    treadle.sine_(tensor)
    assert cupy.from_dlpack(tensor).data.ptr == array.data.ptr  # CuPy's stream waits for torch's
    assert np.allclose(array.get(), expected, rtol=0, atol=2e-7)
    return f"CuPy {cupy.__version__}"


def with_numba() -> str:
    import numba
    from numba import cuda, vectorize

    # On the CPU, Numba works on NumPy arrays, including those that share a tensor's memory.
    twice = vectorize(["float32(float32)"])(lambda x: 2 * x)
    tensor = torch.linspace(-3, 3, 1024)
    expected = treadle.scale(tensor, 2)
    twice(tensor.numpy(), out=tensor.numpy())
    assert torch.equal(tensor, expected)
    if not (torch.cuda.is_available() and cuda.is_available()):
        return f"Numba {numba.__version__} (no GPU: only on the CPU)"
    tensor = tensor.cuda()
    torch.cuda.synchronize()
    array = cuda.as_cuda_array(tensor)  # through __cuda_array_interface__
    assert array.__cuda_array_interface__["data"][0] == tensor.data_ptr()
    back = torch.as_tensor(array, device="cuda")
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(treadle.scale_(back, 2), tensor)
    return f"Numba {numba.__version__}"


def main() -> None:
    found = []
    for recipe in (with_numpy, with_jax, with_tensorflow, with_cupy, with_numba):
        try:
            found.append(recipe())
        except ModuleNotFoundError as error:
            found.append(f"{error.name} (skipped: {error.name} is not installed)")
    print(f"Without a copy: torch {torch.__version__} with {', '.join(found)}")


if __name__ == "__main__":
    main()
