"""The ctypes mirror of treadle/kernels.h: its structs, constants and functions.

It repeats the header and checks nothing, so that tests can also make invalid calls with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle import _build

OK, INVALID, UNSUPPORTED, CUDA_ERROR, NO_MEMORY = range(5)
CPU_TYPE, CUDA_TYPE = 1, 2
LLTM, LSTM, GRU, RNN_TANH, RNN_RELU = range(5)
MAX_DIMS = 25
VERSION = 1

DTYPES = {
    torch.bool: 0x10806,
    torch.uint8: 0x10801,
    torch.int8: 0x10800,
    torch.int16: 0x11000,
    torch.int32: 0x12000,
    torch.int64: 0x14000,
    torch.float16: 0x11002,
    torch.bfloat16: 0x11004,
    torch.float32: 0x12002,
    torch.float64: 0x14002,
}
CONSTANTS = {
    "TREADLE_KERNELS_VERSION": VERSION,
    "TREADLE_OK": OK,
    "TREADLE_INVALID": INVALID,
    "TREADLE_UNSUPPORTED": UNSUPPORTED,
    "TREADLE_CUDA_ERROR": CUDA_ERROR,
    "TREADLE_NO_MEMORY": NO_MEMORY,
    "TREADLE_CPU": CPU_TYPE,
    "TREADLE_CUDA": CUDA_TYPE,
    "TREADLE_LLTM": LLTM,
    "TREADLE_LSTM": LSTM,
    "TREADLE_GRU": GRU,
    "TREADLE_RNN_TANH": RNN_TANH,
    "TREADLE_RNN_RELU": RNN_RELU,
    "TREADLE_MAX_DIMS": MAX_DIMS,
    **{f"TREADLE_{str(dtype)[6:].upper()}": number for dtype, number in DTYPES.items()},
}


class Sized(Structure):
    """A struct that begins with its size, which the constructor sets."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(ctypes.sizeof(type(self)), *values, **named)


class Array(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_uint32),
    ]


class Device(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("type", c_int32),
        ("index", c_int32),
        ("stream", c_void_p),
        ("threads", c_int32),
    ]


class Number(Structure):
    _fields_ = [("real", c_double), ("integer", c_int64), ("is_integer", c_int32)]


class Recurrent(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("cell", c_int32),
        ("directions", c_int32),
        ("dtype", c_uint32),
        ("c_dtype", c_uint32),
        ("steps", c_int64),
        ("batch", c_int64),
        ("hidden", c_int64),
    ]


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [("struct_size", c_size_t), *((name, c_void_p) for name in names)]


class Inputs(Sized):
    _fields_ = _pointers("products", "weight_hh", "bias_ih", "bias_hh", "h0", "c0")


class Outputs(Sized):
    _fields_ = _pointers("output", "h_n", "c_n", "gates")


class Saved(Sized):
    _fields_ = _pointers("gates", "weight_hh", "c0", "grad_output", "grad_h_n", "grad_c_n")


class Grads(Sized):
    _fields_ = _pointers("gates", "h0", "c0")


class Launch(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kernel", c_char_p),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("vector_width", c_int32),
        ("elements_per_thread", c_int32),
        ("registers", c_int32),
        ("blocks_per_sm", c_int32),
        ("shared_bytes", c_uint64),
        ("local_bytes", c_uint64),
        ("occupancy", c_double),
        ("family", c_char_p),
        ("algorithm", c_char_p),
        ("reason", c_char_p),
    ]


STRUCTS = {
    "treadle_array": Array,
    "treadle_device": Device,
    "treadle_number": Number,
    "treadle_recurrent": Recurrent,
    "treadle_recurrent_inputs": Inputs,
    "treadle_recurrent_outputs": Outputs,
    "treadle_recurrent_saved": Saved,
    "treadle_recurrent_grads": Grads,
    "treadle_launch": Launch,
}

_ARRAY = POINTER(Array)
_DEVICE = {"device": POINTER(Device)}
_LAYER = {**_DEVICE, "layer": POINTER(Recurrent)}
_WORKSPACE = {"workspace": c_void_p, "workspace_bytes": c_size_t}


def _arrays(*names: str) -> dict[str, Any]:
    return {name: _ARRAY for name in names}


