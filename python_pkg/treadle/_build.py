"""The facts that a build records about itself, and whether they match the running torch and Python.

``lib/libtreadle_kernels.so`` works with any torch. ``lib/torch-2.11`` contains libtreadle.so for
torch 2.11, and the facts of its build in facts.json. A library with CUDA needs torch's CUDA
libraries, so a wheel also has ``lib/torch-2.11-cpu``, for torch without CUDA. ``load`` finds the
folder for the running torch and compares the facts before it opens the library. So a mismatch
raises a readable error instead of one about an undefined symbol.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import platform
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parent
LIB = PACKAGE / "lib"
CPU = "-cpu"  # suffix of the folders in LIB that are for torch without CUDA
OLDEST = "2.11"  # the oldest torch that treadle can be built for
TREE = PACKAGE.parents[1]  # the repository, if treadle is imported from one


def library_path() -> str:
    """Path of the op library for the running torch, for ``torch.ops.load_library`` and for C++.

    Raises:
        ImportError: if this package has no library for that torch, or torch is not installed.
    """
    return str(_folder() / "libtreadle.so")


def kernels_path() -> str:
    """Path of the library that needs no torch. treadle/kernels.h declares its functions."""
    return str(LIB / "libtreadle_kernels.so")


def builds() -> list[str]:
    """The minor versions of torch that this package has a library for, such as ["2.11", "2.12"]."""
    names = {file.parent.name.removesuffix(CPU) for file in LIB.glob("torch-*/facts.json")}
    found = [name.removeprefix("torch-") for name in names]
    return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])


def cmake_prefix() -> str:
    """CMAKE_PREFIX_PATH for ``find_package(treadle)``: the folders of treadle and of torch."""
    import torch

    return f"{PACKAGE};{Path(torch.__file__).parent}"


@cache
def facts() -> dict[str, Any]:
    """The build facts: versions of treadle, torch, CUDA and compilers, flags, architectures.

    Raises:
        ImportError: if treadle has not been built here.
    """
    found: dict[str, Any] = json.loads((_folder() / "facts.json").read_text())
    return found


def _folder() -> Path:
    """The folder of the library for the running torch."""
    held = builds()
    if not held or not Path(kernels_path()).exists():
        raise ImportError(
            f"treadle has not been built: {PACKAGE} contains no compiled library. "
            f"Build it with: {rebuild_command()}"
        )
    torch = _torch(held)
    version = torch.__version__
    folder = LIB / f"torch-{_minor(version)}"
    if torch.version.cuda is None and torch.version.hip is None:
        cpu = folder.with_name(folder.name + CPU)
        folder = cpu if cpu.exists() else folder
    if not (folder / "libtreadle.so").exists():
        raise ImportError(
            f"treadle was compiled for torch {', '.join(held)}, but this is torch {version}. "
            f"Install one of these versions, for example: {_install_torch(held[-1])}; or build "
            f"treadle for this torch with: {rebuild_command()}"
        )
    return folder


def _install_torch(minor: str) -> str:
    return f"{shlex.quote(sys.executable)} -m pip install 'torch=={minor}.*'"


def _torch(held: list[str]) -> ModuleType:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        minors = held or [OLDEST]
        raise ImportError(
            f"treadle needs torch {' or '.join(minors)}, and no torch is installed for "
            f"{sys.executable}. Install it with: {_install_torch(minors[-1])}"
        ) from None
    return torch


def rebuild_command() -> str:
    """The shell command that builds treadle for the running Python and its torch."""
    pip = f"{shlex.quote(sys.executable)} -m pip install --no-build-isolation"
    if (TREE / "setup.py").exists():
        return f"{pip} -e {shlex.quote(str(TREE))}"
    return f"{pip} --no-deps --force-reinstall {_origin()}"


def _origin() -> str:
    """The folder that treadle was installed from, or a placeholder if pip recorded none."""
    try:
        noted = importlib.metadata.distribution("treadle").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        noted = None
    url = json.loads(noted).get("url", "") if noted else ""
    path = Path(url.removeprefix("file://"))
    if url.startswith("file://") and (path / "setup.py").exists():
        return shlex.quote(str(path))
    return "TREADLE_SOURCE_FOLDER"


def running() -> dict[str, Any]:
    """The facts that depend on the running process."""
    torch = _torch(builds())
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


@cache
def kernels_info() -> dict[str, Any]:
    """The facts recorded in libtreadle_kernels.so: version, cuda, archs, compiler, isa, sources."""
    try:
        library = ctypes.CDLL(kernels_path())
    except OSError as error:
        raise ImportError(
            f"treadle's kernels could not be opened ({error}). Build them again with: "
            f"{rebuild_command()}"
        ) from error
    library.treadle_kernels_info.restype = ctypes.c_char_p
    found: dict[str, Any] = json.loads(library.treadle_kernels_info())
    return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _named(of: dict[str, Any]) -> str:
    cuda = f"CUDA {of['torch_cuda']}" if of["torch_cuda"] else "no CUDA"
    return f"torch {of['torch']} ({cuda}, {of['machine']})"


def check() -> None:
    """Raise ImportError if the library does not match the running torch. The error states both
    versions and the command that rebuilds treadle.

    A library works with any patch release of the minor version of torch that it was built for. A
    library with CUDA also needs torch with the same CUDA major version. Every library must have
    been built with this package's kernels and, if the package is used from a repository, with the
    repository's csrc/schemas.h.
    """
    built, now = facts(), running()
    kernels = kernels_info()["sources"]
    if kernels != built["kernels"]:
        raise ImportError(
            f"treadle's library for torch {_minor(built['torch'])} was built with other kernels "
            f"({built['kernels']}) than {kernels_path()} has ({kernels}). Build it again with: "
            f"{rebuild_command()}"
        )
    schemas = TREE / "csrc" / "schemas.h"
    if schemas.exists() and hashlib.sha256(schemas.read_bytes()).hexdigest() != built["schemas"]:
        raise ImportError(
            f"treadle's ops have changed since its library was built: {schemas} differs from the "
            f"library's schemas. Build it again with: {rebuild_command()}"
        )
    fits = _minor(built["torch"]) == _minor(now["torch"])
    fits &= built["cxx11_abi"] == now["cxx11_abi"] and built["machine"] == now["machine"]
    if built["cuda"]:
        major = (now["torch_cuda"] or "").split(".")[0]
        fits &= built["torch_cuda"].split(".")[0] == major
    if not fits:
        raise ImportError(
            f"treadle was built for {_named(built)}, and this is {_named(now)}. "
            f"Rebuild it with: {rebuild_command()}"
        )


def load() -> None:
    """Check the build and open the op library, which adds the ops to ``torch.ops.treadle``.

    Raises:
        ImportError: if the library is missing, does not match the running torch, or cannot be
            opened.
    """
    check()
    import torch

    try:
        torch.ops.load_library(library_path())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"treadle's library could not be opened ({error}), although it was built for "
            f"{_named(facts())}. Rebuild it with: {rebuild_command()}"
        ) from error


def reporting() -> bool:
    """Whether the package is being imported by ``python -m treadle``."""
    # Python sets sys.argv[0] to "-m" while it looks for the module.
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and ("-m", "treadle") in zip(words, words[1:], strict=False)


@cache
def bindings() -> ModuleType:
    """The pybind11 module ``treadle._C``, which most programs never need.

    Raises:
        ImportError: if treadle._C was not built for the running Python.
    """
    try:
        return importlib.import_module("treadle._C")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"launch_info and only_if_faster of treadle.nn.replace need treadle._C, which this "
            f"package has for {' and '.join(_pythons()) or 'no Python'}, and this is Python "
            f"{platform.python_version()}. Everything else works without treadle._C. Build it "
            f"with: {rebuild_command()}"
        ) from error


def _pythons() -> list[str]:
    """The versions of Python for which treadle._C was built, such as ["CPython 3.11"]."""
    tags = sorted(file.name.split(".")[1] for file in PACKAGE.glob("_C.*.so"))
    versions = [re.fullmatch(r"cpython-(\d)(\d+).*", tag) for tag in tags]
    return [f"CPython {match[1]}.{match[2]}" for match in versions if match]
