"""A tensor whose storage was freed raises on every road, and ends no process."""

from __future__ import annotations

import subprocess
import sys


def test_freed_tensors_raise() -> None:
    """Before the call, before its backward pass and before that of its gradients."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.freed_arguments"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
