"""Checks that an installed wheel compiles and runs a user's cell on a GPU, without a compiler or a
CUDA toolkit.

    python tools/check_wheel_cell.py WHEEL

The script installs the wheel into an empty folder. A process that has only this folder, torch, and
an empty PATH then creates a treadle.Cell and runs a layer of it, forward and backward. A toolkit in
/usr/local/cuda must have been moved away before, because treadle looks for headers there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import shutil, sys, time
from pathlib import Path
import torch, treadle

where = Path(treadle.__file__).resolve()
assert sys.argv[1] in map(str, where.parents), where
found = [name for name in ("nvcc", "c++", "g++", "cc", "gcc", "clang++") if shutil.which(name)]
assert not found, f"compilers are in reach: {found}"
assert not Path("/usr/local/cuda/include/cuda_fp16.h").exists(), "a CUDA toolkit is in reach"


def ligru(a, z, h):
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


cell = treadle.Cell("ligru", gates=("a", "z"), forward=ligru)
for dtype in (torch.float32, torch.bfloat16):
    layer = treadle.nn.Recurrent(cell, 40, 256, device="cuda", dtype=dtype)
    x = torch.randn(50, 8, 40, device="cuda", dtype=dtype, requires_grad=True)
    start = time.perf_counter()
    output, _ = layer(x)
    output.sum().backward()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    w_ih, w_hh, b_ih, b_hh = (p.detach().double() for p in layer.parameters())
    wide = x.detach().double().requires_grad_()
    h, rows = wide.new_zeros(8, 256), []
    for row in wide:
        h = ligru(*(row @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(2, -1), h)
        rows.append(h)
    torch.stack(rows).sum().backward()
    for ours, truth in ((output, torch.stack(rows)), (x.grad, wide.grad)):
        error = float((ours.detach().double() - truth).abs().max() / truth.abs().max())
        assert error < (1e-4 if dtype is torch.float32 else 0.1), error
    print(f"{dtype}: compiled and run in {seconds:.1f} s, error {error:.1e}")
"""


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as work:
        site = Path(work, "site")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
        kept = ("LD_LIBRARY_PATH", "HOME")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {"PATH": work, "PYTHONPATH": str(site), "TREADLE_CELLS": str(Path(work, "cells"))}
        command = [sys.executable, "-c", PROGRAM, str(site.resolve())]
        done = subprocess.run(command, cwd=work, env=env)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
