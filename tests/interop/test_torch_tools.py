"""Runs the tools of docs/torch_tools.md, which treat torch's LSTM and GRU specially, on models
after treadle.nn.replace. Tests of a package that is not installed are skipped."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.support.replaced import EACH, B, H, I, Net, T, X, in_file, is_ours, replaced
from treadle.nn import replace

# ---- TorchScript


class OneStep(nn.Module):
    """A policy for export, built like rsl_rl's: a copy of the layer, with its state in buffers."""

    def __init__(self, rnn: nn.Module, states: int) -> None:
        super().__init__()
        self.rnn = copy.deepcopy(rnn)
        self.register_buffer("h", torch.zeros(1, 1, H))
        self.register_buffer("c", torch.zeros(1, 1, H))


# The kinds that rsl_rl and torch's int8 quantization support.
OF_ROBOTS = pytest.mark.parametrize("kind", ["LSTM", "GRU"])


class OneStepGRU(OneStep):
    def forward(self, x: Tensor) -> Tensor:
        output, h = self.rnn(x.unsqueeze(0), self.h)
        self.h[:] = h
        return output.squeeze(0)  # type: ignore[no-any-return]


class OneStepLSTM(OneStep):
    def forward(self, x: Tensor) -> Tensor:
        output, (h, c) = self.rnn(x.unsqueeze(0), (self.h, self.c))
        self.h[:], self.c[:] = h, c
        return output.squeeze(0)  # type: ignore[no-any-return]


@EACH
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripts(kind: str) -> None:
    """TorchScript compiles torch's forward pass, and the model itself does not change."""
    net, plain = replaced(kind), Net(kind)
    script = torch.jit.script(net)
    assert is_ours(net) and isinstance(net.rnn, getattr(treadle.nn, kind))
    assert f"aten::{kind.lower()}" in str(script.inlined_graph)
    loaded = in_file(functools.partial(torch.jit.save, script), torch.jit.load)
    for each in (script, loaded):
        assert torch.equal(each(X), plain(X))
    assert script.code == torch.jit.script(plain).code


@OF_ROBOTS
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_policy_for_a_robot(kind: str) -> None:
    layer = getattr(nn, kind)(I, H)
    replace(layer)
    walk = torch.randn(T, 1, I)
    kept = {"GRU": OneStepGRU, "LSTM": OneStepLSTM}[kind](layer, 1)
    loaded = in_file(functools.partial(torch.jit.save, torch.jit.script(kept)), torch.jit.load)
    with torch.no_grad():
        steps = torch.stack([loaded(row) for row in walk])
        torch.testing.assert_close(steps, layer(walk)[0])


@EACH
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_script_modules(kind: str) -> None:
    class Script(torch.jit.ScriptModule):  # type: ignore[misc]
        def __init__(self, rnn: nn.Module) -> None:
            super().__init__()
            self.rnn = rnn

        @torch.jit.script_method  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0]  # type: ignore[no-any-return]

    net = replaced(kind)
    torch.testing.assert_close(Script(net.rnn)(X), net.rnn(X)[0])
    assert is_ours(net)


# ---- int8


@OF_ROBOTS
@pytest.mark.filterwarnings("ignore")
def test_int8(kind: str) -> None:
    """Weights become int8, like those of torch's layers."""
    ao = torch.ao.quantization
    net, plain = replaced(kind).eval(), Net(kind).eval()
    layers = {nn.LSTM, nn.GRU, nn.Linear}
    found = [ao.quantize_dynamic(each, layers, dtype=torch.qint8) for each in (net, plain)]
    assert all("quantized.dynamic" in type(each.rnn).__module__ for each in found)
    assert torch.equal(found[0](X), found[1](X)) and is_ours(net)
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    mapping = ao.QConfigMapping().set_global(ao.default_dynamic_qconfig)
    found = [convert_fx(prepare_fx(each, mapping, (X,))) for each in (net, plain)]
    assert all("quantized.dynamic" in type(each.rnn).__module__ for each in found)
    assert torch.equal(found[0](X), found[1](X)) and is_ours(net)


@OF_ROBOTS
@pytest.mark.filterwarnings("ignore")
def test_int8_of_modules_made_as_ours(kind: str) -> None:
    """Modules made as treadle.nn.LSTM or GRU are skipped with a warning until they are restored."""
    quantize = torch.ao.quantization.quantize_dynamic
    net = nn.Sequential(getattr(treadle.nn, kind)(I, H))
    words = f"{kind}: torch.ao.quantization leaves this .* treadle.nn.restore"
    with pytest.warns(UserWarning, match=words):
        assert type(quantize(net)[0]) is getattr(treadle.nn, kind)
    assert treadle.nn.restore(net).replaced == ["0"]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert "quantized.dynamic" in type(quantize(net)[0]).__module__
    assert not [each for each in heard if "treadle" in str(each.message)]


# ---- counters


def thop(net: Net) -> Any:
    return pytest.importorskip("thop").profile(net, inputs=(X,), verbose=False)


def ptflops(net: Net) -> Any:
    return pytest.importorskip("ptflops").get_model_complexity_info(
        net, (T, I), as_strings=False, print_per_layer_stat=False, backend="pytorch"
    )


def deepspeed(net: Net) -> Any:
    profiler = pytest.importorskip("deepspeed.profiling.flops_profiler")
    with contextlib.redirect_stdout(None):
        return profiler.get_model_profile(net, args=(X,), print_profile=False, as_string=False)[::2]


@EACH
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [thop, ptflops, deepspeed], ids=lambda count: count.__name__)
def test_counters(kind: str, count: Callable[[Net], Any]) -> None:
    net, plain = replaced(kind), Net(kind)
    found = count(net)
    assert found == count(plain) and found[0] > 3 * H * H
    assert is_ours(net)


