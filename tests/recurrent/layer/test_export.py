"""Layers of all cells in an AOTInductor package, for any number of steps and rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.laws.test_export import COMPILER
from tests.support.cases import DEVICES
from tests.support.pages import snippets


class Layers(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.lltm = treadle.nn.LLTM(3, 4, num_layers=2, bidirectional=True, device=device)
        self.lstm = treadle.nn.LSTM(8, 4, num_layers=2, bidirectional=True, device=device)
        self.gru = treadle.nn.GRU(8, 4, num_layers=2, bidirectional=True, device=device)
        self.rnn = treadle.nn.RNN(8, 4, num_layers=2, bidirectional=True, device=device)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, _ = self.lltm(x)
        x, (_, c) = self.lstm(x)
        x, h = self.gru(x)
        x, last = self.rnn(x)
        return x, c, h + last


@COMPILER
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_aoti(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AOTInductor code in docs/deploy.md works for these layers."""
    monkeypatch.chdir(tmp_path)
    layers = Layers(device)
    steps, rows = torch.export.Dim("steps", min=2, max=64), torch.export.Dim("rows", min=2, max=64)
    x = torch.randn(5, 3, 3, device=device)
    names = {"torch": torch, "model": layers, "x": x, "sizes": ({0: steps, 1: rows},)}
    ((_, code),) = (each for each in snippets("deploy.md") if each[0] == "AOTInductor")
    exec(code, names)
    with torch.no_grad():
        for sizes in ((5, 3), (2, 2), (9, 17)):
            x = torch.randn(*sizes, 3, device=device)
            torch.testing.assert_close(names["compiled"](x), layers(x))
