"""What this package was compiled for, and whether that is what is running.

The build writes its facts beside the binaries. ``load`` compares them with the running torch before
the library is opened, so that a wrong pair is one sentence and never an undefined symbol.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import platform
import shlex
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parent
FACTS = PACKAGE / "_build_facts.json"
TREE = PACKAGE.parents[1]  # the repository, where treadle is imported from one


def library_path() -> str:
    """Path of the op library, for ``torch.ops.load_library`` and for C++ programs."""
    return str(PACKAGE / "libtreadle.so")


def cmake_prefix() -> str:
    """What goes into CMAKE_PREFIX_PATH for ``find_package(treadle)``: treadle's folder, torch's."""
    import torch

    return f"{PACKAGE};{Path(torch.__file__).parent}"


@cache
def facts() -> dict[str, Any]:
    """The build facts: versions of treadle, torch, CUDA and compilers, flags, architectures.

    Raises:
        ImportError: if treadle has not been built here.
    """
    if not FACTS.exists() or not Path(library_path()).exists():
        raise ImportError(
            f"treadle has not been built: {PACKAGE} holds no compiled library. "
            f"Build it with: {rebuild_command()}"
        )
    found: dict[str, Any] = json.loads(FACTS.read_text())
    return found


def rebuild_command() -> str:
    """The shell command that builds treadle for the running Python and its torch."""
    pip = f"{shlex.quote(sys.executable)} -m pip install --no-build-isolation"
    if (TREE / "setup.py").exists():
        return f"{pip} -e {shlex.quote(str(TREE))}"
    return f"{pip} --no-deps --force-reinstall {_origin()}"


def _origin() -> str:
    """The folder that treadle was installed from, or a word for it where pip did not note one."""
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
    """What of the build facts the running process decides."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        wanted = _minor(facts()["torch"])
        raise ImportError(
            f"treadle needs torch {wanted}, and no torch is installed for {sys.executable}. "
            f"Install it with: {shlex.quote(sys.executable)} -m pip install 'torch=={wanted}.*'"
        ) from None
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _named(of: dict[str, Any]) -> str:
    cuda = f"CUDA {of['torch_cuda']}" if of["torch_cuda"] else "no CUDA"
    return f"torch {of['torch']} ({cuda}, {of['machine']})"


def check() -> None:
    """Raise ImportError, with both versions and the command that mends it, where they do not fit.

    A library fits any patch release of the torch minor that it was built against. One built with
    CUDA also needs a torch of the same CUDA major; one built without fits either. In a repository
    the library must also have the ops that the Python files there call.
    """
    built, now = facts(), running()
    schemas = TREE / "csrc" / "schemas.h"
    if schemas.exists() and hashlib.sha256(schemas.read_bytes()).hexdigest() != built["schemas"]:
        raise ImportError(
            f"treadle's ops have changed since it was built: {schemas} is not what the library "
            f"has. Build it again with: {rebuild_command()}"
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
    """Check the build and open the op library: afterwards ``torch.ops.treadle`` has the ops.

    Raises:
        ImportError: if the library is missing, was built for something else, or cannot be opened.
    """
    try:
        check()
        _open()
    except ImportError as error:
        if not _reporting():
            raise
        # `python -m treadle` imports the package first. It is what people are told to run when
        # something is wrong, so it must report this error and not end in it.
        from treadle.__main__ import main

        raise SystemExit(main(problem=str(error))) from None


def _open() -> None:
    import torch

    try:
        torch.ops.load_library(library_path())  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"treadle's library could not be opened ({error}), although it was built for "
            f"{_named(facts())}. Rebuild it with: {rebuild_command()}"
        ) from error


def _reporting() -> bool:
    # While Python looks for the module of -m, sys.argv[0] is "-m".
    words = sys.orig_argv
    return sys.argv[:1] == ["-m"] and ("-m", "treadle") in zip(words, words[1:], strict=False)


@cache
def bindings() -> ModuleType:
    """The pybind11 module ``treadle._C``, which most programs never need.

    Raises:
        ImportError: if it was built for another Python.
    """
    try:
        return importlib.import_module("treadle._C")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"treadle._C was built for Python {facts()['python']}, and this is Python "
            f"{platform.python_version()}. Rebuild it with: {rebuild_command()}"
        ) from error
