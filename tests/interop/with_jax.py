"""JAX and treadle.jax for the tests in this folder, which are skipped if either is missing."""

from __future__ import annotations

import os

import pytest

# Test processes share a GPU, so no process may preallocate its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="jax is not installed")
try:
    import treadle.jax as functions
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

GPU = any(device.platform == "gpu" for device in jax.devices())
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU that JAX sees")


@pytest.fixture
def float64():
    """Enables JAX's 64-bit types."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def on_cpu():
    """Makes the CPU JAX's default device, because float64 layers do not run on a GPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def calls(f, *arguments) -> int:
    """Returns the number of FFI handlers that `f` calls."""
    return str(jax.make_jaxpr(f)(*arguments)).count("ffi_call[")


__all__ = ["GPU", "calls", "float64", "functions", "jax", "needs_gpu", "on_cpu"]
