"""How a recurrent layer is run: the planner, a pure function, asked about chips that are not here;
and the op's argument that forces an algorithm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recurrent.layer_cases import TENSORS, layer, layer_arguments
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, Call, Make
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
BLOCKS, HALF_BLOCKS = (32, 64, 96, 128), (32, 64)  # units of a block alone
# Units, blocks, and the most rows of float32; forward: has_split_kernel(), too.
FLOAT_SHAPES = {
    **{(units, 1): 2 for units in BLOCKS},
    **{(32, 4): 8, (32, 8): 8, (16, 16): 8, (32, 16): 8},
}
SPLIT_SHAPES = FLOAT_SHAPES | {(32, 8): 10, (32, 16): 10}
Sizes = tuple[int, int, int, int]
MANY_ROWS = (
    ("step", "so many rows are faster by a product a step"),
    ("tiles", "so many rows fill tiles of tensor cores"),
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
    """Of a step's input product: half types are multiplied into float."""
    _, batch, hidden, element = sizes
    return 3 * hidden * batch * max(element, 4)


def bounded(sizes: Sizes, chunk: int, l2_bytes: int) -> None:
    """In steps, between one and all; in memory, half of the cache, or few rows, or one step."""
    steps, batch, *_ = sizes
    assert 1 <= chunk <= max(steps, 1)
    rows = chunk * batch
    few = chunk == 1 or rows < 1024 + batch
    assert few or chunk * step_bytes(sizes) <= l2_bytes // 2


def grid_blocks(hidden: int, backward: bool) -> int:
    return 32 if backward else 64 if hidden <= 1024 else 128


def possible(
    sizes: Sizes, multiprocessors: int, architecture: int, directions: int, backward: bool
) -> set[str]:
    """Algorithms that can run."""
    _, _, hidden, element = sizes
    found = {"step"}
    if element == 4 and 1 <= hidden <= 512 and architecture >= 90:
        found |= {"cluster"}
    if element == 2 and 1 <= hidden <= 768 and architecture >= 90:
        found |= {"cluster"}
    most = {2: 1024 if backward else 2048, 4: 0 if backward else 1024, 8: 0}[element]
    enough = multiprocessors >= grid_blocks(hidden, backward) * directions
    if 1 <= hidden <= most and architecture >= 90 and enough:
        found |= {"grid"}
    return found


