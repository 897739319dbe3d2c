"""Rows of variable length under vmap, torch.compile, torch.export and in CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import EACH_CELL, TRACED_CELLS
from tests.recurrent.support.length_calls import (
    BOTH_WAYS,
    EACH_DEVICE,
    INPUTS,
    MARKS,
    B,
    Given,
    H,
    T,
    lengths,
)
from tests.support.compare import same_bits
from tests.support.inputs import GPU


@EACH_DEVICE
@BOTH_WAYS
@EACH_CELL
def test_lengths_may_differ_between_samples_of_vmap(
    cell: str, bidirectional: bool, device: str
) -> None:
    given = Given(cell, bidirectional, device=device)
    several = torch.stack([lengths(device), lengths(device).flip(0), 7 - lengths(device)])
    found = torch.func.vmap(lambda steps: given.run(lengths=steps))(several)
    for one, *each in zip(found, *(given.run(lengths=steps) for steps in several), strict=True):
        torch.testing.assert_close(one, torch.stack(each))

    def loss(x: Tensor, steps: Tensor) -> Tensor:
        results = given.run([x, *given.tensors()[1:]], lengths=steps)
        return torch.stack([t.sin().sum() for t in results]).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(given.x, several)
    each = [torch.func.grad(loss)(given.x, steps) for steps in several]
    torch.testing.assert_close(per_sample, torch.stack(each))


@EACH_DEVICE
@BOTH_WAYS
@pytest.mark.parametrize("cell", TRACED_CELLS)
def test_compiled_for_any_size(cell: str, bidirectional: bool, device: str) -> None:
    given = Given(cell, bidirectional, device=device, dtype=torch.float32)

    def call(x: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        states = [x.new_zeros(len(s), x.shape[1], H) for s in given.states]
        return given.run([x, *states, *given.params], lengths=steps)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for t, b in ((T, B), (4, 3)):
        x = given.x[:t, :b].clone().requires_grad_()
        steps = lengths(device)[:b]
        found, expected = compiled(x, steps), call(x, steps)
        for one, other in zip(found, expected, strict=True):
            same_bits(one, other)
        losses = [torch.stack([r.sum() for r in results]).sum() for results in (found, expected)]
        same_bits(*(torch.autograd.grad(loss, x)[0] for loss in losses))


@EACH_DEVICE
@pytest.mark.parametrize("kind", ["LLTM", "LSTM", "GRU"])
def test_exported_modules(kind: str, device: str) -> None:
    net = getattr(treadle.nn, kind)(INPUTS, H, num_layers=2, bidirectional=True, device=device)
    x = torch.randn(T, B, INPUTS, device=device)
    given = {"lengths": lengths(device)}
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"input": {1: rows}, "hx": None, "lengths": {0: rows}}
    program = torch.export.export(net, (x, None), given, dynamic_shapes=shapes)
    few = x[:, :3], {"lengths": lengths(device)[:3]}
    found, expected = program.module()(few[0], None, **few[1]), net(few[0], None, **few[1])
    torch.testing.assert_close(found, expected)


@GPU
@BOTH_WAYS
@EACH_CELL
def test_a_captured_graph_reads_new_lengths_on_cuda(cell: str, bidirectional: bool) -> None:
    given, steps = Given(cell, bidirectional, 2, "cuda", torch.float32), lengths("cuda")
    leaves = [t.requires_grad_() for t in given.tensors()]

    def call() -> list[Tensor]:
        results = given.run(leaves, lengths=steps)
        return [*results, *torch.autograd.grad([r.sum() for r in results], leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    for new in (lengths("cuda").flip(0), lengths("cuda")):
        steps.copy_(new)
        graph.replay()
        for one, other in zip(found, call(), strict=True):
            same_bits(one, other)


@GPU
@BOTH_WAYS
@EACH_CELL
def test_the_host_waits_for_nothing_on_cuda(cell: str, bidirectional: bool) -> None:
    given, steps = Given(cell, bidirectional, 2, "cuda", torch.float32), lengths("cuda")
    leaves = [t.requires_grad_() for t in given.tensors()]
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = given.run(leaves, lengths=steps, reset=MARKS.to("cuda", non_blocking=True))
        torch.autograd.grad([r.sum() for r in results], leaves)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
