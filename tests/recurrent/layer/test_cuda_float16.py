"""float16 layers of sizes for which cuDNN 9.19 gives wrong results, against float64."""

from __future__ import annotations

from typing import Any

import pytest

from examples.torch_float16 import compare
from tests.support.inputs import GPU

pytestmark = GPU


@pytest.mark.parametrize("more", [{}, {"bidirectional": True}, {"autocast": True}], ids=str)
@pytest.mark.parametrize("hidden", [40, 48, 56, 72, 80, 88, 104, 112, 120, 136, 144, 168, 200])
@pytest.mark.parametrize("batch", [8, 12, 64])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_float16_is_near_float64(cell: str, batch: int, hidden: int, more: dict[str, Any]) -> None:
    """Checks the output and the gradient of the input; torch's own layer may be wrong."""
    assert max(compare(cell, batch, hidden, **more)["treadle"]) < 5e-3
