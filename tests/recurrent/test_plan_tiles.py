"""The planner's algorithm "tiles": what it can run, and when it is chosen."""

from __future__ import annotations

import pytest

from tests.recurrent.test_plan import BINDINGS, Sizes, plan


@BINDINGS
@pytest.mark.parametrize(
    ("sizes", "architecture"),
    [
        *(((512, 17, h, 2), 90) for h in (0, 32, 65, 1 << 21)),
        *(((512, 17, 64, 2), architecture) for architecture in (80, 100)),
        ((512, 17, 64, 4), 90),
        ((1 << 15, 1 << 15, 64, 2), 90),
    ],
)
def test_what_cannot_run(sizes: Sizes, architecture: int) -> None:
    steps, batch, hidden, element = sizes
    dtype = "float16" if element == 2 else "float32"
    words = (
        "^recurrent_layer: algorithm tiles needs float16 or bfloat16, H a multiple of 64 up to "
        rf"1048576, T \* B < 2\^30 and an sm_90 GPU, got {dtype}, "
        rf"H = {hidden}, T = {steps}, B = {batch} and sm_{architecture}($|\n)"
    )
    with pytest.raises(RuntimeError, match=words):
        plan(sizes, forced="tiles", architecture=architecture)
    assert plan(sizes, architecture=architecture).algorithm != "tiles"


@BINDINGS
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru"])
def test_many_rows_forward(cell: str) -> None:
    """Few rows stay on the chip or are a product, a single step is one, and backward it is a
    product and a kernel that many rows take."""
    for hidden in (256, 512, 1024):
        for batch, chosen in ((16, False), (511, False), (8000, True), (16384, True)):
            one = plan((24, batch, hidden, 2), cell=cell)
            assert (one.algorithm == "tiles") == chosen, (hidden, batch)
            assert plan((24, batch, hidden, 4), cell=cell).algorithm != "tiles"
            assert plan((24, batch, hidden, 2), cell=cell, backward=True).algorithm != "tiles"
        assert plan((1, 8000, hidden, 2), cell=cell).algorithm == "step"
        assert plan((24, 8000, hidden, 2), cell=cell, architecture=100).algorithm != "tiles"


@BINDINGS
def test_forced() -> None:
    one = plan((24, 2, 64, 2), forced="tiles")
    assert (one.algorithm, one.reason) == ("tiles", "asked for")
    one = plan((24, 2, 64, 2), forced="tiles", backward=True)
    assert (one.algorithm, one.reason) == ("step", "there is such a kernel forward alone")
