"""Tests treadle.onnx: ops except layers, models that mix ops and layers, unsupported exports."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.interop.with_onnx import DYNAMIC, agrees, exported, nodes
from tests.support import pages

ROWS = {0: DYNAMIC}


def test_siren_is_matmul_add_mul_sin() -> None:
    torch.manual_seed(0)
    model = treadle.nn.Siren(2, 16, hidden_layers=2, out_features=1, outermost_linear=True)
    program = exported(model, (torch.rand(5, 2),), (ROWS,))
    assert nodes(program) == {"MatMul": 3, "Add": 3, "Mul": 3, "Sin": 3, "Gemm": 1}
    # ONNX rounds in another order, and the phase is up to 30 times as large as the result.
    agrees(program, model, [(torch.rand(rows, 2),) for rows in (5, 1, 64)], atol=1e-5, rtol=0)


class SineLinears(nn.Module):
    """Calls sine_linear with one layer and with several, for every rank and dtype of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 5, 4))
        self.bias = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> list[Tensor]:
        """x: [B, 3, 4]."""
        op, w, b = treadle.sine_linear, self.weight, self.bias
        by_layer = x.transpose(0, 1)
        found = [op(x, w[0], b[0], 3.0), op(x[0, 0], w[0], b[0], 3), op(x, w[0], None, 3.0)]
        found += [op(by_layer, w, b, 3.0), op(by_layer[:, 0], w, b, 3.0)]
        found += [op(by_layer.unsqueeze(2), w, b, 3.0), op(by_layer.unsqueeze(2), w, None, 3.0)]
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            found.append(op(x.to(dtype), w[0].to(dtype), b[0].to(dtype), 3.0))
        return [each.float() if each.dtype == torch.bfloat16 else each for each in found]


def test_sine_linear() -> None:
    model = SineLinears()
    calls = [(torch.randn(rows, 3, 4),) for rows in (5, 2, 9)]
    agrees(exported(model, calls[0], (ROWS,)), model, calls, atol=5e-6, rtol=1e-5)


