"""Tests torch.export with save and load, and AOTInductor packages in Python and in a C++
program."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES
from treadle import _build

ROOT = Path(__file__).resolve().parents[2]
CXX = os.environ.get("CXX", "g++")
COMPILER = pytest.mark.skipif(shutil.which(CXX) is None, reason="needs a C++ compiler")


class Everything(nn.Module):
    """Calls ops that return a new tensor. aoti_runner.cpp computes the same result."""

    def forward(self, x: Tensor, weights: Tensor, bias: Tensor, h: Tensor) -> Tensor:
        new_h, new_cell = treadle.lltm_cell(x, weights, bias, h, h)
        mixed = treadle.vector_add(new_h, new_cell, alpha=0.5)
        return treadle.scale(treadle.cosine(treadle.sine(mixed)), 3)


class Decoder(nn.Module):
    """Calls snake, which aoti_runner.cpp does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.act = treadle.nn.Snake(3, beta=True, logscale=True)

    def forward(self, x: Tensor) -> Tensor:
        return treadle.snake(self.act(x), self.act.alpha.exp())


class Written(nn.Module):
    """Calls ops that write into an argument, and adds a number to a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = treadle.vector_add(x, 2, alpha=3)
        treadle.scale_(y, 0.5)
        treadle.vector_add_(y, x)
        out = torch.empty_like(y)
        treadle.sine(y, out=out)
        treadle.sine_(out)
        treadle.cosine(out, out=y)
        treadle.snake_(treadle.snake(y, x[0, :1], out=out), x[1, :1], eps=9.0)
        return treadle.cosine_(out)


def arguments(batch: int, device: str) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    shapes = [(batch, 3), (12, 7), (12,), (batch, 4)]
    return tuple(torch.randn(shape, generator=generator).to(device) for shape in shapes)


BATCH = torch.export.Dim("batch", min=2, max=64)
DYNAMIC = {"x": {0: BATCH}, "weights": None, "bias": None, "h": {0: BATCH}}


def saved_and_loaded(program: torch.export.ExportedProgram) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()  # type: ignore[no-any-return]


@pytest.mark.parametrize("device", DEVICES)
def test_export_save_load(device: str) -> None:
    model = Everything().to(device)
    program = torch.export.export(model, arguments(3, device), dynamic_shapes=DYNAMIC)
    called = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    for op in ("lltm_cell", "vector_add", "sine", "cosine", "scale"):
        assert f"treadle.{op}.default" in called
    loaded = saved_and_loaded(program)
    for batch in (2, 3, 17):
        inputs = arguments(batch, device)
        same_bits(loaded(*inputs), model(*inputs))


@pytest.mark.parametrize("device", DEVICES)
def test_export_of_snake(device: str) -> None:
    model = Decoder().to(device)
    x = torch.randn(3, 3, 20, device=device)
    sizes = {"x": {0: BATCH, 2: torch.export.Dim("time", min=2)}}
    program = torch.export.export(model, (x,), dynamic_shapes=sizes)
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert called.count("treadle.snake.default") == 2
    loaded = saved_and_loaded(program)
    for shape in ((2, 3, 20), (5, 3, 7)):
        x = torch.randn(shape, device=device)
        same_bits(loaded(x), model(x))


@pytest.mark.parametrize("device", DEVICES)
def test_export_of_ops_that_write(device: str) -> None:
    x = torch.randn(4, 5, device=device)
    shapes = {"x": {0: torch.export.Dim("rows", min=2)}}
    program = torch.export.export(Written(), (x,), dynamic_shapes=shapes)
    for decomposed in (program, program.run_decompositions()):
        loaded = saved_and_loaded(decomposed)
        for rows in (2, 9):
            x = torch.randn(rows, 5, device=device)
            same_bits(loaded(x), Written()(x))


@pytest.mark.parametrize("device", DEVICES)
def test_export_of_a_module_that_can_be_trained(device: str) -> None:
    cell = treadle.nn.LLTMCell(3, 4, device=device)
    x = torch.randn(2, 3, device=device)
    loaded = saved_and_loaded(torch.export.export(cell, (x,)))
    for name, parameter in cell.named_parameters():
        same_bits(loaded.get_parameter(name), parameter)
    for module in (cell, loaded):
        sum(t.sum() for t in module(x)).backward()
    for name, parameter in cell.named_parameters():
        same_bits(loaded.get_parameter(name).grad, parameter.grad)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of compiled packages by device. Each package is compiled at its first use."""
    folder = tmp_path_factory.mktemp("aoti")

    class Made(dict[str, str]):
        def __missing__(self, device: str) -> str:
            with torch.no_grad():
                program = torch.export.export(
                    Everything().to(device), arguments(3, device), dynamic_shapes=DYNAMIC
                )
                self[device] = torch._inductor.aoti_compile_and_package(
                    program, package_path=str(folder / f"{device}.pt2")
                )
            return self[device]

    return Made()


@COMPILER
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_aoti_in_python(device: str, packages: dict[str, str]) -> None:
    compiled = torch._inductor.aoti_load_package(packages[device])
    for batch in (2, 3, 17):
        inputs = arguments(batch, device)
        torch.testing.assert_close(compiled(*inputs), Everything()(*inputs))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """aoti_runner.cpp, compiled against the LibTorch in use."""
    program = tmp_path_factory.mktemp("runner") / "aoti_runner"
    root = Path(torch.__file__).parent
    cuda = ["-ltorch_cuda", "-lc10_cuda"] if _build.facts()["cuda"] else []
    command = [
        CXX,
        "-O0",
        f"-std=c++{_build.facts()['cxx_standard']}",
        str(ROOT / "tests" / "package" / "aoti_runner.cpp"),
        "-o",
        str(program),
    ]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{ROOT / 'csrc' / 'include'}", "-idirafter", str(ROOT / "csrc" / "compat")]
    for folder in (root / "include", root / "include/torch/csrc/api/include"):
        command += ["-isystem", str(folder)]
    for folder in (Path(_build.library_path()).parent, root / "lib"):
        command += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
    # Torch's libraries locate their dependencies when they are loaded. libtreadle.so has no rpath
    # to torch, so it comes last, when torch's libraries are already loaded.
    command += ["-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed"]
    command += ["-ltorch", "-ltorch_cpu", "-lc10", *cuda, "-l:libtreadle.so"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@COMPILER
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_aoti_in_cpp(device: str, packages: dict[str, str], runner: Path) -> None:
    linked = subprocess.run(["ldd", str(runner)], capture_output=True, text=True).stdout
    assert "libpython" not in linked
    command = [str(runner), packages[device], device]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the package computes what the ops compute" in done.stdout
