"""Fixtures made once per pytest run, by the first process that needs them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that all processes share, filled by `make`. If `make` raises in one process, this
    raises in all."""
    root = factory.getbasetemp()
    # Each worker's base folder lies inside that of the run.
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            make(folder)
            made.touch()
    assert made.exists(), f"another process of this run could not make {name}: its error says why"
    return folder
