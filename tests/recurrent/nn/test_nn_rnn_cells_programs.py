"""treadle.nn.LSTMCell, GRUCell and RNNCell in programs: derivatives of all kinds, vmap, compile,
export, parametrizations, replace, training."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune

import treadle
from tests.recurrent.nn.test_nn_rnn_cells import (
    EACH,
    KINDS,
    B,
    H,
    I,
    close,
    flat,
    pair,
    results,
    states,
)
from tests.support.inputs import DEVICES
from treadle.nn import _cell_choice


def made(kind: str, **options: Any) -> Any:
    return KINDS[kind][0](I, H, **{"dtype": torch.float64, **options})


def near(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def stacked(results: Iterable[Any]) -> list[Tensor]:
    return [torch.stack(each) for each in zip(*map(flat, results), strict=True)]


class Loop(nn.Module):
    """Calls a cell step by step, as models do."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        hx = None
        for row in rows.unbind():
            hx = self.cell(row, hx)
        return tuple(flat(hx))


# ---- derivatives


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives(kind: str, device: str) -> None:
    cell = KINDS[kind][0](2, 3, device=device, dtype=torch.float64)
    names, params = zip(*cell.named_parameters(), strict=True)
    x = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    given = [t.requires_grad_() for t in flat(states(cell, 2))]

    def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        hx, own = rest[: len(given)], dict(zip(names, rest[len(given) :], strict=True))
        return tuple(flat(functional_call(cell, own, (x, hx if len(hx) > 1 else hx[0]))))

    checks = {"atol": 1e-7, "rtol": 1e-5, "fast_mode": True}
    assert gradcheck(function, (x, *given, *params), check_forward_ad=True, **checks)
    assert gradgradcheck(function, (x, *given, *params), check_fwd_over_rev=True, **checks)


@EACH
def test_forward_mode_and_hessians_are_torchs(kind: str) -> None:
    ours, theirs = pair(kind, 2, 3, dtype=torch.float64)
    params = {name: p.detach() for name, p in ours.named_parameters()}
    x = torch.randn(2, 2, dtype=torch.float64)
    moved = ({n: p.cos() for n, p in params.items()}, x.sin())
    found = []
    for cell in (ours, theirs):

        def call(p: dict[str, Tensor], x: Tensor, cell: nn.Module = cell) -> Tensor:
            return sum(t.sin().sum() for t in flat(functional_call(cell, p, (x,))))

        second = hessian(call, argnums=(0, 1))(params, x)
        found.append((jvp(call, (params, x), moved), grad(call)(params, x), second))
    near(*found)


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_mapped(kind: str, device: str) -> None:
    """Tests vmap over batches and over an ensemble of cells, and per-sample gradients."""
    cells = [made(kind, device=device) for _ in range(3)]
    x = torch.randn(3, B, I, device=device, dtype=torch.float64)
    hx = states(cells[0], 3, B)
    near(flat(vmap(cells[0])(x)), stacked(cells[0](row) for row in x))
    each = zip(x, *flat(hx), strict=True)
    one_by_one = (cells[0](row, tuple(s) if len(s) > 1 else s[0]) for row, *s in each)
    near(flat(vmap(cells[0])(x, hx)), stacked(one_by_one))
    params, _ = stack_module_state(cells)
    found = vmap(lambda p: functional_call(cells[0], p, (x[0],)))(params)
    near(flat(found), stacked(cell(x[0]) for cell in cells))
    own = dict(cells[0].named_parameters())

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return flat(functional_call(cells[0], p, (row,)))[0].square().sum()

    of_each = vmap(grad(loss), in_dims=(None, 0))(own, x[0])
    whole = torch.autograd.grad(flat(cells[0](x[0]))[0].square().sum(), list(own.values()))
    near([g.sum(0) for g in of_each.values()], list(whole))


