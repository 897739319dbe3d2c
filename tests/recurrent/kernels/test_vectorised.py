"""The loops of the CPU's row kernels over units are compiled to vector instructions.

A single branch in a formula would prevent vectorisation, and the loops would be half as fast.
"""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from tools.native import host
from tools.native.graph import CXX_FLAGS, kind_of

ROOT = Path(__file__).resolve().parents[3]
TYPES = ("float", "double")
CELLS = sorted(path.relative_to(ROOT) for path in ROOT.glob("kernels/math/cells/*.h"))
# A file, code inside a loop, and the number of cells with such a loop. In a GRU and an RNN no loop
# computes h from c, because h is c.
LOOPS = [
    ("kernels/recurrent/cpu/rows_forward.h", "Cell::next(g, old_c)", 3),
    ("kernels/recurrent/cpu/rows_forward.h", "Cell::output(g, own_c[r", 2),
    ("kernels/recurrent/cpu/rows_forward.h", "Cell::next(g, own)", 3),
    ("kernels/recurrent/cpu/rows_backward.h", "Cell::slopes(g, c, new_c[i]", 3),
]
# Instantiates only the functions with these loops. rows.cpp takes four times as long to compile.
INSTANCES = """
template void advance<{cell}, {acc}>(const GatesOf<{cell}, {acc}>*, {acc}*, int64_t, int64_t,
                                     UnitsOf<{acc}>*);
template void next_c<{cell}, {acc}>(const GatesOf<{cell}, {acc}>&, UnitsOf<{acc}>*);
template void gradients_of_units<{cell}, {acc}>(GatesOf<{cell}, {acc}>&, const UnitsOf<{acc}>*,
                                                const UnitsOf<{acc}>&, const UnitsOf<{acc}>&,
                                                UnitsOf<{acc}>*);
"""


def line_of(file: str, after: str) -> int:
    """The line of the last loop that begins before the first line with `after`."""
    lines = (ROOT / file).read_text().splitlines()
    inside = next(i for i, line in enumerate(lines) if after in line)
    return next(i for i in range(inside, 0, -1) if "for (int64_t i" in lines[i]) + 1


def source() -> str:
    headers = (*CELLS, "kernels/recurrent/cpu/rows_backward.h")
    includes = "".join(f'#include "{header}"\n' for header in headers)
    instances = "".join(
        INSTANCES.format(cell=f"math::{kind_of(header)}::Cell<{acc}>", acc=acc)
        for header in CELLS
        for acc in TYPES
    )
    return f"{includes}namespace treadle::cpu::TREADLE_ISA {{{instances}}}\n"


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_loops_over_units_are_vectorised(tmp_path: Path, isa: str) -> None:
    version = subprocess.run([*host.cxx().split(), "--version"], capture_output=True, text=True)
    if platform.machine() != "x86_64" or "Free Software Foundation" not in version.stdout:
        pytest.skip("needs GCC on x86")
    (tmp_path / "loops.cpp").write_text(source())
    flags = [*CXX_FLAGS, "-I.", "-std=c++17", *host.CPU_FLAGS]
    flags += [*host.isas()[isa], f"-DTREADLE_ISA={isa}", "-fopt-info-vec-optimized"]
    command = [*host.cxx().split(), *flags, "-c", tmp_path / "loops.cpp", "-o"]
    done = subprocess.run(
        [*command, tmp_path / "loops.o"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for file, inside, cells in LOOPS:
        if "output" in inside and isa == "avx2":  # fused with the loop of Cell::next
            continue
        place = rf"{file}:{line_of(file, inside)}:\d+: optimized: loop vectorized"
        found = len(re.findall(place, done.stderr))
        assert found >= cells * len(TYPES), f"{inside}: {found} of {cells * len(TYPES)} loops"
