"""Recurrent modules under tracers and in files: torch.compile with pack_padded_sequence and
pad_packed_sequence, torch.fx, torch.jit, files of whole modules."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import treadle
from treadle.nn import GRU, LLTM, LSTM, LLTMCell, SineLinear, Siren, Snake

T, B, I, H = 6, 3, 5, 7  # noqa: E741
EACH = pytest.mark.parametrize("kind", [LSTM, GRU, LLTM])


class Padded(nn.Module):
    """Packs the input, runs a layer and pads the output: the usual way to run torch.nn.LSTM on rows
    of variable length."""

    def __init__(self, layer: Any, is_sorted: bool = False) -> None:
        super().__init__()
        self.layer, self.is_sorted, self.head = layer, is_sorted, nn.Linear(H, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x.sin(), lengths, enforce_sorted=self.is_sorted)
        output, _ = self.layer(packed)
        padded, _ = pad_packed_sequence(output)
        return self.head(padded)  # type: ignore[no-any-return]


class Tagger(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layer(x)
        return self.head(output)  # type: ignore[no-any-return]


class Rows(nn.Module):
    """Calls a layer with input, states, resets and replacement states."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.is_gru = layer, isinstance(layer, GRU)

    def forward(self, x: Tensor, h: Tensor, reset: Tensor) -> Tensor:
        hx = h if self.is_gru else (h, h)
        output, last = self.layer(x, hx, reset=reset, reset_hx=hx)
        return output.sum() + (last if self.is_gru else last[1]).sum()  # type: ignore[no-any-return]


# ---- torch.compile


@pytest.fixture
def pad_as_torch_has_it() -> None:
    for name in ("_torchdynamo_disable", "_torchdynamo_disable_msg"):
        vars(pad_packed_sequence).pop(name, None)


@EACH
@pytest.mark.parametrize("allow_rnn", [False, True])
@pytest.mark.parametrize("way", ["traced", "disabled"])
@pytest.mark.usefixtures("fresh_compile", "pad_as_torch_has_it")
def test_compiled_programs_may_pack_and_pad(kind: Any, allow_rnn: bool, way: str) -> None:
    model = Padded(kind(I, H))
    x, lengths = torch.randn(T, B, I), torch.tensor([2, T, 3])
    expected = model(x, lengths)
    wanted = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    if way == "disabled":  # the layer then runs in a graph break, untraced
        model.layer.forward = torch.compiler.disable(model.layer.forward)
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):
        found = torch.compile(model, backend="aot_eager")(x, lengths)
    torch.testing.assert_close(found, expected)
    grads = torch.autograd.grad(found.square().sum(), list(model.parameters()))
    torch.testing.assert_close(grads, wanted)


@pytest.mark.usefixtures("fresh_compile", "pad_as_torch_has_it")
def test_without_graph_breaks_the_compiler_names_lengths() -> None:
    layer = LLTM(I, H)
    packed = pack_padded_sequence(torch.randn(T, B, I), torch.tensor([T, 3, 2]))
    call = torch.compile(
        lambda p: pad_packed_sequence(layer(p)[0])[0], backend="aot_eager", fullgraph=True
    )
    with pytest.raises(torch._dynamo.exc.Unsupported, match="take lengths= instead"):
        call(packed)


@EACH
@pytest.mark.filterwarnings("ignore:.*were assigned during export")
def test_exported_models_are_told_of_lengths(kind: Any) -> None:
    """The error suggests `lengths=`. test_lengths_programs.py exports layers with lengths."""
    given = torch.randn(T, B, I), torch.tensor([T, 3, 2])
    words = f"^{kind.__name__}: input must be padded and passed with lengths= under torch.export"
    with pytest.raises(RuntimeError, match=words):
        torch.export.export(Padded(kind(I, H), is_sorted=True), given, strict=False)


# ---- torch.fx


@EACH
def test_a_layer_is_a_leaf_of_fx(kind: Any) -> None:
    model, x = Tagger(kind(I, H)), torch.randn(T, B, I)
    graph = fx.symbolic_trace(model)
    ours = [(node.op, node.target) for node in graph.graph.nodes]
    torchs = fx.symbolic_trace(Tagger(nn.LSTM(I, H))).graph.nodes
    assert ours == [(node.op, node.target) for node in torchs]
    assert torch.equal(graph(x), model(x))
    again = fx.symbolic_trace(graph)  # tracing a graph again works as well
    assert again.layer is graph.layer and torch.equal(again(x), model(x))


@EACH
def test_a_leaf_keeps_what_it_is_called_with(kind: Any) -> None:
    model = Rows(kind(I, H))
    given = torch.randn(T, B, I), torch.randn(1, B, H), torch.rand(T, B) < 0.3
    graph = fx.symbolic_trace(model)
    (leaf,) = (node for node in graph.graph.nodes if node.op == "call_module")
    assert leaf.kwargs.keys() == {"reset", "reset_hx"}
    assert torch.equal(graph(*given), model(*given))


