"""What the planner (test_plan.py) makes of a grid: how many multiprocessors it needs, and where two
of its blocks share their units."""

from __future__ import annotations

import itertools

import pytest

from tests.recurrent.test_plan import BINDINGS, plan


@BINDINGS
@pytest.mark.parametrize(
    ("hidden", "backward", "blocks"), [(33, False, 64), (33, True, 32), (2048, False, 128)]
)
def test_a_grid_on_a_small_chip(hidden: int, backward: bool, blocks: int) -> None:
    words = (
        f"^recurrent_layer: algorithm grid needs {blocks} multiprocessors a direction, "
        rf"got {2 * blocks - 1} for 2($|\n)"
    )
    options = {"forced": "grid", "directions": 2, "backward": backward}
    with pytest.raises(RuntimeError, match=words):
        plan((512, 17, hidden, 2), multiprocessors=2 * blocks - 1, **options)
    assert plan((512, 17, hidden, 2), multiprocessors=2 * blocks, **options).grid_rows == 24


@BINDINGS
def test_a_grid_of_wide_layers_runs_forward_alone() -> None:
    for forced, way in itertools.product(("auto", "grid"), (False, True)):
        one = plan((512, 17, 2048, 2), forced=forced, backward=way)
        assert one.algorithm == ("step" if way else "grid")
    with pytest.raises(RuntimeError, match="algorithm grid needs 128 multiprocessors a direction"):
        plan((512, 17, 2048, 2), forced="grid", backward=True, multiprocessors=114)


@BINDINGS
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru"])
@pytest.mark.parametrize("pairs", [False, True])
def test_blocks_of_a_grid_share_units_where_they_find_neighbours(pairs: bool, cell: str) -> None:
    """Backward. An LSTM's pair keeps more weights in registers, and has room for more rows."""
    most = 64 if cell != "lstm" else 32 if pairs else 24
    for batch in (1, 64, 96, 97, 256, 257, 1000):
        options = {"forced": "grid", "cell": cell, "pairs": pairs}
        one = plan((512, batch, 1024, 2), backward=True, **options)
        assert one.grid_sharing == (2 if pairs else 1)
        launches = -(-batch // (4 * most))
        assert one.grid_rows == -(-batch // (4 * launches * 8)) * 8
        assert plan((512, batch, 1024, 2), **options).grid_sharing == 1


@BINDINGS
def test_pairs_are_expected_to_halve_what_a_grid_waits_for() -> None:
    """So more rows of a wide layer go backward in a grid before a launch a step is faster."""
    options = {"backward": True, "cell": "lltm"}
    chosen = {
        pairs: [
            rows
            for rows in (64, 256, 512, 1024, 2048)
            if plan((512, rows, 1024, 2), pairs=pairs, **options).algorithm == "grid"
        ]
        for pairs in (False, True)
    }
    assert chosen[False] == [64, 256, 512] and {64, 256, 512, 1024} <= set(chosen[True])
