"""How the planner divides a batch among clusters of blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.recurrent.plan.test_plan import BINDINGS, BLOCKS, FLOAT_SHAPES, HALF_BLOCKS, plan
from treadle.nn.formulas import SLSTM_CELL


@BINDINGS
@pytest.mark.parametrize("backward", [False, True])
def test_clusters_share_the_batch(backward: bool) -> None:
    """Each cluster runs as few rows as the number of resident clusters allows."""
    options = {"forced": "cluster", "backward": backward}
    for hidden in (128, 256, 512, 768):
        *_, alone = plan((512, 1, hidden, 2), **options).clusters
        assert alone == 1
        for batch in range(1, 29):
            _, blocks, _, rows = plan((512, batch, hidden, 2), **options).clusters
            at_once = {4: 32, 8: 15, 16: 7}[blocks]
            assert -(-batch // rows) <= at_once
            assert rows == 1 or -(-batch // (rows - 1)) > at_once


@BINDINGS
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_block_alone_has_narrow_layers_of_float32(directions: int, backward: bool) -> None:
    """Layers up to H 128 run in clusters of one block. A block runs as few rows as possible, if all
    blocks can be resident at once."""
    options = {"forced": "cluster", "directions": directions, "backward": backward}
    for hidden, batch in itertools.product(
        (1, 32, 33, 64, 65, 96, 97, 128), (*range(1, 600), 5000)
    ):
        units, blocks, _, rows = plan((512, batch, hidden, 4), **options).clusters
        assert (units, blocks) == (next(width for width in BLOCKS if width >= hidden), 1)
        at_once, most = 132 // directions, FLOAT_SHAPES[units, 1]
        if batch <= at_once * most:
            assert rows == -(-batch // at_once)
    # Few clusters of 16 blocks can be resident, so batches of many rows use smaller clusters if H
    # fits. In the forward pass clusters of 8 blocks use tensor cores, so batches of few rows also
    # use such clusters.
    few = 16 if backward else 8
    for hidden, batch, blocks in ((129, 2, few), (129, 200, 8), (256, 200, 8), (512, 200, 16)):
        assert plan((512, batch, hidden, 4), **options).clusters[1] == blocks
    # LSTM's four gates fill a block's registers at a smaller H. In a cluster of 16 blocks they need
    # so much shared memory that the cluster runs at most 4 rows in the backward pass, and 6 in the
    # forward pass.
    wide = 4 if backward else 6
    for hidden, blocks, most in (
        (96, 1, 2),
        (97, 4, 8),
        (256, 8, 8),
        (257, 16, wide),
        (512, 16, wide),
    ):
        found = plan((512, 200, hidden, 4), cell="lstm", **options).clusters
        assert found[1] == blocks and found[3] <= most


@BINDINGS
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_block_alone_has_few_rows_of_narrow_layers_of_half_types(
    directions: int, cell: str, backward: bool
) -> None:
    """Each block runs one row, or two if too few blocks can be resident. Clusters of several
    blocks, which use tensor cores, run batches of more rows, because they need fewer waves. They
    also run all layers above H 64 and, in the backward pass, layers above H 32 whose rows consist
    of whole 16-byte chunks."""
    options = {"cell": cell, "directions": directions, "backward": backward, "forced": "cluster"}
    for multiprocessors, hidden in itertools.product((16, 132), (1, 31, 32, 33, 64, 65, 128)):
        at_once = multiprocessors // directions
        for batch in (1, 2, at_once, at_once + 1, 2 * at_once, 2 * at_once + 1, 1000):
            size = 512, batch, hidden, 2
            units, blocks, _, rows = plan(size, multiprocessors=multiprocessors, **options).clusters
            tensor_cores = hidden > max(HALF_BLOCKS) or (backward and hidden == 64)
            if tensor_cores or batch > 2 * at_once:
                assert blocks > 1, size
            elif batch <= at_once:
                block = next(width for width in HALF_BLOCKS if width >= hidden)
                assert (units, blocks, rows) == (block, 1, 1), size
            elif hidden <= 32:
                assert (units, blocks, rows) == (32, 1, 2), size
            # With 33 to 64 units, either may be planned: two rows in one block take about as long
            # as a cluster.


@BINDINGS
def test_packed_batches_and_parts_of_chunks_are_planned_by_the_kernels_that_take_them() -> None:
    """The dense kernels support only dense batches whose rows consist of whole 16-byte chunks.
    Their fastest cluster shapes differ from those of the general kernels."""
    for backward, batch, dense, other in ((False, 16, 32, 16), (True, 256, 64, 32)):
        options = {"cell": "gru", "backward": backward}
        sizes = (512, batch, 256, 2)
        assert plan(sizes, **options).clusters[0] == dense
        for hidden, ragged in ((256, True), (250, False), (250, True)):
            found = plan((512, batch, hidden, 2), ragged=ragged, **options)
            assert found.algorithm == "cluster" and found.clusters[0] == other


@BINDINGS
def test_resets_of_lstm_and_gru_are_planned_as_dense_batches() -> None:
    """Up to H 512, resets do not change the plan of an LSTM or GRU. LLTM has no dense kernels that
    support resets."""
    for cell, backward, (batch, hidden) in itertools.product(
        ("lstm", "gru"), (False, True), ((1, 512), (16, 512), (16, 256), (64, 256), (128, 256))
    ):
        sizes, options = (512, batch, hidden, 2), {"cell": cell, "backward": backward}
        found = plan(sizes, **options, resets=True)
        assert found.clusters == plan(sizes, **options).clusters, (sizes, options)
    sizes = (512, 16, 256, 2)
    packed = plan(sizes, ragged=True).clusters
    assert packed == plan(sizes, resets=True).clusters != plan(sizes).clusters
    for both in ("lstm", "gru"):
        packed = plan(sizes, cell=both, ragged=True).clusters
        assert packed == plan(sizes, cell=both, ragged=True, resets=True).clusters


@BINDINGS
@pytest.mark.parametrize("backward", [False, True])
def test_cells_with_several_states_run_on_dense_kernels(backward: bool) -> None:
    """In half types, cells with several states besides h run on dense cluster kernels. Resets do
    not change the plan. Other batches run on a single block or the grid."""
    options: dict[str, Any] = {"cell": SLSTM_CELL.key, "backward": backward}
    for batch, hidden, resets in itertools.product((1, 16, 64), (128, 256, 512), (False, True)):
        found = plan((512, batch, hidden, 2), resets=resets, **options)
        dense = found.kernel == "cluster_dense" and found.clusters[1] > 1
        assert dense or (batch == 64 and hidden == 512 and found.algorithm == "grid"), found.reason
        if dense:
            assert found.clusters == plan((512, batch, hidden, 2), **options).clusters
    for sizes, others in (
        ((512, 16, 256, 2), {"ragged": True}),
        ((512, 16, 250, 2), {}),
        ((512, 16, 256, 4), {}),
        ((512, 16, 768, 2), {}),
    ):
        assert plan(sizes, **options, **others).algorithm == "grid", sizes
    alone = plan((512, 16, 32, 2), ragged=True, **options)
    assert alone.kernel == "block" and alone.clusters[1] == 1


@BINDINGS
@pytest.mark.parametrize("backward", [False, True])
def test_the_grid_runs_packed_batches_above_h_256(backward: bool) -> None:
    """LSTM has no cluster kernels for packed batches there, and other cells have them for few
    rows."""
    options: dict[str, Any] = {"ragged": True, "backward": backward}
    for batch in (2, 16, 64):
        assert plan((512, batch, 264, 2), cell="lstm", **options).algorithm == "grid"
        for cell, most in (("gru", 56), ("rnn_tanh", 56)):
            found = plan((512, batch, 512, 2), cell=cell, **options)
            assert found.algorithm == ("cluster" if batch <= most else "grid"), (cell, batch)
            assert plan((512, batch, 520, 2), cell=cell, **options).algorithm == "grid"


@BINDINGS
def test_float32_on_tensor_cores_takes_as_many_rows_as_run_at_once() -> None:
    """In the forward pass, clusters run more rows if a second wave would take longer."""
    for cell, hidden, batch, shape in (
        ("lltm", 512, 1, (32, 16, 1, 1)),
        ("lltm", 512, 16, (32, 16, 1, 3)),
        ("lltm", 512, 64, (32, 16, 1, 10)),
        ("gru", 512, 64, (32, 16, 1, 10)),
        ("lstm", 512, 16, (32, 16, 1, 3)),
        ("lstm", 512, 42, (32, 16, 1, 6)),
        ("lstm", 256, 128, (32, 8, 1, 9)),
        ("lltm", 257, 20, (32, 16, 1, 3)),
    ):
        found = plan((512, batch, hidden, 4), cell=cell, forced="cluster")
        assert found.clusters == shape, (cell, hidden, batch)
        for other in ({"ragged": True}, {"resets": True}):
            one = plan((512, batch, hidden, 4), cell=cell, forced="cluster", **other)
            assert one.kernel == "cluster_fp16x2" and one.clusters == shape
        # The backward pass does not use these kernels.
        one = plan((512, batch, hidden, 4), cell=cell, forced="cluster", backward=True)
        units, blocks, _, rows = one.clusters
        assert one.kernel == "cluster_fma" and 1 <= rows <= FLOAT_SHAPES[units, blocks]
    # The h of an RNN with relu can grow beyond the range of fp16x2.
    for other in ({}, {"ragged": True}):
        one = plan((512, 16, 512, 4), cell="rnn_relu", forced="cluster", **other)
        assert one.kernel == "cluster_fma"


@BINDINGS
def test_tf32_where_torch_allows_it_is_a_reason_for_a_launch_a_step() -> None:
    """With many rows of few units, one TF32 product per launch is faster than the three products of
    fp16x2 with weights on the chip."""
    for batch, hidden, dense, packed, tf32 in (
        (16, 256, "cluster", "cluster", "cluster"),
        (512, 256, "cluster", "cluster", "tiles"),
        (1024, 252, "cluster", "cluster", "step"),
        (256, 512, "grid", "grid", "grid"),
        (512, 512, "grid", "grid", "tiles"),
        (1024, 500, "grid", "grid", "grid"),
    ):
        sizes = (512, batch, hidden, 4)
        for ragged, exact in ((False, dense), (True, packed)):
            assert plan(sizes, cell="lstm", ragged=ragged).algorithm == exact
            assert plan(sizes, cell="lstm", ragged=ragged, tf32=True).algorithm == tf32