@EACH
def test_alone_a_layer_cannot_be_a_leaf(kind: Any) -> None:
    sentence = f"{kind.__name__} is a leaf of torch.fx graphs; trace a module that contains it"
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        fx.symbolic_trace(kind(I, H))


def test_a_cell_is_a_leaf_and_sine_layers_are_read() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.siren = LLTMCell(2, 3), Siren(3, 4, 1, 1)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
            h, c = self.cell(x, (h, c))
            return self.siren(h) + c  # type: ignore[no-any-return]

    model, given = Loop(), (torch.randn(B, 2), torch.randn(B, 3), torch.randn(B, 3))
    graph = fx.symbolic_trace(model)
    modules = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert modules == ["cell"]
    ops = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.ops.treadle.sine_linear.default in ops
    assert torch.equal(graph(*given), model(*given))


# ---- torch.jit


def traced(model: nn.Module, *given: Tensor) -> Any:
    """Traces the model. Warnings are errors, except those about torch.jit itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit")  # it is deprecated
        return torch.jit.trace(model, given, check_trace=False)


@EACH
def test_traces_serve_other_sizes(kind: Any) -> None:
    model = Tagger(kind(I, H, num_layers=2, bidirectional=True))
    model.head = nn.Linear(2 * H, 2)
    trace, x = traced(model, torch.randn(T, B, I)), torch.randn(T + 3, B + 2, I)
    assert torch.equal(trace(x), model(x))
    rows = Rows(kind(I, H))
    marks = torch.rand(T, B) < 0.3
    trace = traced(rows, torch.randn(T, B, I), torch.randn(1, B, H), marks)
    given = torch.randn(T, B + 2, I), torch.randn(1, B + 2, H), torch.rand(T, B + 2) < 0.3
    assert torch.equal(trace(*given), rows(*given))


@EACH
@pytest.mark.parametrize("is_sorted", [True, False])
def test_traces_of_packed_batches_serve_other_sizes(kind: Any, is_sorted: bool) -> None:
    model = Padded(kind(I, H), is_sorted)
    trace = traced(model, torch.randn(T, B, I), torch.tensor([T, 3, 2]))
    x, lengths = torch.randn(T + 1, B + 1, I), torch.tensor([T + 1, 3, 2, 2])
    lengths = lengths if is_sorted else lengths.flip(0)
    assert torch.equal(trace(x, lengths), model(x, lengths))


def test_a_trace_refuses_what_the_op_refuses() -> None:
    trace = traced(Tagger(LSTM(I, H)), torch.randn(T, B, I))
    with pytest.raises(
        RuntimeError, match=r"lstm: weight_ih must have shape \[4H, I\] = \[28, 6\]"
    ):
        trace(torch.randn(T, B, I + 1))


MODULES = [
    LSTM(I, H), GRU(I, H), LLTM(I, H), LLTMCell(I, H), SineLinear(2, 3), Siren(2, 3, 1, 1), Snake(4)
]  # fmt: skip


def scripted_module(module: nn.Module) -> Any:
    """Scripts the module by a torch.jit.ScriptModule, an older API than torch.jit.script."""

    class Script(torch.jit.ScriptModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.Sequential(module)

        @torch.jit.script_method  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return x

    return Script()


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("script", [torch.jit.script, scripted_module])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_scripting_says_what_to_use(module: nn.Module, script: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        script(nn.Sequential(module))
    said = str(raised.value)
    name = type(module).__name__
    assert said.startswith(f"{name}: the model must be exported by torch.export or traced by ")
    assert ("treadle.nn.restore" in said) == isinstance(module, nn.RNNBase)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_every_listed_attribute_can_be_read(module: nn.Module) -> None:
    """inspect, debuggers and torch.jit.trace read every attribute."""
    for each in (module, type(module)):
        names = {name for name, _ in inspect.getmembers(each)}
        assert {"forward", "__prepare_scriptable__"} <= names


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_was_restored_can_be_scripted() -> None:
    model, x = Tagger(LSTM(I, H)), torch.randn(T, B, I)
    expected = model(x)
    treadle.nn.restore(model)
    torch.testing.assert_close(torch.jit.script(model)(x), expected)


# ---- files


@pytest.mark.parametrize("module", MODULES[:5], ids=lambda module: type(module).__name__)
def test_a_file_of_a_whole_module_loads_once_its_class_is_allowed(module: nn.Module) -> None:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    (named,) = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    assert named.startswith("treadle.nn.")
    with torch.serialization.safe_globals([getattr(treadle.nn, type(module).__name__)]):
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(module) and repr(loaded) == repr(module)
    ours, theirs = (dict(each.named_parameters()) for each in (module, loaded))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
