"""Tests the planner of recurrent layers, which chooses an algorithm. It is a pure function, so the
tests plan for GPUs of any size, and need none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from treadle import _build


def no_bindings() -> str | None:
    try:
        _build.bindings()
    except ImportError as error:
        return f"needs treadle._C: {error}"
    return None


BINDINGS = pytest.mark.skipif(no_bindings() is not None, reason=no_bindings() or "")
STEPS = (0, 1, 2, 4, 5, 100_000)
BATCHES = (0, 1, 2, 17, 32, 33, 1024, 1025, 70_000)
HIDDEN = (0, 1, 33, 512, 513, 768, 769, 1024, 1025, 2048, 2049)
ELEMENTS = (2, 4, 8)  # bytes
CHIPS = range(1, 161)
ARCHITECTURES = (75, 80, 90, 100)
MEGABYTE = 1 << 20
# Units of the single-block kernels. HALF_BLOCKS is for half types on GPUs with clusters.
BLOCKS, HALF_BLOCKS = (32, 64, 96, 128), (32, 64)
# The cluster kernels of float32: (units, blocks) -> the most rows. SPLIT_SHAPES is for the forward
# pass, in which the fp16x2 kernels of cluster/kernels.h support more rows.
FLOAT_SHAPES = {
    **{(units, 1): 2 for units in BLOCKS},
    **{(32, 4): 8, (32, 8): 8, (16, 16): 8, (32, 16): 8},
}
SPLIT_SHAPES = FLOAT_SHAPES | {(32, 8): 10, (32, 16): 10}
Sizes = tuple[int, int, int, int]
MANY_ROWS = (
    ("step", "for this many rows, one product per step is faster"),
    ("tiles", "this many rows fill the tiles of the tensor cores"),
)


def plan(
    sizes: Sizes, cuda: bool = True, forced: str = "auto", cell: str = "lltm", **device: Any
) -> Any:
    facts = {"multiprocessors": 132, "l2_bytes": 50 * MEGABYTE, "tf32": False, "architecture": 90}
    return _build.bindings().plan_recurrence(
        cell, *sizes, cuda=cuda, forced=forced, **facts | device
    )


def all_sizes() -> Iterator[Sizes]:
    return itertools.product(STEPS, BATCHES, HIDDEN, ELEMENTS)


def step_bytes(sizes: Sizes) -> int:
    """Bytes of a step's input products (input times W_ih), which are float32 for half types."""
    _, batch, hidden, element = sizes
    return 3 * hidden * batch * max(element, 4)


def bounded(sizes: Sizes, chunk: int, l2_bytes: int, exact: bool = False) -> None:
    """Checks that a chunk has from one step to all steps. Unless the chunk has one step or few
    rows, its input products must fit in half of the cache. `exact` means "step" in float32 without
    TF32."""
    steps, batch, *_ = sizes
    assert 1 <= chunk <= max(steps, 1)
    rows = chunk * batch
    few = chunk == 1 or rows < (8192 if exact else 1024) + batch
    assert few or chunk * step_bytes(sizes) <= l2_bytes // 2


# LLTM in float32, backward: (H > 512, TF32 allowed) -> (blocks, the most rows) of a RowGroup, whose
# blocks together keep one copy of W_hh.
FLOAT_GRIDS = {
    (False, False): (32, 64),
    (False, True): (16, 64),
    (True, False): (64, 64),
    (True, True): (64, 64),
}


def grid_of(sizes: Sizes, tf32: bool, backward: bool, architecture: int) -> tuple[int, int]:
    """The number of blocks of a RowGroup for LLTM, and the largest number of its rows if a block
    has 227 KB of shared memory."""
    _, _, hidden, element = sizes
    if architecture != 90:  # the kernels use setmaxnreg only on sm_90
        blocks = 8 if hidden <= 128 else 1 << (hidden - 1).bit_length() - 4
        if element == 2 and backward:
            return blocks // 2 if hidden <= 512 else 64, 64
        most = {(False, 4): 128 if tf32 else 80, (True, 4): 64 if tf32 else 48, (False, 2): 128}
        if element == 2:
            return blocks, 112 if hidden > 1024 else 128
        return blocks, most[backward, 4] if hidden > 512 else 64 if backward else 128
    if backward and element == 4:
        return FLOAT_GRIDS[hidden > 512, tf32]
    if element == 4:
        if hidden > 1024:
            return 128, 80
        return (32, 128) if hidden <= 512 else (64, 128 if tf32 else 80)
    if backward:
        return (16 if hidden <= 512 else 32), 64
    return (32 if hidden <= 512 else 64 if hidden <= 1024 else 128), 128


