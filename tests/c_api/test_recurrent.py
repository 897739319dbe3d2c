"""Recurrent layers, forward and backward, compared with the torch op and treadle.reference."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import CELLS, Grads, Layer, Sizes, backward, completed, forward
from tests.support.compare import same_bits
from tests.support.rule import within_rule
from treadle import reference

SIZES = (
    Sizes(1, 1, 1),
    Sizes(1, 3, 8),
    Sizes(6, 1, 13),
    Sizes(5, 9, 7, inputs=1),
    Sizes(4, 8, 16),
    Sizes(3, 17, 33),
    Sizes(2, 40, 70),
)
DTYPES = (torch.float32, torch.float64)
BOTH = (1, 2)
NAMES = ("input", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
every_cell = pytest.mark.parametrize("cell", CELLS)
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_direction = pytest.mark.parametrize("directions", BOTH)


def double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) else x


@every_cell
@every_size
@every_dtype
@every_direction
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "none"])
def test_forward(
    cell: str, sizes: Sizes, dtype: torch.dtype, directions: int, biases: bool
) -> None:
    layer = Layer.random(cell, replace(sizes, directions=directions), dtype, biases)
    found = forward(layer)
    composed = reference.recurrent_layer(*layer.arguments, cell=cell)
    truth = reference.recurrent_layer(*map(double, layer.arguments), cell=cell)
    for name, *results in zip(("output", "h_n", "c_n"), found, truth, composed, strict=False):
        within_rule(results[0], results[1], results[2], what=name)
    of_torch = torch.ops.treadle.recurrent_layer_forward(*layer.arguments, cell=cell)
    tolerance = {"rtol": 0, "atol": 1e-11 if dtype == torch.float64 else 2e-4}
    torch.testing.assert_close(found[3], of_torch[3], **tolerance)
    torch.testing.assert_close(found[0], of_torch[0], **tolerance)


@every_cell
@every_direction
def test_without_gates_the_results_are_the_same(cell: str, directions: int) -> None:
    layer = Layer.random(cell, Sizes(5, 9, 13, directions=directions), torch.float32)
    saved, not_saved = forward(layer), forward(layer, save=False)
    for name, a, b in zip(("output", "h_n", "c_n"), saved, not_saved, strict=False):
        same_bits(a, b, name)
    same_bits(not_saved[3], layer.empty(*layer.gates_shape()))


def true_gradients(layer: Layer, grads: Grads, dtype: torch.dtype) -> list[Tensor]:
    """Gradients of the reference by autograd; zeros for inputs that do not affect the outputs."""
    given = [None if x is None else x.detach().clone().to(dtype) for x in layer.arguments]
    leaves = [x.requires_grad_() for x in given if x is not None]
    if layer.cell not in ("lltm", "lstm"):  # c0 is h0, so its gradient is added to h0's
        given[3] = given[2]
    results = reference.recurrent_layer(*given, cell=layer.cell)
    chosen = [(r, g.to(dtype)) for r, g in zip(results, grads, strict=True) if g is not None]
    outputs, cotangents = zip(*chosen, strict=True)
    return list(torch.autograd.grad(outputs, leaves, cotangents, materialize_grads=True))


def random_grads(layer: Layer, which: str) -> Grads:
    generator = torch.Generator().manual_seed(11)
    s = layer.sizes
    shapes = {
        "output": (s.steps, s.batch, s.directions * s.hidden),
        "h_n": tuple(layer.h0.shape),
        "c_n": tuple(layer.c0.shape),
    }
    made = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(layer.dtype)
        if name in which
        else None
        for name, shape in shapes.items()
    ]
    return made[0], made[1], made[2]


def check_gradients(layer: Layer, grads: Grads, threads: int = 1) -> None:
    output, _, _, gates = forward(layer, threads=threads)
    found = completed(layer, output, backward(layer, gates, grads, threads))
    kept = [
        (name, torch.from_numpy(x.copy()))
        for name, x, given in zip(NAMES, found, _differentiable(layer), strict=True)
        if given is not None
    ]
    truth = true_gradients(layer, grads, torch.float64)
    composed = true_gradients(layer, grads, layer.dtype)
    for (name, ours), true, theirs in zip(kept, truth, composed, strict=True):
        within_rule(ours, true, theirs, gradient=True, what=name)


def _differentiable(layer: Layer) -> tuple[Any, ...]:
    return tuple(x for i, x in enumerate(layer.arguments) if i != 1)


@every_cell
@every_size
@every_dtype
@every_direction
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "none"])
def test_backward(
    cell: str, sizes: Sizes, dtype: torch.dtype, directions: int, biases: bool
) -> None:
    layer = Layer.random(cell, replace(sizes, directions=directions), dtype, biases)
    check_gradients(layer, random_grads(layer, "output h_n c_n"))


@every_cell
@every_direction
@pytest.mark.parametrize("which", ["output", "h_n", "c_n", "output c_n", "h_n c_n"])
def test_missing_gradients_are_zeros(cell: str, directions: int, which: str) -> None:
    layer = Layer.random(cell, Sizes(4, 9, 13, directions=directions), torch.float64)
    grads = random_grads(layer, which)
    check_gradients(layer, grads)
    gates = forward(layer)[3]
    shapes = random_grads(layer, "output h_n c_n")
    zeros = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, shapes, strict=True)]
    given = zeros[0], zeros[1], zeros[2]
    for ours, theirs in zip(
        backward(layer, gates, grads), backward(layer, gates, given), strict=True
    ):
        assert torch.equal(ours, theirs)
    nothing = backward(layer, gates, (None, None, None))
    assert not any(bool(x.any()) for x in nothing)


@every_cell
@every_direction
def test_against_the_torch_ops_backward(cell: str, directions: int) -> None:
    layer = Layer.random(cell, Sizes(6, 11, 19, directions=directions), torch.float64)
    grads = random_grads(layer, "output h_n c_n")
    output, _, _, gates = forward(layer)
    found = completed(layer, output, backward(layer, gates, grads))
    mask = [x is not None for x in _differentiable(layer)] + [False] * 2  # no resets
    rest = (output, gates, cell, False, "auto", mask)
    theirs = list(torch.ops.treadle.recurrent_layer_backward(*grads, *layer.arguments, *rest))[:7]
    if cell not in ("lltm", "lstm"):  # like kernels.h, the op leaves this sum to its caller
        theirs[1] = theirs[1] + theirs[2]
        theirs[2] = torch.zeros_like(theirs[2])
    for name, ours, of_torch in zip(NAMES, found, theirs, strict=True):
        if of_torch is not None:
            torch.testing.assert_close(torch.from_numpy(ours.copy()), of_torch, msg=name)


@every_cell
@every_dtype
def test_threads_have_the_same_bits(cell: str, dtype: torch.dtype) -> None:
    layer = Layer.random(cell, Sizes(9, 75, 90, directions=2), dtype)
    grads = random_grads(layer, "output h_n c_n")
    results = []
    for threads in (1, 2, 3, 0):
        found = forward(layer, threads=threads)
        results.append([*found, *backward(layer, found[3], grads, threads)])
    for others in results[1:]:
        for a, b in zip(results[0], others, strict=True):
            same_bits(a, b)


def test_a_call_leaves_its_inputs_alone() -> None:
    for cell in CELLS:
        layer = Layer.random(cell, Sizes(3, 9, 5, directions=2), torch.float32)
        before = [x.clone() for x in _differentiable(layer) if x is not None]
        grads = random_grads(layer, "output h_n c_n")
        copies = [x.clone() for x in grads if x is not None]
        gates = forward(layer)[3]
        saved = gates.clone()
        backward(layer, gates, grads)
        after = [x for x in (*_differentiable(layer), *grads, gates) if x is not None]
        for a, b in zip(after, [*before, *copies, saved], strict=True):
            same_bits(a, b)


@every_cell
def test_half_types_are_for_cuda(cell: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = Layer.random(cell, Sizes(1, 1, 8), dtype).struct
        layer.c_dtype = native.DTYPES[torch.float32]
        size = ctypes.c_size_t(7)
        arguments = native.cpu(), layer, 0, ctypes.byref(size)
        status = native.status_of("treadle_recurrent_workspace", *arguments)
        assert status == native.UNSUPPORTED and size.value == 7
        assert native.error_text().startswith("layer.dtype must be float32 or float64 on the CPU")
