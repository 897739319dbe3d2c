"""Tests streams, CUDA graphs, a second GPU, and more rows than a grid dimension allows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import CELLS, layer, layer_arguments
from tests.sine_linear.cases import sine_arguments
from tests.support import graphs, installed
from tests.support.compare import same_bits
from tests.support.forms import INPLACE, NEW, OUT
from tests.support.inputs import GPU, Make
from treadle import _build

pytestmark = GPU
Tensors = tuple[Tensor, ...]
Step = Callable[..., Tensors]


def elementwise_arguments(device: str) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1000, 7, generator=generator).to(device) for _ in range(2))


def written(function: Callable[..., Any]) -> Step:
    def step(*arguments: Tensor) -> Tensors:
        target = torch.empty_like(arguments[0]).copy_(arguments[0])
        function(target, *arguments[1:])
        return (target,)

    return step


def with_gradients(function: Callable[..., Any]) -> Step:
    def step(*arguments: Tensor) -> Tensors:
        leaves = [t.detach().requires_grad_() for t in arguments]
        results = function(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        grads = torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results])
        return *(t.detach() for t in results), *grads

    return step


# The sizes and options with which layer_arguments is called for each name. "few rows" is a case
# of its own, because the algorithm `step` transposes products with few rows.
LAYERS: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {}
for _cell in CELLS:
    _both: dict[str, Any] = {"cell": _cell, "directions": 2}
    LAYERS |= {
        f"recurrent_layer {_cell}": ((5, 33, 7, 65), _both),
        f"recurrent_layer {_cell}, few rows": ((5, 17, 7, 65), _both),
        f"recurrent_layer {_cell}, packed": ((0, 0, 7, 33), {**_both, "lengths": (5, 3, 3, 1)}),
    }


def run_layer(name: str, **options: Any) -> Step:
    given = LAYERS[name][1]
    lengths, cell = given.get("lengths"), given["cell"]
    return with_gradients(lambda x, *rest: layer(x, lengths, *rest, cell=cell, **options))


def elementwise_calls() -> dict[str, tuple[Step, int]]:
    found: dict[str, tuple[Step, int]] = {}
    for name, form in NEW.items():
        count = 2 if form.reads_y else 1
        found[name] = with_gradients(lambda x, y=None, f=form: f.new(x, y)), count
        if count == 1:
            strided = with_gradients(lambda x, f=form: f.new(x.t()[1:, ::3], x))
            found[f"{name}, strided"] = strided, 1
    for name, form in INPLACE.items():
        found[name] = written(lambda x, y, f=form: f.inplace(x, y)), 2
    for name, form in OUT.items():
        found[f"{name} out="] = written(lambda out, x, f=form: f.out(x, x, out)), 2
    return found


# The function for each name, and its number of arguments. Elementwise ops have 1 or 2, a sine layer
# 3, a cell 5 and a recurrent layer 6.
CALLS: dict[str, tuple[Step, int]] = {
    **elementwise_calls(),
    "sine_linear": (with_gradients(lambda x, w, b: treadle.sine_linear(x, w, b, 30.0)), 3),
    "sine_linear of coordinates": (
        with_gradients(lambda x, w, b: treadle.sine_linear(x, w, b, 30.0)),
        3,
    ),
    "sine_linear of bfloat16": (
        with_gradients(lambda x, w, b: treadle.sine_linear(x, w, b, 30.0)),
        3,
    ),
    **{
        name: (
            with_gradients(lambda x, w, b: treadle.sine_linear_jet(x, w, b, 30.0, 2, "laplacian")),
            3,
        )
        for name in ("sine_linear_jet", "sine_linear_jet of bfloat16")
    },
    "lltm_cell": (with_gradients(treadle.lltm_cell), 5),
    "affine_scan": (
        with_gradients(
            lambda x, y: torch.ops.treadle.affine_scan(x[..., None], y[..., None], y[0, :, None])
        ),
        2,
    ),
    **{name: (run_layer(name), 6) for name in LAYERS},
    **{f"{name}, recompute": (run_layer(name, recompute=True), 6) for name in LAYERS},
    **{f"{name}, by steps": (run_layer(name, algorithm="step"), 6) for name in LAYERS},
}


def arguments_of(name: str, device: str = "cuda") -> Tensors:
    count = CALLS[name][1]
    if count == 6:
        sizes, options = LAYERS[name.removesuffix(", recompute").removesuffix(", by steps")]
        call = layer_arguments(Make(name, device, torch.float32), sizes, **options)
        return tuple(t for t in call.args if isinstance(t, Tensor))
    if count == 3:
        half = "bfloat16" in name  # with sizes that a fused kernel supports on sm_90
        make = Make(name, device, torch.bfloat16 if half else torch.float32)
        widths = (64, 96) if half else (3 if "coordinates" in name else 33, 65)
        lead = (4, 250) if "jet" in name else (1000,)
        return sine_arguments(make, lead, widths).args[:3]
    if count == 5:
        return cell_arguments(Make(name, device, torch.float32), (33, 17, 65)).args
    return elementwise_arguments(device)[:count]


@pytest.mark.parametrize("name", CALLS)
def test_graph_capture(name: str) -> None:
    """Captures forward and backward, then replays them on other values."""
    step, arguments = CALLS[name][0], arguments_of(name)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(*arguments)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(*arguments)
    for factor in (0.5, -2.0):
        for t in arguments:
            t.mul_(factor)
        graph.replay()
        replayed = [t.clone() for t in results]
        for ours, eager in zip(replayed, step(*arguments), strict=True):
            same_bits(ours, eager)


FIRST_CALLS = """
import torch, treadle
x = torch.randn(1000, 7, device="cuda")
# Initializes torch's cuBLAS handle and autograd threads. None of our kernels has run yet.
w = torch.randn(7, 7, device="cuda", requires_grad=True)
(x @ w).sum().backward()
h, weights = x[:, :3].clone(), torch.randn(9, 10, device="cuda")
x @ weights[:, 3:].t()
h @ weights[:, :3].t()
torch.cuda.synchronize()
calls = {
    "vector_add": lambda: (treadle.vector_add(x, x), x + x),
    "scale": lambda: (treadle.scale(x, 3), x * 3),
    "strided": lambda: (treadle.scale(x.t(), 3), x.t() * 3),
    "cast": lambda: (treadle.vector_add(x, x.half()), x + x.half()),
    "sine": lambda: (treadle.sine(x), torch.sin(x)),
    "cosine": lambda: (treadle.cosine(x), torch.cos(x)),
    "sine_linear": lambda: (treadle.sine_linear(x, w, None, 3), torch.sin(3 * (x @ w.t()))),
    "coordinates": lambda: (treadle.sine_linear(h, weights[:, :3], None, 3),
                            torch.sin(3 * (h @ weights[:, :3].t()))),
    "lltm_cell": lambda: (treadle.lltm_cell(x, weights, None, h, h)[1],
                          treadle.reference.lltm_cell(x, weights, None, h, h)[1]),
}
for name, call in calls.items():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours, theirs = call()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(ours, theirs, msg=lambda text: f"{name}: {text}")
"""


@pytest.mark.timeout(300)
def test_graph_capture_as_the_first_call_of_all() -> None:
    done = installed.python("-c", FIRST_CALLS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CALLS)
def test_runs_on_the_current_stream(name: str) -> None:
    """Ops run after a long wait on a side stream; on any other stream they would read old
    values."""
    step, fresh = CALLS[name][0], arguments_of(name)
    expected = step(*fresh)
    arguments = [torch.zeros_like(t) for t in fresh]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        for t, value in zip(arguments, fresh, strict=True):
            t.copy_(value)
        results = step(*arguments)
    side.synchronize()
    for ours, plain in zip(results, expected, strict=True):
        same_bits(ours, plain)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", CALLS)
def test_the_tensors_decide_the_device(name: str) -> None:
    step = CALLS[name][0]
    expected = step(*arguments_of(name, "cuda:0"))
    results = step(*arguments_of(name, "cuda:1"))
    assert torch.cuda.current_device() == 0
    for ours, plain in zip(results, expected, strict=True):
        assert ours.device == torch.device("cuda:1")
        torch.testing.assert_close(ours.cpu(), plain.cpu())


def test_more_cells_and_rows_than_a_grid_dimension_counts() -> None:
    """Runs forward and backward passes with N or B above 65,535."""
    b, i, h = 2, 3, 4
    for lead, rows in ((70_000, b), (1, 200_000)):
        shapes = [(rows, i), (3 * h, h + i), (3 * h,), (rows, h), (rows, h)]
        torch.manual_seed(0)
        arguments = [torch.randn(lead, *shape, dtype=torch.float64) for shape in shapes]
        step = CALLS["lltm_cell"][0]
        for ours, plain in zip(step(*(t.cuda() for t in arguments)), step(*arguments), strict=True):
            torch.testing.assert_close(ours.cpu(), plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1 << 10, 1 << 16, 1 << 19])
def test_kernels_that_overlap_wait_for_each_other(size: int) -> None:
    """Each kernel reads the whole output of the previous one. All of them are queued while another
    kernel sleeps."""
    links = 300
    x, one = torch.zeros(size, device="cuda"), torch.ones(size, device="cuda")
    treadle.vector_add_(x, one)
    treadle.scale_(x, 0)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)
    for _ in range(links):
        treadle.vector_add_(x, one)
    found = treadle.scale(x, 2)
    assert bool(found.eq(2 * links).all())


def test_launches_overlap_where_the_gpu_can() -> None:
    """A library built for many GPUs decides at the launch whether kernels may overlap."""
    x, one = torch.zeros(10_000, device="cuda"), torch.ones(10_000, device="cuda")
    graph = graphs.captured(lambda: treadle.vector_add_(x, one), 5)
    newest = max(float(arch) for arch in re.findall(r"\d+\.\d", _build.kernels_info()["archs"]))
    can = torch.cuda.get_device_capability() >= (9, 0) and newest >= 9
    assert graphs.overlaps(graph) == [can] * 4
    graphs.keep_apart(graph)
    assert graphs.overlaps(graph) == [False] * 4
    x.zero_()
    graph.replay()
    assert bool(x.eq(5).all())
