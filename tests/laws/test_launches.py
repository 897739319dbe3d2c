"""Tests which kernels the profiler counts, and which launches launch_info reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import CELLS, EACH_CELL, batch_sizes, layer_arguments
from tests.sine_linear.cases import sine_arguments
from tests.support.forms import OUT
from tests.support.inputs import GPU, Make, on_hopper
from treadle import _build


def cell(sizes: tuple[int, int, int], device: str, dtype: torch.dtype = torch.float32) -> Any:
    return cell_arguments(Make("cell", device, dtype), sizes).args


def layer(
    sizes: tuple[int, int, int, int],
    device: str,
    dtype: torch.dtype = torch.float32,
    lengths: tuple[int, ...] | None = None,
    name: str = "lltm",
) -> tuple[Any, ...]:
    """Arguments of the op `name` (lltm or another cell) for one bidirectional layer."""
    make = Make("layer", device, dtype)
    call = layer_arguments(make, sizes, cell=name, directions=2, lengths=lengths)
    x, _, h0, c0, *parameters = call.args
    states = (h0, c0) if name in ("lltm", "lstm") else h0
    params = [p[d] for d in (0, 1) for p in parameters if p is not None]
    options = (True, 1, 0.0, False, True)
    if lengths is None:
        return x, states, params, *options, False
    return x, batch_sizes(lengths), states, params, *options


def no_bindings() -> str | None:
    try:
        _build.bindings()
    except ImportError as error:
        return f"needs treadle._C: {error}"
    return None


BINDINGS = pytest.mark.skipif(no_bindings() is not None, reason=no_bindings() or "")


def traced(call: Callable[[], Any], folder: Path) -> list[dict[str, Any]]:
    """Returns the kernels, copies and fills that the second of two calls launches, in order."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):
        torch.ones(1, device="cuda").add_(1)
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memset", "gpu_memcpy")
    return sorted((e for e in events if e.get("cat") in kinds), key=lambda e: float(e["ts"]))


def names(events: list[dict[str, Any]]) -> list[str]:
    """Returns the names of launches, except the reduction kernels of cuBLAS's split-K products."""
    return [e["name"] for e in events if not re.search("splitK.*reduce", e["name"], re.I)]


WASTE = re.compile("fill|memset|memcpy", re.I)
CASES = [
    pytest.param(sizes, dtype, id=f"{sizes}-{dtype}")
    for sizes in [(16, 32, 128), (512, 1024, 1024)]
    for dtype in (torch.float32, torch.bfloat16)
]


@GPU
@pytest.mark.parametrize(("sizes", "dtype"), CASES)
def test_kernels_of_a_cell_forward(
    sizes: tuple[int, int, int], dtype: torch.dtype, tmp_path: Path
) -> None:
    """The forward pass concatenates [old_h, input], and runs one product and the pointwise kernel,
    but no fills or copies. A float32 product may be transposed if it has few rows, and cuBLAS may
    split it."""
    arguments = cell(sizes, "cuda", dtype)
    found = names(traced(lambda: treadle.lltm_cell(*arguments), tmp_path))
    assert sum("lltm_forward" in name or "lltm_few_forward" in name for name in found) == 1, found
    exact = dtype == torch.float32
    assert len(found) <= 3 + exact, found
    wasted = [name for name in found if WASTE.search(name) or "Cat" in name]
    assert len(wasted) <= exact, found


@GPU
@pytest.mark.parametrize(("sizes", "dtype"), CASES)
def test_kernels_of_a_cell_backward(
    sizes: tuple[int, int, int], dtype: torch.dtype, tmp_path: Path
) -> None:
    """The backward pass runs one kernel of ours, at most four products for gradients, the bias's
    reduction, and at most one copy that concatenates old_h and input."""
    leaves = [t.requires_grad_() for t in cell(sizes, "cuda", dtype)]
    results = treadle.lltm_cell(*leaves)
    grads = [torch.randn_like(t) for t in results]
    found = names(
        traced(lambda: torch.autograd.grad(results, leaves, grads, retain_graph=True), tmp_path)
    )
    assert sum("lltm_backward" in name for name in found) == 1, found
    assert sum("reduce" in name for name in found) <= 2, found
    assert not [name for name in found if WASTE.search(name)], found
    assert len(found) <= 8, found


@GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [3, 64])
def test_a_sine_layer_is_one_kernel_around_its_products(
    inputs: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    make = Make("layer", "cuda", dtype)
    arguments = [t.requires_grad_() for t in sine_arguments(make, (999,), (inputs, 64)).args[:3]]
    ours = [n for n in names(traced(lambda: treadle.sine_linear(*arguments, 30.0), tmp_path))
            if "treadle" in n]  # fmt: skip
    # The kernel also computes the matrix product if there are at most 4 input features or, on
    # sm_90, in half types.
    fused = on_hopper() and inputs > 4 and dtype == torch.bfloat16
    assert len(ours) == 1 and f"sine_linear_{'fused_' * fused}forward" in ours[0], ours
    every = names(traced(lambda: treadle.sine_linear(*arguments, 30.0), tmp_path))
    assert (len(every) == 1) == (inputs <= 4 or fused), every
    y = treadle.sine_linear(*arguments, 30.0)
    grad = torch.randn_like(y)

    def backward(*leaves: torch.Tensor) -> Any:
        return torch.autograd.grad(y, leaves, grad, retain_graph=True)

    back = names(traced(lambda: backward(*arguments), tmp_path))
    ours = [name for name in back if "treadle" in name]
    if fused:
        # One kernel computes all gradients, and another adds their parts.
        assert ["sine_linear_fused_backward" in name for name in ours] == [True, False], back
        assert len(back) == 2 and "add_parts" in ours[1], back
        return
    # One kernel computes grad_z and grad_bias, and another adds grad_bias's parts.
    assert ["backward_bias" in name for name in ours] == [True, False], back
    assert "sum_parts" in ours[1] and not [n for n in back if "native::reduce_kernel" in n], back
    back = names(traced(lambda: backward(*arguments[:2]), tmp_path))
    ours = [name for name in back if "treadle" in name]
    assert len(ours) == 1 and "sine_linear_slope" in ours[0], back


@GPU
@pytest.mark.parametrize("name", OUT)
def test_an_elementwise_op_is_one_kernel(name: str, tmp_path: Path) -> None:
    x = torch.randn(100, 33, device="cuda")
    y = x.half().t()[:33].t()
    for t in (x, x.t(), x[:, ::2], x[:, :1].expand(100, 33)):
        if OUT[name].reads_y and t.shape != x.shape:
            continue
        found = names(traced(lambda: OUT[name].new(t, y), tmp_path))  # noqa: B023
        assert len(found) == 1 and "treadle" in found[0], found


def launch_calls() -> dict[str, tuple[Any, ...]]:
    x = torch.randn(1001, 65, device="cuda")
    flat = torch.randn(100_000, device="cuda", dtype=torch.float16)
    return {
        "dense": ("scale", x, 2.0),
        "misaligned": ("scale", flat[1:], 2.0),
        "half": ("sine", flat),
        "strided": ("sine", x.t()),
        "cosine": ("cosine", flat),
        "cast": ("vector_add", x, x.double()),
        "in place": ("scale_", x.clone(), 2.0),
        "sine layer": ("sine_linear", x, x[:64].clone(), x[0, :64].clone(), 30.0),
        "sine layer of halves": ("sine_linear", x.half(), x[:64].half(), None, 30.0),
        "sine layer of coordinates": ("sine_linear", x[:, :3], x[:64, :3].clone(), None, 30.0),
        "cell": ("lltm_cell", *cell((33, 17, 64), "cuda")),
        "cell of odd width": ("lltm_cell", *cell((33, 17, 65), "cuda")),
        "layer": ("lltm", *layer((3, 64, 17, 65), "cuda")),
        "layer, by steps": ("lltm", *layer((3, 64, 17, 65), "cuda", torch.float64)),
        "layer, transposed": ("lltm", *layer((1, 17, 5, 64), "cuda")),
        "layer, packed": ("lltm", *layer((0, 0, 5, 33), "cuda", torch.half, (3, 2, 2, 1))),
        "layer of LSTM": ("lstm", *layer((3, 64, 17, 65), "cuda", torch.half, name="lstm")),
        "layer of GRU": ("gru", *layer((3, 64, 17, 65), "cuda", name="gru")),
    }


@GPU
@BINDINGS
@pytest.mark.parametrize(
    "case",
    [
        *("dense", "misaligned", "half", "strided", "cosine", "cast", "in place"),
        *("sine layer", "sine layer of halves", "sine layer of coordinates"),
        *("cell", "cell of odd width"),
        *("layer", "layer, by steps", "layer, transposed", "layer, packed"),
        *("layer of LSTM", "layer of GRU"),
    ],
)
def test_launch_info_says_what_the_profiler_sees(case: str, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    op, *arguments = launch_calls()[case]

    def call() -> None:
        said[:] = treadle.launch_info(op, *arguments)

    seen = [e for e in traced(call, tmp_path) if "treadle::" in e["name"]]
    assert len(said) == len(seen) >= 1
    for launch, event in zip(said, seen, strict=True):
        # Takes the first name before < or (, without namespaces.
        kernels = [
            re.findall(r"(\w+)\s*[<(]", re.sub(r"\(anonymous namespace\)::", "", name))[0]
            for name in (launch["kernel"], event["name"])
        ]
        assert kernels[0] == kernels[1]
        facts = event["args"]
        assert list(launch["grid"]) == facts["grid"]
        assert list(launch["block"]) == facts["block"]
        assert launch["registers"] == facts["registers per thread"]
        assert launch["shared_bytes"] == facts["shared memory"]
        assert launch["local_bytes"] == 0
        assert 0 < launch["occupancy"] <= 1


@GPU
@BINDINGS
@EACH_CELL
@pytest.mark.parametrize("lengths", [None, (4, 2, 1)], ids=str)
def test_launch_info_says_how_a_layer_is_run(lengths: tuple[int, ...] | None, cell: str) -> None:
    """One block runs all steps in one launch. A packed batch first needs a launch that uploads its
    table. The algorithm `step` launches a kernel for each step of each direction. Each launch
    reports the planner's reason."""
    new_enough = torch.cuda.get_device_capability() >= (8, 0)
    none = "no algorithm keeps such weights on the chip"
    of_block = "one block keeps the weights on the chip"
    alone = "a few rows of one step take a single launch"
    for dtype, steps, reason in (
        (torch.float32, 4, of_block if new_enough else none),
        (torch.bfloat16, 4, of_block if new_enough else none),
        (torch.float64, 4, none),
        (torch.float32, 1, alone),
    ):
        reach = None if lengths is None else tuple(min(n, steps) for n in lengths)
        arguments = layer((steps, 3, 5, 8), "cuda", dtype, reach, cell)
        launches = treadle.launch_info(cell, *arguments)
        kernels = [launch["kernel"] for launch in launches]
        if reason == of_block:
            tables = [name for name in kernels if "upload_int64_table" in name]
            assert len(tables) == (lengths is not None), kernels
            layer_kernels = [name for name in kernels if name not in tables]
            assert ["block_forward" in name for name in layer_kernels] == [True], kernels
        else:
            engine = "warp_forward" if reason == alone else "recurrence_forward"
            assert [engine in name for name in kernels] == [True] * 2 * steps
        for launch in launches:
            others = "warp" if reason == alone else "step"
            assert launch["algorithm"] == ("cluster" if reason == of_block else others)
            assert launch["family"] == ("block" if reason == of_block else others)
            assert launch["reason"] == reason
    for op, *arguments in launch_calls().values():
        if op in CELLS:
            continue
        for launch in treadle.launch_info(op, *arguments):
            assert launch["family"] == launch["algorithm"] == launch["reason"] == "", op


@BINDINGS
def test_launch_info_without_a_launch() -> None:
    assert treadle.launch_info("scale", torch.ones(3), 2.0) == []
    assert treadle.launch_info(treadle.scale, torch.ones(3), 2.0) == []
    called: list[object] = []
    assert treadle.launch_info(called.append, 3) == [] and called == [3]
    assert treadle.launch_info("lltm_cell", *cell((2, 3, 4), "cpu")) == []
    for name in CELLS:
        for lengths in (None, (3, 1)):
            arguments = layer((2, 3, 4, 5), "cpu", lengths=lengths, name=name)
            assert treadle.launch_info(name, *arguments) == []
    functions = {name for name in treadle.__all__ if isfunction(getattr(treadle, name))}
    for name in functions - {"launch_info"}:
        # launch_info calls the function, which lacks its arguments.
        with pytest.raises((TypeError, RuntimeError), match=rf"{name}\(\) (is )?missing"):
            treadle.launch_info(name)
    for op in ("launch_info", "nn", "sin"):
        with pytest.raises(ValueError, match=f"launch_info: op must be one of .*, got '{op}'"):
            treadle.launch_info(op)
