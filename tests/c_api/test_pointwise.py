"""The pointwise parts of the LLTM cell and of the sine layer give the same bits as the torch ops.

The weights are the identity, so that the matrix products in the torch ops equal their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.c_api import native
from tests.support.compare import differing, same_bits
from tests.support.rule import within_rule

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALVES = FLOATS[:2]
CELLS = [(dtype, dtype) for dtype in FLOATS] + [(dtype, torch.float32) for dtype in HALVES]
SHAPES = ((1, 1), (3, 5), (2, 64), (7, 100), (0, 4), (4, 0), (300, 129))
THREADS = (1, 2, 0)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def maybe(x: Tensor | None) -> native.Array | None:
    return None if x is None else native.array(x)


def guarded(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory that extends past the array, where tests look for stray writes, and the array."""
    size = math.prod(shape)
    memory = torch.full((size + 16,), 77, dtype=dtype)
    return memory, memory[:size].view(shape)


# ---- LLTM cell


class Cell:
    """The inputs of one cell, with `gates` as its matrix products, and the torch ops' results."""

    def __init__(
        self, rows: int, hidden: int, dtypes: tuple[torch.dtype, torch.dtype], bias: bool
    ) -> None:
        dtype, cell_dtype = dtypes
        self.gates = random(rows, 3 * hidden, dtype=dtype)
        self.bias = random(3 * hidden, dtype=dtype, seed=1) if bias else None
        self.old_cell = random(rows, hidden, dtype=cell_dtype, seed=2)
        old_h, input = self.gates.split((hidden, 2 * hidden), 1)
        self.given = (input, torch.eye(3 * hidden, dtype=dtype), self.bias, old_h, self.old_cell)
        found = torch.ops.treadle.lltm_cell_forward(*self.given)
        self.new_h, self.new_cell, gates = found
        assert torch.equal(gates, self.gates)

    def gradients(self, grad_h: Tensor | None, grad_cell: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradients of the gates and of old_cell."""
        mask = (True, False, False, True, True)
        backward = torch.ops.treadle.lltm_cell_backward
        given = (*self.given, self.new_cell, self.gates, mask)
        grad_input, _, _, grad_h0, grad_old = backward(grad_h, grad_cell, *given)
        return torch.cat([grad_h0, grad_input], 1), grad_old


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtypes", CELLS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lltm_cell(
    shape: tuple[int, int], dtypes: tuple[torch.dtype, torch.dtype], threads: int
) -> None:
    for bias in (True, False):
        cell = Cell(*shape, dtypes, bias)
        h_memory, new_h = guarded(*shape, dtype=dtypes[0])
        c_memory, new_cell = guarded(*shape, dtype=dtypes[1])
        arrays = [maybe(x) for x in (cell.gates, cell.bias, cell.old_cell, new_h, new_cell)]
        native.call("treadle_lltm_cell", native.cpu(threads), *arrays)
        same_bits(new_h, cell.new_h, "new_h")
        same_bits(new_cell, cell.new_cell, "new_cell")
        assert bool((h_memory[-16:] == 77).all()) and bool((c_memory[-16:] == 77).all())


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtypes", CELLS, ids=str)
@pytest.mark.parametrize("given", ["both", "grad_h", "grad_cell", "none"])
def test_lltm_cell_backward(
    given: str, dtypes: tuple[torch.dtype, torch.dtype], threads: int
) -> None:
    for shape in SHAPES:
        cell = Cell(*shape, dtypes, bias=True)
        grad_h = random(*shape, dtype=dtypes[0], seed=3) if given in ("both", "grad_h") else None
        grad_cell = None
        if given in ("both", "grad_cell"):
            grad_cell = random(*shape, dtype=dtypes[1], seed=4)
        expected, expected_old = cell.gradients(grad_h, grad_cell)
        for wanted in (True, False):
            memory, grads = guarded(shape[0], 3 * shape[1], dtype=dtypes[0])
            old = torch.full(shape, 77, dtype=dtypes[1])
            inputs = (cell.gates, cell.bias, cell.new_cell, grad_h, grad_cell)
            arrays = [maybe(x) for x in (*inputs, grads, old if wanted else None)]
            native.call("treadle_lltm_cell_backward", native.cpu(threads), *arrays)
            assert torch.equal(grads, expected)
            assert torch.equal(old, expected_old if wanted else torch.full_like(old, 77))
            assert bool((memory[-16:] == 77).all())


Layout = Callable[[Tensor], Tensor]
INPUT_LAYOUTS: dict[str, Layout] = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "step 2": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "a row for all": lambda x: x[:1].expand(x.shape),
    "padded rows": lambda x: torch.nn.functional.pad(x, (1, 3))[..., 1:-3],
}


@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
def test_lltm_cell_takes_inputs_of_any_strides(layout: str) -> None:
    dtypes = (torch.float32, torch.float32)
    for shape in ((5, 9), (6, 80)):
        cell = Cell(*shape, dtypes, bias=True)
        lay = INPUT_LAYOUTS[layout]
        gates, old_cell = lay(cell.gates), lay(cell.old_cell)
        bias = random(3, 3 * shape[1], dtype=torch.float32).T[:, 1]
        results = []
        for inputs in ((gates, bias, old_cell), [x.contiguous() for x in (gates, bias, old_cell)]):
            outs = [torch.zeros(shape), torch.zeros(shape)]
            native.call("treadle_lltm_cell", native.cpu(), *map(native.array, (*inputs, *outs)))
            results.append(outs)
        same_bits(results[0][0], results[1][0])
        same_bits(results[0][1], results[1][1])
        grads = lay(random(*shape, dtype=torch.float32, seed=6))
        found = []
        for change in (lambda x: x, Tensor.contiguous):
            arrays = map(native.array, map(change, (gates, bias, old_cell, grads, grads)))
            outs = [torch.zeros(shape[0], 3 * shape[1]), torch.zeros(shape)]
            targets = map(native.array, outs)
            native.call("treadle_lltm_cell_backward", native.cpu(), *arrays, *targets)
            found.append(outs)
        same_bits(found[0][0], found[1][0])
        same_bits(found[0][1], found[1][1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lltm_cell_in_place(shape: tuple[int, int]) -> None:
    cell = Cell(*shape, (torch.float32, torch.float32), bias=True)
    expected, expected_old = cell.gradients(cell.old_cell, cell.old_cell)
    state, new_h = cell.old_cell.clone(), torch.zeros(shape)
    given = [maybe(x) for x in (cell.gates, cell.bias, state, new_h, state)]
    native.call("treadle_lltm_cell", native.cpu(2), *given)
    same_bits(state, cell.new_cell)
    same_bits(new_h, cell.new_h)
    gates, grad = cell.gates.clone(), cell.old_cell.clone()
    given = [maybe(x) for x in (gates, cell.bias, cell.new_cell, grad, grad, gates, grad)]
    native.call("treadle_lltm_cell_backward", native.cpu(2), *given)
    assert torch.equal(gates, expected) and torch.equal(grad, expected_old)


# ---- sine layer


def phase_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.int16


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("omega", "threads"), [(1.0, 1), (30.0, 1), (30.0, 2), (30.0, 0), (-0.5, 1), (1e4, 1)]
)
def test_sine_linear(omega: float, dtype: torch.dtype, threads: int) -> None:
    for rows, columns in SHAPES:
        x, bias = random(rows, columns, dtype=dtype), random(columns, dtype=dtype, seed=1)
        weight = torch.eye(columns, dtype=dtype)
        grad = random(rows, columns, dtype=dtype, seed=2)
        product = x.to(torch.promote_types(dtype, torch.float32))
        for b in (bias, None):
            expected, kept = torch.ops.treadle.sine_linear_forward(x, weight, b, omega)
            memory, output = guarded(rows, columns, dtype=dtype)
            _, phase = guarded(rows, columns, dtype=phase_dtype(dtype))
            arrays = [native.array(product), maybe(b), omega, native.array(output)]
            native.call("treadle_sine_linear", native.cpu(threads), *arrays, native.array(phase))
            same_bits(output, expected, "output")
            same_bits(phase, kept.view(phase.shape), "phase")
            assert bool((memory[-16:] == 77).all())
            output.fill_(0)
            native.call("treadle_sine_linear", native.cpu(threads), *arrays, None)
            same_bits(output, expected, "without phase")
            slope = torch.ops.treadle.sine_linear_slope(
                grad, None, x, weight, b, expected, kept, omega, 1
            )
            for grad_z in (torch.zeros_like(grad), grad.clone()):
                source = grad_z if bool(grad_z.any()) else grad
                given = map(native.array, (source, output, phase))
                target = native.array(grad_z)
                name = "treadle_sine_linear_backward"
                native.call(name, native.cpu(threads), *given, omega, target)
                same_bits(grad_z, slope, "grad_z")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sine_linear_obeys_the_formula(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    product, bias = random(40, 50, dtype=wide) / 3, random(50, dtype=dtype, seed=1)
    output, phase = torch.zeros(40, 50, dtype=dtype), torch.zeros(40, 50, dtype=phase_dtype(dtype))
    given = (native.array(product), native.array(bias), 2.0)
    native.call("treadle_sine_linear", native.cpu(), *given, *map(native.array, (output, phase)))
    truth = torch.sin(2.0 * (product.double() + bias.double()))
    within_rule(output, truth, torch.sin(2.0 * (product + bias.to(wide))).to(dtype))
    grad, grad_z = random(40, 50, dtype=dtype, seed=5), torch.zeros(40, 50, dtype=dtype)
    arrays = map(native.array, (grad, output, phase))
    native.call("treadle_sine_linear_backward", native.cpu(), *arrays, 2.0, native.array(grad_z))
    slope = 2.0 * torch.cos(2.0 * (product.double() + bias.double()))
    eps = torch.finfo(dtype).eps if dtype != torch.float32 else 2.0**-15  # a 16-bit phase
    error = (grad_z.double() - grad.double() * slope).abs().max()
    assert error <= 8 * max(eps, 1e-15) * float(grad.abs().max())


def test_the_product_may_be_the_output() -> None:
    x, bias = random(9, 33, dtype=torch.float32), random(33, dtype=torch.float32)
    expected = torch.ops.treadle.sine_linear(x, torch.eye(33), bias, 3.0)
    target = native.array(x)
    native.call("treadle_sine_linear", native.cpu(), target, native.array(bias), 3.0, target, None)
    assert not bool(differing(x, expected).any())