def possible(
    sizes: Sizes,
    multiprocessors: int,
    architecture: int,
    backward: bool,
    tf32: bool = False,
) -> set[str]:
    """The algorithms that support these sizes."""
    _, _, hidden, element = sizes
    found = {"step"}
    if architecture >= 90:
        widest = {2: 768, 4: 512, 8: 0}[element]
    else:  # only clusters of a single block
        widest = {2: 96 if backward else 128, 4: 128, 8: 0}[element]
    if 1 <= hidden <= widest and architecture >= 80:
        found |= {"cluster"}
    wide = not backward and (element == 2 or (tf32 and architecture == 90))
    most = 0 if element == 8 else 2048 if wide else 1024
    enough = multiprocessors >= grid_of(sizes, tf32, backward, architecture)[0]
    if 1 <= hidden <= most and architecture >= 80 and enough:
        found |= {"grid"}
    return found


def covered(
    sizes: Sizes,
    one: Any,
    multiprocessors: int,
    directions: int,
    backward: bool,
    tf32: bool = False,
    architecture: int = 90,
) -> None:
    """Checks that the plan covers all units and rows of the batch within the kernel's limits."""
    _, batch, hidden, element = sizes
    units, blocks, tiles, rows = one.clusters
    if one.algorithm == "cluster":
        assert hidden <= units * blocks <= (768 if element == 2 else 512)
        assert tiles in ((1,) if element == 4 or blocks == 1 else (1, 2))
        floats = FLOAT_SHAPES if backward else SPLIT_SHAPES
        most = floats[units, blocks] if element == 4 else 2 if blocks == 1 else 8 * tiles
        assert 1 <= rows <= most and (blocks > 1 or units in BLOCKS)
        assert blocks == 1 if architecture < 90 else blocks > 1 or element == 4 or units <= 64
    else:
        assert one.clusters == (0, 0, 0, 0)
    if one.algorithm == "grid":
        blocks, most = grid_of(sizes, tf32, backward, architecture)
        at_once = one.grid_directions
        groups = multiprocessors // blocks // at_once
        assert one.grid_rows in range(8, most + 1, 8) and groups > 0
        # Checks that no smaller number of directions needs as few launches.
        launches = -(-directions // (multiprocessors // blocks))
        assert at_once * launches >= directions > (at_once - 1) * launches
        # The same for multiples of 8 rows.
        launches = max(1, -(-batch // (most * groups)))
        assert one.grid_rows * groups * launches >= batch
        assert one.grid_rows == 8 or (one.grid_rows - 8) * groups * launches < batch
    else:
        assert one.grid_rows == 0


def chosen(one: Any, can: set[str], sizes: Sizes, backward: bool, architecture: int) -> None:
    """Checks the algorithm and its reason. With many rows, one launch per step may be faster."""
    _, batch, hidden, element = sizes
    many = (one.algorithm, one.reason) in MANY_ROWS
    # If both "cluster" and "grid" can run, the planner chooses "cluster" from sm_90 on for H up to
    # 256, except in the float32 backward pass. Otherwise it chooses the one with the lower
    # predicted time.
    narrow = architecture >= 90 and hidden <= 256 and not (backward and element == 4)
    worth = {"cluster"} if "cluster" in can and narrow else can - {"step"} or {"step"}
    why = "a few rows of one step take a single launch" if worth == {"warp"} else "the chip"
    assert many or (one.algorithm in worth and why in one.reason)
    assert batch > 16 or not many


@BINDINGS
def test_every_size() -> None:
    for sizes in all_sizes():
        steps, batch, hidden, element = sizes
        for tf32, architecture, directions, backward in itertools.product(
            (False, True), ARCHITECTURES, (1, 2), (False, True)
        ):
            can = possible(sizes, 132, architecture, backward, tf32)
            one = plan(
                sizes,
                tf32=tf32,
                architecture=architecture,
                directions=directions,
                backward=backward,
            )
            if steps <= 1:
                few = not backward and batch <= 8192 // max(hidden, 1)
                can = {"warp"} if few else {"step"}
            chosen(one, can, sizes, backward, architecture)
            exact = element == 4 and not tf32 and one.algorithm == "step"
            bounded(sizes, one.steps_per_chunk, 50 * MEGABYTE, exact)
            assert one.transposed == (element == 4 and not tf32 and 1 < batch <= 32)
            covered(sizes, one, 132, directions, backward, tf32, architecture)


@BINDINGS
def test_weights_lie_by_columns_where_that_is_faster() -> None:
    """Algorithm "step" copies W_hh to column-major order in float32 without TF32, if the layer has
    enough steps to be worth the copy."""
    sizes = (32, 64, 2048, 4)
    assert plan(sizes).algorithm == "step" and plan(sizes).weight_by_columns
    for steps, batch, hidden, element in (
        *((31, 64, 2048, 4), (32, 32, 2048, 4), (32, 513, 2048, 4)),
        *((32, 64, 2047, 4), (32, 64, 2112, 4), (32, 64, 704, 4)),
        *((32, 64, 2304, 2), (32, 64, 2048, 8)),
    ):
        assert not plan((steps, batch, hidden, element), forced="step").weight_by_columns
    for sizes_of_step in ((32, 33, 768, 4), (32, 512, 1024, 4)):
        assert plan(sizes_of_step, forced="step").weight_by_columns
    for other in (
        *({"backward": True}, {"ragged": True}, {"tf32": True}),
        *({"cuda": False}, {"forced": "warp"}),
    ):
        assert not plan(sizes, **other).weight_by_columns


@BINDINGS
def test_every_chip() -> None:
    widths = ((33, 2), (769, 2), (33, 4), (512, 4), (513, 4))  # H, bytes of an element
    everything = (CHIPS, ARCHITECTURES, (1, 2), (1, 17, 64, 70_000), widths, (False, True))
    for multiprocessors, architecture, directions, batch, width, backward in itertools.product(
        *everything
    ):
        sizes = (257, batch, *width)
        device = {"multiprocessors": multiprocessors, "architecture": architecture}
        one = plan(sizes, directions=directions, backward=backward, **device)
        can = possible(sizes, multiprocessors, architecture, backward)
        chosen(one, can, sizes, backward, architecture)
        covered(sizes, one, multiprocessors, directions, backward, architecture=architecture)


@BINDINGS
def test_huge_sizes() -> None:
    """Products of these sizes overflow 64 bits."""
    huge = 1 << 62
    for sizes in itertools.product((5, huge), (1, 1 << 25, huge), (1, 1024, huge), ELEMENTS):
        for backward, directions in itertools.product((False, True), (1, 2)):
            one = plan(sizes, directions=directions, backward=backward)
            assert 1 <= one.steps_per_chunk <= sizes[0]
            covered(sizes, one, 132, directions, backward)
            assert max(sizes[:2]) < huge or one.algorithm == "step"
    with pytest.raises(
        RuntimeError, match=r"algorithm cluster needs B < 2\^26, got 67108864($|\n)"
    ):
        plan((5, 1 << 26, 1, 2), forced="cluster")


@BINDINGS
def test_every_size_on_the_cpu() -> None:
    for sizes in all_sizes():
        one = plan(sizes, cuda=False, multiprocessors=0, l2_bytes=32 * MEGABYTE)
        assert one.algorithm == "rows" and "threads" in one.reason and not one.transposed
        bounded(sizes, one.steps_per_chunk, 32 * MEGABYTE)
