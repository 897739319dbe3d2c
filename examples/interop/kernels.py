"""treadle/kernels.h in ctypes: its structs, and calls whose error codes become exceptions.

The examples with NumPy, CuPy, PyCUDA and Numba arrays use this file. It is not part of the package:
copy what you need. It finds the library without importing treadle, so programs do not need torch.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CPU, CUDA = 1, 2
LLTM, LSTM, GRU = 0, 1, 2


def struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    """A struct of kernels.h. Its first field, struct_size, is set by `make`."""
    members = [("struct_size", c_size_t), *fields.items()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


Array = struct(
    "Array",
    data=c_void_p,
    sizes=POINTER(c_int64),
    strides=POINTER(c_int64),
    ndim=c_int32,
    dtype=c_uint32,
)
Device = struct("Device", type=c_int32, index=c_int32, stream=c_void_p, threads=c_int32)
_layer = {"cell": c_int32, "directions": c_int32, "dtype": c_uint32, "c_dtype": c_uint32}
Recurrent = struct("Recurrent", **_layer, steps=c_int64, batch=c_int64, hidden=c_int64)
_names = ("products", "weight_hh", "bias_ih", "bias_hh", "h0", "c0")
Inputs = struct("Inputs", **dict.fromkeys(_names, c_void_p))
Outputs = struct("Outputs", **dict.fromkeys(("output", "h_n", "c_n", "gates"), c_void_p))


class Number(ctypes.Structure):
    _fields_ = [("real", c_double), ("integer", c_int64), ("is_integer", c_int32)]


def make(kind: type[ctypes.Structure], **fields: Any) -> ctypes.Structure:
    return kind(struct_size=ctypes.sizeof(kind), **fields)


def device(stream: int | None = None, index: int = 0) -> ctypes.Structure:
    """The CPU or, with a stream (0 is CUDA's default stream), the GPU of that index."""
    return make(Device, type=CPU if stream is None else CUDA, index=index, stream=stream)


def number(value: float) -> Number:
    integer = isinstance(value, int)
    return Number(float(value), value if integer else 0, integer)


def array(x: Any) -> ctypes.Structure:
    """Describes an array of NumPy, CuPy, PyCUDA, Numba or torch, without a copy. Keep `x` alive
    while the description is in use."""
    cuda = getattr(x, "__cuda_array_interface__", None)
    facts = x.__array_interface__ if cuda is None else cuda
    order, kind, size = facts["typestr"][0], facts["typestr"][1], int(facts["typestr"][2:])
    if order == ">" or kind not in "biuf":
        raise RuntimeError(f"array must be real and in native byte order, got {facts['typestr']}")
    shape, strides = facts["shape"], facts.get("strides")  # in bytes, or None if contiguous
    if strides is not None and any(stride % size for stride in strides):
        raise RuntimeError(f"array must have strides of whole elements, got {strides}")
    vector = c_int64 * len(shape)
    return make(
        Array,
        data=facts["data"][0],
        sizes=vector(*shape),
        strides=None if strides is None else vector(*(stride // size for stride in strides)),
        ndim=len(shape),
        dtype={"i": 0, "u": 1, "f": 2, "b": 6}[kind] | size * 8 << 8 | 1 << 16,
    )


@cache
def library() -> ctypes.CDLL:
    """libtreadle_kernels.so: $TREADLE_KERNELS or, if unset, the installed package's library."""
    path = os.environ.get("TREADLE_KERNELS")
    if path is None:
        spec = find_spec("treadle")  # does not import it
        if spec is None or spec.origin is None:
            raise RuntimeError(
                "treadle must be installed, or $TREADLE_KERNELS must name its library"
            )
        path = str(Path(spec.origin).parent / "lib" / "libtreadle_kernels.so")
    found = ctypes.CDLL(path)
    found.treadle_error_text.restype = c_char_p
    return found


def call(name: str, *arguments: Any) -> None:
    """Calls treadle_<name>. Passes the address of each struct, but a Number by value. Raises
    RuntimeError with the library's error text if the call fails."""
    passed = [
        ctypes.byref(a) if isinstance(a, ctypes.Structure) and not isinstance(a, Number) else a
        for a in arguments
    ]
    if getattr(library(), f"treadle_{name}")(*passed):
        raise RuntimeError(library().treadle_error_text().decode())
