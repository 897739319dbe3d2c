"""recurrent_layer with so many rows that a thread of algorithm "step" computes several units. The
reference runs the same rows in pieces, with one unit per thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import BLOCKS, EACH_CELL
from tests.support.inputs import FLOATING, GPU, HALVES

pytestmark = GPU
STEPS, ROWS, FEATURES, HIDDEN, DIRECTIONS = 3, 2100, 5, 128, 2
PIECE = 350
BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}
SHARED = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
Named = dict[str, Tensor]


def arguments(
    cell: str,
    dtype: torch.dtype,
    resets: bool,
    sizes: tuple[int, int, int, int] = (STEPS, ROWS, HIDDEN, DIRECTIONS),
) -> Named:
    generator = torch.Generator("cuda").manual_seed(7)

    def draw(*shape: int, by: float = 1.0) -> Tensor:
        found = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64) * by
        return found.to(dtype)

    blocks, (steps, count, h, d) = BLOCKS[cell], sizes
    found = {
        "input": draw(steps, count, FEATURES),
        "h0": draw(d, count, h),
        "c0": draw(d, count, h),
        "weight_ih": draw(d, blocks * h, FEATURES, by=FEATURES**-0.5),
        "weight_hh": draw(d, blocks * h, h, by=h**-0.5),
        "bias_ih": draw(d, blocks * h, by=0.5),
        "grad_output": draw(steps, count, d * h),
        "grad_h_n": draw(d, count, h),
        "grad_c_n": draw(d, count, h),
    }
    if cell != "lltm":
        found["bias_hh"] = draw(d, blocks * h, by=0.5)
    if cell not in ("lltm", "lstm"):  # in the other cells, c is h
        found["c0"], found["grad_c_n"] = found["h0"], torch.zeros_like(found["h0"])
    if resets:
        found["reset"] = draw(steps, count, 1) > 0.5
        found["reset_h"], found["reset_c"] = draw(d, steps, count, h), draw(d, steps, count, h)
    return found


def run(given: Named, cell: str) -> Named:
    """Results and gradients, by name."""
    names = ("input", "h0", "c0", *SHARED, "reset_h", "reset_c")
    leaves = {n: given[n].detach().requires_grad_() for n in names if n in given}
    ordered = [leaves.get(n) for n in ("h0", "c0", *SHARED)]
    resets: dict[str, Any] = {n: leaves.get(n, given.get(n)) for n in ("reset", *names[-2:])}
    results = torch.ops.treadle.recurrent_layer(
        leaves["input"], None, *ordered, cell=cell, algorithm="step", **resets
    )
    grads = [given[f"grad_{n}"] for n in ("output", "h_n", "c_n")]
    found = torch.autograd.grad(results, list(leaves.values()), grads)
    named = dict(zip(("output", "h_n", "c_n"), (t.detach() for t in results), strict=True))
    return named | {f"grad_{n}": t for n, t in zip(leaves, found, strict=True)}


def rows(name: str, t: Tensor, first: int, count: int) -> Tensor:
    """The rows of a piece, in the second-to-last dimension."""
    if name.removeprefix("grad_") in SHARED:
        return t
    return t.narrow(-2, first, count)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> None:
    ours, theirs = found.double(), expected.double()
    # The gradient of c0 is zero in cells without c.
    error = ((ours - theirs).norm() / theirs.norm().clamp(min=1e-30)).item()
    assert error <= BOUNDS[dtype], f"{what}: {error}"


def as_in_pieces(given: Named, cell: str, dtype: torch.dtype, piece_rows: int) -> None:
    whole = run(given, cell)
    pieces = [
        run({n: rows(n, t, first, piece_rows) for n, t in given.items()}, cell)
        for first in range(0, given["h0"].size(-2), piece_rows)
    ]
    for name, found in whole.items():
        parts = [piece[name] for piece in pieces]
        shared = name.removeprefix("grad_") in SHARED
        # The sum over all rows is rounded once, but the sum of each piece is rounded separately.
        expected = torch.stack(parts).double().sum(0) if shared else torch.cat(parts, -2)
        close(found, expected, dtype, name)


@EACH_CELL
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
def test_as_in_pieces(cell: str, dtype: torch.dtype, resets: bool) -> None:
    as_in_pieces(arguments(cell, dtype, resets), cell, dtype, PIECE)


@EACH_CELL
def test_a_wide_layer_that_copies_its_weights_by_columns(cell: str) -> None:
    """The pieces have so few rows that they use W_hh in its original layout."""
    given = arguments(cell, torch.float32, False, (32, 40, 2048, 1))
    as_in_pieces(given, cell, torch.float32, 20)


@EACH_CELL
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_a_gradient_that_lies_across_vectors(cell: str, dtype: torch.dtype) -> None:
    given = arguments(cell, dtype, resets=False)
    expected = run(given, cell)
    wide = torch.empty(STEPS, ROWS, DIRECTIONS * HIDDEN + 8, dtype=dtype, device="cuda")
    across = wide[..., 1 : 1 + DIRECTIONS * HIDDEN].copy_(given["grad_output"])
    for name, found in run({**given, "grad_output": across}, cell).items():
        close(found, expected[name], dtype, name)
