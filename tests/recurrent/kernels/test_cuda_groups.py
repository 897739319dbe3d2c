"""Algorithm "step" can run several steps as one CUDA graph. Such a StepGraph gives the same bits as
separate launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tests.recurrent.layer.test_cuda_layer import runner
from tests.recurrent.support.layer_cases import layer_arguments
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import GPU, Make
from tests.support.rule import obeys

pytestmark = GPU
CELLS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
STEPS, GROUP = 70, 8  # the last six steps do not fill a StepGraph
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


# B, H. FEW: products in float32 are stored in column-major order. SOME: one chunk contains the
# input products of all steps. CHUNKS: the input products are divided into several chunks.
FEW, SOME, CHUNKS = (17, 24), (40, 24), (512, 128)


def run_of(
    cell: str, dtype: torch.dtype, steps: int = STEPS, sizes: tuple[int, int] = SOME
) -> Callable[[], list[Tensor]]:
    make = Make("groups", "cuda", dtype)
    rows, hidden = sizes
    call = layer_arguments(make, (steps, rows, 5, hidden), cell=cell, directions=2)
    return runner(call, algorithm="step")


def captured(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """The results of a graph that the caller captures, in which each step is a separate launch."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    graph.replay()
    return found


@pytest.mark.parametrize("sizes", [FEW, SOME, CHUNKS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", CELLS)
def test_a_group_computes_what_its_steps_do(
    cell: str, dtype: torch.dtype, sizes: tuple[int, int]
) -> None:
    run = run_of(cell, dtype, sizes=sizes)
    for n, (ours, theirs) in enumerate(zip(run(), captured(run), strict=True)):
        same_bits(ours, theirs, f"result {n}")


@pytest.mark.parametrize("cell", CELLS)
def test_groups_obey_the_rule(cell: str) -> None:
    make = Make("groups", "cuda", torch.float32)
    call = layer_arguments(make, (STEPS, 40, 5, 24), cell=cell, directions=2)
    obeys(OPS[f"recurrent_layer {cell}"], call.with_options(algorithm="step"))


def test_the_host_launches_groups() -> None:
    run = run_of("lstm", torch.float32)
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    made = Counter(event.name for event in seen.events())
    # There are two directions, and a forward and a backward pass.
    assert made["cudaGraphLaunch"] == 4 * (STEPS // GROUP), made
    singles = sum(count for name, count in made.items() if "aunchKernel" in name)
    assert singles < 4 * STEPS, made


def test_groups_on_streams_of_their_own() -> None:
    """Calls alternate between two streams, and may get memory that running graphs still use."""
    run = run_of("lstm", torch.float32, steps=130, sizes=(100, 24))
    expected = run()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(run())
    torch.cuda.synchronize()
    for results in found:
        for ours, theirs in zip(results, expected, strict=True):
            same_bits(ours, theirs)


def test_first_steps_read_h0_and_leave_it() -> None:
    call = layer_arguments(Make("groups", "cuda", torch.float32), (64, 40, 5, 24))
    before = [t.clone() if isinstance(t, Tensor) else t for t in call.args]
    with torch.no_grad():
        x, _, *rest = call.args
        torch.ops.treadle.recurrent_layer(x, None, *rest, cell="lltm", algorithm="step")
    for ours, theirs in zip(call.args, before, strict=True):
        if isinstance(theirs, Tensor):
            same_bits(ours, theirs)
