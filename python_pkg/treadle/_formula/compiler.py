"""Gives the kernels' library the functions that compile cells."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import cxx, nvrtc

_Give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
_ForGpu = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *[ctypes.c_char_p] * 3,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_ForCpu = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_kept: list[Any] = []  # what C has pointers to


@dataclass(frozen=True)
class Source:
    """The functors of a cell, and its numbers of gates: all, with x, with h."""

    functors: str
    gates: tuple[int, int, int]


def install(library: Any, sources: Mapping[str, Source]) -> None:
    """Sets both functions. ``sources``: of registered cells, by key."""
    if _kept:
        return
    wrong = ctypes.create_string_buffer(1)

    def for_gpu(
        name: bytes, kernel: bytes, expression: bytes, architecture: int, context: int, give: int
    ) -> int | None:
        nonlocal wrong
        try:
            key = name.decode()
            image, symbol = nvrtc.compiled(
                sources[key].functors, key, kernel.decode(), expression.decode(), architecture
            )
            _Give(give)(context, image, len(image), symbol)
        except Exception as error:
            wrong = ctypes.create_string_buffer(str(error).encode())
            return ctypes.addressof(wrong)
        return None

    def for_cpu(name: bytes, dtype: int) -> int | None:
        key = name.decode()
        try:
            return cxx.functions(sources[key].functors, sources[key].gates, key, dtype)
        except Exception as error:
            warnings.warn(
                f"{key} runs as operations of torch, which are slow: {error}", stacklevel=2
            )
            return None

    _kept.extend([_ForGpu(for_gpu), _ForCpu(for_cpu)])
    library.treadle_set_formula_compilers.restype = None
    library.treadle_set_formula_compilers(*_kept)
