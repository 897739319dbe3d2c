"""treadle.nn.LSTM with projections as a module and in programs: names, errors, derivatives,
autocast, compilers, single steps, replace."""

from __future__ import annotations

import copy
import io
import pickle
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
from tests.recurrent.nn.test_nn_projections import EACH_DEVICE, FORMS, B, H, I, P, T, pair, states
from tests.recurrent.nn.test_nn_rnn import close, flat, results
from tests.support.compare import attempt
from tests.support.inputs import GPU, HALVES
from treadle.nn import Replaced, _torch_front, make_step, replace, restore

SMALL = {"proj_size": 2, "dtype": torch.float64}


@pytest.fixture
def allow_rnn() -> Iterator[None]:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.fixture(params=[False, True], ids=["composed", "chosen"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once without torch's op, and once with the way that is chosen."""
    if not request.param:
        monkeypatch.setattr(_torch_front, "torchs_is_faster", lambda *_: False)


def call(layer: nn.LSTM) -> Any:
    """The layer as a function of its parameters, by name, of input and of states."""
    return lambda p, x, hx=None: tuple(flat(functional_call(layer, p, (x, hx))))


def total(found: tuple[Tensor, ...]) -> Tensor:
    return sum((r.sin() * (n + 2)).sum() for n, r in enumerate(found))  # type: ignore[return-value]


# ---- the module


@FORMS
def test_is_torchs_module(form: dict[str, Any]) -> None:
    made = []
    for kind in (treadle.nn.LSTM, nn.LSTM):
        torch.manual_seed(2)
        made.append(kind(I, H, **form, proj_size=P))
    ours, theirs = made
    assert isinstance(ours, nn.LSTM) and repr(ours) == repr(theirs)
    pairs = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, p), (other, q) in pairs:
        assert name == other and torch.equal(p, q)
    assert [len(w) for w in ours.all_weights] == [len(w) for w in theirs.all_weights]
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(T, B, I)
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))


def test_positional_and_numpys_sizes() -> None:
    import numpy as np

    for layer in (
        treadle.nn.LSTM(I, H, 1, True, False, 0.0, False, P),
        treadle.nn.LSTM(I, H, proj_size=np.int64(P)),
    ):
        assert layer.weight_hr_l0.shape == (P, H) and type(layer.proj_size) is int


@pytest.mark.parametrize("size", [H, H + 1, -1, "a", 2.0, None])
def test_sizes_that_torch_refuses(size: Any) -> None:
    ours, theirs = (
        attempt(lambda cls=cls: cls(I, H, proj_size=size))[1] for cls in (treadle.nn.LSTM, nn.LSTM)
    )
    assert isinstance(ours, type(theirs)) and theirs is not None
    if isinstance(size, int):
        assert str(ours) == str(theirs)


def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


X, H0, C0 = zeros(T, B, I), zeros(1, B, P), zeros(1, B, H)
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "features": ((zeros(T, B, 7),), "LSTM: input must have shape [T, B, I] or [T, I] with I = 5"),
    "float64 input": ((X.double(),), "LSTM: input must have the dtype of the parameters, float32"),
    "h0 of size H": (
        (X, (C0, C0)),
        "LSTM: h0 must have shape [num_layers * D, B, P] = [1, 4, 3], got [1, 4, 7]",
    ),
    "c0 of size P": (
        (X, (H0, H0)),
        "LSTM: c0 must have shape [num_layers * D, B, H] = [1, 4, 7], got [1, 4, 3]",
    ),
    "batch of h0": ((X, (zeros(1, 7, P), C0)), "LSTM: h0 must have shape [num_layers * D, B, P] = "),
    "h0 without a batch": (
        (X, (zeros(1, P), zeros(1, H))),
        "LSTM: h0 must have shape [num_layers * D, B, P] = [1, 4, 3], got [1, 3]",
    ),
    "one tensor": ((X, H0), "LSTM: hx must be a pair of tensors (h0, c0), got Tensor"),
    "one tensor [2, ...]": (
        (X, zeros(2, 1, B, P)),
        "LSTM: hx must be a pair of tensors (h0, c0), got Tensor",
    ),
    "one tensor [2, ..., H]": (
        (X, zeros(2, 1, B, H)),
        "LSTM: hx must be a pair of tensors (h0, c0), got Tensor",
    ),
    "float64 h0": ((X, (H0.double(), C0)), "lstm: h0 must have the dtype of input, float32, got "),
    "float64 c0": ((X, (H0, C0.double())), "lstm: c0 must have the dtype of input, float32"),
    "bfloat16 h0": ((X, (H0.bfloat16(), C0)), "lstm: h0 must have the dtype of input, float32"),
}


