"""Compiles the kernels of formulas by NVRTC, which every CUDA build of torch brings."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parent
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
ARCHITECTURES = {90: "sm_90a", 100: "sm_100a"}  # others have no variant

_Give = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p
)
_Compiler = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    *[ctypes.c_char_p] * 3,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_kept: list[Any] = []  # what C holds pointers to


def install(library: Any, sources: Mapping[str, str]) -> None:
    """Makes the kernels' library call this module for the kernels of formulas."""
    if _kept:
        return
    wrong = ctypes.create_string_buffer(1)

    def compile_for(
        name: bytes, kernel: bytes, expression: bytes, architecture: int, context: int, give: int
    ) -> int | None:
        nonlocal wrong
        try:
            functors = sources[name.decode()]
            image, symbol = compiled(
                functors, name.decode(), kernel.decode(), expression.decode(), architecture
            )
            _Give(give)(context, image, len(image), symbol)
        except Exception as error:
            wrong = ctypes.create_string_buffer(str(error).encode())
            return ctypes.addressof(wrong)
        return None

    _kept.append(_Compiler(compile_for))
    library.treadle_set_formula_compiler.restype = None
    library.treadle_set_formula_compiler(_kept[0])


def compiled(
    functors: str, name: str, kernel: str, expression: str, architecture: int
) -> tuple[bytes, bytes]:
    """The kernel's image for the GPU, and its symbol: from the folder of compiled kernels, or made
    and put there."""
    text = (
        '#include "kernels/recurrent/formula/functors.cuh"\n'
        f"namespace treadle::math {{\n{functors}}}\n"
        f'#include "kernels/recurrent/{HEADERS[kernel]}"\n'
    )
    nvrtc = _nvrtc()
    key = "\0".join([text, expression, str(architecture), nvrtc.version, _headers_digest()])
    path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    found = _read(path)
    if found is None:
        start = time.perf_counter()
        found = nvrtc.compile(text, expression, architecture)
        print(
            f"treadle: compiled {kernel} of {name} in {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
        _write(path, *found)
    return found


def cache_folder() -> Path:
    """$TREADLE_CELLS, or treadle below the user's cache folder. Created for the user alone."""
    given = os.environ.get("TREADLE_CELLS")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "treadle" / "cells"


# A file: the digest of the rest, the length of the symbol, the symbol, the image.


def _read(path: Path) -> tuple[bytes, bytes] | None:
    """What _write wrote; None where there is no such file, or another user's, or a damaged one."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, rest = file.read(32), file.read()
    except OSError:
        return None
    if len(rest) < 4 or hashlib.sha256(rest).digest() != digest:
        return None
    size = int.from_bytes(rest[:4], "little")
    return rest[4 + size :], rest[4 : 4 + size]


def _write(path: Path, image: bytes, symbol: bytes) -> None:
    rest = len(symbol).to_bytes(4, "little") + symbol + image
    # Without a folder to write to, every process compiles.
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(rest).digest() + rest)
        os.replace(name, path)


@cache
def include_folder() -> Path:
    """The folder that has kernels/: in the package, or the source tree's root."""
    packaged = FOLDER / "include"
    root = packaged if packaged.is_dir() else FOLDER.parents[2]
    if not (root / "kernels/recurrent/formula/functors.cuh").is_file():
        raise RuntimeError(f"the kernels' headers are missing in {root}: install treadle again")
    return root


@cache
def _headers_digest() -> str:
    digest = hashlib.sha256()
    root = include_folder() / "kernels"
    for path in sorted([*root.rglob("*.h"), *root.rglob("*.cuh"), *(FOLDER / "shim").iterdir()]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _toolkit_folders() -> list[Path]:
    """Where the CUDA toolkit's files may lie: torch's packages, then an installed toolkit."""
    packages = Path(torch.__file__).resolve().parent.parent / "nvidia"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [*sorted(packages.glob("*")), *(Path(home) for home in homes if home)]


@cache
def _nvrtc() -> Nvrtc:
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    places = [
        folder / part / name for folder in _toolkit_folders() for part in ("lib", "lib64")
    ]
    for place in [*(str(p) for p in places if p.is_file()), name]:
        with contextlib.suppress(OSError):
            return Nvrtc(ctypes.CDLL(place))
    raise RuntimeError(f"{name} was not found: install a CUDA build of torch, which brings it")


class Nvrtc:
    """The functions of libnvrtc that are needed."""

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

    def compile(self, text: str, expression: str, architecture: int) -> tuple[bytes, bytes]:
        program = ctypes.c_void_p()
        self._call(
            *("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"cell.cu"),
            *(0, None, None),
        )
        try:
            self._call("nvrtcAddNameExpression", program, expression.encode())
            options = self._options(architecture)
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            try:
                self._call("nvrtcCompileProgram", program, len(options), given)
            except RuntimeError as error:
                log = self._bytes(program, "nvrtcGetProgramLog").decode().strip()
                raise RuntimeError(f"{error}\n{log}") from None
            symbol = ctypes.c_char_p()
            self._call(
                "nvrtcGetLoweredName", program, expression.encode(), ctypes.byref(symbol)
            )
            return self._bytes(program, "nvrtcGetCUBIN"), symbol.value or b""
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(what, program, buffer)
        return buffer.raw[: size.value].rstrip(b"\0") if what.endswith("Log") else buffer.raw

    def _options(self, architecture: int) -> list[str]:
        name = ARCHITECTURES.get(architecture, f"sm_{architecture}")
        headers = [folder / "include" for folder in _toolkit_folders()]
        toolkit = [folder for folder in headers if (folder / "cuda_fp16.h").is_file()][:1]
        folders = [FOLDER / "shim", include_folder(), *toolkit]
        return [
            f"-arch={name}",
            "-std=c++17",
            "-default-device",
            *(f"-I{folder}" for folder in folders),
        ]
