"""Using torch's ops and kernels.h at the same time in one process does not change the results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import CELLS, Layer, Sizes
from tests.c_api.operands import ops_of
from tests.c_api.two_users import WAYS, Place, elementwise, recurrent, same_as_alone
from tests.support.drawn import values
from tests.support.inputs import GPU, HALVES, HOPPER

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 8
every_way = pytest.mark.parametrize("way", WAYS)
every_cell = pytest.mark.parametrize("cell", CELLS)


def drawn(count: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    size = torch.Size(shape).numel()
    return [values(size, dtype, seed).view(shape).to(device) for seed in range(count)]


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_elementwise_on_the_cpu(dtype: torch.dtype, way: str) -> None:
    for op in ops_of(dtype):
        inputs = drawn(op.inputs, (160, 701), dtype, "cpu")
        work = elementwise(op, inputs, [native.array(x) for x in inputs])
        same_as_alone(work, Place.cpu(), way, ROUNDS)


@every_way
@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_on_the_cpu(cell: str, dtype: torch.dtype, way: str) -> None:
    layer = Layer.random(cell, Sizes(9, 75, 90, directions=2), dtype)
    same_as_alone(recurrent(layer), Place.cpu(), way, ROUNDS)


def of_torch(x: Tensor) -> native.Array:
    return native.array(x)


def of_cupy(x: Tensor) -> native.Array:
    """A copy in CuPy's memory."""
    cupy: Any = pytest.importorskip("cupy", reason="CuPy is not installed")
    copy = cupy.from_dlpack(x).copy()
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    return native.array_at(copy.data.ptr, x.shape, None, x.dtype, copy)


@GPU
@every_way
@pytest.mark.parametrize("memory", [of_torch, of_cupy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_elementwise_on_cuda(
    dtype: torch.dtype, memory: Callable[[Tensor], native.Array], way: str
) -> None:
    for op in ops_of(dtype):
        inputs = drawn(op.inputs, (300, 701), dtype, "cuda")
        work = elementwise(op, inputs, [memory(x) for x in inputs])
        same_as_alone(work, Place.cuda(), way, 3 * ROUNDS)


@HOPPER
@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("hidden", [64, 512, 1024])
def test_layers_on_cuda(cell: str, dtype: torch.dtype, hidden: int) -> None:
    """The kernels of torch's op and those of kernels.h do not deadlock, even if the GPU has room
    for only one kernel at a time."""
    command = [sys.executable, "-m", "tests.c_api.two_users", cell, str(dtype)[6:], str(hidden)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    if "layer must run in one launch" in done.stderr:
        pytest.skip("this layer has no kernel on this GPU")
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    assert done.stdout.strip() == "the same bits"
