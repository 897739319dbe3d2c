"""``import treadle`` has no side effects, and if a build does not fit, the error explains why."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.support import installed

FACTS = json.loads((installed.PACKAGE / installed.OF_TORCH / "facts.json").read_text())

QUIET = """
import os, random, sys, threading, time, torch, logging
logging.basicConfig(level=0)
def state():
    return (torch.get_rng_state().tolist(), random.getstate(), torch.get_default_dtype(),
            torch.get_num_threads(), threading.active_count(), len(os.listdir("/proc/self/task")),
            float(torch.tensor(1e-310, dtype=torch.float64) * 0.5), torch.is_grad_enabled(),
            dict(os.environ))
before = state()
start = time.process_time()
import treadle
took = time.process_time() - start
assert state() == before
assert not torch.cuda.is_initialized()
assert "treadle._C" not in sys.modules
assert took < 0.5, took
"""


def test_import_leaves_the_process_as_it_was() -> None:
    done = installed.python("-W", "error", "-c", QUIET)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


RELOAD = """
import importlib, torch, treadle
try:
    importlib.reload(treadle)
except ImportError as error:
    print(error)
print(treadle.scale(torch.ones(1), 2.0).item())
"""


def test_a_reload_says_no_and_changes_nothing() -> None:
    done = installed.python("-c", RELOAD)
    assert (done.stdout, done.stderr) == ("treadle cannot be reloaded; restart Python\n2.0\n", "")


FORK = """
import os, torch, treadle
def child(size, threads):
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(threads)
        x = torch.randn(size)
        os._exit(0 if torch.equal(treadle.scale(x, 2.0), x * 2) else 1)
    return os.waitpid(pid, 0)[1]
assert child(10, 2) == 0 and child(1 << 20, 2) == 0
treadle.scale(torch.randn(1 << 20), 2.0)
# As in torch's DataLoader, a child uses one thread if the parent has used OpenMP's threads.
assert child(10, 2) == 0 and child(1 << 20, 1) == 0
"""


def test_fork_after_import_and_after_use() -> None:
    done = installed.python("-c", FORK)
    assert done.returncode == 0, done.stderr


def refused(path: Path, code: str = "import treadle") -> str:
    """The message of a failed import. Checks that the library was not loaded."""
    watch = f"""
try:
    {code}
except ImportError as error:
    assert "libtreadle.so" not in open("/proc/self/maps").read()
    print(error)
else:
    raise SystemExit("imported")
