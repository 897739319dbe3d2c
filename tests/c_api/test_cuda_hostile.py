"""Hostile calls on CUDA: bad arguments, memory of another device, and destroyed streams and
contexts. Each call returns an error, writes nothing, and leaves CUDA working."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.calls import Call, good
from tests.c_api.hostile import complaint, spoilers
from tests.c_api.layers import Layer, Sizes, address, forward, workspace
from tests.c_api.lost import LOST
from tests.c_api.operands import ops_of
from tests.support.compare import same_bits
from tests.support.inputs import GPU, HOPPER

pytestmark = GPU
ROOT = Path(__file__).resolve().parents[2]


def each(*left_out: str) -> pytest.MarkDecorator:
    """All functions except `left_out`. Layers run only on a GPU that has kernels for them."""
    names = [f for f in native.FUNCTIONS if f not in ("treadle_get_launch", *left_out)]
    marks = {f: HOPPER if "recurrent" in f else () for f in names}
    return pytest.mark.parametrize("function", [pytest.param(f, marks=marks[f]) for f in names])


every_function = each()
with_memory = each("treadle_recurrent_workspace")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def cuda_goes_on() -> Iterator[None]:
    """Checks after each test that CUDA still works and reports no error."""
    yield
    torch.cuda.synchronize()
    assert torch.ones(9, device="cuda").sum() == 9


@every_function
def test_the_good_call_is_good_on_cuda(function: str) -> None:
    assert good(function, "cuda").run() == native.OK, native.error_text()


@every_function
def test_each_argument_spoilt_on_cuda(function: str) -> None:
    for spoiler in spoilers(function, "cuda"):
        call = good(function, "cuda")
        spoiler.spoil(call)
        said = complaint(call, spoiler.names)
        assert not said, f"{spoiler}: {said}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_hostile_calls_on_cuda(seed: int) -> None:
    command = [sys.executable, "-m", "tests.c_api.hostile", str(seed), "800", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- wrong memory


def pointers(call: Call) -> Iterator[tuple[str, Any, str]]:
    """Each pointer of a call: its name in error texts, its struct and its field."""
    for name, struct in call.structs().items():
        if isinstance(struct, native.Array):
            yield f"{name}.data", struct, "data"
        elif isinstance(struct, native.Inputs | native.Outputs | native.Saved | native.Grads):
            for field, *_ in struct._fields_[1:]:
                yield f"{name}.{field}", struct, field


def moved(function: str, place: str, elsewhere: str) -> Iterator[tuple[Call, str]]:
    """For each pointer, yields the good call with that pointer moved to memory of `elsewhere`, and
    the name of the pointer."""
    for index in range(sum(1 for _ in pointers(good(function, place)))):
        call = good(function, place)
        name, struct, field = [*pointers(call)][index]
        room = torch.zeros(4096, device=elsewhere)
        call.memory.append(room)
        setattr(struct, field, room.data_ptr())
        yield call, name


@with_memory
def test_memory_of_the_host_in_a_cuda_call(function: str) -> None:
    for call, name in moved(function, "cuda", "cpu"):
        assert complaint(call, name) == ""
        assert native.error_text().endswith(" must be memory of GPU 0, got memory of the host")


@with_memory
def test_memory_of_a_gpu_in_a_cpu_call(function: str) -> None:
    for call, name in moved(function, "cpu", "cuda"):
        assert complaint(call, name) == ""
        assert f"{name} must be memory of the CPU, " in native.error_text()


@two_gpus
@with_memory
def test_memory_of_another_gpu_in_a_cuda_call(function: str) -> None:
    for call, name in moved(function, "cuda", "cuda:1"):
        assert complaint(call, name) == ""
        assert native.error_text().endswith(" must be memory of GPU 0, got memory of GPU 1")


@two_gpus
def test_a_stream_of_another_gpu() -> None:
    call = good("treadle_sine", "cuda")
    before = call.bytes()
    stream = torch.cuda.Stream(device=1)
    call.arguments["device"].stream = stream.cuda_stream
    assert call.run() == native.INVALID
    said = "device.stream must be a stream of GPU 0, got one of GPU 1"
    assert native.error_text().endswith(said)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(before, call.bytes(), strict=True))


@two_gpus
def test_the_current_gpu_stays() -> None:
    x = torch.randn(5000, device="cuda:1")
    out = torch.empty_like(x)
    torch.cuda.synchronize(1)
    native.call("treadle_sine", native.cuda(index=1), native.array(x), native.array(out))
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    same_bits(out, torch.ops.treadle.sine(x))


def test_pinned_memory_is_both() -> None:
    """CUDA kernels and CPU kernels both read and write pinned memory."""
    x, out = (torch.randn(5000).pin_memory() for _ in range(2))
    for device in (native.cuda(), native.cpu()):
        out.zero_()
        native.call("treadle_sine", device, native.array(x), native.array(out))
        torch.cuda.synchronize()
        same_bits(out, torch.ops.treadle.sine(x.clone()))


class Managed:
    """CUDA managed memory, which migrates between host and GPU, wrapped in CPU tensors."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.pointers: list[ctypes.c_void_p] = []

    def copy(self, x: Tensor) -> Tensor:
        pointer = ctypes.c_void_p()
        torch.cuda.current_stream()  # makes torch create its context
        size = ctypes.c_size_t(max(x.nbytes, 1))
        assert self.driver.cuMemAllocManaged(ctypes.byref(pointer), size, 1) == 0
        self.pointers.append(pointer)
        room = (ctypes.c_uint8 * x.nbytes).from_address(pointer.value or 0)
        return torch.frombuffer(room, dtype=torch.uint8).view(x.dtype).view(x.shape).copy_(x.cpu())

    def free(self) -> None:
        torch.cuda.synchronize()
        for pointer in self.pointers:
            assert self.driver.cuMemFree_v2(pointer) == 0


