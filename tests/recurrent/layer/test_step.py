"""A call of recurrent_layer with many steps gives the same bits as one call per step, although it
computes the input products of a whole chunk of steps at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.recurrent.plan.test_plan import BINDINGS
from tests.recurrent.support.layer_cases import layer_arguments
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, FLOATING, GPU, Call, Make
from treadle import _build, reference

ROWS = (0, 1, 2, 13, 14, 15, 30, 31)  # some rows of a batch, in order


def plan_of(device: str, batch: int, hidden: int, dtype: torch.dtype) -> Any:
    """The plan for a very long sequence."""
    cuda = device == "cuda"
    properties = torch.cuda.get_device_properties(0) if cuda else None
    return _build.bindings().plan_recurrence(
        *("lltm", 1 << 40, batch, hidden, dtype.itemsize),
        cuda=cuda,
        multiprocessors=properties.multi_processor_count if properties else 0,
        l2_bytes=properties.L2_cache_size if properties else 32 << 20,
        tf32=False,
        forced="auto",
    )


def steps_of(device: str, batch: int, hidden: int, dtype: torch.dtype) -> int:
    """The number of steps in two chunks and a remainder. For a batch of only the rows in ROWS, all
    these steps are one chunk."""
    chunk, whole = (
        plan_of(device, rows, hidden, dtype).steps_per_chunk for rows in (batch, len(ROWS))
    )
    assert 1 < chunk < 100 and 2 * chunk + 3 <= whole
    return int(2 * chunk + 3)


def run(call: Call, lengths: Tensor | None) -> list[Tensor]:
    """Results, and the gradients of arguments with rows. Sequences are padded to [T, B, ...] with
    0."""
    leaves = call.map(lambda t: t.detach().requires_grad_())
    x, _, *rest = leaves.args
    sizes, data = None, x
    if lengths is not None:
        data, sizes, *_ = pack_padded_sequence(x, lengths)
    output, h_n, c_n = torch.ops.treadle.recurrent_layer(data, sizes, *rest, **call.kwargs)
    if sizes is not None:
        output, _ = pad_packed_sequence(PackedSequence(output, sizes), total_length=len(x))
    total = sum((t * t).sum() for t in (output, h_n, c_n))
    return [output, h_n, c_n, *torch.autograd.grad(total, [x, *rest[:2]])]


def rows_alone(call: Call, lengths: Tensor | None, rtol: float, atol: float) -> None:
    """Compares rows of a large batch, computed in chunks, with the same rows in a small batch,
    computed in one chunk."""
    where = list(ROWS)
    some = call.with_args({i: call.args[i][:, where] for i in (0, 2, 3)})
    expected = run(some, None if lengths is None else lengths[where])
    for ours, theirs in zip(run(call, lengths), expected, strict=True):
        torch.testing.assert_close(ours[:, where], theirs, rtol=rtol, atol=atol)
    assert all(t.any() for t in expected)


def lengths_of(form: str, steps: int, batch: int) -> Tensor | None:
    """Only few rows reach the last chunk, and some rows end in each of the other chunks."""
    if form == "dense":
        return None
    last = [steps, steps, steps - 2, *[steps - 5] * 17]
    return torch.tensor([*last, *[3] * (batch - len(last))])


@BINDINGS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_chunks_of_steps(form: str, device: str) -> None:
    batch, hidden, make = 1024, 16, Make("chunks", device, torch.float64)
    steps = steps_of(device, batch, hidden, torch.float64)
    call = layer_arguments(make, (steps, batch, 3, hidden), directions=2)
    rows_alone(call, lengths_of(form, steps, batch), 1e-11, 1e-11)


@BINDINGS
def test_chunks_of_few_rows() -> None:
    """On a CPU, steps of many rows compute their products with the input themselves, so only calls
    with few rows have chunks."""
    batch, hidden = 4, 512
    chunk = plan_of("cpu", batch, hidden, torch.float64).steps_per_chunk
    call = layer_arguments(Make("few", "cpu", torch.float64), (2 * chunk + 3, batch, 3, hidden))
    x, _, h, c, *parameters = call.args
    output, h_n, c_n = torch.ops.treadle.recurrent_layer(x, None, h, c, *parameters, **call.kwargs)
    for part, expected in zip(x.split(300), output.split(300), strict=True):
        args = (part, None, h, c, *parameters)
        found, h, c = torch.ops.treadle.recurrent_layer(*args, **call.kwargs)
        same_bits(expected, found)
    same_bits(h_n, h)
    same_bits(c_n, c)


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_sequence_is_its_steps_to_the_bit(dtype: torch.dtype) -> None:
    """Within a call and between calls, a step passes the same states to the next one: h is rounded,
    c is not."""
    state = torch.promote_types(dtype, torch.float32)
    call = layer_arguments(Make("steps", "cpu", dtype), (9, 11, 21, 33), state=state)
    x, _, h, c, *parameters = call.args
    output, h_n, c_n = torch.ops.treadle.recurrent_layer(x, None, h, c, *parameters, **call.kwargs)
    for n, row in enumerate(x.split(1)):
        one, h, c = torch.ops.treadle.recurrent_layer(row, None, h, c, *parameters, **call.kwargs)
        same_bits(output[n], one[0], f"step {n}")
    same_bits(h_n, h)
    same_bits(c_n, c)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(1,), (2, 1), (1, 1, 0)], ids=str)
def test_rows_without_a_step(sizes: tuple[int, ...], device: str) -> None:
    """States of rows without steps stay unchanged. A single row gives a product whose strides are
    both 1."""
    make = Make("one row", device, torch.float32)
    call = layer_arguments(make, (sum(sizes), 3, 5, 4), directions=2)
    x, _, h0, c0, *parameters, bias_hh = call.args
    given, steps = (x[:, 0], h0, c0, *parameters), torch.tensor(sizes)
    found = []
    for function in (torch.ops.treadle.recurrent_layer, reference.recurrent_layer):
        data, *rest = (t.detach().requires_grad_() for t in given)
        results = function(data, steps, *rest, bias_hh, **call.kwargs)
        ones = [torch.ones_like(t) for t in results]
        found.append([*results, *torch.autograd.grad(results, [data, *rest], ones)])
    torch.testing.assert_close(*found)
    _, h_n, c_n, *_ = found[0]
    assert torch.equal(h_n[:, sizes[0] :], h0[:, sizes[0] :])
    assert torch.equal(c_n[:, sizes[0] :], c0[:, sizes[0] :])


@GPU
@BINDINGS
@pytest.mark.parametrize("form", ["dense", "packed"])
def test_chunks_of_transposed_steps_on_cuda(form: str) -> None:
    batch, hidden, make = 32, 1024, Make("chunks", "cuda", torch.float32)
    assert plan_of("cuda", batch, hidden, torch.float32).transposed
    steps = steps_of("cuda", batch, hidden, torch.float32)
    call = layer_arguments(make, (steps, batch, 3, hidden), directions=2)
    # With small recurrent weights, rounding differences between batch sizes decay.
    call.args[5].mul_(0.1)
    rows_alone(call, lengths_of(form, steps, batch), 1e-3, 1e-4)
