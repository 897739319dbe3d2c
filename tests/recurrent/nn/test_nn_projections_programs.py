"""treadle.nn.LSTM with projections (proj_size) in programs: derivatives of all kinds, vmap,
autocast, compilers, single steps, CUDA graphs."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import treadle
from tests.recurrent.nn.test_nn_projections import EACH_DEVICE, B, H, I, P, T, pair, states
from tests.recurrent.nn.test_nn_rnn import close, flat
from tests.support.inputs import GPU, HALVES
from treadle.nn import Replaced, _torch_front, make_step, replace

SMALL = {"proj_size": 2, "dtype": torch.float64}


@pytest.fixture
def allow_rnn() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.fixture(params=[False, True], ids=["composed", "chosen"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test once with torch.lstm disabled, and once with the layer's own choice."""
    if not request.param:
        monkeypatch.setattr(_torch_front, "torchs_is_faster", lambda *_: False)


def call(layer: nn.LSTM) -> Any:
    """The layer as a function of a dict of its parameters, the input and the initial states."""
    return lambda p, x, hx=None: tuple(flat(functional_call(layer, p, (x, hx))))


def total(found: tuple[Tensor, ...]) -> Tensor:
    return sum((r.sin() * (n + 2)).sum() for n, r in enumerate(found))  # type: ignore[return-value]


# ---- derivatives


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.usefixtures("either_way")
def test_second_derivatives(is_packed: bool, steps: int) -> None:
    layer = treadle.nn.LSTM(2, 3, bidirectional=True, **SMALL)
    names, params = zip(*layer.named_parameters(), strict=True)
    sizes = torch.tensor([2, 1][:steps])
    shape = (int(sizes.sum()), 2) if is_packed else (steps, 2, 2)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    hx = tuple(t.requires_grad_() for t in states(layer, 2))

    def function(x: Tensor, h: Tensor, c: Tensor, *params: Tensor) -> tuple[Tensor, ...]:
        rows = PackedSequence(x, sizes) if is_packed else x
        return call(layer)(dict(zip(names, params, strict=True)), rows, (h, c))

    checks = {"atol": 1e-7, "rtol": 1e-5, "fast_mode": True}
    assert gradcheck(function, (x, *hx, *params), check_forward_ad=True, **checks)
    assert gradgradcheck(function, (x, *hx, *params), check_fwd_over_rev=True, **checks)


@pytest.mark.usefixtures("either_way")
def test_forward_mode_and_hessians_are_torchs() -> None:
    ours, theirs = pair(2, 3, proj_size=2)
    params = {name: p.detach() for name, p in ours.named_parameters()}
    x = torch.randn(2, 2, 2, dtype=torch.float64)
    moved = ({n: p.cos() for n, p in params.items()}, x.sin())
    found, expected = (jvp(call(m), (params, x), moved) for m in (ours, theirs))
    close(found, expected)
    close(*(hessian(lambda x, m=m: total(call(m)(params, x)))(x) for m in (ours, theirs)))


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("given", [False, True])
def test_an_ensemble_and_gradients_of_each_sample(given: bool) -> None:
    layers = [pair(I, H, 2, bidirectional=True)[0] for _ in range(3)]
    params, _ = stack_module_state(layers)  # type: ignore[arg-type]
    params = {name: p.detach() for name, p in params.items()}
    x = torch.randn(T, B, I, dtype=torch.float64)
    hx = states(layers[0], B) if given else None

    def loss(p: dict[str, Tensor], x: Tensor, hx: Any) -> Tensor:
        return total(call(layers[0])(p, x, hx))

    outs = vmap(call(layers[0]), (0, None, None))(params, x, hx)
    grads = vmap(grad(loss), (0, None, None))(params, x, hx)
    for n, layer in enumerate(layers):
        found = tuple(flat(layer(x, hx)))
        close(tuple(out[n] for out in outs), found)
        expected = torch.autograd.grad(total(found), list(layer.parameters()))
        close([grads[name][n] for name, _ in layer.named_parameters()], list(expected))
    own = {name: p.detach() for name, p in layers[0].named_parameters()}
    samples = vmap(grad(loss), (None, 1, 1 if given else None))(own, x, hx)
    for b in range(B):
        alone = grad(loss)(own, x[:, b], hx and tuple(t[:, b] for t in hx))
        close([samples[name][b] for name in own], [alone[name] for name in own])


