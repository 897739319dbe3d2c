"""Copies of the built package, to be spoilt, and processes that import them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "python_pkg" / "treadle"


def copy(folder: Path, **facts: Any) -> Path:
    """Copy treadle below `folder` with these build facts changed; `folder` goes on PYTHONPATH."""
    target = folder / "treadle"
    target.mkdir(parents=True)
    for file in PACKAGE.iterdir():
        if file.suffix == ".so":
            (target / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copy(file, target)
    shutil.copytree(PACKAGE / "share", target / "share")
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
