"""Compares treadle.nn.Recurrent with treadle's built-in layers, and with treadle.reference, which
evaluates the cell's formula on tensors."""

from __future__ import annotations

import copy
import importlib
import io
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import treadle
from tests.recurrent.formula import cells
from tests.support.cases import DEVICES
from tests.support.inputs import FLOATING
from treadle import Cell, reference
from treadle.nn import formulas

EACH_CELL = pytest.mark.parametrize("cell", cells.EACH, ids=lambda cell: cell.name)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


def loop(
    layer: treadle.nn.Recurrent, x: Tensor, *states: Tensor, starts: Any = None, **options: Any
) -> Any:
    """Output, h_n and c_n of one layer, computed by treadle.reference. ``starts`` are the states
    after a reset."""
    suffixes = ("", "_reverse")[: 2 if layer.bidirectional else 1]

    def both(name: str) -> Tensor:
        return torch.stack([getattr(layer, f"{name}_l0{suffix}") for suffix in suffixes])

    def parts(h: Tensor, *rest: Tensor) -> Tensor:
        values = [both(name).unsqueeze(1).expand_as(h) for name in layer.cell.values]
        return torch.cat([*(rest or [h]), *values], -1)

    weights = [both(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    zeros = [x.new_zeros(len(suffixes), x.shape[1], layer.hidden_size)] * (
        1 + len(layer.cell.states)
    )
    given, starts = states or zeros, starts or zeros
    found = reference.recurrent_layer(
        x,
        None,
        given[0],
        parts(*given),
        *weights,
        cell=layer.cell,
        reset_h=starts[0],
        reset_c=parts(*starts),
        **options,
    )
    return (*found[:2], *found[2].chunk(len(layer.cell.parts), -1))


def gradients(results: Any, leaves: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    flat = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor)]
    return list(torch.autograd.grad(flat, leaves, [torch.randn_like(t) for t in flat]))


def agree(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    flat = torch.utils._pytree.tree_leaves
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@EACH_DEVICE
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("which", ["LSTM", "GRU"])
def test_like_the_layer_that_treadle_has(which: str, dtype: torch.dtype, device: str) -> None:
    """Compares bidirectional stacks in eval mode, on dense and packed batches."""
    kind: dict[str, Any] = {"dtype": dtype, "device": device}
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "batch_first": True}
    own = getattr(treadle.nn, which)(5, 19, **options, **kind).eval()
    layer = cells.with_weights_of(own, getattr(cells, which)).eval()
    x = torch.randn(7, 6, 5, **kind, requires_grad=True)
    bounds = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    for lengths in (None, torch.tensor([6, 5, 5, 3, 2, 1, 1])):
        found = []
        for module in (layer, own):
            given: Any = x
            if lengths is not None:
                given = pack_padded_sequence(x, lengths, batch_first=True)
            output, states = module(given)
            if lengths is not None:
                assert isinstance(output, PackedSequence)
                output = pad_packed_sequence(output, batch_first=True)[0]
            grads = gradients((output, states), [x, *module.parameters()])
            found.append([output, states, grads[0]])
        agree(*found, bounds[dtype])


@EACH_DEVICE
@EACH_CELL
def test_values_and_gradients(cell: Cell, device: str) -> None:
    layer = treadle.nn.Recurrent(cell, 3, 9, bidirectional=True, device=device, **DOUBLE)
    x = torch.randn(6, 4, 3, device=device, **DOUBLE, requires_grad=True)
    states = [torch.randn(2, 4, 9, device=device, **DOUBLE, requires_grad=True)]
    # The other states are positive, like the n of an sLSTM.
    states += [torch.rand_like(states[0], requires_grad=True) for _ in cell.states]
    output, last = layer(x, tuple(states) if cell.states else states[0])
    last = last if cell.states else (last,)
    expected = loop(layer, x, *states)[: 2 + len(cell.states)]
    leaves = [x, *states, *layer.parameters()]
    agree((output, *last), expected)
    agree(gradients((output, *last), leaves), gradients(expected, leaves))


@EACH_DEVICE
@EACH_CELL
def test_all_derivatives(cell: Cell, device: str) -> None:
    """Compares with finite differences. No argument of LiGRU's relu is near its kink."""
    layer = treadle.nn.Recurrent(cell, 2, 3, device=device, **DOUBLE)
    x = torch.randn(3, 2, 2, device=device, **DOUBLE, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Any:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, given, (x,))[0]

    inputs = (x, *(p.detach().clone().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, inputs)


@EACH_DEVICE
@EACH_CELL
@pytest.mark.parametrize("learned", [False, True])
def test_resets(cell: Cell, device: str, learned: bool) -> None:
    layer = treadle.nn.Recurrent(cell, 3, 5, device=device, **DOUBLE)
    x = torch.randn(9, 4, 3, device=device, **DOUBLE, requires_grad=True)
    reset = torch.rand(9, 4, device=device) < 0.3
    starts = [
        torch.randn(1, 4, 5, device=device, **DOUBLE, requires_grad=True)
        for _ in ("h", *cell.states)
    ]
    given = {"reset": reset}
    expected: dict[str, Any] = {"reset": reset.unsqueeze(-1)}
    if learned:
        given["reset_hx"] = tuple(starts) if cell.states else starts[0]
        expected["starts"] = starts
    leaves = [x, *layer.parameters(), *(starts if learned else [])]
    output, theirs = layer(x, **given)[0], loop(layer, x, **expected)[0]
    agree(output, theirs)
    agree(gradients(output, leaves), gradients(theirs, leaves))


@EACH_DEVICE
@EACH_CELL
def test_compile_and_export(cell: Cell, device: str, fresh_compile: None) -> None:
    """torch.compile needs no graph break, and gives the same results and gradients; so does
    torch.export for the results."""
    layer = treadle.nn.Recurrent(cell, 3, 5, num_layers=2, device=device)
    x = torch.randn(4, 2, 3, device=device, requires_grad=True)
    expected = layer(x)[0]
    compiled = torch.compile(layer, fullgraph=True)
    leaves = [x, *layer.parameters()]
    found = compiled(x)[0]
    agree(found, expected, 1e-5)
    agree(gradients(found, leaves), gradients(expected, leaves), 1e-5)
    exported = torch.export.export(layer, (x.detach(),), strict=True)
    agree(exported.module()(x.detach())[0], expected, 1e-5)


@EACH_DEVICE
def test_vmap_over_networks(device: str) -> None:
    stack = [treadle.nn.Recurrent(cells.COUPLED, 3, 5, device=device, **DOUBLE) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(stack)
    x = torch.randn(4, 2, 3, device=device, **DOUBLE)

    def one(parameters: Any, buffers: Any) -> Tensor:
        return torch.func.functional_call(stack[0], (parameters, buffers), (x,))[0]  # type: ignore

    found = torch.vmap(one)(parameters, buffers)
    agree(found, torch.stack([layer(x)[0] for layer in stack]))


@EACH_DEVICE
def test_half_types_keep_a_wide_state(device: str) -> None:
    """As in treadle's GRU, h is rounded only where it is stored. If it were rounded to bfloat16
    after each of these small steps, it would stop growing."""

    def leak(a: Any, h: Any) -> Any:
        return h + 0.001 * torch.sigmoid(a)

    layer = treadle.nn.Recurrent(
        Cell("leak", gates=("a",), forward=leak), 1, 8, device=device, dtype=torch.bfloat16
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    h = layer(torch.zeros(3000, 2, 1, device=device, dtype=torch.bfloat16))[1]
    torch.testing.assert_close(h.float(), torch.full_like(h, 1.5).float(), rtol=1e-2, atol=0)


def test_text_is_the_same_formula() -> None:
    text = """
        z = sigmoid(z)
        candidate = torch.relu(a)
        h = z * h + (1 - z) * candidate
    """
    cell = Cell("ligru", gates=("a", "z"), forward=text)
    assert cell.key == cells.LIGRU.key
    wide = Cell(
        "lstm",
        gates=("i", "f", "g", "o"),
        states=("c",),
        forward="c = sigmoid(f) * c + sigmoid(i) * tanh(g)\nh = sigmoid(o) * tanh(c)",
    )
    assert wide.key == cells.LSTM.key


def test_equal_formulas_are_one_cell() -> None:
    assert Cell("ligru", gates=("a", "z"), forward=cells.ligru).key == cells.LIGRU.key
    other = Cell("ligru", gates=("a", "z"), forward=lambda a, z, h: torch.tanh(a + z))
    assert other.key != cells.LIGRU.key


def test_copies_and_files() -> None:
    layer = treadle.nn.Recurrent(cells.LIGRU, 3, 5)
    twin = copy.deepcopy(layer)
    assert twin.cell is layer.cell and twin.weight_ih_l0 is not layer.weight_ih_l0
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh = treadle.nn.Recurrent(cells.LIGRU, 3, 5)
    fresh.load_state_dict(torch.load(file))
    x = torch.randn(4, 2, 3)
    assert torch.equal(fresh(x)[0], layer(x)[0])
    whole = io.BytesIO()
    torch.save(layer, whole)
    whole.seek(0)
    loaded = torch.load(whole, weights_only=False)
    assert loaded.cell is cells.LIGRU and torch.equal(loaded(x)[0], layer(x)[0])
    local = Cell("ligru", gates=("a", "z"), forward=cells.ligru)
    message = "ligru cannot be pickled, because its formula is code: assign it"
    with pytest.raises(TypeError, match=message):
        torch.save(treadle.nn.Recurrent(local, 3, 5), io.BytesIO())


def test_constants_and_unused_gates() -> None:
    """A formula may ignore its arguments."""
    for forward, value in ((lambda a, b, h: 0.5, 0.5), (lambda a, b, h: a * 0 + h, 0.0)):
        layer = treadle.nn.Recurrent(Cell("odd", gates=("a", "b"), forward=forward), 2, 3, **DOUBLE)
        x = torch.randn(4, 2, 2, **DOUBLE, requires_grad=True)
        output, _ = layer(x)
        assert torch.equal(output, torch.full_like(output, value))
        (grad,) = torch.autograd.grad(output.sum(), x)
        assert torch.equal(grad, torch.zeros_like(x))


def test_recompute_keeps_the_results() -> None:
    """With recompute, the forward pass saves less, and the backward pass recomputes the rest."""
    layer = treadle.nn.Recurrent(cells.COUPLED, 3, 5, **DOUBLE)
    x = torch.randn(6, 4, 3, **DOUBLE, requires_grad=True)
    leaves = [x, *layer.parameters()]
    kept = gradients(layer(x)[0], leaves)
    layer.recompute = True
    agree(gradients(layer(x)[0], leaves), kept)


def paper(name: str) -> Any:
    """The module in papers/ that computes this layer of treadle.nn by a loop over the equations of
    the layer's paper."""
    return importlib.import_module(f"tests.recurrent.formula.papers.{name.lower()}")


@EACH_DEVICE
@pytest.mark.parametrize(
    ("name", "hidden", "options"),
    [*((name, 7, {}) for name in formulas.CELLS), ("SLSTM", 12, {"num_heads": 3})],
)
def test_layers_of_formulas(name: str, hidden: int, options: dict[str, int], device: str) -> None:
    layer = getattr(treadle.nn, name)(3, hidden, **options, device=device, **DOUBLE)
    assert isinstance(layer, treadle.nn.Recurrent) and layer.cell is formulas.CELLS[name]
    x = torch.randn(5, 4, 3, device=device, **DOUBLE, requires_grad=True)
    leaves = [x, *layer.parameters()]
    output, (expected, _) = layer(x)[0], paper(name).run(layer, x)
    agree(output, expected)
    # The two forms of sLSTM round differently, because only treadle's has the stabilizer m.
    tolerance = 1e-10 if name == "SLSTM" else 1e-12
    agree(gradients(output, leaves), gradients(expected, leaves), tolerance)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x)[0], output)
    with pytest.raises(ValueError, match="hidden_size must be an integer of at least 1, got 0"):
        getattr(treadle.nn, name)(3, 0)


@EACH_DEVICE
@pytest.mark.parametrize("heads", [1, 3])
def test_states_of_slstm_without_its_stabilizer(heads: int, device: str) -> None:
    layer = treadle.nn.SLSTM(3, 12, num_heads=heads, device=device, **DOUBLE)
    x = torch.randn(6, 4, 3, device=device, **DOUBLE)
    _, (h_n, c_n, n_n, m_n) = layer(x)
    _, expected = paper("SLSTM").run(layer, x)
    agree((h_n[0], (c_n * m_n.exp())[0], (n_n * m_n.exp())[0]), expected, 1e-10)


def test_errors_name_the_state() -> None:
    layer, x = treadle.nn.SLSTM(3, 4), torch.randn(5, 2, 3)
    zero, narrow = torch.zeros(1, 2, 4), torch.zeros(1, 2, 2)
    marks = torch.ones(5, 2, dtype=torch.bool)
    for call, message in (
        (
            lambda: layer(x, reset=marks, reset_hx=(zero, zero, narrow, torch.zeros(1, 2, 6))),
            "SLSTM: n of reset_hx must have the shape of c of reset_hx, [1, 2, 4], got [1, 2, 2]",
        ),
        (
            lambda: layer(x, (zero, zero, zero.long(), zero)),
            "SLSTM: n0 must have the dtype and device of c0, float32 on cpu, got int64 on cpu",
        ),
        (lambda: treadle.nn.SLSTM(3, 4, num_heads=3), "SLSTM: num_heads must divide hidden_size"),
        (lambda: treadle.nn.SLSTM(3, 4, num_heads=2.0), "SLSTM: num_heads must be an integer"),
        (lambda: treadle.nn.SLSTM(3, 4, groups=2), "SLSTM: groups must not be given: pass"),
        (lambda: treadle.nn.LiGRU(3, 0), "LiGRU: hidden_size must be an integer of at least 1"),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(message)):
            call()


def test_four_states_are_one_tuple() -> None:
    layer = treadle.nn.SLSTM(3, 4)
    x = torch.randn(5, 2, 3)
    assert [s.shape for s in layer(x[:, :0])[1]] == [(1, 0, 4)] * 4
    output, states = layer(x)
    for state in states:
        assert state.is_contiguous()
        state[:, 0] += 0.0  # torch refuses this for views from chunk and unbind
    _, half = layer(x[:2])
    rest, last = layer(x[2:], half)  # the sequence in two parts
    agree((rest, last), (output[2:], states), 1e-6)
    words = r"SLSTM: hx must be a tuple of 4 tensors \(h0, c0, n0, m0\), got tuple of length 3"
    with pytest.raises(IndexError, match=words):
        layer(x, states[:3])
    words = r"SLSTM: reset_hx must be a tuple of 4 tensors \(h, c, n, m\), got Tensor"
    with pytest.raises(TypeError, match=words):
        layer(x, reset=torch.zeros(5, 2, dtype=torch.bool), reset_hx=states[0])
    with pytest.raises(TypeError, match="got tuple of length 3"):
        layer(x, reset=torch.zeros(5, 2, dtype=torch.bool), reset_hx=states[:3])


@EACH_DEVICE
def test_slstm_does_not_overflow(device: str) -> None:
    """In float32 exp(i) is 0 in the first steps and infinite in the last ones."""
    layer = treadle.nn.SLSTM(1, 8, device=device)
    with torch.no_grad():
        layer.weight_ih_l0[:8] = 1.0
    x = torch.linspace(-300, 300, 40, device=device).view(40, 1, 1).requires_grad_()
    output, states = layer(x)
    (grad,) = torch.autograd.grad(output.sum(), x)
    assert all(bool(torch.isfinite(t).all()) for t in (output, *states, grad))
    assert bool(output.any())
