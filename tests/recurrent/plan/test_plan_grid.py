"""The planner's grids: how many multiprocessors a grid needs, and which layers it supports."""

from __future__ import annotations

import itertools

import pytest

from tests.recurrent.plan.test_plan import BINDINGS, plan


@BINDINGS
@pytest.mark.parametrize(
    ("hidden", "backward", "blocks"),
    [(33, False, 32), (33, True, 16), (1000, False, 64), (1000, True, 32), (2048, False, 128)],
)
def test_a_grid_on_a_small_chip(hidden: int, backward: bool, blocks: int) -> None:
    words = (
        f"^recurrent_layer: algorithm grid needs {blocks} multiprocessors, got {blocks - 1}($|\n)"
    )
    options = {"forced": "grid", "directions": 2, "backward": backward}
    with pytest.raises(RuntimeError, match=words):
        plan((512, 17, hidden, 2), multiprocessors=blocks - 1, **options)
    for count in (blocks, 2 * blocks):
        assert plan((512, 17, hidden, 2), multiprocessors=count, **options).grid_rows == 24


@BINDINGS
@pytest.mark.parametrize(
    ("directions", "multiprocessors", "at_once", "rows"),
    [
        (2, 64, 1, 24),  # one direction after the other, in 64 blocks
        (2, 132, 2, 24),
        (2, 256, 2, 16),  # two RowGroups for each direction
        (8, 132, 2, 24),  # blocks of W_hh count as directions
        (5, 256, 3, 24),  # three and two, instead of four and one
    ],
)
def test_directions_in_turn(directions: int, multiprocessors: int, at_once: int, rows: int) -> None:
    """If a GPU has too few multiprocessors for all directions, several launches compute them."""
    options = {"multiprocessors": multiprocessors, "directions": directions}
    one = plan((512, 17, 1000, 2), forced="grid", **options)
    assert (one.grid_directions, one.grid_rows) == (at_once, rows)
    assert plan((512, 17, 1000, 2), **options).algorithm == "grid"


@BINDINGS
def test_a_grid_of_wide_layers_runs_forward_alone() -> None:
    for forced, way, (element, tf32) in itertools.product(
        ("auto", "grid"), (False, True), ((2, False), (4, True))
    ):
        one = plan((512, 17, 2048, element), forced=forced, backward=way, tf32=tf32)
        assert one.algorithm == ("step" if way else "grid")
    # The float32 kernels for wide layers exist only for TF32, and only on sm_90.
    for facts in ({"tf32": False}, {"tf32": True, "architecture": 100}):
        assert plan((512, 17, 1025, 4), **facts).algorithm == "step"
        with pytest.raises(RuntimeError, match="float32 up to 1024"):
            plan((512, 17, 1025, 4), forced="grid", **facts)


@BINDINGS
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(
    ("hidden", "tf32", "units"),
    [(512, True, 32), (512, False, 16), (1024, True, 16), (1024, False, 16)],
)
def test_a_grid_of_float32_backward(cell: str, hidden: int, tf32: bool, units: int) -> None:
    blocks = hidden // units
    options = {"cell": cell, "tf32": tf32, "backward": True, "forced": "grid"}
    for few in (hidden - 127, hidden):
        assert plan((512, 64, few, 4), multiprocessors=blocks, **options).algorithm == "grid"
        words = f"algorithm grid needs {blocks} multiprocessors, got {blocks - 1}"
        with pytest.raises(RuntimeError, match=words):
            plan((512, 64, few, 4), multiprocessors=blocks - 1, **options)
    free = plan((512, 64, hidden, 4), **options | {"forced": "auto"})
    assert free.algorithm == "grid"


@BINDINGS
def test_a_grid_of_too_few_multiprocessors_says_so_backward_too() -> None:
    with pytest.raises(RuntimeError, match="algorithm grid needs 128 multiprocessors, got 114"):
        plan((512, 17, 2048, 2), forced="grid", backward=True, multiprocessors=114)