# ---- Opacus


@EACH
@pytest.mark.filterwarnings("ignore")
def test_opacus(kind: str) -> None:
    """Opacus' validator reports the layer, its `fix` replaces the layer with Opacus' own, and the
    result trains with differential privacy."""
    opacus = pytest.importorskip("opacus")
    validators = pytest.importorskip("opacus.validators")
    net = replaced(kind)
    (error,) = validators.ModuleValidator.validate(net)
    assert kind in str(error)
    fixed = validators.ModuleValidator.fix(net)
    torch.testing.assert_close(fixed(X), Net(kind)(X))
    sampled = opacus.GradSampleModule(fixed, batch_first=True, loss_reduction="sum")
    sampled(X).sum().backward()
    for n in (0, B - 1):
        one = net(X[n : n + 1]).sum()
        wanted = torch.autograd.grad(one, net.rnn.weight_hh_l0)[0]
        torch.testing.assert_close(fixed.rnn.weight_hh_l0.grad_sample[n], wanted)

    private = validators.ModuleValidator.fix(net)
    optimizer = torch.optim.SGD(private.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=B)
    private, optimizer, data = opacus.PrivacyEngine().make_private(
        module=private,
        optimizer=optimizer,
        data_loader=data,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    before = private.rnn.weight_hh_l0.detach().clone()
    for (x,) in data:
        private(x).sum().backward()
        optimizer.step()
    assert not torch.equal(private.rnn.weight_hh_l0, before)


# ---- ONNX


def onnx_file(model: nn.Module, given: tuple[Tensor, ...], **options: Any) -> bytes:
    pytest.importorskip("onnx"), pytest.importorskip("onnxscript")
    file = io.BytesIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(None),
        contextlib.redirect_stderr(None),
    ):
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), given, file, **options)
    return file.getvalue()


def run_onnx(file: bytes, *given: Tensor) -> list[Tensor]:
    session = pytest.importorskip("onnxruntime").InferenceSession(file)
    names = [each.name for each in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
    return [torch.from_numpy(each) for each in session.run(None, feed)]


class Acts(nn.Module):
    """A policy whose states are inputs and outputs."""

    def __init__(self, kind: str, **form: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(I, H, **form)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        output, last = self.rnn(x, (h, c) if isinstance(self.rnn, nn.LSTM) else h + c)
        return (output, *last) if isinstance(last, tuple) else (output, last)


FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
]


@EACH
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("way", ["any steps", "steps of the example", "dynamo=False"])
def test_onnx_without_the_table(kind: str, form: dict[str, Any], way: str) -> None:
    """The file has ONNX's own nodes, and accepts sizes other than the example's."""
    net = Acts(kind, **form)
    replace(net)
    count = net.rnn.num_layers * (2 if net.rnn.bidirectional else 1)

    def given(steps: int, rows: int) -> tuple[Tensor, ...]:
        shape = (rows, steps, I) if net.rnn.batch_first else (steps, rows, I)
        return (torch.randn(shape), torch.randn(count, rows, H), torch.randn(count, rows, H))

    options: dict[str, Any] = {"dynamo": way != "dynamo=False", "input_names": ["x", "h", "c"]}
    if options["dynamo"]:
        size = torch.export.Dim.DYNAMIC
        sizes = {0: size, 1: size}
        if way == "steps of the example":
            del sizes[1 if net.rnn.batch_first else 0]
        options["dynamic_shapes"] = {"x": sizes, "h": {1: size}, "c": {1: size}}
    else:
        options["dynamic_axes"] = {"x": {0: "a", 1: "b"}, "h": {1: "rows"}, "c": {1: "rows"}}
    file = onnx_file(net, given(4, 3), **options)
    nodes = pytest.importorskip("onnx").load_from_string(file).graph.node
    # With a fixed number of steps, torch's exporter decomposes an RNN.
    node = "Tanh" if kind == "RNN" and way == "steps of the example" else kind
    assert node in {each.op_type for each in nodes}
    for steps, rows in ((4, 3), (4 if way == "steps of the example" else 7, 2)):
        inputs = given(steps, rows)
        with torch.no_grad():
            torch.testing.assert_close(
                run_onnx(file, *inputs), list(net(*inputs)), rtol=1e-4, atol=1e-5
            )


@EACH
def test_onnx_verifies(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    onnx_file(replaced(kind), (X,), dynamo=True, verify=True)
    assert not [each for each in caplog.messages if "difference" in each]


@EACH
def test_onnx_files_of_modules_made_as_ours(kind: str) -> None:
    net = Net(kind)
    net.rnn = getattr(treadle.nn, kind)(I, H, batch_first=True)
    for dynamo in (True, False):
        (found,) = run_onnx(onnx_file(net, (X,), dynamo=dynamo), X)
        torch.testing.assert_close(found, net(X), rtol=1e-4, atol=1e-5)


@EACH
def test_onnx_of_what_torch_has_not(kind: str) -> None:
    class Resets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = replaced(kind).rnn

        def forward(self, x: Tensor, reset: Tensor) -> Tensor:
            return self.rnn(x, reset=reset)[0]  # type: ignore[no-any-return]

    given = X, torch.rand(B, T) < 0.3
    words = f"{kind}: calls with reset, lengths or return_cells must be exported by torch.onnx"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        onnx_file(Resets(), given, dynamo=False)
    table = pytest.importorskip("treadle.onnx").translation_table()
    net = Resets()
    file = onnx_file(net, given, dynamo=True, custom_translation_table=table)
    torch.testing.assert_close(run_onnx(file, *given)[0], net(*given), rtol=1e-4, atol=1e-5)
