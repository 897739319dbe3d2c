"""Builds the binaries, copies them into the package and writes facts of the build next to them.

treadle/lib/libtreadle_kernels.so            for any torch
treadle/lib/torch-2.11/libtreadle.so         and so on, one folder per torch minor
treadle/lib/torch-2.11/facts.json
treadle/lib/torch-2.11-cpu/                  in a wheel: the same for torch 2.11 without CUDA
treadle/_C.cpython-311-x86_64-linux-gnu.so   one per Python minor
treadle/lib/libtreadle_jax.so                if JAX is installed
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import cuda, host
from .graph import Graph, kernels_sources
from .words import write_if_new

ROOT = Path(__file__).resolve().parents[2]


def build(package: Path, version: str) -> None:
    """Build all binaries, and put them into `package`, with facts about the build.

    By default they are for the installed torch and the running Python. If $TREADLE_TORCHES lists
    torch packages, they are for these packages, with CUDA and without, and for every Python that is
    found.
    """
    torches = host.Torch.all()
    pythons = [host.Python.running()] if len(torches) == 1 else host.Python.all()
    for torch in torches:
        build_for(torch, pythons, package, version)


def build_for(torch: host.Torch, pythons: list[host.Python], package: Path, version: str) -> None:
    os.chdir(ROOT)
    started = time.monotonic()
    toolkit = cuda.find(torch)
    also_cpu = "TREADLE_TORCHES" in os.environ and _has(toolkit)
    graph = Graph(torch, toolkit, build_folder(), version, pythons, also_cpu)
    ninja_file = graph.write()
    jobs = host.jobs()
    what = f"CUDA {toolkit.version} for {', '.join(toolkit.archs)}" if _has(toolkit) else "CPU only"
    if _has(toolkit) and cuda.checking_level():
        what += ", compiled for checking"
    print(f"treadle: torch {torch.version}, {what}, {jobs} jobs at once", flush=True)
    if run_ninja(ninja_file, jobs):
        raise host.BuildError("the compilation failed; see the compiler's messages above")
    for source, target in laid(graph, package).items():
        target.parent.mkdir(parents=True, exist_ok=True)
        _lay(source, target)
    write_if_new(facts_of(package, torch), json.dumps(_facts(graph, toolkit), indent=2) + "\n")
    if also_cpu:
        facts = _facts(graph, cuda.TORCH_WITHOUT)
        write_if_new(facts_of(package, torch, "-cpu"), json.dumps(facts, indent=2) + "\n")
    print(f"treadle: built in {time.monotonic() - started:.0f} s", flush=True)
    if isinstance(toolkit, cuda.Missing) and not toolkit.expected:
        _say_cpu_only(toolkit)
    elif isinstance(toolkit, cuda.Missing):
        print(f"treadle: no CUDA, because {toolkit.reason}; to build with CUDA, {toolkit.remedy}")


def run_ninja(file: Path, jobs: int) -> int:
    command = [host.ninja(), "-f", str(file), "-j", str(jobs)]
    env = host.ccache_environment(ROOT) | os.environ
    # LD_RUN_PATH would write a folder of this machine into the binaries.
    env.pop("LD_RUN_PATH", None)
    return subprocess.run(command, env=env).returncode


def laid(graph: Graph, package: Path) -> dict[Path, Path]:
    """Each binary of the build, and its path in the package."""
    of_torch = facts_of(package, graph.torch).parent
    handlers = [graph.jax_handlers] if host.jax_include() else []
    for_cpu = facts_of(package, graph.torch, "-cpu").parent
    return {
        graph.kernels: package / "lib" / graph.kernels.name,
        graph.library: of_torch / graph.library.name,
        **({graph.cpu_library: for_cpu / graph.library.name} if graph.also_cpu else {}),
        **{graph.module(python): package / f"_C{python.suffix}" for python in graph.pythons},
        **{binary: package / "lib" / binary.name for binary in handlers},
    }


def facts_of(package: Path, torch: host.Torch, flavour: str = "") -> Path:
    return package / "lib" / f"torch-{'.'.join(map(str, torch.minor))}{flavour}" / "facts.json"


def _has(toolkit: cuda.Toolkit | cuda.Missing) -> bool:
    return isinstance(toolkit, cuda.Toolkit)


def build_folder() -> Path:
    """The folder of objects: $TREADLE_BUILD_DIR or, if unset, build/native.

    ninja identifies objects by path. With the default path, which is relative, copies of a built
    tree reuse its objects. With an absolute path, several unpacked sdists can share objects.
    """
    return Path(os.environ.get("TREADLE_BUILD_DIR") or "build/native")


def _lay(source: Path, target: Path) -> None:
    """Replace `target` atomically: a process that has loaded it keeps the old file."""
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return
    beside = target.with_name(f"{target.name}.{os.getpid()}.new")
    shutil.copy2(source, beside)
    os.replace(beside, target)


def _commit() -> str:
    """The commit that is built, from the clone or from the sdist's record; "" if unknown."""
    written = ROOT / "COMMIT"
    if written.exists():
        return written.read_text().strip()
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        if head.returncode:
            return ""
        status = ["status", "--porcelain", "--untracked-files=no"]
        dirty = subprocess.run([*git, *status], capture_output=True, text=True).stdout.strip()
        return head.stdout.strip() + ("-modified" if dirty else "")
    except FileNotFoundError:
        return ""