"""
    done = installed.python("-c", watch, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_another_torch_minor(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path)
    of_torch = folder / "treadle" / installed.OF_TORCH
    shutil.copytree(of_torch, of_torch.with_name("torch-2.10"))
    of_torch.rename(of_torch.with_name("torch-2.3"))
    sentence = refused(folder)
    assert "was compiled for torch 2.3, 2.10, but this is torch" in sentence
    assert f"this is torch {FACTS['torch']}" in sentence
    assert "-m pip install 'torch==2.10.*'" in sentence
    assert "-m pip install --no-build-isolation --no-deps --force-reinstall" in sentence


@pytest.mark.parametrize("version", ["2.10.0+cu128", "2.99.0.dev20270101+cu130"])
def test_an_older_torch_and_a_nightly_to_come(tmp_path: Path, version: str) -> None:
    other = f"import torch; torch.__version__ = '{version}'; import treadle"
    sentence = refused(installed.copy(tmp_path), other)
    assert f"but this is torch {version}" in sentence
    assert "build treadle for this torch with: " in sentence


def test_kernels_that_the_library_was_not_built_with(tmp_path: Path) -> None:
    sentence = refused(installed.copy(tmp_path, kernels="0123456789abcdef"))
    assert "was built with other kernels (0123456789abcdef)" in sentence
    assert "Build it again with" in sentence


def test_another_cuda_major(tmp_path: Path) -> None:
    sentence = refused(installed.copy(tmp_path, cuda="12.4", torch_cuda="12.4"))
    assert "CUDA 12.4" in sentence and f"CUDA {FACTS['torch_cuda']}" in sentence


@pytest.mark.parametrize("fact", [{"machine": "riscv64"}, {"cxx11_abi": not FACTS["cxx11_abi"]}])
def test_another_machine_or_abi(tmp_path: Path, fact: dict[str, object]) -> None:
    assert "Rebuild it with" in refused(installed.copy(tmp_path, **fact))


def test_a_patch_release_and_a_cpu_only_build_fit(tmp_path: Path) -> None:
    minor = ".".join(FACTS["torch"].split(".")[:2])
    folder = installed.copy(tmp_path, torch=f"{minor}.99", cuda=None, torch_cuda=None)
    done = installed.python("-c", "import treadle", path=folder)
    assert (done.returncode, done.stderr) == (0, "")


WITHOUT_CUDA = """
import torch
torch.version.cuda, torch.version.hip = {cuda!r}, {hip!r}
import treadle
print(treadle._build.library_path())
print(*treadle._build.builds(), treadle._build.facts()["cuda"])
"""


def test_torch_without_cuda_has_a_library_of_its_own(tmp_path: Path) -> None:
    """A wheel's CUDA library needs torch's CUDA libraries, so it is not opened without them."""
    folder = installed.copy(tmp_path, cuda="13.0", torch_cuda="13.0")
    of_torch = folder / "treadle" / installed.OF_TORCH
    without = of_torch.with_name(f"{of_torch.name}-cpu")
    shutil.copytree(of_torch, without)
    (without / "facts.json").write_text(json.dumps(FACTS | {"cuda": None, "torch_cuda": "13.0"}))
    minor = of_torch.name.removeprefix("torch-")
    for cuda, place, has in ((None, without, None), ("13.0", of_torch, "13.0")):
        done = installed.python("-c", WITHOUT_CUDA.format(cuda=cuda, hip=None), path=folder)
        assert (done.stdout, done.stderr) == (f"{place}/libtreadle.so\n{minor} {has}\n", "")
    for cuda, hip in (("12.8", None), (None, "7.1")):
        done = installed.python("-c", WITHOUT_CUDA.format(cuda=cuda, hip=hip), path=folder)
        assert "ImportError: treadle was built for" in done.stderr
    shutil.rmtree(without)
    done = installed.python("-c", WITHOUT_CUDA.format(cuda=None, hip=None), path=folder)
    assert "ImportError: treadle was built for" in done.stderr and "no CUDA" in done.stderr


ALONE = """
import ctypes, sys
torch, library = sys.argv[1:]
ctypes.CDLL(torch + "/lib/libtorch_cpu.so")
ctypes.CDLL(library)  # resolves all of its symbols
maps = open("/proc/self/maps").read()
assert "libtreadle.so" in maps and "torch_cuda" not in maps and "c10_cuda" not in maps, maps
"""


def test_a_library_without_cuda_needs_no_cuda_library_of_torch() -> None:
    folder = installed.PACKAGE / installed.OF_TORCH
    without = folder.with_name(f"{folder.name}-cpu")
    of_cpu = without if without.exists() else folder
    if json.loads((of_cpu / "facts.json").read_text())["cuda"]:
        pytest.skip("this build has only a library with CUDA")
    arguments = (str(Path(torch.__file__).parent), str(of_cpu / "libtreadle.so"))
    done = installed.python("-c", ALONE, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["libtreadle_kernels.so", f"../{installed.OF_TORCH}/facts.json"])
def test_never_built(tmp_path: Path, name: str) -> None:
    folder = installed.copy(tmp_path)
    (folder / "treadle" / "lib" / name).unlink()
    sentence = refused(folder)
    assert "has not been built" in sentence and "pip install" in sentence


def test_no_torch(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['torch'] = None; import treadle"
    minor = ".".join(FACTS["torch"].split(".")[:2])
    assert f"pip install 'torch=={minor}.*'" in refused(installed.copy(tmp_path), hidden)


def test_a_library_that_cannot_be_opened(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path)
    library = folder / "treadle" / installed.OF_TORCH / "libtreadle.so"
    library.unlink()
    library.write_bytes(b"not a library")
    done = installed.python("-c", "import treadle", path=folder)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and "Rebuild it with" in last


def test_ops_that_changed_since_the_build(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path / "python_pkg")
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "schemas.h").write_text("// one op more")
    sentence = refused(folder)
    assert "ops have changed" in sentence and "pip install" in sentence


def test_bindings_of_another_python(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path)
    for module in (folder / "treadle").glob("_C*.so"):
        module.rename(module.with_name("_C.cpython-399-x86_64-linux-gnu.so"))
    code = """
