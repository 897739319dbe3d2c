"""Gives the kernels' library the functions that compile cells."""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import cxx, nvrtc
from .graph import Node

_Give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
_Fail = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_ForGpu = ctypes.CFUNCTYPE(
    None,
    *[ctypes.c_char_p] * 3,
    ctypes.c_int,
    *[ctypes.c_void_p] * 3,
)
_ForCpu = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_kept: list[Any] = []  # objects to which C has pointers


@dataclass(frozen=True)
class Source:
    """A cell's functors in C++, and its formula as nodes: ``inputs`` are the gates and the parts of
    c, and ``results`` are new h and the parts of new c. ``counts`` are those of
    ``source.Formula``."""

    functors: str
    counts: tuple[int, int, int, int]
    inputs: Sequence[Node]
    results: Sequence[Node]


def _interrupt(error: BaseException) -> None:
    """Repeats a Ctrl-C after the call from C has returned. Exceptions cannot pass through C."""
    if isinstance(error, KeyboardInterrupt):
        threading.Timer(0.05, _thread.interrupt_main).start()


def install(library: Any, sources: Mapping[str, Source]) -> None:
    """Gives the library one function for GPUs and one for CPUs. ``sources`` has the registered
    cells by key."""
    if _kept:
        return

    def for_gpu(
        name: bytes,
        kernel: bytes,
        expression: bytes,
        architecture: int,
        context: int,
        give: int,
        fail: int,
    ) -> None:
        try:
            key = name.decode()
            image, symbol = nvrtc.compiled(
                sources[key].functors, key, kernel.decode(), expression.decode(), architecture
            )
            _Give(give)(context, image, len(image), symbol)
        except BaseException as error:
            _Fail(fail)(context, (str(error) or type(error).__name__).encode())
            _interrupt(error)

    def for_cpu(name: bytes, dtype: int, found: Any) -> None:
        key = name.decode()
        try:
            found[0] = cxx.functions(sources[key].functors, sources[key].counts, key, dtype)
        except BaseException as error:
            reason = str(error) or type(error).__name__
            text = f"{key} runs with torch's operations, which are slow: {reason}"
            try:
                warnings.warn(text, stacklevel=2)
            except Warning:  # the user's filter turns warnings into errors
                print(f"treadle: {text}", file=sys.stderr)
            _interrupt(error)

    _kept.extend([_ForGpu(for_gpu), _ForCpu(for_cpu)])
    library.treadle_set_formula_compilers.restype = None
    library.treadle_set_formula_compilers(*_kept)
