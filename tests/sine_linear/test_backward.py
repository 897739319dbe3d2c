"""sine_linear_backward: gradients of input, weight and bias for any shape and layout."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from tests.sine_linear.cases import sine_reference
from tests.sine_linear.gradients import (
    ALL,
    NAMES,
    backward,
    backward_arguments,
    gradients_are_of,
    ops,
    slope_alone,
    sums,
)
from tests.support.cases import DEVICES, FLOATING
from tests.support.compare import same_bits
from tests.support.inputs import Make
from tests.support.layouts import Layout, expanded, misaligned, padded_rows, strided, transposed
from tests.support.rule import within_rule

MASKS = tuple(itertools.product((False, True), repeat=3))
ROWS = (0, 1, 3, 1000, 5000)
WIDTHS = (1, 3, 31, 128, 130, 256, 1030)
# Numbers of rows and outputs: more rows than a block processes or a thread sums, and partial
# blocks.
LARGE = ((300_001, 3), (70_001, 64), (5_000, 4_104))


def as_sums_of_the_slope(args: tuple[Any, ...]) -> None:
    gradients_are_of(slope_alone(args), args, backward(args))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_as_sums_of_a_slope(dtype: torch.dtype, rows: int, outputs: int, device: str) -> None:
    """Gradients of weight and bias are 0 if there are no rows."""
    as_sums_of_the_slope(backward_arguments(Make("sums", device, dtype), (rows,), outputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [0, 2, 5, 64, 72, 256])
@pytest.mark.parametrize("sizes", [(3, 0), (1, 31), (300, 64), (1000, 256)], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_more_inputs(
    dtype: torch.dtype, sizes: tuple[int, int], inputs: int, device: str
) -> None:
    make = Make("sums", device, dtype)
    as_sums_of_the_slope(backward_arguments(make, sizes[:1], sizes[1], inputs=inputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_many_rows(dtype: torch.dtype, sizes: tuple[int, int], device: str) -> None:
    if device == "cpu":
        sizes = (sizes[0] // 20 + 1, sizes[1])
    as_sums_of_the_slope(backward_arguments(Make("sums", device, dtype), sizes[:1], sizes[1]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [(), (0, 3), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("layers", [(), (2,), (0,)], ids=str)
def test_of_any_leading_dimensions(
    layers: tuple[int, ...], lead: tuple[int, ...], device: str
) -> None:
    """Each of N layers has separate sums."""
    make = Make(f"sums {lead}", device, torch.float64)
    for outputs, inputs in itertools.product((0, 4), (0, 1, 3)):
        args = backward_arguments(make, lead, outputs, inputs=inputs, layers=layers)
        as_sums_of_the_slope(args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [misaligned, padded_rows, strided, transposed])
@pytest.mark.parametrize("outputs", [3, 128])
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_any_layout(dtype: torch.dtype, outputs: int, layout: Layout, device: str) -> None:
    """Tests few elements, and enough for vector loads."""
    for rows, inputs in ((9, 1), (2000, 1), (9, 5), (300, 64)):
        make = Make("sums", device, dtype)
        args = backward_arguments(make, (rows,), outputs, layout, inputs=inputs)
        as_sums_of_the_slope(args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_one_input_row_for_all(dtype: torch.dtype, device: str) -> None:
    """The input has a stride of 0 in its first or its second dimension."""
    for inputs in (1, 64):
        grad, x, *rest = backward_arguments(Make("sums", device, dtype), (300,), 64, inputs=inputs)
        for same in (expanded(x), x[:, :1].expand(x.shape)):
            as_sums_of_the_slope((grad, same, *rest))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_what_the_mask_wants(dtype: torch.dtype, mask: tuple[bool, ...], device: str) -> None:
    """Only the gradients that the mask selects are computed."""
    cases: list[dict[str, Any]] = [
        {"lead": (2, 9), "outputs": 31, "inputs": 3},
        {"lead": (300,), "outputs": 64, "inputs": 64},
        {"lead": (7,), "outputs": 4, "inputs": 3, "layers": (2,)},
        {"lead": (7,), "outputs": 4, "inputs": 5, "bias": False},
        {"lead": (0,), "outputs": 4, "inputs": 5},
    ]
    for case in cases:
        args = backward_arguments(Make("mask", device, dtype), **case)
        gradients_are_of(slope_alone(args), args, backward(args, mask), mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_slope_with_the_gradient_of_the_bias(
    dtype: torch.dtype, bias: bool, layers: tuple[int, ...], device: str
) -> None:
    """One op returns the slope as its fourth result, and another overwrites the gradient with it.
    Callers compute the products with this slope themselves."""
    for rows in (0, 9, 300, 5000):
        make = Make("slope", device, dtype)
        args = backward_arguments(make, (rows,), 64, inputs=64, layers=layers)
        none, no, by_bias, slope = ops.sine_linear_backward(*args, [False, False, bias, True])
        assert none is None and no is None and (by_bias is not None) == bias
        same_bits(slope, slope_alone(args))
        if bias:
            gradients_are_of(slope, args, (by_bias,), (False, False, True))
        grad = args[0]
        version, place = grad._version, grad.data_ptr()
        found = ops.sine_linear_backward_(*args, bias)
        same_bits(grad, slope)
        assert (found is None) == (by_bias is None)
        if bias:
            same_bits(found, by_bias)
        assert grad._version == version + 1 and grad.data_ptr() == place


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
@pytest.mark.parametrize("mask", MASKS[1:], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_as_the_composition(
    dtype: torch.dtype, mask: tuple[bool, ...], layers: tuple[int, ...], device: str
) -> None:
    """Compares with autograd of the composition in float64."""
    for lead, inputs, outputs in (((5,), 3, 4), ((2, 40), 16, 64)):
        make = Make("composition", device, dtype)
        args = backward_arguments(make, lead, outputs, inputs=inputs, layers=layers)
        runs = []
        for cast in (torch.float64, dtype):
            leaves = [t.detach().to(cast).requires_grad_() for t in args[1:4]]
            y = sine_reference(*leaves, args[-1])
            wanted = list(itertools.compress(leaves, mask))
            runs.append(torch.autograd.grad(y, wanted, args[0].to(cast)))
        found = zip(backward(args, mask), *runs, strict=True)
        for name, given in zip(itertools.compress(NAMES, mask), found, strict=True):
            within_rule(*given, gradient=True, what=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", [31, 128])
@pytest.mark.parametrize("dtype", FLOATING)
def test_nan_and_inf_stay_in_their_rows_and_columns(
    dtype: torch.dtype, outputs: int, device: str
) -> None:
    args = backward_arguments(Make("sums", device, dtype), (3000,), outputs)
    expected = backward(args)
    args[0][1234, 5] = torch.nan
    args[0][2999, 9] = torch.inf
    for t, before, nan, inf in zip(
        backward(args), expected, ([1234, 0], [5, 0], [5]), ([2999, 0], [9, 0], [9]), strict=True
    ):
        assert t.isnan().nonzero().tolist() == [nan]
        assert t.isinf().nonzero().tolist() == [inf]
        same_bits(t[t.isfinite()], before[t.isfinite()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [1, 64])
@pytest.mark.parametrize("sizes", [(3, 5), (5000, 33), *LARGE[:2]], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_same_bits_twice(
    dtype: torch.dtype, sizes: tuple[int, int], inputs: int, device: str
) -> None:
    """Bits do not depend on concurrent work, or on previous contents of memory."""
    if device == "cpu" and inputs > 1:
        sizes = (sizes[0] // 20 + 1, sizes[1])
    args = backward_arguments(Make("sums", device, dtype), sizes[:1], sizes[1], inputs=inputs)
    first = backward(args)
    for _ in range(3):
        torch.full((1 << 18,), torch.nan, device=device)
        for again, before in zip(backward(args), first, strict=True):
            same_bits(again, before)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_in_float32_are_at_least_those_of_aten(device: str) -> None:
    """Compares norms of errors against float64, also for values of one sign, whose sums and
    rounding errors grow."""
    grad, *rest = backward_arguments(Make("sums", device, torch.float32), (200_000,), 8)
    ones = torch.where(slope_alone((torch.ones_like(grad), *rest)) < 0, -1.0, 1.0)
    for args in ((grad, *rest), (ones, *rest)):
        slope, (by_bias,) = slope_alone(args), backward(args, (False, False, True))
        exact = slope.double().sum(0)
        ours, theirs = ((t.double() - exact).norm() for t in (by_bias, slope.sum(0)))
        assert ours <= 2 * theirs + 1e-7 * exact.norm()


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [ALL, (True, False, False), (False, True, False)], ids=str)
@pytest.mark.parametrize(
    "batched", [(0,), (0, 4, 5), (0, 1, 4, 5), (2,), (3,), (0, 1, 2, 3, 4, 5)], ids=str
)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
def test_vmap(
    layers: tuple[int, ...], batched: tuple[int, ...], mask: tuple[bool, ...], device: str
) -> None:
    """With vmap over rows, each sample has separate sums."""
    make = Make("sums", device, torch.float64)
    args = list(backward_arguments(make, (7,), 4, inputs=3, layers=layers))
    dims = [0 if i in batched else None for i in range(6)]
    for i in batched:
        scales = (1, 1, 1) if i == 5 else (1.0, -0.5, 0.25)
        args[i] = torch.stack([args[i] * k for k in scales])
    omega = args.pop()

    def run(*tensors: Tensor) -> Any:
        return backward((*tensors, omega), mask)

    found = vmap(run, tuple(dims))(*args)
    for n in range(3):
        alone = run(*(t if d is None else t[n] for t, d in zip(args, dims, strict=True)))
        torch.testing.assert_close(tuple(t[n] for t in found), alone, rtol=1e-13, atol=1e-13)


def test_a_missing_row_and_a_shifted_column_are_noticed() -> None:
    args = backward_arguments(Make("sums", "cpu", torch.float32), (1000,), 31)
    slope, found = slope_alone(args), backward(args)
    zero = torch.cat([slope[:-1], torch.zeros_like(slope[-1:])])
    missing = [t.float() for t in sums(zero, *args[1:3])]
    for n, name in enumerate(NAMES):
        for wrong in (missing[n], found[n].roll(1)):
            with pytest.raises(AssertionError, match=name):
                gradients_are_of(slope, args, [*found[:n], wrong, *found[n + 1 :]])
