"""Compiles the kernels of formulas with NVRTC, which comes with every CUDA build of torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from . import disk

# The header of each kernel, below kernels/recurrent.
HEADERS = {
    "recurrence_forward": "step/step.cuh",
    "recurrence_backward": "step/step.cuh",
    "recurrence_c_states": "scan/c_states.cuh",
    "recurrence_c_states_in_turn": "scan/c_states.cuh",
    "block_forward": "block/forward.cuh",
    "block_backward": "block/backward.cuh",
    "cluster_forward": "cluster/forward.cuh",
    "cluster_backward": "cluster/backward.cuh",
    "cluster_dense_forward": "cluster/dense_forward.cuh",
    "cluster_dense_backward": "cluster/dense_backward.cuh",
    "cluster_split_forward": "cluster/fp16x2_forward.cuh",
    "cluster_fp32_forward": "cluster/fma_forward.cuh",
    "cluster_fp32_backward": "cluster/fma_backward.cuh",
    "grid_forward": "grid/half_forward.cuh",
    "grid_backward": "grid/half_backward.cuh",
    "grid_split_forward": "grid/fp16x2_forward.cuh",
    "grid_split_backward": "grid/fp16x2_backward.cuh",
}
ARCHITECTURES = {90: "sm_90a", 100: "sm_100a"}  # all others have the plain name, such as sm_80


def target_of(architecture: int) -> str:
    """NVRTC's name of the architecture. If TREADLE_IMPOSED_GPU makes the planner plan for another
    GPU, the target is compute_80, and the driver assembles the PTX for the GPU in use."""
    if os.environ.get("TREADLE_IMPOSED_GPU"):
        return "compute_80"
    return ARCHITECTURES.get(architecture, f"sm_{architecture}")


def compiled(
    functors: str, name: str, kernel: str, expression: str, architecture: int
) -> tuple[bytes, bytes]:
    """A kernel's image for the GPU and its symbol, from disk or compiled now."""
    target = target_of(architecture)
    text = (
        '#include "kernels/recurrent/formula/functors.h"\n'
        f"namespace treadle::math {{\n{functors}}}\n"
        f'#include "kernels/recurrent/{HEADERS[kernel]}"\n'
    )
    nvrtc = _nvrtc()
    path = disk.path_of(text, expression, target, nvrtc.version)
    found = disk.read(path)
    if found is None:
        start = time.perf_counter()
        found = nvrtc.compile(text, expression, target)
        print(
            f"treadle: compiled {kernel} of {name} in {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
        disk.write(path, *found)
    return found


def _toolkit_folders() -> list[Path]:
    """The folders that may contain CUDA's files: torch's packages, then an installed toolkit."""
    packages = Path(torch.__file__).resolve().parent.parent / "nvidia"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [*sorted(packages.glob("*")), *(Path(home) for home in homes if home)]


@cache
def _nvrtc() -> Nvrtc:
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    places = [folder / part / name for folder in _toolkit_folders() for part in ("lib", "lib64")]
    for place in [*(str(p) for p in places if p.is_file()), name]:
        with contextlib.suppress(OSError):
            return Nvrtc(ctypes.CDLL(place))
    raise RuntimeError(f"{name} was not found: install a CUDA build of torch, which includes it")


class Nvrtc:
    """The functions of libnvrtc that treadle calls."""

    def __init__(self, library: Any) -> None:
        self.library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def _call(self, function: str, *args: Any) -> None:
        status = getattr(self.library, function)(*args)
        if status != 0:
            text = self.library.nvrtcGetErrorString(status).decode()
            raise RuntimeError(f"{function}: {text}")

    def compile(self, text: str, expression: str, target: str) -> tuple[bytes, bytes]:
        program = ctypes.c_void_p()
        self._call(
            *("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"cell.cu"),
            *(0, None, None),
        )
        try:
            self._call("nvrtcAddNameExpression", program, expression.encode())
            options = self._options(target)
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            try:
                self._call("nvrtcCompileProgram", program, len(options), given)
            except RuntimeError as error:
                log = self._bytes(program, "nvrtcGetProgramLog").decode().strip()
                raise RuntimeError(f"{error}\n{log}") from None
            symbol = ctypes.c_char_p()
            self._call("nvrtcGetLoweredName", program, expression.encode(), ctypes.byref(symbol))
            form = "nvrtcGetPTX" if target.startswith("compute_") else "nvrtcGetCUBIN"
            return self._bytes(program, form), symbol.value or b""
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(what, program, buffer)
        return buffer.raw[: size.value].rstrip(b"\0") if what.endswith("Log") else buffer.raw

    def _options(self, target: str) -> list[str]:
        headers = [folder / "include" for folder in _toolkit_folders()]
        toolkit = [folder for folder in headers if (folder / "cuda_fp16.h").is_file()][:1]
        folders = [disk.SHIM, disk.include_folder(), *toolkit]
        return [
            f"-arch={target}",
            "-std=c++17",
            "-default-device",
            *(f"-I{folder}" for folder in folders),
        ]
