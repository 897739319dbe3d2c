"""treadle.nn.LSTM, GRU and RNN under torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import jvp
from torch.nn.utils.rnn import pack_sequence

from tests.recurrent.nn.test_nn_rnn import EACH, KINDS, B, H, I, T, close, flat, states
from tests.recurrent.nn.test_nn_rnn_programs import FORMS, made, total


@pytest.fixture
def allow_rnn() -> Iterator[None]:
    """Sets Dynamo's allow_rnn, as torch.export does. Otherwise Dynamo skips subclasses of nn.LSTM,
    nn.GRU and nn.RNN."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_compile_breaks_the_graph_as_at_torchs_own(kind: str) -> None:
    layer, x = made(kind), torch.randn(T, B, I, dtype=torch.float64)
    with pytest.raises(torch._dynamo.exc.Unsupported):  # the text depends on torch's version
        torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    close(flat(torch.compile(layer, backend="aot_eager")(x)), flat(layer(x)))


@EACH
@pytest.mark.usefixtures("fresh_compile", "allow_rnn")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_compiles_once_for_all_sizes(kind: str, form: dict[str, Any]) -> None:
    layer = made(kind, **form)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for steps, rows in ((4, 3), (5, 6), (17, 2)):
            shape = (rows, steps, I) if layer.batch_first else (steps, rows, I)
            x = torch.randn(shape, dtype=torch.float64)
            found: list[Any] = []
            for function in (compiled, layer):
                results = tuple(flat(function(x)))
                found.append(torch.autograd.grad(total(results), list(layer.parameters())))
            close(*found)


@EACH
@pytest.mark.usefixtures("fresh_compile", "allow_rnn")
def test_compiles_packed_sequences_and_transforms(kind: str) -> None:
    layer = made(kind, bidirectional=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    rows = [torch.randn(n, I, dtype=torch.float64) for n in (2, 4, 1)]
    packed, hx = pack_sequence(rows, enforce_sorted=False), states(layer, 3)
    close(flat(compiled(packed)), flat(layer(packed)))
    close(flat(compiled(packed, hx)), flat(layer(packed, hx)))

    def pushed(x: Tensor) -> Any:
        return jvp(lambda x: tuple(flat(layer(x))), (x,), (x.cos(),))

    compiled = torch.compile(pushed, backend="aot_eager", fullgraph=True, dynamic=True)
    x = torch.randn(2, B, I, dtype=torch.float64)
    close(compiled(x), pushed(x))


@EACH
@pytest.mark.parametrize("strict", [False, True])
def test_exports(kind: str, strict: bool) -> None:
    layer = made(kind, num_layers=2, bidirectional=True).eval()
    x, hx = torch.randn(T, B, I, dtype=torch.float64), states(layer, B)
    steps, rows = torch.export.Dim("steps", max=4096), torch.export.Dim("rows", max=4096)
    of_states = ({1: rows}, {1: rows}) if kind == "LSTM" else {1: rows}
    dynamic = ({0: steps, 1: rows}, of_states)
    program = torch.export.export(layer, (x, hx), dynamic_shapes=dynamic, strict=strict)
    x, hx = torch.randn(9, 2, I, dtype=torch.float64), states(layer, 2)
    close(flat(program.module()(x, hx)), flat(layer(x, hx)))


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_what_the_compiler_passes_by_it_does_not_compile(kind: str) -> None:
    counter = CompileCounter()
    torch._dynamo.reset()
    layers = nn.ModuleList([made(kind, num_layers=n) for n in (1, 2, 3)])
    compiled = torch.compile(lambda x: [layer(x)[0].sum() for layer in layers], backend=counter)
    for rows in (2, 3, 4):
        x = torch.randn(T, rows, I, dtype=torch.float64)
        close(compiled(x), [layer(x)[0].sum() for layer in layers])
    theirs = CompileCounter()
    torch._dynamo.reset()
    twins = nn.ModuleList([KINDS[kind][1](I, H, n, dtype=torch.float64) for n in (1, 2, 3)])
    same = torch.compile(lambda x: [layer(x)[0].sum() for layer in twins], backend=theirs)
    for rows in (2, 3, 4):
        same(torch.randn(T, rows, I, dtype=torch.float64))
    assert counter.frame_count == theirs.frame_count


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_compiled_with_lengths_and_without(kind: str) -> None:
    layer = made(kind)
    call = torch.compile(lambda x, hx=None, n=None: layer(x, hx, lengths=n)[0], backend="eager")
    x = torch.randn(T, 2, I, dtype=torch.float64)
    zeros = [torch.zeros(1, 2, H, dtype=torch.float64) for _ in range(2)]
    hx = tuple(zeros) if kind == "LSTM" else zeros[0]
    lengths = torch.tensor([T, T - 1])
    for arguments in ((x, hx, lengths), (x,), (x, (zeros[0],) * 2 if kind == "LSTM" else hx)):
        n = arguments[2] if len(arguments) == 3 else None
        close(call(*arguments), layer(*arguments[:2], lengths=n)[0])


@EACH
def test_exports_a_number_of_steps_that_depends_on_data(kind: str) -> None:
    class Prefix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KINDS[kind][0](I, H)

        def forward(self, x: Tensor, count: Tensor) -> Tensor:
            steps: Any = count.item()
            torch._check_is_size(steps)
            torch._check(steps <= x.size(0))
            return self.layer(x[:steps])[0]  # type: ignore[no-any-return]

    model, x = Prefix(), torch.randn(T, B, I)
    program = torch.export.export(model, (x, torch.tensor(2)))
    for steps in (1, T):
        close(program.module()(x, torch.tensor(steps)), model(x, torch.tensor(steps)))