@pytest.mark.parametrize("case", CALLS)
def test_errors_are_torchs(case: str) -> None:
    args, words = CALLS[case]
    for steps in (T, 1):
        given = (args[0][:steps], *args[1:])
        ours, theirs = (
            attempt(lambda c=cls, g=given: c(I, H, proj_size=P)(*g))[1]
            for cls in (treadle.nn.LSTM, nn.LSTM)
        )
        assert isinstance(ours, type(theirs)) and theirs is not None, (ours, theirs)
        assert str(ours).startswith(words), ours


MARKS = torch.zeros(T, B, dtype=torch.bool)
RESETS: dict[str, tuple[dict[str, Any], str]] = {
    "marks of another batch": (
        {"reset": MARKS[:, :2]},
        "lstm: reset must have shape [T, B] = [4, 4], got [4, 2]",
    ),
    "marks of one step": (
        {"reset": MARKS[0]},
        "lstm: reset must have shape [T, B] = [4, 4], got [4]",
    ),
    "batch_first": (
        {"reset": MARKS[:, :2], "batch_first": True},
        "lstm: reset must have shape [B, T] = [4, 4], got [4, 2]",
    ),
    "float marks": (
        {"reset": MARKS.float()},
        "lstm: reset must have dtype bool, got float32: call reset.bool()",
    ),
    "reset_h of size H": (
        {"reset": MARKS, "reset_hx": (C0, C0)},
        "lstm: reset_hx[0] must have shape [L*D, B, P] = [1, 4, 3], or with one for each step "
        "[1, 4, 4, 3], got [1, 4, 7]",
    ),
    "reset_c of size P": (
        {"reset": MARKS, "reset_hx": (H0, H0)},
        "lstm: reset_hx[1] must have shape [L*D, B, H] = [1, 4, 7], or with one for each step "
        "[1, 4, 4, 7], got [1, 4, 3]",
    ),
    "float64 reset_h": (
        {"reset": MARKS, "reset_hx": (H0.double(), C0)},
        "lstm: reset_hx[0] must have the dtype of input, float32, got float64",
    ),
}


@pytest.mark.parametrize("case", RESETS)
def test_errors_of_resets(case: str) -> None:
    options, words = RESETS[case]
    options = dict(options)
    layer = treadle.nn.LSTM(I, H, proj_size=P, batch_first=options.pop("batch_first", False))
    with pytest.raises(RuntimeError, match=f"^{re.escape(words)}$"):
        layer(X, **options)


