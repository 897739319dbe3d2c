"""Copies of the built package, to be spoilt, and processes that import them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import treadle

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_pkg" / "treadle"
ISAS = ("portable", "avx2", "avx512")


def copy(folder: Path, **facts: Any) -> Path:
    """Copy treadle below `folder` with these build facts changed; `folder` goes on PYTHONPATH."""
    target = folder / "treadle"
    target.mkdir(parents=True)
    for file in PACKAGE.iterdir():
        if file.suffix == ".so":
            (target / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copy(file, target)
    for name in ("nn", "share"):
        shutil.copytree(PACKAGE / name, target / name)
    shutil.copytree(PACKAGE.parents[1] / "csrc" / "include", target / "include")
    path = target / "_build_facts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return folder


def python(
    *arguments: str, path: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter with treadle from `path` (default: the tree), outside of the tree."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path or PACKAGE.parent), **env},
    )


def held_to(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in the tree, with this treadle held to a smaller instruction set."""
    from treadle import _C  # a module of its own, which not every test has built for its Python

    widest = json.loads(_C.compiled_with())["isa"]
    if ISAS.index(isa) >= ISAS.index(widest):
        # Then this very process tests `isa`, or the machine does not have it.
        pytest.skip(f"this process runs {widest}")
    path = os.pathsep.join([str(Path(treadle.__file__).parents[1]), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "TREADLE_CPU_CAPABILITY": isa, "PYTHONPATH": path},
    )
