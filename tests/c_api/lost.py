"""Calls kernels.h after a stream or a context was destroyed, in a process that calls CUDA's driver
but no CUDA functions of torch.

Usage: python -m tests.c_api.lost WHAT, where WHAT is a key of `LOST`. The program prints two lines.
The first is the error of a call on the lost memory, or OK. The second says whether the library
still works.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.c_api import native

COUNT = 5000
X = np.linspace(-9, 9, COUNT, dtype=np.float32)


def driver(name: str, *arguments: Any) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert status == 0, f"{name}: {status}"


@dataclass(frozen=True)
class Memory:
    """Memory in the current context, for the input x and for the result."""

    x: int
    out: int

    @staticmethod
    def made() -> Memory:
        pointers = [ctypes.c_void_p(), ctypes.c_void_p()]
        for pointer in pointers:
            driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(X.nbytes))
        x, out = (pointer.value or 0 for pointer in pointers)
        driver(
            "cuMemcpyHtoD_v2",
            ctypes.c_void_p(x),
            ctypes.c_void_p(X.ctypes.data),
            ctypes.c_size_t(X.nbytes),
        )
        return Memory(x, out)

    def sine(self, stream: int | None = None) -> str:
        """The status and the error text of a call, or "OK" if it succeeds."""
        arrays = [native.array_at(p, (COUNT,), None, torch.float32) for p in (self.x, self.out)]
        device = native.Device(native.CUDA_TYPE, 0, stream, 0)
        status = native.status_of("treadle_sine", device, *arrays)
        return f"{status} {native.error_text()}" if status else "OK"

    def is_right(self) -> bool:
        """Whether the sine has the same bits as on the CPU."""
        driver("cuCtxSynchronize")
        found, expected = np.empty_like(X), np.empty_like(X)
        room = ctypes.c_void_p(found.ctypes.data)
        driver("cuMemcpyDtoH_v2", room, ctypes.c_void_p(self.out), ctypes.c_size_t(X.nbytes))
        native.call("treadle_sine", native.cpu(), native.array(X), native.array(expected))
        return bool((found.view(np.int32) == expected.view(np.int32)).all())


def use_primary_context() -> None:
    context = ctypes.c_void_p()
    driver("cuInit", 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver("cuCtxSetCurrent", context)


def goes_on() -> str:
    """Calls the library on new memory. Returns "right", "wrong" or the error."""
    try:
        use_primary_context()
        memory = Memory.made()
    except AssertionError as error:  # the driver gives no context or no memory
        return f"no memory: {error}"
    said = memory.sine()
    return said if said != "OK" else "right" if memory.is_right() else "wrong"


def stream_destroyed_after_the_call() -> str:
    use_primary_context()
    memory, stream = Memory.made(), ctypes.c_void_p()
    driver("cuStreamCreate", ctypes.byref(stream), 1)
    said = memory.sine(stream.value)
    driver("cuStreamDestroy_v2", stream)
    assert said == "OK" and memory.is_right(), said
    return "OK"


def context_destroyed() -> str:
    use_primary_context()
    assert goes_on() == "right"
    own = ctypes.c_void_p()
    driver("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
    memory = Memory.made()
    driver("cuCtxDestroy_v2", own)
    return memory.sine()


def device_reset() -> str:
    use_primary_context()
    memory = Memory.made()
    assert memory.sine() == "OK" and memory.is_right()
    driver("cuDevicePrimaryCtxReset_v2", 0)
    return memory.sine()


LOST = {
    "stream": stream_destroyed_after_the_call,
    "context": context_destroyed,
    "device": device_reset,
}


if __name__ == "__main__":
    print(LOST[sys.argv[1]](), goes_on(), sep="\n")
