"""Tests ``python -m treadle --bench``, which users with other GPUs run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.recurrent.sweep_cells import OTHER_GPUS
from treadle import __main__, _bench


def test_the_shapes_are_those_of_the_page() -> None:
    assert _bench.SHAPES == OTHER_GPUS


def test_a_file_of_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bench, "seconds", lambda run, at_least: float(run().numel()))
        assert _bench.main(path, torch.device("cpu"), ((2, 3, 4),)) == 0
    found = json.loads(path.read_text())
    assert found["machine"]["torch"] == torch.__version__
    kinds = {(row["cell"], row["dtype"]) for row in found["rows"]}
    assert len(found["rows"]) == len(kinds) == 6
    for row in found["rows"]:
        times = [row[f"{mode}_{who}_us"] for mode in ("inference", "training") for who in WHO]
        assert times == [24 / 3 * 1e6] * 4
    assert "LSTM 2,3,4 float32 1.00 × 1.00 ×" in capsys.readouterr().out


WHO = ("treadle", "torch")


def test_a_wrong_result_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(_bench.GRU):
        def forward(self, *arguments, **options):  # type: ignore[no-untyped-def]
            output, h = super().forward(*arguments, **options)
            return output + 1, h

    monkeypatch.setitem(_bench.CELLS, "GRU", (Wrong, torch.nn.GRU))
    monkeypatch.setattr(_bench, "seconds", lambda run, at_least: 1.0)
    path = tmp_path / "times.json"
    assert _bench.main(path, torch.device("cpu"), ((2, 3, 4),)) == 1
    for row in json.loads(path.read_text())["rows"]:
        assert row.get("wrong", False) == (row["cell"] == "GRU")
        assert ("inference_treadle_us" in row) == (row["cell"] == "LSTM")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--bench"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().err
