"""Checks the list of compiled cluster kernels with planned_kernels.cpp, which includes the
planner."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.installed import ROOT
from tools.native import host

# Numbers of multiprocessors of H100 and H200, H100 PCIe, B200, A100 and H20. OTHERS is for parts of
# these GPUs (MIG) and for smaller or newer GPUs, which need further kernels.
GPUS = (132, 114, 148, 108, 78)
OTHERS = (16, 30, 18, 26, 32, 36, 46, 48, 60, 64, 84, 188)
SOURCES = (
    "tests/recurrent/plan/planned_kernels.cpp",
    "kernels/recurrent/plan/plan.cpp",
    "kernels/recurrent/formula/cells.cpp",
)


def test_each_cluster_kernel_is_planned_for_some_layer(tmp_path: Path) -> None:
    """The planner chooses every compiled kernel for some layer. Any other kernel would only cost
    compile time and space."""
    program = tmp_path / "planned_kernels"
    command = [*host.cxx().split(), "-std=c++17", "-O2", "-Wall", "-Werror", "-I."]
    built = subprocess.run(
        [*command, "-Ikernels/include", *SOURCES, "kernels/common/error.cpp", "-o", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [str(program), *map(str, (*GPUS, *OTHERS))], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
