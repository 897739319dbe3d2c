"""Calls the system's C++ compiler to compile the functions that run a cell's steps on the CPU."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from .. import _build
from . import disk

SYMBOL = b"treadle_formula_rows"
TYPES = {6: "treadle::Half", 7: "treadle::BFloat16", 8: "float", 9: "double"}  # by number of Dtype


def functions(functors: str, counts: tuple[int, int, int, int], name: str, dtype: int) -> int:
    """The address of a ``RowsFunctions`` (kernels/recurrent/cpu/rows.h), which stays valid.

    Raises:
        RuntimeError: if there is no compiler, or it fails.
    """
    numbers = ", ".join(map(str, counts))
    text = (
        '#include "kernels/recurrent/formula/functors.h"\n'
        f"namespace treadle::math {{\n{functors}}}\n"
        '#include "kernels/recurrent/formula/rows.h"\n'
        f"TREADLE_FORMULA_ROWS({TYPES[dtype]}, "
        f"treadle::math::FormulaRecurrence<acc, {numbers}, false>)\n"
    )
    command, version = _compiler()
    path = disk.path_of(text, *command, version)
    found = disk.read(path)
    if found is None:
        start = time.perf_counter()
        found = _compiled(command, text), SYMBOL
        print(
            f"treadle: compiled the CPU's steps of {name} in {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
        disk.write(path, *found)
    # The library is opened from memory, so that exactly the code that was verified runs. The
    # descriptor stays open, because another library could otherwise get the same path later.
    handle = os.memfd_create(f"treadle_{name}")
    with open(handle, "wb", closefd=False) as file:
        file.write(found[0])
    library = ctypes.CDLL(f"/proc/self/fd/{handle}")
    return ctypes.addressof(ctypes.c_char.in_dll(library, SYMBOL.decode()))


@cache
def _compiler() -> tuple[list[str], str]:
    """The command, with the flags of the package's CPU kernels, and the compiler's version."""
    given = os.environ.get("CXX")
    names = [given] if given is not None else ["c++", "g++", "clang++"]
    commands = [words for words in map(shlex.split, names) if words]
    found = next((words for words in commands if shutil.which(words[0])), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler was found ({', '.join(names)}): set CXX to one")
    version = subprocess.run([*found, "--version"], capture_output=True, text=True, check=False)
    flags = shlex.split(_build.facts()["cpu_flags"][_build.kernels_info()["isa"]])
    warnings = [flag for flag in flags if flag.startswith("-W")]
    kept = [flag for flag in flags if flag not in warnings]
    return [*found, *kept, "-w", "-shared", "-fPIC"], version.stdout


def _compiled(command: list[str], text: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "cell.cpp"), Path(folder, "cell.so")
        source.write_text(text)
        root = disk.include_folder()
        folders = [f"-I{root}", f"-I{root}/kernels/include"]
        done = subprocess.run(
            [*command, *folders, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{done.stderr.strip()}")
        return library.read_bytes()
