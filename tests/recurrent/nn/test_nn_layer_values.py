"""treadle.nn.LLTM: values compared with those of LLTMCells in a loop, the memory saved for the
backward pass, and very long sequences."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, HALVES
from treadle.nn import LLTM, LLTMCell

T, B, I, H = 6, 4, 5, 7  # noqa: E741
FORMS = [(1, False, True), (2, False, False), (2, True, True)]  # layers, bidirectional, bias
# The lines of LLTM's docstring that convert a layer to a cell and back.
TO_CELL, TO_LAYER = textwrap.dedent(
    inspect.cleandoc(LLTM.__doc__ or "").split("and back::\n\n")[1]
).split("\n\n")


def cells_of(layer: LLTM) -> nn.ModuleList:
    """One LLTMCell for each layer and direction, with that direction's weights."""
    found = nn.ModuleList()
    for name in [name for name in layer.state_dict() if name.startswith("weight_ih")]:
        weight = getattr(layer, name)
        cell = LLTMCell(weight.shape[1], layer.hidden_size, layer.bias).to(weight)
        lines = TO_CELL if layer.bias else TO_CELL.replace(', "bias": layer.bias_l0', "")
        lines = lines.replace("_l0", name.removeprefix("weight_ih"))
        exec(lines, {"torch": torch, "layer": layer, "cell": cell})
        found.append(cell)
    return found


def loop(cells: nn.ModuleList, directions: int, x: Tensor, h0: Tensor, c0: Tensor) -> Any:
    """Output and states for x [T, B, I], computed by the cells step by step."""
    last = []
    for first in range(0, len(cells), directions):
        outputs = []
        for k in range(first, first + directions):
            hx, steps = (h0[k], c0[k]), []
            for row in x.flip(0) if k > first else x:
                hx = cells[k](row, hx)
                steps.append(hx[0])
            outputs.append(torch.stack(steps[::-1] if k > first else steps))
            last.append(hx)
        x = torch.cat(outputs, dim=-1)
    return x, *(torch.stack(states) for states in zip(*last, strict=True))


def flat(result: Any) -> tuple[Tensor, ...]:
    output, (h, c) = result
    return (output.data if isinstance(output, PackedSequence) else output, h, c)


def arguments(layer: LLTM, device: str, steps: int = T) -> tuple[Tensor, Tensor, Tensor]:
    count, dtype = layer.num_layers * (1 + layer.bidirectional), layer.weight_ih_l0.dtype
    shapes = (steps, B, I), (count, B, H), (count, B, H)
    return tuple(  # type: ignore[return-value]
        torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes
    )


def gradients(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(8)
    by = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in outputs]
    return torch.autograd.grad(outputs, leaves, by, retain_graph=True)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recompute", [False, True])
def test_is_a_loop_of_cells(device: str, form: tuple[int, bool, bool], recompute: bool) -> None:
    layers, bidirectional, bias = form
    layer = LLTM(
        *(I, H, layers, bias),
        bidirectional=bidirectional,
        device=device,
        dtype=torch.float64,
        recompute=recompute,
    )
    x, h0, c0 = arguments(layer, device)
    cells = cells_of(layer)
    ours = flat(layer(x, (h0, c0)))
    expected = loop(cells, 1 + bidirectional, x, h0, c0)
    close(ours, expected)
    names = [name for name, _ in layer.named_parameters() if name.startswith("weight_ih")]
    grads = gradients(ours, [x, h0, c0, *layer.parameters()])
    found = dict(zip((name for name, _ in layer.named_parameters()), grads[3:], strict=True))
    theirs = gradients(expected, [x, h0, c0, *cells.parameters()])
    close(grads[:3], theirs[:3])
    of_cells = iter(theirs[3:])
    for name in names:
        hh, b = name.replace("_ih", "_hh"), name.replace("weight_ih", "bias")
        close(torch.cat([found[hh], found[name]], dim=1), next(of_cells))
        if bias:
            close(found[b], next(of_cells))
    assert all(grad.abs().max() > 1e-6 for grad in grads)


