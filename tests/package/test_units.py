"""Tests which sources are compiled together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.native import cuda, host, units
from tools.native.graph import Graph

ROOT = Path(__file__).resolve().parents[2]


def test_units_are_folders_or_equal_parts_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit must recompile few files, and a new file must not move others to another unit."""
    monkeypatch.chdir(tmp_path)
    files = {"one": 7, "one/cuda": 2, "one/part": 1, "one/part/cuda": 1, "two": 8, "": 1}
    files |= {"three/cuda": 8}
    for folder, count in files.items():
        (tmp_path / "csrc" / folder).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            (tmp_path / "csrc" / folder / f"f{k}.cpp").touch()
    for name in units.APART:
        (tmp_path / "csrc" / name).touch()
    found = {name: len(files) for name, files in units.units().items()}
    parts = {"one-part": 1, "two-1": 4, "two-2": 4, "three-1-cuda": 4, "three-2-cuda": 4}
    assert found == {"common": 1, "one": 7, "one-cuda": 3, **parts}


def test_a_build_of_all_sources_joins_those_with_the_same_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TREADLE_CHECK_BUILD", "max")
    kit = cuda.Toolkit(Path("nvcc"), "13.0", ("7.5", "9.0"))
    torch = host.Torch("0.0.0", "13.0", True, Path("no-torch"), ())
    graph = Graph(torch, kit, tmp_path, "0")
    alone = {
        source: graph.nvcc_flags(kit, source)
        for source in sorted(Path("kernels/recurrent/instances").glob("*.cu"))
        if kit.needs(source)
    }
    included = {}
    for source, flags in graph._joined(alone).items():
        for path in re.findall(r'^#include "(.+)"$', source.read_text(), re.M):
            assert included.setdefault(Path(path), flags) is flags
    assert included == alone
    objects = {path.name for path in graph._kernel_objects(kit)}
    assert "grid_half.cu.gru.o" not in objects and "scale.cu.o" in objects
