"""Facts that the build needs about torch, the compilers and the machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import runpy
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

OLDEST_TORCH = (2, 11)
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# Peak memory of compiling one file against torch's headers.
BYTES_PER_JOB = 3 << 30

CPU_FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv"]
ISA_FLAGS = {
    # For processors without AVX2. With -O3, compiling takes three times as long.
    "portable": ["-O2"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
        # GCC 12 warns about undefined vectors in its own AVX-512 header.
        "-Wno-maybe-uninitialized",
    ],
}


class BuildError(RuntimeError):
    """The build cannot continue; the text says why, and how to fix it."""


def torch_minor() -> tuple[int, int]:
    """(major, minor) of the installed torch, read from its metadata without importing it."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            "treadle is compiled against the torch that will run it, and none is installed here. "
            "Install it first (pip install torch), then: "
            "pip install setuptools ninja pybind11 && pip install --no-build-isolation ."
        ) from None
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) < OLDEST_TORCH:
        raise BuildError(f"treadle needs torch 2.11 or newer, and this is torch {version}")
    return int(major), int(minor)


@dataclass(frozen=True)
class Torch:
    """The torch to build against."""

    version: str
    cuda: str | None  # like torch.version.cuda: "13.0", or None for a CPU-only torch
    cxx11_abi: bool
    root: Path
    arch_list: tuple[str, ...]  # the architectures of torch's own kernels: "sm_90", ...

    @classmethod
    def installed(cls) -> Torch:
        torch_minor()
        import torch

        flags = torch._C._cuda_getArchFlags() if torch.version.cuda else None
        return cls(
            version=torch.__version__,
            cuda=torch.version.cuda,
            cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
            root=Path(torch.__file__).parent,
            arch_list=tuple((flags or "").split()),
        )

    @classmethod
    def at(cls, folder: Path) -> Torch:
        """The torch package in `folder`. It is never imported, so its dependencies may be
        missing."""
        facts = runpy.run_path(str(folder / "version.py"))
        # Every torch for Linux since 2.6 has the C++11 ABI.
        return cls(facts["__version__"], facts["cuda"], True, folder, ())

    @classmethod
    def all(cls) -> list[Torch]:
        """The torch packages in the folders of $TREADLE_TORCHES or, if unset, the installed one."""
        folders = os.environ.get("TREADLE_TORCHES")
        if not folders:
            return [cls.installed()]
        return [cls.at(Path(folder)) for folder in folders.split(os.pathsep)]

    @property
    def minor(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def cxx_standard(self) -> int:
        """The C++ standard that torch's headers need. They refuse an older one with an #error."""
        header = (self.root / "include" / "ATen" / "ATen.h").read_text()
        return 20 if "202002L" in header else 17

    @property
    def include_dirs(self) -> list[Path]:
        include = self.root / "include"
        return [include, include / "torch" / "csrc" / "api" / "include"]

    @property
    def lib_dir(self) -> Path:
        return self.root / "lib"

    def toolkit_dirs(self) -> list[Path]:
        """Folders of the CUDA packages that pip installs with torch."""
        return sorted((self.root.parent / "nvidia").glob("cu[0-9]*"))


@dataclass(frozen=True)
class Python:
    """A CPython for which treadle._C is compiled."""

    suffix: str  # of its extension modules: ".cpython-311-x86_64-linux-gnu.so"
    include: str

    @classmethod
    def running(cls) -> Python:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return cls(suffix, sysconfig.get_path("include"))

    @classmethod
    def all(cls) -> list[Python]:
        """The running Python and every other one on $PATH whose headers are installed."""
        found = [cls.running()]
        ask = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'), s.get_path('include'))"
        for minor in PYTHONS:
            path = shutil.which(f"python{minor}")
            done = path and subprocess.run([path, "-c", ask], capture_output=True, text=True)
            if not done or done.returncode:
                continue
            python = cls(*done.stdout.split())
            known = {other.suffix for other in found}
            if python.suffix not in known and (Path(python.include) / "Python.h").exists():
                found.append(python)
        return found


def jax_include() -> Path | None:
    """The folder of XLA's headers in the installed JAX, or None. This does not import JAX."""
    jaxlib = importlib.util.find_spec("jaxlib") if importlib.util.find_spec("jax") else None
    for folder in (jaxlib.submodule_search_locations or []) if jaxlib else []:
        if (Path(folder) / "include" / "xla" / "ffi" / "api").is_dir():
            return Path(folder) / "include"
    return None


def cxx() -> str:
    """The C++ compiler: $CXX, else c++, g++ or clang++."""
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["c++", "g++", "clang++"]:
        if name and shutil.which(name.split()[0]):
            return name
    raise BuildError(f"no C++ compiler found ({asked or 'c++, g++, clang++'}): install g++")


def ccache() -> str:
    """The prefix of compiler commands: ccache if it is found, unless $TREADLE_CCACHE is 0."""
    return "ccache " if os.environ.get("TREADLE_CCACHE") != "0" and shutil.which("ccache") else ""


def ccache_environment(root: Path) -> dict[str, str]:
    """Settings for ccache: it must cope with precompiled headers, and must treat paths below the
    tree (such as .venv) as equal to those of another tree."""
    return {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_BASEDIR": str(root)}


def first_line(command: list[str]) -> str:
    """The first line that a command prints, such as a compiler's version."""
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return out.splitlines()[0].strip()


def isas() -> dict[str, list[str]]:
    """Instruction sets to compile the CPU kernels for, with their flags."""
    if platform.machine() in ("x86_64", "AMD64"):
        return ISA_FLAGS
    return {"portable": []}


def ninja() -> str:
    """Path of ninja: from the Python package, else from PATH."""
    try:
        from ninja import BIN_DIR

        if BIN_DIR:
            return str(Path(BIN_DIR) / "ninja")
    except ImportError:
        pass
    found = shutil.which("ninja")
    if found is None:
        raise BuildError("ninja is missing: pip install ninja")
    return found


def _free_memory() -> int:
    """Bytes that the build may use: the machine's free memory, but at most what the limit of the
    cgroup leaves."""
    free = 1 << 62
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            free = min(free, int(limit) - used)
    except (OSError, ValueError):
        pass
    return free


def jobs() -> int:
    """The number of parallel compilers: $MAX_JOBS, else chosen by cores and free memory."""
    asked = os.environ.get("MAX_JOBS")
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise BuildError(f"MAX_JOBS must be a positive integer, got {asked!r}")
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _free_memory() // BYTES_PER_JOB))
