"""Recurrent layers in ONNX: onnxruntime gives the same results, also for sizes that differ from the
exported ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.interop.with_onnx import DYNAMIC, EACH_KIND, INPUTS, KINDS, H, agrees, exported, nodes

SIZES = ((5, 3), (9, 4), (2, 7), (1, 1))  # T and B; models are exported with the first pair
ONE_STATE = ("GRU", "RNN")
TIMES_ROWS = {0: DYNAMIC, 1: DYNAMIC}


def states(kind: str, h: Tensor) -> Any:
    """Returns hx: h itself, or h as h0 and 2 h as c0."""
    return h if kind in ONE_STATE else (h, 2 * h)


class Layers(nn.Module):
    """Calls layers made with different options, with and without given states."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = KINDS[kind]
        self.kind = kind
        self.stack = made(INPUTS, H, num_layers=2, bidirectional=True)
        self.rows_first = made(2 * H, H, batch_first=True, bias=False)
        self.given = made(H, H, bidirectional=True)
        self.single = made(INPUTS, H)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, ...]:
        of_stack, last = self.stack(x)
        of_rows, _ = self.rows_first(of_stack.transpose(0, 1))
        found = self.given(of_rows.transpose(0, 1), states(self.kind, h))
        return of_stack, last, of_rows, *found, *self.single(x[:, 0])


@EACH_KIND
def test_layers(kind: str) -> None:
    model = Layers(kind)
    calls = [(torch.randn(t, b, INPUTS), torch.randn(2, b, H)) for t, b in SIZES]
    program = exported(model, calls[0], (TIMES_ROWS, {1: DYNAMIC}))
    found = nodes(program)
    # An LLTM has a Scan for each direction.
    assert (found[kind], found["Scan"]) == ((0, 8) if kind == "LLTM" else (5, 0))
    agrees(program, model, calls)


class Options(nn.Module):
    """Calls layers of one and of two directions, and uses every argument of the forward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.layers = nn.ModuleList(
            KINDS[kind](INPUTS, H, bidirectional=both) for both in (False, True)
        )

    def forward(
        self, x: Tensor, reset: Tensor, lengths: Tensor, h: Tensor, each: Tensor
    ) -> list[Any]:
        cells = {} if self.kind in ONE_STATE else {"return_cells": True}
        one, both = self.layers
        h0 = states(self.kind, h[:2])
        starts = {"reset": reset, "reset_hx": states(self.kind, h[1:])}
        return [
            one(x, reset=reset, **cells),
            one(x, states(self.kind, h[:1]), lengths=lengths, **cells),
            both(x, h0, lengths=lengths, **starts, **cells),
            both(x, h0, reset=reset, reset_hx=states(self.kind, each)),
        ]


def calls_with_options(states: int) -> list[tuple[Tensor, ...]]:
    """For each size: x, reset, lengths, ``states`` states, and states to reset to in each step."""
    return [
        (
            torch.randn(t, b, INPUTS),
            torch.rand(t, b) < 0.4,
            torch.randint(0, t + 1, (b,)),
            torch.randn(states, b, H),
            torch.randn(2, t, b, H),
        )
        for t, b in SIZES
    ]


OPTIONS_DYNAMIC = (TIMES_ROWS, TIMES_ROWS, {0: DYNAMIC}, {1: DYNAMIC}, {1: DYNAMIC, 2: DYNAMIC})


@EACH_KIND
def test_resets_lengths_and_cells(kind: str) -> None:
    model = Options(kind)
    calls = calls_with_options(3)
    program = exported(model, calls[0], OPTIONS_DYNAMIC)
    # Only the call with lengths and no resets, in one direction, becomes a node.
    assert nodes(program)[kind] == (0 if kind == "LLTM" else 1)
    agrees(program, model, calls)


class ReluLengths(nn.Module):
    """Calls RNNs with relu and lengths. Such a layer moves each row so that it ends at the last
    step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            treadle.nn.RNN(INPUTS, H, nonlinearity="relu", bidirectional=both)
            for both in (False, True)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> list[Any]:
        return [layer(x, lengths=lengths) for layer in self.layers]


