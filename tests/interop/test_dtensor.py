"""DTensors on two processes: our ops and modules give the same results as on one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import tests.interop.dtensor_cases  # noqa: E402, F401  # fills CASES
from tests.interop.with_processes import CASES, PROCESSES  # noqa: E402
from tests.support import installed  # noqa: E402
from tests.support.once import made_once  # noqa: E402


def run_cases(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.interop.dtensor_cases", str(folder)]
    running = [
        subprocess.Popen([*command, str(rank)], cwd=installed.ROOT, stderr=subprocess.PIPE)
        for rank in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=200)[1].decode() for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(said)


@pytest.fixture(scope="session")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The errors of each case, by process."""
    folder = made_once(tmp_path_factory, "dtensors", run_cases)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize("name", CASES)
def test_as_one_process(name: str, errors: list[dict[str, str]]) -> None:
    for rank, found in enumerate(errors):
        assert not found[name], f"process {rank}:\n{found[name]}"
