"""The files for compiling cells: the headers of the kernels, and a cache of compiled kernels.

A file of the cache contains the SHA-256 of the rest of the file, the length of the symbol's name in
4 bytes, that name, and the compiled code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from .. import _build

FOLDER = Path(__file__).resolve().parent
SHIM = FOLDER / "shim"  # the standard headers that NVRTC lacks


def cells_folder() -> Path:
    """$TREADLE_CELLS, or treadle/cells in the user's cache folder."""
    given = os.environ.get("TREADLE_CELLS")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "treadle" / "cells"


def path_of(*parts: str) -> Path:
    """The path in the cache of code that is compiled from these texts and the kernels' headers."""
    key = "\0".join([*parts, _kernels_digest()])
    return cells_folder() / hashlib.sha256(key.encode()).hexdigest()


def read(path: Path) -> tuple[bytes, bytes] | None:
    """The code and its symbol; None if the file is missing, damaged, or another user's."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, rest = file.read(32), file.read()
    except OSError:
        return None
    if len(rest) < 4 or hashlib.sha256(rest).digest() != digest:
        return None
    end = 4 + int.from_bytes(rest[:4], "little")
    return rest[end:], rest[4:end]


def write(path: Path, code: bytes, symbol: bytes) -> None:
    """Writes the file under another name and renames it, so that no process reads half of it."""
    rest = len(symbol).to_bytes(4, "little") + symbol + code
    # If the folder is not writable, every process compiles again.
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(rest).digest() + rest)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


@cache
def include_folder() -> Path:
    """The folder that contains kernels/: ``include`` in an installed package, else the
    repository."""
    packaged = FOLDER / "include"
    root = packaged if packaged.is_dir() else FOLDER.parents[2]
    if not (root / "kernels/recurrent/formula/functors.h").is_file():
        raise RuntimeError(f"the kernels' headers are missing in {root}: install treadle again")
    return root


@cache
def _kernels_digest() -> str:
    """The digest of the kernels' sources, as built, and of the standard headers for NVRTC."""
    shim = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SHIM.iterdir())))
    return f"{_build.kernels_info()['sources']} {shim.hexdigest()}"
