"""Tests the requirements of a release's wheel, and what must not be in it. .ci/run builds this
wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.recurrent.formula.cells import LIGRU
from tools import wheel
from tools.native import host
from treadle._formula import cxx, disk
from treadle._formula.cell import _sources

ROOT = Path(__file__).resolve().parents[2]


def fake_torch(folder: Path, version: str) -> Path:
    """Makes a fake torch package with the file that the build reads before it compiles."""
    (folder / version).mkdir(parents=True)
    (folder / version / "version.py").write_text(
        f"__version__ = '{version}+cu130'\ncuda = '13.0'\n"
    )
    return folder / version


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["2.13.0"], {"torch==2.13.*"}),
        (["2.15.0", "2.13.0", "2.14.1"], {"torch>=2.13", "<2.16"}),
        (["2.11.0", "2.13.0", "2.15.0"], {"torch>=2.11", "<2.16", "!=2.12.*", "!=2.14.*"}),
    ],
)
def test_a_wheel_asks_for_the_torches_that_it_holds(
    tmp_path: Path, versions: list[str], expected: set[str]
) -> None:
    folders = os.pathsep.join(str(fake_torch(tmp_path, version)) for version in versions)
    tree = tmp_path / "tree"
    for name in ("tools", "csrc/include", "kernels/include", "python_pkg/treadle/nn"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (tree / "out").mkdir()
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "dist_info", "-o", "out"]
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"TREADLE_TORCHES": folders},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (metadata,) = tree.glob("out/*.dist-info/METADATA")
    asked = re.search(r"^Requires-Dist: (torch.*)$", metadata.read_text(), re.M)
    assert asked is not None
    words = asked[1].removeprefix("torch").split(",")
    assert {word.removeprefix("torch") for word in expected} == set(words)


def test_a_package_has_what_compiles_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "-d", str(tmp_path)]
    done = subprocess.run(
        [*command, "build", "-b", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    packaged = next(tmp_path.glob("**/treadle/_formula"))
    ours = disk.FOLDER
    shim = sorted(path.name for path in disk.SHIM.iterdir())
    assert sorted(path.name for path in (packaged / "shim").iterdir()) == shim
    monkeypatch.setattr(disk, "FOLDER", packaged)
    monkeypatch.setenv("TREADLE_CELLS", str(tmp_path / "cells"))
    disk.include_folder.cache_clear()
    try:
        assert disk.include_folder() == packaged / "include"
        source = _sources[LIGRU.key]
        assert cxx.functions(source.functors, source.counts, "ligru", 8)
    finally:
        monkeypatch.setattr(disk, "FOLDER", ours)
        disk.include_folder.cache_clear()
    assert "treadle: compiled the CPU's steps of ligru" in capfd.readouterr().err
    needed = [*ROOT.glob("kernels/**/*.cuh"), *ROOT.glob("kernels/**/*.h")]
    for header in needed:
        assert (packaged / "include" / header.relative_to(ROOT)).is_file(), header


def test_the_installed_torch_is_not_fetched() -> None:
    version = torch.__version__.split("+")[0]
    folder = wheel.torch_folder(version)
    assert folder == Path(torch.__file__).parent
    assert wheel.torch_folder(str(folder)) == folder.resolve()
    assert host.Torch.at(folder).version == torch.__version__
    assert host.Torch.at(folder).cuda == torch.version.cuda


@pytest.mark.parametrize(
    ("size", "text", "problem"),
    [
        (100, b"nothing of this machine", None),
        (100, str(ROOT).encode(), "names the folder"),
        (wheel.LARGEST + 1, b"", "at most 60 MiB"),
    ],
)
def test_what_is_refused_in_a_wheel(
    tmp_path: Path, size: int, text: bytes, problem: str | None
) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("treadle/lib/a.so", b"\x7fELF" + text + bytes(size))
    found = wheel.check(path)
    assert (problem is None and not found) or problem in " ".join(found)


def test_a_wheel_that_is_compiled_for_checking_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("treadle/lib/torch-2.11/facts.json", '{"for_checking": true}')
    (found,) = wheel.check(path)
    assert found.endswith("facts.json: its kernels are compiled for checking")
    assert wheel.check(path, for_checking=True) == []
    monkeypatch.setenv("TREADLE_CHECK_BUILD", "1")
    monkeypatch.setattr(sys, "argv", ["wheel.py"])
    with pytest.raises(SystemExit, match="TREADLE_CHECK_BUILD must be unset for a release, got 1"):
        wheel.main()
