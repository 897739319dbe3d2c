"""The recipes of examples/interop run as a reader would run them, and check their own results."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.support import installed
from treadle import _build

RECIPES = installed.ROOT / "examples" / "interop"


@pytest.fixture
def kernels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_kernels", RECIPES / "kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def run(name: str, *needs: str) -> str:
    """Returns the line that a recipe prints. Skips the test if a needed package is missing."""
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = installed.python(str(RECIPES / name))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return done.stdout


def says_whether_it_used_a_gpu(said: str) -> bool:
    return ("no GPU" in said) != torch.cuda.is_available()


def test_numpy() -> None:
    assert run("numpy_arrays.py").startswith("NumPy: sum, sine in place")


def test_cupy() -> None:
    assert says_whether_it_used_a_gpu(run("cupy_arrays.py", "cupy"))


def test_pycuda() -> None:
    assert says_whether_it_used_a_gpu(run("pycuda_arrays.py", "pycuda"))


def test_numba() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    probe = (
        "from numba import cuda; cuda.is_available() and cuda.jit('void(f4[:])')(lambda a: None)"
    )
    tried = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"numba.cuda does not run here: {tried.stderr.strip().splitlines()[-1]}")
    said = run("numba_arrays.py", "numba")
    assert "@vectorize" in said and says_whether_it_used_a_gpu(said)


@pytest.mark.parametrize("package", ["numpy", "jax", "tensorflow", "cupy", "numba"])
def test_dlpack(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    said = run("dlpack.py").lower()
    assert f"{package} is not installed" not in said and package in said


def test_recipes_are_short_and_all_here() -> None:
    here = {path.name for path in RECIPES.iterdir() if path.is_file()}
    page = (installed.ROOT / "docs" / "interop.md").read_text()
    assert all(f"(../examples/interop/{name})" in page for name in here)
    lengths = {name: (RECIPES / name).read_text().count("\n") for name in here}
    assert lengths.pop("transfer.py") <= 160  # it measures and draws
    assert all(length <= 120 for length in lengths.values()), lengths


def test_transfer(tmp_path: Path) -> None:
    made, drawn = tmp_path / "a.json", tmp_path / "a.png"
    recipe = str(RECIPES / "transfer.py")
    done = installed.python(recipe, "--largest", "12", "--json", str(made), "--plot", str(drawn))
    assert done.returncode == 0, done.stderr
    assert drawn.stat().st_size > 1000
    rows = json.loads(made.read_text())["rows"]
    assert {(row["op"], row["elements"]) for row in rows} == {
        *((op, 1 << exponent) for op in ("add", "sine") for exponent in (8, 10, 12)),
        ("gru", 1 << 12),
    }
    ways = {"CPU", "pageable", "pinned", "resident"} if torch.cuda.is_available() else {"CPU"}
    assert all(set(row["us"]) == ways and min(row["us"].values()) > 0 for row in rows)


def test_transfer_pays_from_the_size_on_that_no_larger_one_denies(tmp_path: Path) -> None:
    us = [(1, 9.0), (2, 1.0), (4, 9.0), (8, 2.0), (16, 3.0)]
    rows = [{"op": "add", "elements": n, "us": {"CPU": 5.0, "pinned": t}} for n, t in us]
    read = tmp_path / "read.json"
    read.write_text(json.dumps({"machine": {"gpu": "GPU"}, "rows": rows}))
    done = installed.python(str(RECIPES / "transfer.py"), "--read", str(read))
    assert "add pinned 8," in done.stdout and "add resident None" in done.stdout


def test_program_by_the_line_in_its_comment(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    comment = (RECIPES / "program.c").read_text().partition("*/")[0]
    lines = [line.removeprefix(" *").strip() for line in comment.splitlines()]
    command = "\n".join(line for line in lines if line.startswith(("lib=", "gcc", "-Wl")))
    assert "-std=c99" in command and command.count("build/program") == 2
    command = command.replace("build/program", shlex.quote(str(tmp_path / "program")))
    command = command.replace("-std=c99", "-std=c99 -Wall -Wextra -Wpedantic -Werror")
    done = subprocess.run(
        ["sh", "-c", command], cwd=installed.ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("C: sine and scale") and "out.dtype must be" in done.stdout


def test_the_library_is_found_without_torch() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(RECIPES)!r}); import kernels; "
        "print(kernels.library()._name); assert not {'torch', 'treadle'} & set(sys.modules)"
    )
    done = installed.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _build.kernels_path()


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_described_where_they_are(kernels: ModuleType, dtype: str) -> None:
    base = np.zeros((4, 6), dtype=dtype)
    header = (installed.ROOT / "kernels" / "include" / "treadle" / "kernels.h").read_text()
    for view in (base, base[::2, ::-3], base.T, base[1, 2:2], base[0, 0, ...]):
        made = kernels.array(view)
        assert made.struct_size == ctypes.sizeof(made) and made.ndim == view.ndim
        assert (made.data or 0) == view.ctypes.data
        assert made.sizes[: view.ndim] == list(view.shape)
        if made.strides:
            assert [s * view.itemsize for s in made.strides[: view.ndim]] == list(view.strides)
        else:
            assert view.flags.c_contiguous
        assert f"TREADLE_{dtype.upper()} {made.dtype:#x}u" in header


def test_what_cannot_be_described_raises(kernels: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="in native byte order, got >f4"):
        kernels.array(np.zeros(3, dtype=">f4"))
    with pytest.raises(RuntimeError, match="in native byte order, got <c8"):
        kernels.array(np.zeros(3, dtype=np.complex64))
    fields = np.zeros(3, dtype=[("small", "i1"), ("number", "<f4")])
    with pytest.raises(RuntimeError, match="whole elements"):
        kernels.array(fields["number"])


def test_errors_are_the_librarys_words(kernels: ModuleType) -> None:
    x = np.zeros(3, dtype=np.float32)
    wrong = kernels.array(np.zeros(2, dtype=np.float32))
    with pytest.raises(RuntimeError, match="x must broadcast to out, which has size 3"):
        kernels.call("sine", kernels.device(), wrong, kernels.array(x))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="device.type"):
            kernels.call("sine", kernels.device(stream=0), kernels.array(x), kernels.array(x))


def test_structs_have_the_sizes_of_the_header(kernels: ModuleType, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    structs = {
        "array": kernels.Array,
        "device": kernels.Device,
        "number": kernels.Number,
        "recurrent": kernels.Recurrent,
        "recurrent_inputs": kernels.Inputs,
        "recurrent_outputs": kernels.Outputs,
    }
    checks = "".join(
        f'_Static_assert(sizeof(treadle_{name}) == {ctypes.sizeof(kind)}, "{name}");\n'
        for name, kind in structs.items()
    )
    source = tmp_path / "sizes.c"
    source.write_text(f'#include "treadle/kernels.h"\n{checks}')
    include = f"-I{installed.ROOT / 'kernels' / 'include'}"
    command = ["gcc", "-std=c11", include, "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
