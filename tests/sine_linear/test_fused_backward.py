"""Tests the kernel that computes all gradients of a narrow layer, for half types on sm_90, with
full and partial tiles. On other devices the same tests run other kernels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.laws.test_launches import names, traced
from tests.sine_linear.gradients import (
    ALL,
    backward,
    backward_arguments,
    gradients_are_of,
    slope_alone,
)
from tests.support.cases import DEVICES, HALVES
from tests.support.compare import same_bits
from tests.support.inputs import HOPPER, Make
from tests.support.layouts import Layout, dense, misaligned, padded_rows

# Rows, columns, inputs. A block processes 64 rows at a time, with up to 128 columns and inputs; two
# blocks share larger layers. With the last sizes each block has several tiles.
SIZES = (
    (64, 128, 128),
    (65, 8, 8),
    (1000, 72, 40),
    (999, 256, 256),
    (1000, 200, 136),
    (300, 128, 256),
    (300, 256, 64),
    (129, 136, 8),
    (40_001, 128, 128),
    (20_003, 256, 256),
    (20_000, 104, 248),
)


def arguments(
    size: tuple[int, int, int], dtype: torch.dtype, device: str, *to: Layout
) -> tuple[Any, ...]:
    rows, columns, inputs = size
    make = Make(f"gradients {size}", device, dtype)
    return backward_arguments(make, (rows,), columns, *to, inputs=inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mask", [ALL, (False, True, True), (True, True, False)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_values(
    dtype: torch.dtype, size: tuple[int, int, int], mask: tuple[bool, ...], device: str
) -> None:
    if device == "cpu":
        size = (min(size[0], 1000), *size[1:])
    args = arguments(size, dtype, device)
    found = backward(args, mask)
    gradients_are_of(slope_alone(args), args, found, mask)
    for t, again in zip(found, backward(args, mask), strict=True):
        same_bits(again, t)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [dense, padded_rows, misaligned])
@pytest.mark.parametrize("dtype", HALVES)
def test_memory_around_it(dtype: torch.dtype, layout: Layout, device: str) -> None:
    """Tests padding, the last rows of a larger batch, and its first rows if NaN follows them."""
    args = arguments((300, 96, 72), dtype, device, layout)
    gradients_are_of(slope_alone(args), args, backward(args))
    for rows in (slice(67, None), slice(233)):
        part = tuple(t[rows] if n in (0, 1, 4, 5) else t for n, t in enumerate(args))
        expected = slope_alone(part)
        if rows.stop:
            for t in args[:2]:
                t[rows.stop :] = math.nan
        gradients_are_of(expected, part, backward(part))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(64, 64), (256, 136)], ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_not_finite(dtype: torch.dtype, sizes: tuple[int, int], device: str) -> None:
    """NaN and inf of grad stay in their row and column. So does NaN from a saved phase whose code
    means NaN."""
    args = arguments((500, *sizes), dtype, device)
    expected = backward(args)
    args[0][77, 5], args[0][490, 9] = math.nan, math.inf
    by_input, by_weight, by_bias = backward(args)
    for t, before, bad in (
        (by_input, expected[0], [77, 490]),
        (by_weight, expected[1], [5, 9]),
        (by_bias, expected[2], [5, 9]),
    ):
        rows = torch.zeros(t.shape[0], dtype=torch.bool, device=device)
        rows[bad] = True
        assert not bool(t[rows].isfinite().any())
        same_bits(t[~rows], before[~rows])
    assert bool(by_bias[5].isnan()) and bool(by_bias[9].isinf())

    args = arguments((500, *sizes), dtype, device)
    phase = args[5]
    for columns in ([3], [2, sizes[0] - 1]):
        phase[130, columns] = -(2**15)
        by_input, by_weight, by_bias = backward(args)
        assert by_bias.isnan().nonzero().flatten().tolist() == columns
        assert by_weight.isnan().any(1).nonzero().flatten().tolist() == columns
        assert by_input.isnan().any(1).nonzero().flatten().tolist() == [130]
        phase[130, columns] = 0


@HOPPER
def test_two_launches_cuda(tmp_path: Path) -> None:
    """The second kernel adds partial sums. Unsupported sizes run other kernels."""

    def kernels(
        rows: int, columns: int, inputs: int, *, dtype: torch.dtype = torch.bfloat16, **mask: bool
    ) -> list[str]:
        args = arguments((rows, columns, inputs), dtype, "cuda")
        wants = [mask.get(name, True) for name in ("input", "weight", "bias")]
        return names(traced(lambda: backward(args, wants), tmp_path))

    for size in ((64, 8, 8), (1000, 256, 256)):
        first, second = kernels(*size)
        assert "sine_linear_fused_backward" in first and "sine_linear_add_parts" in second
    others = [kernels(*size) for size in ((63, 8, 8), (64, 9, 8), (64, 264, 8), (64, 8, 264))]
    others += [kernels(64, 8, 9), kernels(64, 8, 8, dtype=torch.float32)]
    others += [kernels(64, 8, 8, weight=False)]
    for found in others:
        assert found and not any("sine_linear_fused_backward" in name for name in found), found