@EACH
@pytest.mark.parametrize("hidden", [H, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mapped_over_the_input_alone(kind: str, dtype: torch.dtype, hidden: int) -> None:
    """Outside of vmap, some of these cells run torch's op."""
    cell = KINDS[kind][0](I, hidden, dtype=dtype)
    x, hx = torch.randn(3, B, I, dtype=dtype), states(cell, B)
    found = vmap(cell, in_dims=(0, None))(x, hx)
    expected = stacked(cell(row, hx) for row in x)
    torch.testing.assert_close(flat(found), expected, rtol=2e-2, atol=2e-2)


class SaysCuda:
    """Stands for a GPU tensor [B, H]. Has only the attributes that decide which op runs a cell."""

    is_cpu, is_cuda = False, True

    def __init__(self, dtype: torch.dtype, requires_grad: bool = False, rows: int = 32) -> None:
        self.dtype, self.requires_grad, self.rows = dtype, requires_grad, rows

    def size(self, dim: int) -> int:
        return (self.rows, 8)[dim]


def test_the_op_of_a_cell_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cell_choice, "Tensor", SaysCuda)

    def torchs(c: torch.dtype = torch.bfloat16) -> bool:
        x: Any = SaysCuda(torch.bfloat16)
        state: Any = SaysCuda(c)
        return _cell_choice.torchs_is_faster("lstm", 8, x, x, state, [])

    assert torchs() and not torchs(torch.float32)
    with forward_ad.dual_level():
        assert not torchs()
    seen = []
    vmap(lambda t: seen.append(torchs()) or t)(torch.zeros(2))  # type: ignore[func-returns-value]
    assert seen == [False]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not torchs()


def test_steps_that_cell_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def takes(rows: int, grad: bool = False) -> bool:
        h: Any = SaysCuda(torch.float32, rows=rows)
        weight: Any = SaysCuda(torch.float32, grad)
        return _cell_choice.takes_cell_step(h, h, h, [weight, None])

    assert takes(32) and not takes(33) and takes(33, grad=True)
    with torch.no_grad():
        assert takes(32) and not takes(33, grad=True)
    monkeypatch.setattr(_cell_choice, "is_tracing", lambda: True)
    assert not takes(32)
    h = torch.zeros(2, 3)
    assert not _cell_choice.takes_cell_step(h, h, h, [])


@EACH
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [4, 64])
def test_one_node_on_a_gpu(kind: str, rows: int) -> None:
    cell = KINDS[kind][0](I, H, device="cuda")
    x, hx = torch.randn(rows, I, device="cuda"), states(cell, rows)
    assert {t.grad_fn.name() for t in flat(cell(x, hx))} == {"CellStepBackward"}
    with torch.autocast("cuda"):
        assert {t.grad_fn.name() for t in flat(cell(x, hx))} == {"CellStepBackward"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(cell, (x, hx))
    assert "treadle::" not in str(traced.inlined_graph)
    torch.testing.assert_close(flat(traced(x, hx)), flat(cell(x, hx)))


# ---- compilers and tracers


@EACH
@pytest.mark.usefixtures("fresh_compile")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(kind: str, dynamic: bool) -> None:
    cell = made(kind)
    compiled = torch.compile(cell, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch in ((), (B,), (B + 2,)):
        x, hx = torch.randn(*batch, I, dtype=torch.float64), states(cell, *batch)
        near(flat(compiled(x)), flat(cell(x)))
        near(flat(compiled(x, hx)), flat(cell(x, hx)))

    class Compiled(nn.Module):
        parameters = cell.parameters

        def forward(self, *given: Any) -> Any:
            return compiled(*given)

    near(results(Compiled(), x, hx, 2), results(cell, x, hx, 2))


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_compiles_a_loop_and_autocast(kind: str) -> None:
    loop, rows = Loop(made(kind, dtype=torch.float32)), torch.randn(3, B, I)
    compiled = torch.compile(loop, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows), loop(rows))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(rows), loop(rows)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    torch.testing.assert_close(found, expected)


@EACH
def test_exports_and_traces(kind: str) -> None:
    loop, rows = Loop(made(kind)), torch.randn(3, B, I, dtype=torch.float64)
    expected = loop(rows)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(loop, (rows,), dynamic_shapes={"rows": {1: batch}}).module()
    near(exported(rows), expected)
    more = torch.randn(3, B + 3, I, dtype=torch.float64)
    near(exported(more), loop(more))
    traced = torch.jit.trace(loop, (rows,))
    near(traced(rows), expected)
    near(traced(more), loop(more))


@EACH
def test_fx_takes_a_cell_as_a_leaf(kind: str) -> None:
    loop, rows = Loop(made(kind)), torch.randn(3, B, I, dtype=torch.float64)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = loop.cell

        def forward(self, x: Tensor) -> Any:
            return self.cell(x, None)

    graph = torch.fx.symbolic_trace(Net())
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    near(flat(graph(rows[0])), flat(loop.cell(rows[0])))


# ---- parameters that are computed


def weight_norm(cell: nn.Module) -> None:
    parametrizations.weight_norm(cell, "weight_hh")


def old_weight_norm(cell: nn.Module) -> None:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(cell, "weight_hh")


def doubled(cell: nn.Module) -> None:
    parametrize.register_parametrization(cell, "weight_ih", Double())


class Double(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * w


def pruned(cell: nn.Module) -> None:
    torch.manual_seed(0)
    prune.random_unstructured(cell, "weight_hh", 0.5)
    prune.random_unstructured(cell, "bias_ih", 0.5)


@EACH
@pytest.mark.parametrize("change", [weight_norm, old_weight_norm, doubled, pruned])
def test_parameters_that_are_computed(kind: str, change: Any) -> None:
    ours, theirs = pair(kind, I, H, dtype=torch.float64)
    for cell in (ours, theirs):
        change(cell)
    x, hx = torch.randn(B, I, dtype=torch.float64), states(theirs, B, dtype=torch.float64)
    near(results(ours, x, hx), results(theirs, x, hx))


@EACH
def test_training_lowers_the_loss(kind: str) -> None:
    torch.manual_seed(0)
    net = Loop(KINDS[kind][0](1, 16))
    head = nn.Linear(16, 1)
    rows = torch.randn(5, 64, 1)
    target = rows.sum(0)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(150):
        loss = (head(net(rows)[0]) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@EACH
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_a_cuda_graph(kind: str, dtype: torch.dtype) -> None:
    loop = Loop(KINDS[kind][0](I, H, device="cuda", dtype=dtype))
    rows = torch.randn(4, B, I, device="cuda", dtype=dtype, requires_grad=True)
    called = torch.cuda.make_graphed_callables(copy.deepcopy(loop), (rows,))
    found = []
    for each in (called, loop):
        out = each(rows)
        grads = torch.autograd.grad(out[0].sum(), [rows, *each.parameters()])
        found.append([*(t.detach().clone() for t in out), *(g.clone() for g in grads)])
    torch.testing.assert_close(*found)


# ---- replace and restore


@EACH
def test_replaced_and_restored(kind: str) -> None:
    model = nn.ModuleDict({"cell": KINDS[kind][1](I, H, dtype=torch.float64)})
    x, hx = torch.randn(B, I, dtype=torch.float64), states(model["cell"], B)
    module, before = model["cell"], results(model["cell"], x, hx)
    words, keys = repr(model), list(model.state_dict())
    report = treadle.nn.replace(model)
    assert (report.replaced, report.left) == (["cell"], {})
    assert model["cell"] is module and (repr(model), list(model.state_dict())) == (words, keys)
    names = {node.name() for node in nodes(flat(module(x, hx))[0].grad_fn)}
    # On a CPU an RNNCell runs torch's op, which is faster.
    assert ("RecurrentLayerBackward" in names) == (kind != "RNNCell")
    assert "forward" in vars(module)
    close(results(module, x, hx), before)
    assert treadle.nn.replace(model).replaced == []
    for other in (copy.deepcopy(model), model):
        assert treadle.nn.restore(other).replaced == ["cell"]
        own = other["cell"]
        assert type(own) is KINDS[kind][1] and not isinstance(own, KINDS[kind][0])
        assert "forward" not in vars(own)
        names = {node.name() for node in nodes(flat(own(x, hx))[0].grad_fn)}
        assert "RecurrentLayerBackward" not in names
        close(results(own, x, hx), before)


@EACH
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_replaced_cell_is_still_torchs(kind: str) -> None:
    """Copies and loaded files use their own weights; TorchScript compiles torch's forward pass."""
    cell = KINDS[kind][1](I, H)
    expected, x = flat(cell(torch.ones(B, I))), torch.ones(B, I)
    treadle.nn.replace(cell)
    assert type(cell) is KINDS[kind][1] and isinstance(cell, KINDS[kind][0])
    script = torch.jit.script(cell)
    name = "rnn_tanh" if kind == "RNNCell" else kind[:-4].lower()
    assert f"aten::{name}_cell" in str(script.inlined_graph)
    torch.testing.assert_close(flat(script(x)), expected)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert type(other) is type(cell) and other.forward.__self__ is not cell.forward.__self__
        torch.testing.assert_close(flat(other(x)), expected)
        nn.init.zeros_(other.weight_ih)
        assert not torch.allclose(flat(other(x))[0], expected[0])
    replica = cell._replicate_for_data_parallel()
    replica._parameters = {name: 2 * p for name, p in cell.named_parameters()}
    assert not torch.allclose(flat(replica(x))[0], expected[0])
    torch.testing.assert_close(flat(cell(x)), expected)


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_a_replaced_cell_compiles_without_a_graph_break(kind: str) -> None:
    loop = Loop(KINDS[kind][1](I, H, dtype=torch.float64))
    treadle.nn.replace(loop)
    rows = torch.randn(3, B, I, dtype=torch.float64)
    near(torch.compile(loop, backend="aot_eager", fullgraph=True)(rows), loop(rows))
    near(torch.export.export(loop, (rows,)).module()(rows), loop(rows))


@EACH
def test_onnx_needs_no_table(kind: str) -> None:
    """torch.onnx.export needs no translation table, because the cells export as torch's own ops."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    loop, rows = Loop(KINDS[kind][0](I, H)), torch.randn(3, B, I)
    program = torch.onnx.export(loop, (rows,), dynamo=True, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    torch.testing.assert_close([torch.from_numpy(t) for t in found], list(loop(rows)))


def nodes(node: Any) -> list[Any]:
    """``node`` and all autograd nodes that can be reached from it."""
    found, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.add(one)
            waiting += [parent for parent, _ in one.next_functions]
    return list(found)


@EACH
def test_what_replace_leaves(kind: str) -> None:
    class Mine(KINDS[kind][1]):  # type: ignore[misc]
        """A subclass with its own forward pass."""

        def forward(self, input: Tensor, hx: Any = None) -> Any:
            return super().forward(2 * input, hx)

    model = nn.ModuleDict(
        {
            "mine": Mine(I, H),
            "complex": KINDS[kind][1](I, H, dtype=torch.complex64),
        }
    )
    report = treadle.nn.replace(model)
    assert report.replaced == [] and list(report.left) == list(model)
    assert report.left["mine"].startswith("Mine is a subclass")
    assert report.left["complex"] == "it has parameters of complex64"