def test_lengths_of_relu() -> None:
    model = ReluLengths()
    calls = [(torch.randn(t, b, INPUTS), torch.randint(0, t + 1, (b,))) for t, b in SIZES]
    agrees(exported(model, calls[0], (TIMES_ROWS, {0: DYNAMIC})), model, calls)


class Halves(nn.Module):
    """Layers of other dtypes, with c in the dtype of h and in float32."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        both = {"bidirectional": True}
        self.of_half = KINDS[kind](INPUTS, H, dtype=torch.float16, **both)
        self.of_double = KINDS[kind](INPUTS, H, dtype=torch.float64, **both)
        self.of_brain = KINDS[kind](INPUTS, H, dtype=torch.bfloat16)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, ...]:
        half = h.half()
        given = half if self.kind in ONE_STATE else (half, h)
        first = h[:1].bfloat16()
        last, _ = self.of_brain(x.bfloat16(), first if self.kind in ONE_STATE else (first, first))
        found = self.of_half(x.half()), self.of_half(x.half(), given), self.of_double(x.double())
        return *found, last.float()


class Projections(nn.Module):
    """A stack with projections, from zeros and from given states."""

    def __init__(self, bidirectional: bool, options: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options = options
        self.rnn = treadle.nn.LSTM(
            INPUTS, H, 2, batch_first=True, bidirectional=bidirectional, proj_size=2
        )

    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, ...]:
        hx = (h[..., :2], h)
        if not self.options:
            return self.rnn(x), self.rnn(x, hx)
        lengths = x[:, :, 0].abs().gt(0.5).sum(1)
        given = {"reset": x[..., 1] > 0.5, "reset_hx": hx}
        return self.rnn(x, lengths=lengths, return_cells=True), self.rnn(x, hx, **given)


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections(bidirectional: bool, options: bool) -> None:
    model, layers = Projections(bidirectional, options), 4 if bidirectional else 2
    calls = [(torch.randn(b, t, INPUTS), torch.randn(layers, b, H)) for t, b in SIZES[:3]]
    program = exported(model, calls[0], (TIMES_ROWS, {1: DYNAMIC}))
    found = nodes(program)
    assert found["LSTM"] == 4 or options
    agrees(program, model, calls)


@EACH_KIND
def test_dtypes(kind: str) -> None:
    model = Halves(kind)
    calls = [(torch.randn(t, b, INPUTS), torch.randn(2, b, H)) for t, b in SIZES]
    program = exported(model, calls[0], (TIMES_ROWS, {1: DYNAMIC}))
    # In float64 a layer becomes a Scan, because onnxruntime lacks kernels for the node.
    assert nodes(program)[kind] == (0 if kind == "LLTM" else 3)
    agrees(program, model, calls, atol=0.02, rtol=0.02)


def test_a_packed_batch_is_refused() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KINDS["LSTM"](INPUTS, H)

        def forward(self, data: Tensor, sizes: Tensor, h: Tensor) -> Tensor:
            params = list(self.layer.parameters())
            rest = params, True, 1, 0.0, False, False
            return treadle.lstm(data, sizes, (h, h), *rest)[0]

    args = torch.randn(5, INPUTS), torch.tensor([2, 2, 1]), torch.randn(1, 2, H)
    assert refusal(Packed(), args) == (
        "lstm: input must be padded for ONNX, got a packed batch: pass lengths=, the number of "
        "steps of each row"
    )


def refusal(model: nn.Module, args: tuple[Tensor, ...]) -> str:
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        exported(model, args)
    cause: BaseException = raised.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(cause)


class Relu(nn.Module):
    """RNNs with relu: a node in float32, a Scan in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        options: dict[str, Any] = {"nonlinearity": "relu", "bidirectional": True}
        self.node = treadle.nn.RNN(INPUTS, H, **options)
        self.scan = treadle.nn.RNN(INPUTS, H, **options, dtype=torch.float64)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, ...]:
        return *self.node(x, h), *self.scan(x.double(), h.double())


def test_relu() -> None:
    model = Relu()
    calls = [(torch.randn(t, b, INPUTS), torch.randn(2, b, H)) for t, b in SIZES]
    program = exported(model, calls[0], (TIMES_ROWS, {1: DYNAMIC}))
    found = nodes(program)
    assert (found["RNN"], found["Scan"]) == (1, 2)
    agrees(program, model, calls)