# The functions that return a status, with the name and type of each parameter.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "treadle_vector_add": {**_DEVICE, **_arrays("a", "b"), "alpha": Number, "out": _ARRAY},
    "treadle_scale": {**_DEVICE, "x": _ARRAY, "factor": Number, "out": _ARRAY},
    "treadle_sine": {**_DEVICE, **_arrays("x", "out")},
    "treadle_cosine": {**_DEVICE, **_arrays("x", "out")},
    "treadle_sine_backward": {**_DEVICE, **_arrays("grad", "x", "out")},
    "treadle_cosine_backward": {**_DEVICE, **_arrays("grad", "x", "out")},
    "treadle_lltm_cell": {
        **_DEVICE,
        **_arrays("gates", "bias", "old_cell", "new_h", "new_cell"),
    },
    "treadle_lltm_cell_backward": {
        **_DEVICE,
        **_arrays("gates", "bias", "new_cell", "grad_h", "grad_cell"),
        **_arrays("grad_gates", "grad_old_cell"),
    },
    "treadle_sine_linear": {
        **_DEVICE,
        **_arrays("product", "bias"),
        "omega": c_double,
        **_arrays("output", "phase"),
    },
    "treadle_sine_linear_backward": {
        **_DEVICE,
        **_arrays("grad", "output", "phase"),
        "omega": c_double,
        "grad_z": _ARRAY,
    },
    "treadle_recurrent_workspace": {**_LAYER, "backward": c_int, "bytes": POINTER(c_size_t)},
    "treadle_recurrent_forward": {
        **_LAYER,
        "inputs": POINTER(Inputs),
        "outputs": POINTER(Outputs),
        **_WORKSPACE,
    },
    "treadle_recurrent_backward": {
        **_LAYER,
        "saved": POINTER(Saved),
        "grads": POINTER(Grads),
        **_WORKSPACE,
    },
    "treadle_get_launch": {"index": c_int64, "launch": POINTER(Launch)},
}
OTHERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "treadle_error_text": (c_char_p, ()),
    "treadle_kernels_version": (c_int, ()),
    "treadle_kernels_info": (c_char_p, ()),
    "treadle_record_launches": (None, (c_int,)),
    "treadle_launch_count": (c_int64, ()),
    "treadle_clear_launches": (None, ()),
}


@cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(_build.kernels_path())
    for name, parameters in FUNCTIONS.items():
        getattr(found, name).restype = c_int
        getattr(found, name).argtypes = list(parameters.values())
    for name, (result, types) in OTHERS.items():
        getattr(found, name).restype = result
        getattr(found, name).argtypes = list(types)
    return found


class NativeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status, self.text = status, error_text()
        super().__init__(f"status {status}: {self.text}")


def error_text() -> str:
    return str(library().treadle_error_text().decode())


def status_of(name: str, *arguments: Any) -> int:
    """Passes a struct by reference if the parameter is a pointer, and None as NULL."""
    return int(getattr(library(), name)(*_passed(name, arguments)))


def _passed(name: str, arguments: tuple[Any, ...]) -> Iterator[Any]:
    for kind, value in zip(FUNCTIONS[name].values(), arguments, strict=True):
        by_reference = isinstance(value, Structure) and kind is not Number
        yield ctypes.byref(value) if by_reference else value


def call(name: str, *arguments: Any) -> None:
    status = status_of(name, *arguments)
    if status != OK:
        raise NativeError(status)


def cpu(threads: int = 1) -> Device:
    return Device(CPU_TYPE, 0, None, threads)


def cuda(stream: torch.cuda.Stream | None = None, index: int = 0) -> Device:
    return Device(CUDA_TYPE, index, stream.cuda_stream if stream else None, 0)


def number(value: float | int) -> Number:
    whole = isinstance(value, int)
    return Number(0.0 if whole else value, value if whole else 0, whole)


def _longs(values: Any) -> Any:
    return (c_int64 * len(values))(*values)


def array_at(
    data: int | None, sizes: Any, strides: Any | None, dtype: torch.dtype, owner: Any = None
) -> Array:
    made = Array(
        data, _longs(sizes), None if strides is None else _longs(strides), len(sizes), DTYPES[dtype]
    )
    made.owner = owner  # keeps the memory alive as long as the struct
    return made


def array(x: Tensor | np.ndarray) -> Array:
    """The struct of a tensor or a NumPy array. NumPy's strides may be negative."""
    if isinstance(x, Tensor):
        return array_at(x.data_ptr() or None, x.shape, x.stride(), x.dtype, x)
    dtype = torch.from_numpy(np.empty(0, x.dtype)).dtype
    return array_at(x.ctypes.data, x.shape, [s // x.itemsize for s in x.strides], dtype, x)
