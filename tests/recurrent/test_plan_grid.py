"""What the planner (test_plan.py) makes of a grid: how many multiprocessors it needs,
and which layers have one."""

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
@pytest.mark.parametrize(("hidden", "element"), [(2048, 2), (513, 4), (1024, 4)])
def test_a_grid_of_wide_layers_and_of_float32_runs_forward_alone(hidden: int, element: int) -> None:
    for forced, way in itertools.product(("auto", "grid"), (False, True)):
        one = plan((512, 17, hidden, element), forced=forced, backward=way)
        assert one.algorithm == ("step" if way else "grid")


@BINDINGS
def test_a_grid_of_too_few_multiprocessors_says_so_backward_too() -> None:
    with pytest.raises(RuntimeError, match="algorithm grid needs 128 multiprocessors a direction"):
        plan((512, 17, 2048, 2), forced="grid", backward=True, multiprocessors=114)
