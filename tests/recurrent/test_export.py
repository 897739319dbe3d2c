"""The LLTM layer in a package of AOTInductor, of any number of steps and rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import treadle
from tests.laws.test_export import COMPILER
from tests.support.cases import DEVICES


@COMPILER
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_aoti(device: str, tmp_path: Path) -> None:
    layer = treadle.nn.LLTM(3, 4, num_layers=2, bidirectional=True, device=device)
    steps, rows = torch.export.Dim("steps", min=2, max=64), torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        x = torch.randn(5, 3, 3, device=device)
        program = torch.export.export(layer, (x,), dynamic_shapes=({0: steps, 1: rows},))
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "layer.pt2")
        )
        compiled = torch._inductor.aoti_load_package(package)
        for sizes in ((5, 3), (2, 2), (9, 17)):
            x = torch.randn(*sizes, 3, device=device)
            torch.testing.assert_close(compiled(x), layer(x))
