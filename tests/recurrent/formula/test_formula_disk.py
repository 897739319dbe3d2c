"""The folder in which treadle keeps compiled formulas: who may read it, and what happens to damaged
files."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import treadle
from tests.recurrent.formula import cells
from tests.support.installed import ROOT
from treadle._formula import cxx, disk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "a" / "cells"
    monkeypatch.setenv("TREADLE_CELLS", str(found))
    return found


def compiled() -> int:
    """The address of LiGRU's compiled functions in float32. They are read from the folder or, if it
    does not contain them, compiled."""
    source = treadle._formula.cell._sources[cells.LIGRU.key]
    return cxx.functions(source.functors, source.counts, "ligru", 8)


def test_the_folder_is_the_users(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert compiled()
    assert "treadle: compiled the CPU's steps of ligru in " in capfd.readouterr().err
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = compiled()
    assert first != compiled()  # each call opens the library from memory
    assert not capfd.readouterr().err


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + bytes(5000))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut, flip, empty, another, make_folder])
def test_a_damaged_file_is_compiled_anew(
    damage: Callable[[Path], None], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiled()
    (file,) = folder.iterdir()
    good = file.read_bytes()
    damage(file)
    capfd.readouterr()
    assert compiled()
    assert "compiled" in capfd.readouterr().err
    if damage is not make_folder:
        assert disk.read(file) is not None and len(file.read_bytes()) == len(good)
    assert len(list(folder.iterdir())) == 1  # no temporary file is left


def test_a_file_of_another_user(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    capfd.readouterr()
    monkeypatch.setattr(disk.os, "getuid", lambda: 12345)
    assert compiled()
    assert "compiled" in capfd.readouterr().err


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TREADLE_CELLS", str(tmp_path / "file" / "cells"))
    assert compiled() and compiled()
    assert capfd.readouterr().err.count("compiled") == 2


def test_other_headers_or_flags_are_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = disk.path_of("text")
    assert path.parent == folder and disk.path_of("text") == path != disk.path_of("other")
    monkeypatch.setattr(disk, "_kernels_digest", lambda: "changed")
    assert disk.path_of("text") != path


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_CELLS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert disk.cells_folder() == Path("/x/cache/treadle/cells")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/x/home")
    assert disk.cells_folder() == Path("/x/home/.cache/treadle/cells")


def test_a_compiler_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer still runs, with torch's operations."""
    cxx._compiler.cache_clear()
    monkeypatch.setenv("CXX", "false")
    try:
        cell = treadle.Cell("slow", gates=("a",), forward=lambda a, h: torch.tanh(a) + 0.5 * h)
        layer = treadle.nn.Recurrent(cell, 2, 3)
        with pytest.warns(
            UserWarning, match="slow_.* runs with torch's operations, which are slow"
        ):
            output, h = layer(torch.ones(4, 2, 2))
    finally:
        cxx._compiler.cache_clear()
    assert output.isfinite().all() and torch.equal(output[-1], h[0])
    assert not folder.exists()


def test_both_ways_agree(folder: Path) -> None:
    """The compiled steps give the same results as torch's operations in a process without a
    compiler."""
    code = (
        "import sys, torch, treadle; from tests.recurrent.formula import cells;"
        "torch.manual_seed(0);"
        "found = [];"
        "layer = treadle.nn.Recurrent;"
        "[found.append(layer(cell, 3, 5, bidirectional=True)(torch.ones(4, rows, 3))[0])"
        " for cell in cells.EACH for rows in (1, 2)];"
        "torch.save(found, sys.argv[1])"
    )
    results = []
    for compiler in (None, "no-such-compiler"):
        path = folder.parent.parent / f"{compiler}.pt"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        if compiler is not None:
            environment["CXX"] = compiler
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(path)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        results.append(torch.load(path))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_errors_of_warnings_and_no_compiler() -> None:
    """C++ code calls the Python function that runs the compiler, so this function must not raise.
    Here the warning about the missing compiler is turned into an exception."""
    code = (
        "import torch, treadle; cell = treadle.Cell('odd', gates=('a',), forward='h = a + h');"
        "print(treadle.nn.Recurrent(cell, 3, 5)(torch.ones(4, 2, 3))[0].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([4, 2, 5])"
    assert "treadle: odd_" in done.stderr and "no C++ compiler was found" in done.stderr


def test_an_interrupt_while_a_cell_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(cxx, "_compiled", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in an ordinary program
    cell = treadle.Cell("interrupted", gates=("a",), forward=lambda a, h: torch.cos(a) + 0.5 * h)
    layer = treadle.nn.Recurrent(cell, 2, 3)
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="KeyboardInterrupt"):
        try:
            layer(torch.ones(4, 2, 2))
            time.sleep(10)  # KeyboardInterrupt is raised after the call
        finally:
            signal.signal(signal.SIGINT, before)