@pytest.mark.usefixtures("either_way")
def test_parametrizations() -> None:
    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 2 * value

    for name in ("weight_hr_l0", "weight_hh_l1_reverse"):
        layer, _ = pair(I, H, 2, bidirectional=True)
        doubled = copy.deepcopy(layer)
        getattr(doubled, name).data.mul_(2)
        parametrize.register_parametrization(layer, name, Twice())
        x = torch.randn(T, B, I, dtype=torch.float64)
        close(flat(layer(x)), flat(doubled(x)))
        total(tuple(flat(layer(x)))).backward()
        total(tuple(flat(doubled(x)))).backward()
        original = getattr(layer.parametrizations, name).original
        close(original.grad, 2 * getattr(doubled, name).grad)


# ---- autocast


@EACH_DEVICE
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.usefixtures("either_way")
def test_autocast(dtype: torch.dtype, given: bool, device: str) -> None:
    """Results have torch's dtypes and values within half precision; gradients are float32."""
    ours, theirs = pair(I, H, 2, device=device, dtype=torch.float32)
    for steps in (1, T):
        x = torch.randn(steps, B, I, device=device)
        hx = states(ours, B) if given else None
        with torch.autocast(device, dtype):
            found, expected = flat(ours(x, hx)), flat(theirs(x, hx))
        if device == "cuda":  # on CUDA, autocast runs torch's layers in float16
            expected = [t.to(dtype) for t in expected]
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        tolerance = 8 * torch.finfo(dtype).eps
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
        grads = torch.autograd.grad(total(tuple(found)), list(ours.parameters()))
        assert all(g.dtype == torch.float32 for g in grads)
        assert all(bool(g.any()) for g in grads) or steps == 1


# ---- compilers


@pytest.mark.usefixtures("fresh_compile", "allow_rnn")
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_compiles_once_for_all_sizes(given: bool, batch_first: bool) -> None:
    layer, _ = pair(I, H, 2, bidirectional=batch_first, batch_first=batch_first)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        # No size of the first call equals a size of the layer, as the compiler could confuse them.
        for steps, rows in ((8, 9), (5, 6), (17, 2)):
            shape = (rows, steps, I) if batch_first else (steps, rows, I)
            x = torch.randn(shape, dtype=torch.float64)
            hx = states(layer, rows) if given else None
            found: list[Any] = []
            for function in (compiled, layer):
                out = tuple(flat(function(x, hx)))
                found.append([*out, *torch.autograd.grad(total(out), list(layer.parameters()))])
            close(*found)


