"""With CUDA's driver loaded, an address that the host cannot read gives an error, not a crash.

An empty library with the name of CUDA's driver stands in for the driver. The tests load it before
or after the first call.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import ctypes, mmap, os, sys
import numpy as np
from tests.c_api import native

libc = ctypes.CDLL(None, use_errno=True)
x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
arrays = [native.array(x), native.array(out)]
if sys.argv[2] == "after":
    native.call("treadle_sine", native.cpu(), *arrays)
ctypes.CDLL(sys.argv[1])
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
local, remote = (ctypes.c_uint64 * 2)(out.ctypes.data, 1), (ctypes.c_uint64 * 2)(start + page, 1)
assert libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
asked = libc.process_vm_readv(os.getpid(), local, 1, remote, 1, 0)
if asked == 1 or ctypes.get_errno() != 14:
    print("cannot ask")
    sys.exit()
for data in (start + page, start + page - 8):
    arrays[0].data = data
    status = native.status_of("treadle_sine", native.cpu(), *arrays)
    print(status, native.error_text().partition(", got")[0])
arrays[0].data = start
native.call("treadle_sine", native.cpu(), *arrays)
"""
SAID = "1 x.data must be memory of the CPU, from the first element to the last"


@pytest.mark.parametrize("order", ["before", "after"])
def test_memory_that_is_not_the_hosts(order: str, tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc, to make the library that stands in for CUDA's driver")
    driver = tmp_path / "libcuda.so.1"
    made = [compiler, "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(driver)]
    subprocess.run([*made, "-Wl,-soname,libcuda.so.1"], check=True)
    command = [sys.executable, "-c", SCRIPT, str(driver), order]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    if done.stdout.strip() == "cannot ask":
        pytest.skip("process_vm_readv does not work here, so the library cannot check host memory")
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    assert done.stdout.splitlines() == [SAID, SAID]
