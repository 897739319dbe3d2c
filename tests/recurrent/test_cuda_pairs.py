"""The grid where no two of its blocks share their units, as on a device where they find no
neighbours. Where they do is what test_cuda_persistent.py tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recurrent.test_cuda_persistent import watch
from tests.support.inputs import HOPPER

BLOCKS_ALONE = {"TREADLE_GRID_PAIRS": "0"}


@HOPPER
@pytest.mark.parametrize(
    ("group", "arguments"),
    [
        *(("sizes", ("grid", *widths)) for widths in ((1, 31, 33), (257,), (1000, 1024))),
        ("batches", ("grid", 512, 1024)),
        *(("packed", ("grid", *widths)) for widths in ((1, 33, 128), (1000, 1024))),
        *(("reset cases", ("grid", dtype, "gru")) for dtype in ("float16", "bfloat16")),
        *(("cases", ("grid", "bfloat16", cell)) for cell in ("lltm", "lstm", "gru")),
        ("launched", ("grid",)),
    ],
    ids=str,
)
def test_blocks_that_share_no_units(group: str, arguments: tuple[Any, ...]) -> None:
    watch(group, *arguments, **BLOCKS_ALONE)
