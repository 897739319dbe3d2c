"""Copies of the built package that tests may break, and processes that import them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle
from treadle import _build

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_pkg" / "treadle"
ISAS = ("portable", "avx2", "avx512")


# The package's subfolder for the running torch.
OF_TORCH = f"lib/torch-{'.'.join(torch.__version__.split('.')[:2])}"


def copy(folder: Path, **facts: Any) -> Path:
    """Copies treadle into `folder`, for PYTHONPATH, and updates its build facts with `facts`.

    The copy contains one build, that of the running torch.
    """
    target = folder / "treadle"
    target.mkdir(parents=True)
    for file in PACKAGE.iterdir():
        if file.suffix == ".so":
            (target / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copy(file, target)
        elif (file / "__init__.py").exists() or file.name == "share":
            shutil.copytree(file, target / file.name)
    for part in ("csrc", "kernels"):
        headers = ROOT / part / "include"
        shutil.copytree(headers, target / "include", dirs_exist_ok=True)
    (target / OF_TORCH).mkdir(parents=True)
    for name in ("lib/libtreadle_kernels.so", f"{OF_TORCH}/libtreadle.so"):
        # These are copies and not links, because each library looks for the other one next to its
        # own resolved path.
        shutil.copy(PACKAGE / name, target / name)
    found = json.loads((PACKAGE / OF_TORCH / "facts.json").read_text())
    (target / OF_TORCH / "facts.json").write_text(json.dumps(found | facts))
    return folder


def python(
    *arguments: str, path: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python outside the source tree, with treadle from `path` (default: the tree)."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(path or PACKAGE.parent), **env},
    )


def held_to(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the source tree with this treadle, limited to the instruction set `isa`."""
    widest = _build.kernels_info()["isa"]
    if ISAS.index(isa) >= ISAS.index(widest):
        # This process tests `isa` itself, or the processor does not support it.
        pytest.skip(f"needs more than {isa}, got {widest}")
    path = os.pathsep.join([str(Path(treadle.__file__).parents[1]), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "TREADLE_CPU_CAPABILITY": isa, "PYTHONPATH": path},
    )