@pytest.fixture
def managed() -> Iterator[Managed]:
    torch.zeros(1, device="cuda")
    memory = Managed()
    yield memory
    memory.free()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_managed_memory_on_cuda_and_cpu(managed: Managed, dtype: torch.dtype) -> None:
    for op in ops_of(dtype):
        inputs = [torch.randn(3000).to(dtype) for _ in range(op.inputs)]
        arrays = [native.array(managed.copy(x)) for x in inputs]
        for place, device in (("cuda", native.cuda()), ("cpu", native.cpu())):
            out = managed.copy(torch.zeros(3000, dtype=dtype))
            op.run(device, arrays, native.array(out))
            torch.cuda.synchronize()
            expected = op.expected([x.to(place) for x in inputs], (3000,), dtype)
            same_bits(out.clone(), expected.cpu(), (op.name, place))


@HOPPER
def test_a_layer_in_managed_memory(managed: Managed) -> None:
    layer = Layer.random("gru", Sizes(7, 6, 64, directions=2), torch.float32)
    gpu = layer.on_cuda()
    expected = forward(gpu, on=native.cuda())
    products = gpu.products()
    torch.cuda.synchronize()
    own = layer.mapped(managed.copy)
    given = (managed.copy(products), own.weight_hh, own.bias_ih, own.bias_hh, own.h0, own.c0)
    results = [managed.copy(torch.zeros_like(x)) for x in expected]
    inputs = native.Inputs(*map(address, given))
    outputs = native.Outputs(*map(address, results))
    space = workspace(gpu, False, native.cuda())
    pointers = (inputs, outputs, space.address, space.size)
    native.call("treadle_recurrent_forward", native.cuda(), own.struct, *pointers)
    torch.cuda.synchronize()
    for found, other in zip(results, expected, strict=True):
        same_bits(found.clone(), other.cpu())


# ---- destroyed streams and contexts

SENTENCE = re.compile(
    r"1 (x|out)\.data must be memory of GPU 0, got memory of the host"
    r"|3 CUDA failed: cudaError\w+: .+"
)


@pytest.mark.parametrize("what", LOST)
def test_what_has_gone_on_cuda(what: str) -> None:
    """A stream may be destroyed while its work runs. A call on memory of a destroyed context fails,
    but the library still works. After a device reset it works only if CUDA does."""
    command = [sys.executable, "-m", "tests.c_api.lost", what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    said, after = done.stdout.splitlines()
    assert said == "OK" if what == "stream" else SENTENCE.fullmatch(said), said
    reset = what == "device" and (SENTENCE.fullmatch(after) or after.startswith("no memory: cu"))
    assert after == "right" or reset, after
