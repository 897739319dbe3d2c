"""A tensor whose storage was freed raises an error and does not crash the process."""

from __future__ import annotations

import subprocess
import sys


def test_freed_tensors_raise() -> None:
    """Tests lengths and saved tensors, which ATen ops read. freed_arguments.py can test every
    call."""
    names = ["lstm True ('lengths", "affine_scan"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.freed_arguments", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