def test_copies_and_files_keep_everything() -> None:
    layer, _ = pair(I, H, 2, bidirectional=True)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded, _ = pair(I, H, 2, bidirectional=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(T, B, I, dtype=torch.float64)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert type(other) is type(layer) and repr(other) == repr(layer)
        assert all(map(torch.equal, flat(other(x)), flat(layer(x))))


def test_another_cells_state_dict() -> None:
    gru = nn.GRU(I, H)
    with pytest.raises(RuntimeError, match="LSTM: the state dict must be an LSTM's, got a GRU's"):
        treadle.nn.LSTM(I, H, proj_size=P).load_state_dict(gru.state_dict())


def test_meta_device() -> None:
    layer = treadle.nn.LSTM(I, H, 2, bidirectional=True, proj_size=P, device="meta")
    for steps in (0, 1, T):
        output, (h_n, c_n) = layer(torch.empty(steps, B, I, device="meta"))
        assert output.is_meta and output.shape == (steps, B, 2 * P)
        assert (h_n.shape, c_n.shape) == ((4, B, P), (4, B, H))


@EACH_DEVICE
def test_recompute(device: str) -> None:
    ours, theirs = pair(I, H, 2, bidirectional=True, device=device)
    ours.recompute = True
    x = torch.randn(T, B, I, dtype=torch.float64, device=device)
    close(results(ours, x, None), results(theirs, x, None))


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
    """torch's dtypes, and values as close as half precision is; gradients in float32."""
    ours, theirs = pair(I, H, 2, device=device, dtype=torch.float32)
    for steps in (1, T):
        x = torch.randn(steps, B, I, device=device)
        hx = states(ours, B) if given else None
        with torch.autocast(device, dtype):
            found, expected = flat(ours(x, hx)), flat(theirs(x, hx))
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
        # No size of the first call equals one of the layer's, which the compiler would take it for.
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
    one, _ = pair(I, H, 2)
    hx = states(one, 3)
    close(flat(torch.compile(one, backend="aot_eager", fullgraph=True)(packed, hx)), flat(one(packed, hx)))


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


# ---- steps, replace


@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("either_way")
def test_a_step_at_a_time(dtype: torch.dtype, device: str) -> None:
    layer, _ = pair(I, H, 2, device=device, dtype=dtype)
    x = torch.randn(9, B, I, device=device, dtype=torch.float64).to(dtype)
    marks = torch.rand(9, B, device=device) < 0.3
    step = make_step(layer, B)
    assert [tuple(s.shape) for s in step.state] == [(2, B, P), (2, B, H)]
    tolerance = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.02}
    for hx in (None, states(layer, B)):
        step.reset_all() if hx is None else step.set_state(hx)
        found = torch.stack([step(row, mark).clone() for row, mark in zip(x, marks, strict=True)])
        with torch.no_grad():
            output, last = layer(x, hx, reset=marks)
        torch.testing.assert_close(found, output, **tolerance)
        torch.testing.assert_close([s.to(dtype) for s in step.state], list(last), **tolerance)
    with pytest.raises(ValueError, match=re.escape("step: h0 must have shape [num_layers, B, P] = ")):
        step.set_state((step.state[1], step.state[1]))


def test_replace_and_restore() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(I, H, 2, proj_size=P, bidirectional=True)})
    x, hx = torch.randn(T, B, I), states(model["rnn"], B)
    expected = results(model["rnn"], x, hx)
    assert replace(model) == Replaced(["rnn"], {})
    assert isinstance(model["rnn"], treadle.nn.LSTM) and type(model["rnn"]) is nn.LSTM
    torch.testing.assert_close(results(model["rnn"], x, hx), expected)
    lengths = torch.tensor([4, 0, 1, 3])
    assert model["rnn"](x, lengths=lengths)[0].shape == (T, B, 2 * P)
    assert restore(model) == Replaced(["rnn"], {})
    torch.testing.assert_close(results(model["rnn"], x, hx), expected)
    made = nn.ModuleList([treadle.nn.LSTM(I, H, proj_size=P)])
    assert restore(made) == Replaced(["0"], {}) and type(made[0]) is nn.LSTM
    made[0](x)


@GPU
@pytest.mark.parametrize("given", [False, True])
def test_a_captured_graph_reads_new_values(given: bool) -> None:
    """On cuda nothing waits for the GPU, so calls can be captured."""
    layer, _ = pair(I, H, 2, bidirectional=True, device="cuda")
    x = torch.randn(T, B, I, device="cuda", dtype=torch.float64)
    hx = states(layer, B) if given else None
    lengths = torch.tensor([4, 0, 1, 3], device="cuda")

    def run() -> list[Tensor]:
        return flat(layer(x, hx, lengths=lengths))

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
