"""Calls of the recurrent functions for mypy --strict, which `make lint` runs on this file. A wrong
call that mypy accepted would leave an unused `type: ignore`, which is an error."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import assert_type

import treadle

x, h, c = torch.zeros(2, 1, 3), torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)
params, sizes = [torch.zeros(16, 3), torch.zeros(16, 4)], torch.ones(2, dtype=torch.int64)
Three = tuple[Tensor, Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def right() -> None:
    assert_type(treadle.lstm(x, (h, c), params, False, 1, 0.0, False, False, False), Three)
    assert_type(treadle.lltm(x, sizes, (h, c), params, False, 1, 0.0, False, False), Three)
    assert_type(
        treadle.gru(x, h, params, False, 1, 0.0, False, False, False), tuple[Tensor, Tensor]
    )
    cells = treadle.lltm(x, (h, c), params, False, 1, 0.0, False, False, False, return_cells=True)
    assert_type(cells, Four)
    assert_type(treadle.lltm_cell(x[0], params[0], None, h[0], c[0]), tuple[Tensor, Tensor])


def wrong() -> None:
    treadle.gru(x, (h, c), params, False, 1, 0.0, False, False, False)  # type: ignore[call-overload]
    treadle.lstm(x, (h, c), params)  # type: ignore[call-overload]
    treadle.lltm(x, (h, c), params, "no", 1, 0.0, False, False, False)  # type: ignore[call-overload]
    treadle.gru(x, h, params, False, 1, 0.0, False, False, False, return_cells=True)  # type: ignore[call-overload]
