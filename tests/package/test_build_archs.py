"""The build: every kernel is compiled for GPUs that ours is not tried on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.native import cuda, host

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TREADLE_CUDA", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)


def test_kernels_compile_for_the_oldest_gpu(tmp_path: Path) -> None:
    """What a user's build does by default, beside the GPUs that ours is tried on."""
    found = cuda.find(host.Torch.installed())
    if isinstance(found, cuda.Missing):
        pytest.skip(found.reason)
    oldest = found.archs[0].removesuffix("+PTX").replace(".", "")
    for source in sorted(ROOT.glob("kernels/**/*.cu")):
        command = [found.nvcc, "-std=c++17", "-I.", "-ptx", f"-arch=compute_{oldest}", source]
        done = subprocess.run(
            [*command, "-o", tmp_path / "ptx"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_a_grid_compiles_for_the_newest_gpu(tmp_path: Path) -> None:
    """What only GPUs of 9.0 have is left out there: by ptxas, which reads what cicc does not."""
    found = cuda.find(host.Torch.installed())
    if isinstance(found, cuda.Missing):
        pytest.skip(found.reason)
    source = "kernels/recurrent/gru/grid.cu"
    command = [found.nvcc, "-std=c++17", "-I.", "-cubin", "-arch=sm_120", source]
    done = subprocess.run(
        [*command, "-o", tmp_path / "cubin"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