@pytest.mark.usefixtures("fresh_compile", "allow_rnn")
def test_compiles_resets_lengths_and_packed_batches() -> None:
    layer, _ = pair(I, H, 2, bidirectional=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, hx = torch.randn(T, B, I, dtype=torch.float64), states(layer, B)
    options = {"reset": torch.rand(T, B) < 0.4, "reset_hx": states(layer, T, B)}
    options |= {"lengths": torch.tensor([4, 0, 1, 3]), "return_cells": True}
    found, expected = (function(x, hx, **options) for function in (compiled, layer))
    close(found, expected)
    rows = [torch.randn(n, I, dtype=torch.float64) for n in (2, 4, 1)]
    packed = pack_sequence(rows, enforce_sorted=False)
    close(flat(compiled(packed)), flat(layer(packed)))
    layer, _ = pair(I, H, 2)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    hx = states(layer, 3)
    close(flat(compiled(packed, hx)), flat(layer(packed, hx)))


@pytest.mark.parametrize("strict", [False, True])
def test_exports(strict: bool) -> None:
    layer = pair(I, H, 2, bidirectional=True)[0].eval()
    steps, rows = torch.export.Dim("steps", max=4096), torch.export.Dim("rows", max=4096)
    for given in (False, True):
        hx = (states(layer, B),) if given else ()
        dynamic = ({0: steps, 1: rows}, *([({1: rows}, {1: rows})] if given else []))
        x = torch.randn(T, B, I, dtype=torch.float64)
        program = torch.export.export(layer, (x, *hx), dynamic_shapes=dynamic, strict=strict)
        x = torch.randn(9, 2, I, dtype=torch.float64)
        hx = (states(layer, 2),) if given else ()
        close(flat(program.module()(x, *hx)), flat(layer(x, *hx)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traces() -> None:
    layer, _ = pair(I, H, 2)
    x, hx = torch.randn(T, B, I, dtype=torch.float64), states(layer, B)
    for given in ((), (hx,)):
        traced = torch.jit.trace(layer, (x, *given), check_trace=False)
        longer = torch.randn(9, B, I, dtype=torch.float64)
        close(flat(traced(longer, *given)), flat(layer(longer, *given)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(I, H, 2, proj_size=P)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.rnn(x)
        return output


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_replaced_layer_scripts() -> None:
    net, x = Net(), torch.randn(T, B, I)
    expected = net(x)
    assert replace(net) == Replaced(["rnn"], {})
    torch.testing.assert_close(torch.jit.script(net)(x), expected)


# ---- steps and graphs


@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("either_way")
def test_a_step_at_a_time(dtype: torch.dtype, device: str) -> None:
    layer, _ = pair(I, H, 2, device=device, dtype=dtype)
    x = torch.randn(9, B, I, device=device, dtype=torch.float64).to(dtype)
    marks = torch.rand(9, B, device=device) < 0.3
    step = make_step(layer, B)
    assert [tuple(s.shape) for s in step.state] == [(2, B, P), (2, B, H)]
    tolerance = dict.fromkeys(("rtol", "atol"), 1e-11 if dtype == torch.float64 else 0.02)
    for hx in (None, states(layer, B)):
        step.reset_all() if hx is None else step.set_state(hx)
        found = torch.stack([step(row, mark).clone() for row, mark in zip(x, marks, strict=True)])
        with torch.no_grad():
            output, last = layer(x, hx, reset=marks)
        torch.testing.assert_close(found, output, **tolerance)
        torch.testing.assert_close([s.to(dtype) for s in step.state], list(last), **tolerance)
    words = "step: h0 must have shape [num_layers, B, P] = "
    with pytest.raises(ValueError, match=re.escape(words)):
        step.set_state((step.state[1], step.state[1]))


@GPU
@pytest.mark.parametrize("given", [False, True])
def test_cuda_graphs_read_new_values(given: bool) -> None:
    """Calls never wait for the GPU, so they can be captured, even with packed batches."""
    layer, _ = pair(I, H, 2, bidirectional=True, device="cuda")
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.float64}
    x = torch.randn(T, B, I, **like)
    hx = states(layer, B) if given else None
    lengths = torch.tensor([4, 0, 1, 3], device="cuda")

    packed = PackedSequence(torch.randn(9, I, **like), torch.tensor([4, 3, 2]))

    def run() -> list[Tensor]:
        return [*flat(layer(x, hx, lengths=lengths)), *flat(layer(packed, hx))]

    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        x.normal_()
        lengths.copy_(lengths.flip(0))
        layer.weight_hr_l0.mul_(2)
        graph.replay()
        close(found, run())


def test_dtypes_under_autocast_of_lengths_and_cells() -> None:
    layer, x = treadle.nn.LSTM(I, H, 2, proj_size=P), torch.randn(T, B, I)
    with torch.autocast("cpu", torch.bfloat16):
        _, (h, _) = layer(x, states(layer, B), lengths=torch.tensor([T, 1, 0, T][:B]))
        _, (_, c), cells = layer(x, return_cells=True)
    assert h.dtype == torch.bfloat16 and c.dtype == cells.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
def test_a_packed_batch_with_states_is_not_traced() -> None:
    layer, x = treadle.nn.LSTM(I, H, proj_size=P), torch.randn(T, B, I)

    def run(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([T] * B))
        return layer(packed, (h, c))[0].data  # type: ignore[no-any-return]

    with pytest.raises(RuntimeError, match="must be traced with a padded input and lengths="):
        torch.jit.trace(run, (x, *states(layer, B)), check_trace=False)
