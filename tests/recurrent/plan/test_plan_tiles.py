"""The planner's algorithm "tiles": the layers that it supports, and when it is chosen."""

from __future__ import annotations

import itertools

import pytest

from tests.recurrent.plan.test_plan import BINDINGS, Sizes, plan


@BINDINGS
@pytest.mark.parametrize(
    ("sizes", "architecture", "tf32"),
    [
        *(((512, 17, h, 2), 90, True) for h in (0, 32, 65, 1 << 21)),
        *(((512, 17, h, 4), 90, True) for h in (0, 32, 65, 1 << 21)),
        *(((512, 17, 64, n), architecture, True) for n in (2, 4) for architecture in (80, 100)),
        ((512, 17, 64, 4), 90, False),
        ((512, 17, 64, 8), 90, True),
        ((1 << 15, 1 << 15, 64, 2), 90, False),
    ],
)
def test_what_cannot_run(sizes: Sizes, architecture: int, tf32: bool) -> None:
    steps, batch, hidden, element = sizes
    dtype = {2: "float16", 4: "float32", 8: "float64"}[element]
    dtype += " without TF32" if element == 4 and not tf32 else ""
    words = (
        "^recurrent_layer: algorithm tiles needs float16, bfloat16 or float32 with TF32 allowed, H "
        rf"a multiple of 64 up to 1048576, T \* B < 2\^30 and an sm_90 GPU, got {dtype}, "
        rf"H = {hidden}, T = {steps}, B = {batch} and sm_{architecture}($|\n)"
    )
    facts = {"architecture": architecture, "tf32": tf32}
    with pytest.raises(RuntimeError, match=words):
        plan(sizes, forced="tiles", **facts)
    assert plan(sizes, **facts).algorithm != "tiles"


@BINDINGS
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_many_rows_forward(cell: str) -> None:
    """The forward pass of many rows uses "tiles", in float32 only if TF32 is allowed. Few rows, a
    single step and the backward pass use other algorithms."""
    for hidden, element in itertools.product((256, 512, 1024), (2, 4)):
        for batch, chosen in ((16, False), (63, False), (8000, True), (16384, True)):
            size = 24, batch, hidden, element
            one = plan(size, cell=cell, tf32=True)
            assert (one.algorithm == "tiles") == chosen, size
            exact = plan(size, cell=cell, tf32=False).algorithm
            assert (exact == "tiles") == (chosen and element == 2), size
            for tf32 in (True, False):
                assert plan(size, cell=cell, tf32=tf32, backward=True).algorithm != "tiles"
        many = 8000, hidden, element
        assert plan((1, *many), cell=cell, tf32=True).algorithm == "step"
        other = plan((24, *many), cell=cell, tf32=True, architecture=100)
        assert other.algorithm != "tiles"


@BINDINGS
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_some_rows_of_wide_layers_in_float32(cell: str) -> None:
    """Tiles are chosen even if some of their rows are unused. For few rows they are not chosen if a
    grid can keep the weights on the chip."""
    for batch, hidden, algorithm in (
        (16, 1024, "grid"),
        (64, 1024, "grid"),
        (200, 1024, "grid"),
        (512, 1024, "tiles"),
        (16, 1088, "grid"),
        (512, 1088, "tiles"),
    ):
        size = 24, batch, hidden, 4
        assert plan(size, cell=cell, tf32=True).algorithm == algorithm, size
        # Float32 without TF32 has no tiles at all.
        expected = "grid" if hidden == 1024 else "step"
        assert plan(size, cell=cell).algorithm == expected, size


@BINDINGS
@pytest.mark.parametrize("element", [2, 4])
def test_forced(element: int) -> None:
    one = plan((24, 2, 64, element), forced="tiles", tf32=True)
    assert (one.algorithm, one.reason) == ("tiles", "requested")
    one = plan((24, 2, 64, element), forced="tiles", tf32=True, backward=True)
    assert (one.algorithm, one.reason) == ("step", "the algorithm has only a forward kernel")