import treadle, torch
print(treadle.scale(torch.ones(1), 2.0))
treadle.launch_info("scale")
"""
    done = installed.python("-c", code, path=folder)
    assert "tensor([2.])" in done.stdout
    assert "which this package has for CPython 3.99, and this is Python" in done.stderr
    assert "Build it with: " in done.stderr


def test_what_the_binaries_are_linked_to() -> None:
    lib = installed.PACKAGE / "lib"
    wanted = {"libtreadle_kernels.so": [], "libtreadle.so": ["[$ORIGIN/..]"]}
    wanted["libtreadle_jax.so"] = ["[$ORIGIN]"]
    for binary in [*lib.rglob("*.so"), *installed.PACKAGE.glob("*.so")]:
        said = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True)
        paths = [line.split()[-1] for line in said.stdout.splitlines() if "PATH" in line]
        assert paths == wanted.get(binary.name, ["[$ORIGIN/lib]"])
        assert binary.parent == installed.PACKAGE or "libpython" not in said.stdout
        # A statically linked libstdc++ would be a second copy in the process.
        assert "[libstdc++.so.6]" in said.stdout
        if binary.name == "libtreadle_kernels.so":
            needed = set(re.findall(r"NEEDED.*\[([\w+]+)", said.stdout))
            assert needed <= {"libstdc++", "libm", "libgcc_s", "libc", "ld", "libdl", "librt"}


def test_the_kernels_export_their_own_names_alone() -> None:
    library = installed.PACKAGE / "lib" / "libtreadle_kernels.so"
    command = ["nm", "-D", "--defined-only", library]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in said.splitlines()]
    assert "treadle_error_text" in names
    assert [name for name in names if not name.startswith("treadle_")] == []


def test_an_instruction_set_that_is_none_is_said_to_be() -> None:
    program = "import torch, treadle; treadle.sine(torch.ones(1))"
    done = installed.python("-c", program, TREADLE_CPU_CAPABILITY="AVX2")
    said = "TREADLE_CPU_CAPABILITY must be portable, avx2 or avx512, got AVX2; it is ignored"
    assert (done.returncode, done.stderr) == (0, f"treadle: {said}\n")
    assert installed.python("-c", program, TREADLE_CPU_CAPABILITY="portable").stderr == ""


def imported(module: str, modules: dict[str, Path]) -> set[str]:
    """The modules of this package that a module imports, at top level or in functions."""
    found = set()
    package = module if modules[module].stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(modules[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names & modules.keys() or {base}
    return found & modules.keys()


def test_no_modules_import_each_other() -> None:
    files = {
        path.relative_to(installed.PACKAGE.parent): path for path in installed.PACKAGE.rglob("*.py")
    }
    modules = {
        ".".join(name.with_suffix("").parts).removesuffix(".__init__"): path
        for name, path in files.items()
    }
    left = {module: imported(module, modules) for module in modules}
    assert left["treadle.nn._torch_front"] >= {"treadle.recurrent", "treadle.nn._sequence"}
    assert "treadle._build" in left["treadle"] and "treadle._selftest" in left["treadle._report"]
    while done := {module for module, needs in left.items() if not needs & left.keys()}:
        left = {module: needs for module, needs in left.items() if module not in done}
    assert not left
