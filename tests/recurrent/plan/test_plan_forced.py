"""Forced algorithms of recurrent layers, in the planner and through the op's argument."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recurrent.plan.test_plan import BINDINGS, covered, plan
from tests.recurrent.support.layer_cases import TENSORS, layer, layer_arguments
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, Call, Make

NAMES = {True: "auto, cluster, grid, tiles, warp or step on CUDA", False: "auto or rows on the CPU"}


@BINDINGS
@pytest.mark.parametrize(
    ("cuda", "algorithm"), [(True, "cluster"), (True, "grid"), (True, "step"), (False, "rows")]
)
def test_forced_algorithms(cuda: bool, algorithm: str) -> None:
    for sizes in ((512, 17, 33, 2), (1, 17, 33, 2), (0, 0, 33, 2)):
        free, forced = plan(sizes, cuda), plan(sizes, cuda, forced=algorithm)
        assert forced.algorithm == algorithm and forced.reason == "requested" != free.reason
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
@pytest.mark.parametrize("algorithm", ["cluster", "grid"])
@pytest.mark.parametrize(
    ("hidden", "element", "architecture"),
    [
        (1025, 4, 90),
        (33, 4, 75),
        (33, 8, 100),
        (33, 2, 75),
        (0, 2, 90),
        (2049, 2, 90),
        (2049, 2, 80),
        (1 << 62, 4, 75),
    ],
)
def test_algorithms_that_cannot_run(
    algorithm: str, hidden: int, element: int, architecture: int
) -> None:
    dtype = {2: "float16", 4: "float32", 8: "float64"}[element]
    # Before sm_90, a cluster is a single block.
    most = (2048, 1024) if algorithm == "grid" else (512, 512) if architecture >= 90 else (128, 128)
    if algorithm == "cluster" and architecture >= 90 and hidden % 8 == 0:
        most = (768, 512)
    dense = " (768 without packing and resets if H is a multiple of 8)" if most[0] == 512 else ""
    words = (
        f"recurrent_layer: algorithm {algorithm} needs float16 or bfloat16, 1 <= H <= {most[0]}"
        f"{dense} (or float32 up to {most[1]}) and an sm_80 GPU or a later one, got {dtype}, "
        f"H = {hidden} and sm_{architecture}"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(words)}($|\n)"):
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
    """Few clusters that are wide enough can be resident, so with many rows the grid is faster."""
    assert plan((512, 4, 768, 2), architecture=90).algorithm == "cluster"
    assert plan((512, 128, 768, 2), architecture=90).algorithm == "grid"
    assert plan((512, 128, 512, 2), architecture=90).algorithm == "grid"
    assert plan((512, 16, 512, 2), architecture=90).algorithm == "cluster"
    for element in (2, 4):
        assert plan((512, 128, 256, element), architecture=90).algorithm == "cluster"
        assert plan((512, 128, 257, element), architecture=90).algorithm == "grid"


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
    # "auto" chooses the first of these algorithms.
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
