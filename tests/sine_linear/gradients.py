"""The first backward pass of the sine layer: its arguments, and checks of its results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.sine_linear.cases import OMEGA, sine_arguments
from tests.support.compare import same_bits
from tests.support.inputs import HALVES, Make
from tests.support.layouts import Layout, dense

ops = torch.ops.treadle
ALL = (True, True, True)
NAMES = ("input", "weight", "bias")
# Bytes. If the slope has this size or more, the layer computes with less memory. The slope is the
# gradient of the sum that the layer takes the sine of (docs/sine_linear.md).
LARGE = 1 << 24


def wide(device: str) -> int:
    """The width of a layer that is too wide for the fused kernel on a GPU."""
    return 512 if device == "cuda" else 64


def backward_arguments(
    make: Make,
    lead: tuple[int, ...],
    outputs: int,
    to: Layout = dense,
    *,
    inputs: int = 1,
    bias: bool = True,
    layers: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """Arguments of sine_linear_backward without the mask.

    By default there is one input feature, so most of the work is to compute the slope and to sum
    it into the gradients.
    """
    call = sine_arguments(make, lead, (inputs, outputs), bias=bias, layers=layers)
    *tensors, omega = call.args
    output, phase = ops.sine_linear_forward(*tensors, omega)
    grad = make(*output.shape)
    x, weight, b = tensors
    return (to(grad), to(x), to(weight), b, to(output), to(phase), omega)


def backward(args: tuple[Any, ...], mask: Sequence[bool] = ALL) -> tuple[Tensor, ...]:
    """The gradients that ``mask`` selects. Checks that the others are None."""
    wanted = [*mask, False]
    found = ops.sine_linear_backward(*args, wanted)
    assert [t is not None for t in found] == wanted
    return tuple(t for t in found if t is not None)


def slope_alone(args: tuple[Any, ...]) -> Tensor:
    grad, *rest = args
    return ops.sine_linear_slope(grad, None, *rest, 1)  # type: ignore[no-any-return]


def sums(slope: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias in float64, computed from the slope."""
    front = weight.shape[:-2]

    def rows_of(t: Tensor) -> Tensor:
        return t.double().reshape(*front, math.prod(t.shape[len(front) : -1]), t.shape[-1])

    rows, x = rows_of(slope), rows_of(input)
    return (rows @ weight.double()).reshape(input.shape), rows.mT @ x, rows.sum(-2)


def gradients_are_of(
    slope: Tensor, args: tuple[Any, ...], found: Sequence[Tensor], mask: Sequence[bool] = ALL
) -> None:
    """Compares the gradients with those computed from `slope`. The tolerance covers rounding of the
    result and of the additions. For half types it also covers rounding of the slope, because the op
    may sum a slope that was not rounded."""
    exact, sizes = (sums(f(slope), *(f(t) for t in args[1:3])) for f in (lambda t: t, Tensor.abs))
    squares = sums(*(t.double().square() for t in (slope, *args[1:3])))
    eps = torch.finfo(slope.dtype).eps
    added = 1e-6 if slope.dtype != torch.float64 else 1e-14
    wanted = list(itertools.compress(zip(NAMES, exact, sizes, squares, strict=True), mask))
    for (name, truth, size, square), ours in zip(wanted, found, strict=True):
        assert ours.dtype == slope.dtype and ours.shape == truth.shape, name
        room = eps * truth.abs() + added * size
        if slope.dtype in HALVES:
            room += 2 * eps * square.sqrt()
        wrong = ~((ours.double() - truth).abs() <= room)
        assert not bool(wrong.any()), f"{name} {wrong.nonzero()[:4].tolist()}: {ours[wrong][:4]}"


def large_arguments(
    dtype: torch.dtype, device: str, *, inputs: int = 8
) -> tuple[list[Tensor], Tensor]:
    """Leaves of a layer whose output has LARGE bytes, and a gradient for the output."""
    make, outputs = Make("memory", device, dtype), wide(device)
    call = sine_arguments(make, (LARGE // (outputs * dtype.itemsize),), (inputs, outputs))
    leaves = [t.requires_grad_() for t in call.args[:3]]
    return leaves, make(len(leaves[0]), outputs)


def expected(grad: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        tensors = [t.detach() for t in leaves]
        return backward((grad, *tensors, *ops.sine_linear_forward(*tensors, OMEGA), OMEGA))


def same(found: Any, theirs: Any) -> None:
    for t, like in zip(found, theirs, strict=True):
        same_bits(t, like)
