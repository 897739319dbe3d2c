"""In GPU calls, the host runs torch ops only to allocate results, and launches few kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import TENSORS, batch_sizes, layer_arguments
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import GPU, Call, Make
from tests.support.rule import obeys

pytestmark = GPU
CELLS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
MEMORY = {"aten::empty", "aten::empty_strided"}


def torch_ops(run: Callable[[], Any]) -> Counter[str]:
    """Counts torch's ops in a call and its backward pass."""
    run()
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU]) as seen,
    ):
        run()
    return Counter(event.name for event in seen.events() if event.name.startswith("aten::"))


def training(
    function: Callable[..., Any], call: Call, tensors: list[int]
) -> Callable[[], list[Tensor]]:
    leaves = call.map(lambda t: t.detach().requires_grad_())
    inputs = [leaves.args[i] for i in tensors if leaves.args[i] is not None]
    ones: list[Tensor] = []

    def run() -> list[Tensor]:
        results = leaves.run(function)
        if not ones:
            ones.extend(torch.randn_like(t) for t in results)
        found = torch.autograd.grad(results, inputs, ones)
        return [*(t.detach() for t in results), *found]

    return run


def layer(call: Call) -> Callable[[], list[Tensor]]:
    sizes = batch_sizes(call.args[1])

    def function(x: Tensor, _: object, *rest: Any, **options: Any) -> Any:
        return torch.ops.treadle.recurrent_layer(x, sizes, *rest, **options)

    return training(function, call, list(TENSORS))


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", CELLS)
def test_a_training_call_asks_torch_for_memory_alone(
    cell: str, dtype: torch.dtype, directions: int
) -> None:
    make = Make("host", "cuda", dtype)
    call = layer_arguments(make, (6, 16, 24, 64), cell=cell, directions=directions)
    if cell in ("lltm", "lstm") and dtype.itemsize == 2:  # a c that needs no conversion
        call = call.with_args({3: call.args[3].float()})
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of sm_90")
    found = torch_ops(layer(call))
    of_states = {"aten::select", "aten::as_strided"}  # they select a direction of a tensor
    assert set(found) <= MEMORY | of_states | {"aten::detach", "aten::view"}, found
    assert found["aten::empty"] + found["aten::empty_strided"] <= 16, found


def test_a_small_cell_is_three_launches() -> None:
    make = Make("host", "cuda", torch.float32)
    call = cell_arguments(make, (16, 32, 128))
    run = training(treadle.lltm_cell, call, [0, 1, 2, 3, 4])
    found = torch_ops(run)
    assert set(found) <= MEMORY | {"aten::detach"}, found
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    names = [e.name for e in sorted(kernels, key=lambda e: e.time_range.start)]
    wanted = ["lltm_few_forward", "lltm_backward", "lltm_few_gradients"]
    assert len(names) == 3 and all(w in n for w, n in zip(wanted, names, strict=True)), names


# B, I, H, with full and partial groups of rows, and odd numbers of columns.
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 32, 64), (9, 31, 33), (32, 40, 100)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cells_of_few_rows(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    for lead in ((), (3,)):
        for state in {dtype, torch.float32}:
            call = cell_arguments(Make("few", "cuda", dtype), sizes, cell_dtype=state, lead=lead)
            obeys(OPS["lltm_cell"], call)


# T, B, I, H, with sums over few and over many rows, and with and without a copy of h. More steps
# would amplify rounding errors of the states until some gradients exceed the rule.
@pytest.mark.parametrize("sizes", [(1, 3, 2, 9), (7, 33, 5, 40), (35, 66, 3, 240)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_parameters(
    cell: str, dtype: torch.dtype, sizes: tuple[int, int, int, int]
) -> None:
    make = Make("parameters", "cuda", dtype)
    call = layer_arguments(make, sizes, cell=cell, directions=2)
    obeys(OPS[f"recurrent_layer {cell}"], call)


def test_reduced_precision_of_sums_as_torch_says() -> None:
    """Changing torch's switch for reduced precision in sums does not affect later calls."""
    call = layer_arguments(Make("reduced", "cuda", torch.bfloat16), (64, 64, 64, 256))
    run, switch = layer(call), torch.backends.cuda.matmul
    before = switch.allow_bf16_reduced_precision_reduction
    expected = run()
    try:
        switch.allow_bf16_reduced_precision_reduction = False
        obeys(OPS["recurrent_layer lltm"], call)
    finally:
        switch.allow_bf16_reduced_precision_reduction = before
    for ours, theirs in zip(run(), expected, strict=True):
        same_bits(ours, theirs)


@pytest.mark.parametrize("layout", ["rows apart", "columns first", "one row of a batch"])
def test_inputs_as_they_lie(layout: str) -> None:
    """Products read the input without a copy if its rows form a matrix."""
    batch = 1 if layout == "one row of a batch" else 5
    call = layer_arguments(Make("layout", "cuda", torch.float32), (6, batch, 16, 24))
    x = call.args[0]
    if layout == "rows apart":
        moved = torch.cat([x, x + 1], -1)[..., :16]
    elif layout == "columns first":
        moved = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    else:  # the layout of batch_first
        moved = torch.empty(1, 6, 16, device="cuda").transpose(0, 1).copy_(x)
    assert moved.stride() != x.stride() and torch.equal(moved, x)
    obeys(OPS["recurrent_layer lltm"], call.with_args({0: moved}))
