"""The planner's tables and picture in docs/recurrent.md match the planner."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.pages import planner_page as page
from tests.recurrent.plan.test_plan import BINDINGS

pytestmark = BINDINGS


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("kind", page.PASSES.values(), ids=page.PASSES)
def test_switches_say_what_each_batch_gets(cell: str, kind: tuple[int, bool]) -> None:
    for hidden in page.WIDTHS:
        parts = [
            part.partition(" from ") for part in page.switches(cell, hidden, *kind).split("; ")
        ]
        starts = [int(batch) if batch else 1 for _, _, batch in parts]
        for batch in page.BATCHES:
            last = max(index for index, start in enumerate(starts) if start <= batch)
            assert page.chosen(cell, batch, hidden, *kind) == parts[last][0]


def test_limits_are_the_last_widths_that_fit() -> None:
    for line in page.limits():
        if "`" not in line:
            continue
        algorithm, cell = line.split("|")[1].replace("`", "").strip().lower().split(", ")
        for cells, kind in zip(line.split("|")[2:-1], page.PASSES.values(), strict=True):
            most = int(cells)
            assert page.fits(cell, algorithm, most, *kind)
            assert not page.fits(cell, algorithm, most + 1, *kind)


def test_the_picture(tmp_path: Path) -> None:
    page.draw(tmp_path / "planner.png", points=8)
    with Image.open(tmp_path / "planner.png") as drawn, Image.open(page.PICTURE) as kept:
        assert abs(drawn.width - kept.width) < 40 and kept.format == "PNG"
    assert page.PICTURE.stat().st_size < 150_000, "run benchmarks/pages/planner_page.py"
