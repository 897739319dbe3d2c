"""Decides whether to build with CUDA, with which toolkit, and for which architectures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .host import BuildError, Torch

# The names that TORCH_CUDA_ARCH_LIST may contain instead of numbers.
NAMED_ARCHS = {
    "Turing": "7.5+PTX",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}

# The architectures (90 for 9.0) for which kernels of a source have a body. For all others they are
# empty, so these sources need not be compiled for them. Launchers treat a kernel that does not
# exist like an empty one (kernels/recurrent/engine/persistent.cuh). A source of instances/ that has
# code for no architecture of the build is left out (kernels/recurrent/launch.cuh).
CODE: tuple[tuple[str, Callable[[int], bool]], ...] = (
    ("recurrent/instances/cluster_", lambda arch: 90 <= arch < 110),
    (r"recurrent/instances/grid_\w+_sm80", lambda arch: arch >= 80 and arch != 90),
    ("recurrent/instances/(grid_|tiles)", lambda arch: arch == 90),
    ("recurrent/instances/block_and_fma", lambda arch: arch >= 80),
    ("recurrent/formula/instances", lambda arch: False),
    ("sine_linear/fused_", lambda arch: arch == 90),
    ("sine_linear/mma_", lambda arch: 80 <= arch < 90 or arch >= 120),
)


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit that fits torch."""

    nvcc: Path
    version: str  # "13.0"
    archs: tuple[str, ...]  # "9.0", "12.0+PTX"

    @property
    def include_dir(self) -> Path:
        return self.nvcc.parent.parent / "include"

    def gencode(self, source: Path | None = None) -> list[str]:
        """The flags that select the architectures: all, or those for which to compile a source."""
        newer = os.environ.get("TREADLE_ASSEMBLE_FOR")
        if newer:
            # Tests run code for an older GPU on a newer one (docs/other_gpus.md).
            return [f"-gencode=arch=compute_{number(self.archs[0])},code=sm_{number(newer)}"]
        flags = []
        for arch in self._archs_of(source) if source else self.archs:
            plain = number(arch)
            # sm_90a has instructions that only this architecture supports; PTX must not use them.
            own = {"90": "90a"}.get(plain, plain)
            flags.append(f"-gencode=arch=compute_{own},code=sm_{own}")
            if arch.endswith("+PTX"):
                flags.append(f"-gencode=arch=compute_{plain},code=compute_{plain}")
        return flags

    def needs(self, source: Path) -> bool:
        """Whether a build compiles a source: it does not if the source is one of instances/, and no
        architecture has code for its kernels."""
        return source.parent.name != "instances" or bool(self._archs_with_code(source))

    def _archs_of(self, source: Path) -> tuple[str, ...]:
        # Without an architecture, nvcc would choose one. The host code is needed in any case.
        return self._archs_with_code(source) or (self.archs[-1].removesuffix("+PTX"),)

    def _archs_with_code(self, source: Path) -> tuple[str, ...]:
        text = source.as_posix()
        has_code = next((rule for pattern, rule in CODE if re.search(pattern, text)), None)
        if has_code is None:
            return self.archs
        return tuple(arch for arch in self.archs if has_code(int(number(arch).rstrip("af"))))

    def optimization(self) -> list[str]:
        """The flags that select how much to optimize. A build that is only for checking takes a
        third of the time or less, but its kernels do not keep weights in registers. -O0 and -O1 are
        for host code, which only launches kernels."""
        if self.for_checking():
            level = checking_level()
            return [f"-Ofc={level}", "-O0" if level == "max" else "-O1"]
        return ["-O1"]

    def for_checking(self) -> bool:
        return checking_level() != "" and int(self.version.split(".")[0]) >= 13

    def libraries(self, torch: Torch) -> list[Path]:
        """The CUDA runtime and cuBLAS to link: the toolkit's if it has them, else torch's."""
        return [self._library(name, torch) for name in ("cudart", "cublas")]

    def static_runtime(self, torch: Torch) -> Path:
        return self._file(["libcudart_static.a"], torch)

    def _library(self, name: str, torch: Torch) -> Path:
        major = self.version.split(".")[0]
        return self._file([f"lib{name}.so.{major}", f"lib{name}.so"], torch)

    def _file(self, names: list[str], torch: Torch) -> Path:
        home = self.nvcc.parent.parent
        folders = [home / "lib64", home / "lib", *(d / "lib" for d in torch.toolkit_dirs())]
        for folder in folders:
            for name in reversed(names):
                if (folder / name).exists():
                    return folder / name
        raise BuildError(f"no {names[0]} in any of: {', '.join(map(str, folders))}")


@dataclass(frozen=True)
class Missing:
    """Why CUDA is left out, and how to include it."""

    reason: str
    remedy: str
    expected: bool = False  # if true, the build prints one line about it, otherwise a box


# The reason why the second library of a wheel, for torch without CUDA, is built without CUDA.
TORCH_WITHOUT = Missing("this torch is built without CUDA", "install torch with CUDA 13")


def number(arch: str) -> str:
    """'9.0+PTX' -> '90'."""
    return arch.removesuffix("+PTX").replace(".", "")


