"""Kernels compile for GPUs on which no test runs them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tools.native import cuda, host
from tools.native.graph import cell_flags
from treadle import _build

ROOT = Path(__file__).resolve().parents[2]
GRU = Path("kernels/math/cells/gru.h")  # the cell that differs most from the others
# Each entry has a source and a compute capability just outside those of the source's rule in
# cuda.CODE.
LEFT_OUT = (
    ("cluster_general", "8.9"),
    ("cluster_general", "12.0"),
    ("grid_half_sm80", "9.0a"),
    ("grid_fp16x2", "8.9"),
    ("tiles", "10.0"),
    ("block_and_fma", "7.5"),
)


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> cuda.Toolkit:
    for name in ("TREADLE_CUDA", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    found = cuda.find(host.Torch.installed())
    if isinstance(found, cuda.Missing):
        pytest.skip(found.reason)
    return found


def compile_for(toolkit: cuda.Toolkit, source: Path, *options: str, out: Path) -> None:
    command = [toolkit.nvcc, "-std=c++17", "-I.", *options, source, "-o", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_compile_for_the_oldest_gpu(toolkit: cuda.Toolkit, tmp_path: Path) -> None:
    """A user's build includes the oldest architecture by default, but tests run on newer GPUs."""
    oldest = toolkit.archs[0].removesuffix("+PTX")
    facts = _build.facts()
    if oldest in facts["archs"] or facts["for_checking"]:
        return  # .ci/run builds for checking, and at every second turn it builds for this GPU
    for source in sorted(ROOT.glob("kernels/**/*.cu")):
        options = ["-ptx", f"-arch=compute_{cuda.number(oldest)}"]
        if source.parent.name == "instances":
            options += cell_flags(GRU)
        compile_for(toolkit, source, *options, out=tmp_path / "ptx")


def test_kernels_are_empty_where_they_are_left_out(toolkit: cuda.Toolkit, tmp_path: Path) -> None:
    """A source that is not compiled for an architecture loses no code of this architecture."""
    for source, left_out in LEFT_OUT:
        path = Path("kernels/recurrent/instances") / f"{source}.cu"
        kit = replace(toolkit, archs=(left_out, "10.3"))
        assert not any(cuda.number(left_out) in flag for flag in kit.gencode(path)), source
        options = ["-ptx", f"-arch=compute_{cuda.number(left_out)}", *cell_flags(GRU)]
        compile_for(toolkit, path, *options, out=tmp_path / "ptx")
        bodies = re.split(r"\.entry", (tmp_path / "ptx").read_text())[1:]
        assert bodies, source
        for body in bodies:
            # An empty kernel may begin like others (begin_kernel), but stores nothing.
            assert not re.search(r"\b(st|red|atom|cp|stmatrix)\.", body), source


def test_a_grid_compiles_for_the_newest_gpu(
    toolkit: cuda.Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid uses no instructions that only 9.0 has. The test runs ptxas, because cicc accepts
    such instructions."""
    monkeypatch.setenv("TREADLE_CHECK_BUILD", "max")
    source = ROOT / "kernels/recurrent/instances/grid_half_sm80.cu"
    options = ("-cubin", "-arch=sm_120", *toolkit.optimization(), *cell_flags(GRU))
    compile_for(toolkit, source, *options, out=tmp_path / "cubin")