def _facts(graph: Graph, toolkit: cuda.Toolkit | cuda.Missing) -> dict[str, object]:
    torch = graph.torch
    facts: dict[str, object] = {
        "version": graph.version,
        "commit": _commit(),
        "kernels": kernels_sources(),
        "schemas": hashlib.sha256(Path("csrc/schemas.h").read_bytes()).hexdigest(),
        "torch": torch.version,
        "torch_cuda": torch.cuda,
        "cxx11_abi": torch.cxx11_abi,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cxx": host.first_line([*host.cxx().split(), "--version"]),
        "cxx_standard": torch.cxx_standard,
        "cxx_flags": " ".join(_public(graph.torch_flags())),
        "cpu_flags": {isa: " ".join(_public(graph.cpu_flags(isa))) for isa in host.isas()},
        "cuda": None,
        "archs": [],
        "nvcc_flags": "",
        "for_checking": False,
        "cuda_missing": None,
    }
    if isinstance(toolkit, cuda.Toolkit):
        facts["cuda"] = toolkit.version
        facts["archs"] = list(toolkit.archs)
        facts["nvcc_flags"] = " ".join(_public(graph.nvcc_flags(toolkit)))
        facts["for_checking"] = toolkit.for_checking()
    elif toolkit is not cuda.TORCH_WITHOUT:
        facts["cuda_missing"] = {"reason": toolkit.reason, "remedy": toolkit.remedy}
    return facts


def _public(flags: list[str]) -> list[str]:
    """The flags, except those that name folders, which have no meaning on another machine."""
    kept: list[str] = []
    skip = False
    for flag in flags:
        if skip:
            skip = False
        elif flag in ("-isystem", "-idirafter"):
            skip = True
        elif not flag.startswith(("-I", "-ffile-prefix-map", "-fPIC")):
            kept.append(flag)
    return kept


def _say_cpu_only(missing: cuda.Missing) -> None:
    """Prints the final message of a CPU-only build. It is also written to the terminal directly,
    because pip hides the output of a build."""
    bar = "=" * 78
    text = (
        f"\n{bar}\ntreadle was built WITHOUT CUDA: tensors on a GPU will raise.\n"
        f"  why:    {missing.reason}\n  remedy: {missing.remedy}\n{bar}\n"
    )
    print(text, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        try:
            with open("/dev/tty", "w") as terminal:
                terminal.write(text)
        except OSError:
            pass