def test_a_cell_becomes_a_layer() -> None:
    cell, layer = LLTMCell(I, H), LLTM(I, H)
    exec(TO_LAYER, {"layer": layer, "cell": cell})
    x = torch.randn(B, I)
    h, c = cell(x)
    torch.testing.assert_close(flat(layer(x[None])), (h[None], h[None], c[None]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_recompute_changes_no_bit_forward(device: str, form: tuple[int, bool, bool]) -> None:
    layers, bidirectional, bias = form
    layer = LLTM(I, H, layers, bias, bidirectional=bidirectional, device=device)
    args = arguments(layer, device)
    found = []
    for layer.recompute in (False, True):
        outputs = flat(layer(args[0], args[1:]))
        found.append((outputs, gradients(outputs, [*args, *layer.parameters()])))
    for plain, again in zip(found[0][0], found[1][0], strict=True):
        same_bits(again, plain)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_packed_row_is_that_row_alone(
    device: str, form: tuple[int, bool, bool], is_sorted: bool
) -> None:
    layers, bidirectional, bias = form
    options = {"bidirectional": bidirectional, "device": device, "dtype": torch.float64}
    layer = LLTM(I, H, layers, bias, **options)
    lengths = (5, 3, 3, 1) if is_sorted else (3, 1, 5, 3)
    x, h0, c0 = arguments(layer, device)
    rows = [x[:length, b] for b, length in enumerate(lengths)]
    packed = pack_sequence(rows, enforce_sorted=is_sorted)
    for hx in (None, (h0, c0)):
        output, (h, c) = layer(packed, hx)
        assert torch.equal(output.batch_sizes, packed.batch_sizes)
        wanted = [h, c, *unpack_sequence(output)]
        alone = [
            layer(row, None if hx is None else (h0[:, b], c0[:, b])) for b, row in enumerate(rows)
        ]
        expected = [torch.stack([states[k] for _, states in alone], dim=1) for k in (0, 1)]
        expected += [row for row, _ in alone]
        close(wanted, expected)
        leaves = [x, *(() if hx is None else hx), *layer.parameters()]
        close(gradients(tuple(wanted), leaves), gradients(tuple(expected), leaves))


def kept_bytes(layer: LLTM, steps: int, is_packed: bool) -> int:
    """Bytes that the forward pass saves for the backward pass, not counting the input."""
    x, h0, c0 = arguments(layer, "cpu", steps)
    packed = pack_sequence(list(x.detach().unbind(1)))
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(packed if is_packed else x, (h0, c0))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    for t in (x, packed.data, packed.batch_sizes):
        storages.pop(t.untyped_storage().data_ptr(), None)
    return sum(storages.values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_bytes_kept_are_those_of_the_docstring(
    form: tuple[int, bool, bool], is_packed: bool, dtype: torch.dtype
) -> None:
    layers, bidirectional, bias = form
    for recompute in (False, True):
        layer = LLTM(
            *(I, H, layers, bias), bidirectional=bidirectional, dtype=dtype, recompute=recompute
        )
        by_row = {8: (32, 8), 4: (16, 4), 2: (8, 2)}[dtype.itemsize][recompute] * H
        # The difference between two lengths excludes memory that does not grow with the steps.
        grown = kept_bytes(layer, 20, is_packed) - kept_bytes(layer, 10, is_packed)
        assert grown == by_row * 10 * B * layers * (1 + bidirectional)


def by_own_outputs(layer: LLTM, x: Tensor, output: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """All h and c [T, B, H] in float64, where each step starts from the h in ``output``, which the
    layer computed."""
    w_ih, w_hh, bias = (p.detach().double() for p in layer.parameters())
    before = torch.cat([torch.zeros_like(output[:1]), output[:-1]]).double()
    gates = x.double() @ w_ih.T + before @ w_hh.T + bias
    i, o, z = gates.chunk(3, dim=-1)
    c = c0.double() + (nn.functional.elu(z) * i.sigmoid()).cumsum(0)
    return c.tanh() * o.sigmoid(), c


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_four_thousand_steps(device: str, dtype: torch.dtype) -> None:
    """Each step agrees with the reference cell, both in a loop of calls and in one call."""
    torch.manual_seed(0)
    layer, steps = LLTM(I, H, device=device, dtype=dtype), 4000
    with torch.no_grad():
        x = torch.randn(steps, B, I, device=device, dtype=dtype)
        zeros = torch.zeros(1, B, H, device=device)
        hx, states = (zeros.to(dtype), zeros), []
        for row in x[:, None]:
            states.append(hx)
            output, hx = layer(row, hx)
            assert torch.equal(output, hx[0])
        states.append(hx)
        h, c = (torch.cat(part) for part in zip(*states, strict=True))
        cell = cells_of(layer)[0].double()
        rows, *before = (t.flatten(0, 1).double() for t in (x, h[:-1], c[:-1]))
        new_h, new_c = treadle.reference.lltm_cell(rows, cell.weights, cell.bias, *before)
        eps = torch.finfo(dtype).eps
        assert (h[1:].flatten(0, 1) - new_h).abs().max() < 4 * eps
        error = (c[1:].flatten(0, 1) - new_c).abs()
        assert (error - 2e-7 * new_c.abs()).max() < 4 * eps
        output, (h_n, c_n) = layer(x, (zeros.to(dtype), zeros))
        own_h, own_c = by_own_outputs(layer, x, output, zeros)
        walk = eps * steps**0.5 + 1e-7 * float(own_c.abs().max()) * steps**0.5
        assert (c_n - own_c[-1]).abs().max() < walk
        assert (output - own_h).abs().max() < walk + 4 * eps
        assert torch.equal(h_n[0], output[-1]) and c_n.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_hundred_thousand_steps(device: str, recompute: bool) -> None:
    torch.manual_seed(0)
    layer = LLTM(2, 4, device=device, recompute=recompute)
    x = torch.randn(100_000, 1, 2, device=device, requires_grad=True)
    output, (h, c) = layer(x)
    _, own_c = by_own_outputs(layer, x.detach(), output.detach(), torch.zeros_like(c[0]))
    torch.testing.assert_close(c[0].double(), own_c[-1], rtol=1e-3, atol=0.1)
    output.sum().backward()
    assert all(t.grad.isfinite().all() for t in (x, *layer.parameters()))
    assert x.grad.abs().max() > 0
