"""Tests the report of ``python -m treadle``, also if treadle cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import treadle
from tests.support import installed
from treadle import _report, _selftest, reference


def test_plain_report() -> None:
    done = installed.python("-m", "treadle")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("ok: ")
    for word in ("built for", "running", "CUDA archs", "self-test", "scale.out", "nvcc flags"):
        assert word in done.stdout


def test_a_report_tells_what_is_compiled_for_checking(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path, cuda="13.0", archs=["9.0"], for_checking=True)
    done = installed.python("-m", "treadle", path=folder)
    assert "13.0, compiled for checking" in done.stdout
    assert "rebuild without TREADLE_CHECK_BUILD" in " ".join(done.stdout.split())


def test_a_reader_that_ends_early() -> None:
    """As in `python -m treadle | head -n 1`."""
    command = [sys.executable, "-m", "treadle", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


def test_json_report() -> None:
    done = installed.python("-m", "treadle", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"] and not report["problems"]
    assert report["running"]["torch"] == torch.__version__
    backends = {op["name"]: op["backends"] for op in report["ops"]}
    assert {"CPU", "Meta", "Autograd"} <= set(backends["scale"])
    assert ("CUDA" in backends["scale"]) == bool(report["built"]["cuda"])
    tested = {result["op"] for result in report["self_test"]}
    public = {name for name in backends if hasattr(reference, name.split(".")[0].rstrip("_"))}
    assert tested == public
    assert {r["dtype"] for r in report["self_test"]} >= {"float32", "bfloat16", "float64"}


def test_cmake_prefix() -> None:
    done = installed.python("-m", "treadle", "--cmake-prefix")
    assert done.returncode == 0
    ours, torchs = done.stdout.strip().split(";")
    assert (Path(ours) / "share" / "cmake" / "treadle" / "treadleConfig.cmake").exists()
    assert (Path(torchs) / "include" / "torch" / "headeronly" / "version.h").exists()


def test_version() -> None:
    done = installed.python("-m", "treadle", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{treadle.__version__}\n", "")


@pytest.mark.parametrize("options", [[], ["--json"], ["--cmake-prefix"], ["--version"]])
def test_report_where_the_import_fails(tmp_path: Path, options: list[str]) -> None:
    folder = installed.copy(tmp_path, torch="2.3.1")
    done = installed.python("-m", "treadle", *options, path=folder)
    assert done.returncode == 1
    assert "built for torch 2.3.1" in done.stdout + done.stderr
    assert "Rebuild it with" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if options == ["--json"]:
        assert json.loads(done.stdout)["built"]["torch"] == "2.3.1"


def test_report_without_facts_and_without_torch(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path)
    (folder / "treadle" / installed.OF_TORCH / "facts.json").unlink()
    (folder / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    done = installed.python("-m", "treadle", path=folder)
    assert done.returncode == 1
    assert "has not been built" in done.stdout and "Traceback" not in done.stderr


def test_a_wrong_op_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "scale", lambda x, factor: x * (factor + 1e-3))
    failed = [result for result in _selftest.run(["cpu"]) if not result.ok]
    assert {result.op for result in failed} == {"scale", "scale.out", "scale_"}
    assert {result.dtype for result in failed} >= {"float32", "float64"}
    report = _report.collect()
    assert not report["ok"]
    assert any("self-test of scale on cpu in float32" in line for line in report["problems"])


def test_an_op_that_raises_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def overload(name: str) -> torch._ops.OpOverload:
        raise RuntimeError("deliberate")

    monkeypatch.setattr(_selftest, "overload", overload)
    results = list(_selftest.run(["cpu"]))
    assert results and all(not r.ok and r.message == "deliberate" for r in results)


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["9.0"], (9, 0), True),
        (["8.0"], (8, 6), True),
        (["8.6"], (8, 0), False),
        (["9.0"], (10, 0), False),
        (["8.0+PTX"], (12, 0), True),
        (["9.0a"], (9, 0), True),
        (["10.0a"], (10, 3), False),
        (["12.0+PTX"], (9, 0), False),
        ([], (9, 0), False),
    ],
)
def test_which_gpus_a_build_serves(
    archs: list[str], capability: tuple[int, int], expected: bool
) -> None:
    assert _report.covers(archs, capability) is expected


class FakeGpu:
    name, major, minor, total_memory = "Some GPU", 7, 0, 16 << 30


def test_a_gpu_that_the_build_has_no_code_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: FakeGpu)
    report = {"built": {"cuda": "13.0", "archs": ["9.0"]}, "problems": [], "notes": []}
    (gpu,) = _report._gpus(report)
    assert gpu["arch"] == "7.0" and not gpu["served"]
    assert "TORCH_CUDA_ARCH_LIST=7.0" in report["problems"][0]
