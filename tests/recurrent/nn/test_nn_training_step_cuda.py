"""treadle.nn.make_training_step on a GPU: work of the host, streams, memory, failed captures."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recurrent.support.training_cases import T, grads_of, looped, made, same
from tests.support.inputs import GPU
from treadle.nn import make_training_step


@GPU
def test_a_call_is_one_graph_on_cuda() -> None:
    """The host runs no op of the function in either pass."""
    net, x, h = made("cuda")
    step = make_training_step(net, (x[0], h))
    step(x[0], h)[1].sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        step(x[0], h)[1].sum().backward()
    names = {event.name for event in profiled.events() if event.name.startswith(("aten", "tread"))}
    assert any("copy" in name for name in names), names
    assert not any("mm" in name or "gru" in name or "treadle" in name for name in names), names


@GPU
def test_streams_take_turns_on_cuda() -> None:
    """Each call runs on another stream and must wait for the previous call, which is kept busy."""
    net, x, h = made("cuda")
    step = make_training_step(net, (x[0], h), calls=T)
    streams = [torch.cuda.Stream() for _ in range(3)]
    expected = torch.stack(looped(net, x, h)).square().sum()
    torch.cuda.synchronize()
    outputs, state = [], h
    for t in range(T):
        last, now = streams[(t - 1) % 3], streams[t % 3]
        now.wait_stream(last)
        with torch.cuda.stream(now):
            torch.cuda._sleep(200_000)
            state, y = step(x[t], state)
            outputs.append(y)
    torch.cuda.synchronize()
    loss = torch.stack(outputs).square().sum()
    same(grads_of(loss, net, h), grads_of(expected, net, h))


@GPU
def test_slots_share_memory_on_cuda() -> None:
    """All slots share the memory of the parameters' gradients and of tensors that are used only
    within a pass."""
    memory = []
    for calls in (1, 9):
        layer = nn.Linear(2048, 2048, device="cuda")
        x = torch.zeros(4, 2048, device="cuda")
        before = torch.cuda.memory_reserved()
        step = make_training_step(layer, (x,), calls=calls)
        step(x).sum().backward()
        memory.append(torch.cuda.memory_reserved() - before)
        del step, layer
        torch.cuda.empty_cache()
    assert memory[1] - memory[0] < 2 * 2**24  # a weight has 2**24 bytes


@GPU
def test_a_function_that_waits_on_cuda() -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="^make_training_step: CUDA graphs must be able to"):
        make_training_step(lambda t: t * t.sum().item(), (x,))
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.testing.assert_close(make_training_step(lambda t: t * 2, (x,))(x), x * 2)


@GPU
def test_garbage_is_kept_while_a_graph_is_captured_on_cuda() -> None:
    """Destroying a CUDA graph during the capture of another one would make the capture fail."""
    net, x, h = made("cuda")
    unused = torch.cuda.CUDAGraph()
    with torch.cuda.graph(unused):
        torch.zeros(1, device="cuda")
    kept = [unused]
    del unused

    def run(row: Tensor, h: Tensor) -> Any:
        if torch.cuda.is_current_stream_capturing() and kept:
            cycle: list[Any] = [kept.pop()]
            cycle.append(cycle)
            del cycle
            assert len([[] for _ in range(1000)]) == 1000  # triggers the garbage collector
        return net(row, h)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        step = make_training_step(run, (x[0], h))
    finally:
        gc.set_threshold(*before)
    assert not kept and gc.isenabled()
    same(list(step(x[0], h)), list(net(x[0], h)))