def covered(sizes: Sizes, one: Any, multiprocessors: int, directions: int, backward: bool) -> None:
    """All units and all rows of the batch, within what a kernel takes."""
    _, batch, hidden, element = sizes
    units, blocks, tiles, rows = one.clusters
    if one.algorithm == "cluster":
        assert hidden <= units * blocks <= (768 if element == 2 else 512)
        assert tiles in ((1,) if element == 4 or blocks == 1 else (1, 2))
        floats = FLOAT_SHAPES if backward else SPLIT_SHAPES
        most = floats[units, blocks] if element == 4 else 2 if blocks == 1 else 8 * tiles
        assert 1 <= rows <= most and (element == 4 or blocks > 1 or units in HALF_BLOCKS)
    else:
        assert one.clusters == (0, 0, 0, 0)
    if one.algorithm == "grid":
        groups = multiprocessors // grid_blocks(hidden, backward) // directions
        most = 64 if backward else 80 if element == 4 else 128
        assert one.grid_rows in range(8, most + 1, 8) and groups > 0
        # Not more than it takes in as few launches as there can be.
        launches = max(1, -(-batch // (most * groups)))
        assert one.grid_rows * groups * launches >= batch
        assert one.grid_rows == 8 or (one.grid_rows - 8) * groups * launches < batch
    else:
        assert one.grid_rows == 0


def chosen(one: Any, can: set[str], sizes: Sizes) -> None:
    """Not for very many rows, which a launch a step computes faster."""
    _, batch, hidden, _ = sizes
    many = (one.algorithm, one.reason) in MANY_ROWS
    # Of both, above H 512, the one that is expected to be faster.
    worth = {"cluster"} if "cluster" in can and hidden <= 512 else can - {"step"} or {"step"}
    why = "few rows of one step are a launch" if worth == {"warp"} else "on the chip"
    assert many or (one.algorithm in worth and why in one.reason)
    assert batch > 16 or not many


@BINDINGS
def test_every_size() -> None:
    for sizes in all_sizes():
        steps, batch, hidden, element = sizes
        for tf32, architecture, directions, backward in itertools.product(
            (False, True), ARCHITECTURES, (1, 2), (False, True)
        ):
            can = possible(sizes, 132, architecture, directions, backward)
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
            chosen(one, can, sizes)
            bounded(sizes, one.steps_per_chunk, 50 * MEGABYTE)
            assert one.transposed == (element == 4 and not tf32 and 1 < batch <= 32)
            covered(sizes, one, 132, directions, backward)


@BINDINGS
def test_every_chip() -> None:
    widths = ((33, 2), (769, 2), (33, 4), (512, 4), (513, 4))  # hidden, element
    everything = (CHIPS, ARCHITECTURES, (1, 2), (1, 17, 64, 70_000), widths, (False, True))
    for multiprocessors, architecture, directions, batch, width, backward in itertools.product(
        *everything
    ):
        sizes = (257, batch, *width)
        device = {"multiprocessors": multiprocessors, "architecture": architecture}
        one = plan(sizes, directions=directions, backward=backward, **device)
        chosen(one, possible(sizes, multiprocessors, architecture, directions, backward), sizes)
        covered(sizes, one, multiprocessors, directions, backward)


@BINDINGS
def test_huge_sizes() -> None:
    """Their products are more than 64 bits hold."""
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


NAMES = {True: "auto, cluster, grid, tiles, warp or step on CUDA", False: "auto or rows on the CPU"}


@BINDINGS
@pytest.mark.parametrize(
    ("cuda", "algorithm"), [(True, "cluster"), (True, "grid"), (True, "step"), (False, "rows")]
)
def test_forced_algorithms(cuda: bool, algorithm: str) -> None:
    for sizes in ((512, 17, 33, 2), (1, 17, 33, 2), (0, 0, 33, 2)):
        free, forced = plan(sizes, cuda), plan(sizes, cuda, forced=algorithm)
        assert forced.algorithm == algorithm and forced.reason == "asked for" != free.reason
        assert forced.steps_per_chunk == free.steps_per_chunk
        covered(sizes, forced, 132, 1, backward=False)


@BINDINGS
@pytest.mark.parametrize("cuda", [True, False])
def test_unknown_algorithms(cuda: bool) -> None:
    for wrong in ("", "Auto", "persistent", *(["rows"] if cuda else ["cluster", "tiles", "step"])):
        words = f"^recurrent_layer: algorithm must be {NAMES[cuda]}, got {wrong}($|\n)"
        with pytest.raises(RuntimeError, match=words):
            plan((512, 17, 33, 2), cuda, forced=wrong)


@BINDINGS
@pytest.mark.parametrize(("algorithm", "most"), [("cluster", 768), ("grid", 2048)])
@pytest.mark.parametrize(
    ("hidden", "element", "architecture"),
    [
        (1025, 4, 90),
        (33, 4, 80),
        (33, 8, 100),
        (33, 2, 89),
        (0, 2, 90),
        (2049, 2, 90),
        (1 << 62, 4, 75),
    ],
)
def test_algorithms_that_cannot_run(
    algorithm: str, most: int, hidden: int, element: int, architecture: int
) -> None:
    dtype = {2: "float16", 4: "float32", 8: "float64"}[element]
    exact = rf" \(or float32 up to {512 if algorithm == 'cluster' else 1024}\)"
    words = (
        f"^recurrent_layer: algorithm {algorithm} needs float16 or bfloat16, 1 <= H <= {most}"
        rf"{exact} and an sm_90 GPU, got {dtype}, H = {hidden} and sm_{architecture}($|\n)"
    )
    with pytest.raises(RuntimeError, match=words):
        plan((512, 17, hidden, element), forced=algorithm, architecture=architecture)


@BINDINGS
@pytest.mark.parametrize(("algorithm", "most"), [("cluster", 512), ("grid", 1024)])
def test_float32_in_clusters_and_in_the_grid(algorithm: str, most: int) -> None:
    for hidden in (1, most):
        assert plan((512, 17, hidden, 4), forced=algorithm).algorithm == algorithm
    with pytest.raises(RuntimeError, match=f"algorithm {algorithm} needs float16 or bfloat16"):
        plan((512, 17, most + 1, 4), forced=algorithm)


@BINDINGS
def test_a_wide_layer_takes_the_faster_of_cluster_and_grid() -> None:
    """Many rows of a width that few clusters hold at once."""
    assert plan((512, 4, 768, 2), architecture=90).algorithm == "cluster"
    assert plan((512, 128, 768, 2), architecture=90).algorithm == "grid"
    assert plan((512, 128, 512, 2), architecture=90).algorithm == "cluster"


def run(call: Call, **options: Any) -> list[Tensor]:
    leaves = call.map(lambda t: t.detach().requires_grad_())
    results = leaves.with_options(**options).run(layer)
    ones = [torch.ones_like(t) for t in results]
    return [*results, *torch.autograd.grad(results, [leaves.args[i] for i in TENSORS], ones)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [None, (3, 1)], ids=str)
def test_the_ops_argument(lengths: tuple[int, ...] | None, device: str) -> None:
    make = Make("algorithm", device, torch.float32)
    call = layer_arguments(make, (3, 2, 4, 5), directions=2, lengths=lengths)
    on_cuda = device != "cpu"
    algorithms = ["step"] if on_cuda else ["rows"]
    if on_cuda and torch.cuda.get_device_capability() >= (9, 0):
        algorithms.insert(0, "cluster")
    # The first is what auto takes.
    expected = run(call)
    for name in ("auto", algorithms[0]):
        for ours, theirs in zip(run(call, algorithm=name), expected, strict=True):
            same_bits(ours, theirs, name)
    for name in algorithms:
        torch.testing.assert_close(run(call, algorithm=name), expected, rtol=1e-5, atol=1e-5)
    for wrong in ("rows" if on_cuda else "step", "persistent"):
        words = f"^recurrent_layer: algorithm must be {NAMES[device != 'cpu']}, got {wrong}($|\n)"
        options = {"algorithm": wrong}
        for attempt in (partial(layer, *call.args, **options), partial(run, call, **options)):
            with pytest.raises(RuntimeError, match=words):
                attempt()
