"""The sources refuse to compile with fast-math options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.native import host

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast"])
def test_fast_math_is_refused(tmp_path: Path, flag: str) -> None:
    source = tmp_path / "a.cpp"
    source.write_text('#include "kernels/common/dtype.h"\n')
    command = [*host.cxx().split(), "-std=c++17", f"-I{ROOT}", "-c", str(source), "-o", "/dev/null"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    refused = subprocess.run([*command, flag], capture_output=True, text=True)
    assert refused.returncode and "must not be built with -ffast-math" in refused.stderr


def test_use_fast_math_is_refused_by_nvcc() -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    source = str(ROOT / "kernels/common/fast_math_check.cu")
    command = [nvcc, "-arch=sm_90", "-c", source, "-o", "/dev/null"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    refused = subprocess.run([*command, "--use_fast_math"], capture_output=True, text=True)
    assert refused.returncode and "must_not_be_built_with_use_fast_math" in refused.stderr