class Jets(nn.Module):
    """Computes jets with all parts or some of them, of nets with fewer and with more outputs than
    coordinates."""

    def __init__(self, dtype: torch.dtype, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind: dict[str, Any] = {"dtype": dtype, "bias": bias, "first_omega_0": 3.0}
        self.net = treadle.nn.Siren(3, 8, 1, 2, True, hidden_omega_0=2.0, **kind)
        self.own = treadle.nn.SineLinear(3, 4, omega_0=2.0, dtype=dtype, bias=bias)

    def forward(self, x: Tensor) -> list[Tensor]:
        jets = [
            self.net.jet(x),
            self.net.jet(x, laplacian=False),
            self.net.jet(x, hessian_diagonal=True),
            treadle.jet_linear(self.own.jet(treadle.Jet.of(x)), self.net.net[1].weight[:, :4]),
        ]
        return [part for jet in jets for part in jet if part is not None]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jets(dtype: torch.dtype, bias: bool) -> None:
    model = Jets(dtype, bias)
    calls = [(torch.rand(rows, 3, dtype=dtype),) for rows in (5, 2, 9)]
    agrees(exported(model, calls[0], (ROWS,)), model, calls, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_jets_of_halves(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = treadle.nn.SineLinear(3, 4, omega_0=2.0, dtype=dtype)

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, jet: Tensor) -> Tensor:
            own = self.layer.weight, self.layer.bias, 2.0, 3, "laplacian"
            return treadle.sine_linear_jet(jet.to(dtype), *own).float()

    calls = [(torch.randn(5, rows, 3),) for rows in (4, 2)]
    step = float(torch.finfo(dtype).eps)
    agrees(exported(Parts(), calls[0], ({1: DYNAMIC},)), Parts(), calls, atol=8 * step, rtol=step)


class Elementwise(nn.Module):
    """Calls elementwise ops with x [B, 3] float32 and i [B, 3] int64: promotion, scalars, alpha,
    dynamic sizes."""

    def forward(self, x: Tensor, i: Tensor) -> list[Tensor]:
        add, scale = treadle.vector_add, treadle.scale
        half, brain, first = x.half(), x.bfloat16(), x[0, 0]
        found = [treadle.sine(x), treadle.cosine(x), treadle.sine(i), treadle.sine(x.double())]
        found += [
            add(x, i, alpha=3),
            add(i, i, alpha=-2),
            add(i, 2),
            add(i, 2.5, alpha=2),
            add(x, 2),
        ]
        found += [add(x, i.double(), alpha=0.3), add(x, x[:1]), add(first, half), add(half, first)]
        found += [add(half, half, alpha=0.3), add(brain, half), add(half, 0.1), add(i > 1, i)]
        found += [scale(x, 0.3), scale(i, 3), scale(i, 0.3), scale(i > 1, 2), scale(half, 0.3)]
        found += [add(x, x.shape[0]), scale(i, x.shape[0]), add(i, i, alpha=x.shape[0])]
        images, row = x[..., None, None], torch.linspace(0.5, 2, 3)
        found += [treadle.snake(each, row, row + 1, eps=0.5) for each in (x, images, half, i)]
        found += [
            treadle.snake(x.double(), row[:1]),
            treadle.snake(i, row),
            treadle.snake(x[0], row[:1]),
            treadle.snake(x, row, row + 1),
        ]
        # Tests alpha at 0 and near it, and logarithms.
        zero = torch.tensor([0.0, -1e-9, 1e-30])
        found += [treadle.snake(each, zero * 1) for each in (x, images, half, i)]
        logs = row - 2
        found += [treadle.snake(each, logs, logscale=True) for each in (half, images)]
        found += [treadle.snake(images, logs.half(), -row, eps=0.5, logscale=True)]
        found += [scale(brain, 0.3), treadle.sine(scale(half, 1000)), treadle.cosine(brain)]
        return [each.float() if each.dtype == torch.bfloat16 else each for each in found]


def test_elementwise() -> None:
    torch.manual_seed(0)
    model = Elementwise()
    calls = [(torch.randn(n, 3), torch.randint(-5, 5, (n, 3))) for n in (4, 2, 9)]
    agrees(exported(model, calls[0], (ROWS, ROWS)), model, calls, atol=3e-7, rtol=3e-7)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = treadle.nn.LLTMCell(3, 4)
        self.weights = nn.Parameter(torch.randn(12, 7))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        found = [*self.cell(x), *self.cell(x, (h, c))]
        for dtype in (torch.float16, torch.float64):
            w, cell = self.weights.to(dtype), c if dtype == torch.float16 else c.to(dtype)
            bias = w[:, :1].T if dtype == torch.float64 else None
            found += treadle.lltm_cell(x.to(dtype), w, bias, h.to(dtype), cell)
        return found


def test_lltm_cell() -> None:
    model = Cells()
    calls = [(torch.randn(n, 3), torch.randn(n, 4), torch.randn(n, 4)) for n in (5, 2, 9)]
    program = exported(model, calls[0], (ROWS, ROWS, ROWS))
    agrees(program, model, calls, atol=1e-3, rtol=1e-3)


class Mixed(nn.Module):
    """Calls ops of all families, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.siren = treadle.nn.Siren(3, 8, hidden_layers=1, out_features=4)
        self.lstm = treadle.nn.LSTM(4, 4, num_layers=2, bidirectional=True)
        self.gru = treadle.nn.GRU(8, 4)
        self.lltm = treadle.nn.LLTM(4, 4)
        self.cell = treadle.nn.LLTMCell(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.siren(x)
        for layer in (self.lstm, self.gru, self.lltm):
            y, _ = layer(y)
        h, c = self.cell(y[-1])
        return y, treadle.vector_add(treadle.sine(h), treadle.scale(c, 2), alpha=0.5)


@pytest.mark.parametrize(
    "options", [{}, {"opset_version": 23, "optimize": False}], ids=["default", "plain 23"]
)
def test_a_model_that_mixes_them(options: dict[str, Any]) -> None:
    model = Mixed()
    calls = [(torch.randn(t, b, 3),) for t, b in ((5, 2), (9, 4), (1, 1))]
    program = exported(model, calls[0], ({0: DYNAMIC, 1: DYNAMIC},), **options)
    found = nodes(program)
    assert [found[name] for name in ("Sin", "LSTM", "GRU", "Scan")] == [4, 2, 1, 1]
    agrees(program, model, calls, atol=1e-5, rtol=1e-5)


def test_a_layer_without_the_table_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "treadle.onnx")
    layer, x = treadle.nn.LLTM(3, 4), torch.randn(5, 2, 3)
    with (
        pytest.warns(UserWarning, match=r"custom_translation_table=treadle\.onnx\.translation_tab"),
        pytest.raises(torch.onnx.OnnxExporterError),
    ):
        exported(layer, (x,), custom_translation_table=None)


def said(model: nn.Module, **options: Any) -> str:
    """The innermost cause of the error that torch's exporter raises."""
    with pytest.raises(Exception) as raised:  # noqa: B017 exporters raise different classes
        torch.onnx.export(model.eval(), (torch.randn(5, 2),), io.BytesIO(), **options)
    cause: BaseException = raised.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(cause)


def test_errors_that_the_page_names() -> None:
    siren = treadle.nn.Siren(2, 4, hidden_layers=1, out_features=1)
    page = (pages.DOCS / "deploy.md").read_text()
    for sentence, options in (
        ("No ONNX function found for <OpOverload(op='treadle.sine_linear'", {"dynamo": True}),
        (
            "ONNX export failed on an operator with unrecognized namespace treadle::sine_linear",
            {"dynamo": False},
        ),
    ):
        assert sentence in page and sentence in said(siren, **options)


def test_forms_that_write_cannot_be_exported() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return treadle.scale_(x * 2, 2.0)

    with pytest.raises(torch.onnx.OnnxExporterError, match=r"treadle\.scale_"):
        exported(Writes(), (torch.randn(3),))
