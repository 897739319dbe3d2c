"""Planted errors: they fit the sources, and can be built for another machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mutants.tree_copy import Copy, Libraries

ROOT = Path(__file__).resolve().parents[2]


def test_libraries_of_planted_errors_travel(tmp_path: Path) -> None:
    """What one machine compiled, a copy of the tree on another has where its own would be."""

    class Compiled(Copy):
        def build(self) -> bool:
            (self.library / "libtreadle_kernels.so").write_text(self.gpu)
            return self.gpu != "broken"

        @property
        def library(self) -> Path:
            return self.folder / "python_pkg" / "treadle" / "lib"

    copies = {name: Compiled(tmp_path / name, True, name) for name in ("one", "two", "broken")}
    for copy in copies.values():
        copy.library.mkdir(parents=True)
    kept = Libraries(tmp_path / "kept")
    assert kept.put(copies["one"], "family/error")
    assert not kept.put(copies["broken"], "family/other")
    assert Libraries(take=kept.keep).put(copies["two"], "family/error")
    assert (copies["two"].library / "libtreadle_kernels.so").read_text() == "one"
    assert not (tmp_path / "kept" / "family" / "other").exists()


def test_every_planted_error_fits_the_sources() -> None:
    patches = sorted((ROOT / "tests" / "mutants").rglob("*.patch"))
    assert patches
    for patch in patches:
        command = ["git", "apply", "--check", "--unidiff-zero", str(patch)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{patch.name}: {done.stderr}"