def checking_level() -> str:
    """nvcc's level of -Ofc for kernels that are only for checking, not for speed: mid if
    $TREADLE_CHECK_BUILD is 1, max if it is max. Empty if kernels are for speed."""
    asked = os.environ.get("TREADLE_CHECK_BUILD", "")
    if asked not in ("", "0", "1", "max"):
        raise BuildError(f"TREADLE_CHECK_BUILD must be 0, 1, max or unset, got {asked!r}")
    return {"1": "mid", "max": "max"}.get(asked, "")


def find(torch: Torch) -> Toolkit | Missing:
    """The toolkit to build with, or why there is none.

    If $TREADLE_CUDA is 1, CUDA is required; if it is 0, CUDA is left out. If it is gpu, which is
    the Makefile's choice, CUDA code is built if this machine has a GPU. If it is unset, CUDA code
    is built if nvcc is found.
    """
    wanted = os.environ.get("TREADLE_CUDA", "")
    if wanted not in ("", "0", "1", "gpu"):
        raise BuildError(f"TREADLE_CUDA must be 0, 1, gpu or unset, got {wanted!r}")
    if wanted == "0":
        return Missing("TREADLE_CUDA=0 was set", "rebuild without TREADLE_CUDA=0")
    if wanted == "gpu" and not _has_gpu():
        return Missing("no GPU was found", "rebuild with TREADLE_CUDA=1", expected=True)
    found = _look(torch)
    if wanted == "1" and isinstance(found, Missing):
        raise BuildError(
            f"TREADLE_CUDA=1 asks for CUDA, but {found.reason}.\nTo change it: {found.remedy}."
        )
    return found


def _look(torch: Torch) -> Toolkit | Missing:
    if torch.cuda is None:
        return Missing(
            f"this torch ({torch.version}) is built without CUDA",
            "install a torch with CUDA, then rebuild",
        )
    need = torch.cuda.split(".")[0]
    places = _places_of_nvcc(torch)
    nvcc = next((place for place in places if os.access(place, os.X_OK)), None)
    if nvcc is None:
        return Missing(
            f"no nvcc was found (looked for {', '.join(map(str, places))})",
            f"install a CUDA {need}.x toolkit or point CUDA_HOME at it, then rebuild",
        )
    version = _nvcc_version(nvcc)
    if version.split(".")[0] != need:
        return Missing(
            f"{nvcc} is of CUDA {version} and torch {torch.version} is of CUDA {torch.cuda}",
            f"install a CUDA {need}.x toolkit and point CUDA_HOME at it, then rebuild",
        )
    return Toolkit(nvcc, version, _archs(torch, nvcc))


def _places_of_nvcc(torch: Torch) -> list[Path]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    asked = [Path(home) for home in homes if home]
    if asked:
        # The user has named a toolkit, so do not search elsewhere.
        return [asked[0] / "bin" / "nvcc"]
    on_path = shutil.which("nvcc") or "nvcc on $PATH"
    elsewhere = [folder / "bin" / "nvcc" for folder in torch.toolkit_dirs()]
    return [Path(on_path), Path("/usr/local/cuda/bin/nvcc"), *elsewhere]


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _nvcc_version(nvcc: Path) -> str:
    found = re.search(r"release (\d+\.\d+)", _run([str(nvcc), "--version"]))
    if found is None:
        raise BuildError(f"{nvcc} --version names no release: is it a working toolkit?")
    return found[1]


def _dotted(number: str) -> str:
    """'90a' -> '9.0a', '120' -> '12.0'."""
    digits, suffix = re.fullmatch(r"(\d+)([af]?)", number).groups()  # type: ignore[union-attr]
    return f"{digits[:-1]}.{digits[-1]}{suffix}"


def _archs(torch: Torch, nvcc: Path) -> tuple[str, ...]:
    """$TORCH_CUDA_ARCH_LIST, else this machine's GPUs, else the architectures of torch's own
    kernels."""
    listed = _run([str(nvcc), "--list-gpu-code"]).split()
    numbers = sorted(int(code.removeprefix("sm_")) for code in listed if code.startswith("sm_"))
    known = [_dotted(str(number)) for number in numbers]
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if asked:
        return _parse(asked, known)
    present = _present_gpus(known)
    if present:
        return present
    shipped = [_dotted(a.removeprefix("sm_")) for a in torch.arch_list if a.startswith("sm_")]
    archs = [arch for arch in shipped if arch in known] or known[-1:]
    return (*archs[:-1], archs[-1] + "+PTX")


def _parse(text: str, known: list[str]) -> tuple[str, ...]:
    for name, archs in NAMED_ARCHS.items():
        text = text.replace(name, archs)
    archs = [arch for arch in re.split(r"[;,\s]+", text) if arch]
    for arch in archs:
        number = arch.removesuffix("+PTX")
        if number.rstrip("af") not in known:
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST names {arch!r}, which this nvcc cannot build: "
                f"it knows {', '.join(known)} (each may end in +PTX)"
            )
    return tuple(dict.fromkeys(archs))


def _has_gpu() -> bool:
    """Whether this machine has a GPU, even if this torch was built without CUDA."""
    import torch

    return bool(torch.cuda.is_available()) or Path("/proc/driver/nvidia/gpus").is_dir()


def _present_gpus(known: list[str]) -> tuple[str, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    archs = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        arch = f"{major}.{minor}"
        # A GPU newer than the toolkit runs the newest PTX that the toolkit can generate.
        archs.append(arch if arch in known else known[-1] + "+PTX")
    return tuple(dict.fromkeys(archs))
