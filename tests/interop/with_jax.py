"""JAX and treadle.jax for the tests here, which are skipped where either is missing."""

from __future__ import annotations

import os

import pytest

# Several processes share a GPU.
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
    """JAX has no 64-bit types otherwise."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def on_cpu():
    """Keeps JAX off the GPU: it would put arrays there, and float64 layers do not run there."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def calls(f, *arguments) -> int:
    """How many handlers `f` calls."""
    return str(jax.make_jaxpr(f)(*arguments)).count("ffi_call[")


__all__ = ["GPU", "calls", "float64", "functions", "jax", "needs_gpu", "on_cpu"]
