"""Compares lltm_cell on drawn sizes, strides, dtypes and biases with a composition of torch's ops.

The error against float64 is at most twice that of the composition in the same dtype, plus 8 eps
times the largest value. For gradients, it is at most three times that of the composition or the
effect of rounding all arguments, whichever is larger, plus the same. In float64 the error is at
most 1e-11 times the largest value, plus 16 eps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import treadle
from tests.recurrent.support.cell_cases import cell_reference
from tests.support.drawn import SETTINGS, place, tensors
from tests.support.inputs import DEVICES, FLOATING, HALVES

NAMES = ("input", "weights", "bias", "old_h", "old_cell")
Arguments = list[Tensor | None]


@st.composite
def arguments(draw: st.DrawFn) -> Arguments:
    """Draws small sizes, sometimes with H larger than a vector, and a layout for each tensor."""
    b, i, h = (draw(st.sampled_from([0, 1, 2, 3, 5, 8, 17])) for _ in range(3))
    if draw(st.integers(0, 4)) == 0:
        h = draw(st.sampled_from([31, 64, 65]))
    lead = draw(st.sampled_from([(), (), (), (1,), (3,)]))
    dtype = draw(st.sampled_from(FLOATING))
    wide = dtype in HALVES and draw(st.booleans())
    row = draw(st.sampled_from([(3 * h,), (1, 3 * h), None]))
    drawn: Arguments = []
    for name, shape in zip(NAMES, [(b, i), (3 * h, h + i), row, (b, h), (b, h)], strict=True):
        if shape is None:
            drawn.append(None)
            continue
        kind = torch.float32 if wide and name == "old_cell" else dtype
        special = name == "old_cell" and draw(st.integers(0, 4)) == 0
        # This factor keeps gates of order one at any width.
        by = 0.3 * (h + i + 1) ** -0.5 if name == "weights" else 1.0
        drawn.append(draw(tensors((*lead, *shape), kind, special=special, by=by)))
    return drawn


def leaves(drawn: Arguments, wanted: list[bool], device: str) -> Arguments:
    placed = [None if t is None else place(t, device) for t in drawn]
    return [
        t if t is None else t.requires_grad_(want) for t, want in zip(placed, wanted, strict=True)
    ]


def in_double(drawn: Arguments) -> Arguments:
    return [
        None if t is None else t.detach().cpu().double().requires_grad_(t.requires_grad)
        for t in drawn
    ]


def rounded(exact: Arguments, eps: float) -> Arguments:
    """float64 tensors that differ from ``exact`` by eps, relative to each element. Where a sum has
    terms that cancel, its results differ from the exact ones by more than eps."""
    signs = torch.Generator().manual_seed(0)

    def near(t: Tensor) -> Tensor:
        sign = torch.randint(0, 2, t.shape, generator=signs) * 2 - 1
        return (t.detach() * (1 + eps * sign)).requires_grad_(t.requires_grad)

    return [None if t is None else near(t) for t in exact]


def close(
    ours: Tensor,
    plain: Tensor,
    exact: Tensor,
    factor: float,
    eps: float,
    what: str,
    near: Tensor | None = None,
) -> None:
    """Checks the rule in this file's docstring. ``eps`` is that of the gates' dtype, even if the
    cell state has a wider dtype, because with few elements the composition's error can be small by
    chance."""
    assert (ours.shape, ours.dtype) == (plain.shape, plain.dtype), what
    assert ours.is_contiguous(), what
    fp64 = ours.dtype == torch.float64
    ours, plain, exact = (t.detach().cpu().double() for t in (ours, plain, exact))
    assert torch.equal(ours.isnan(), plain.isnan()), f"{what}: NaN elsewhere"
    assert torch.equal(ours.isinf(), plain.isinf()), f"{what}: inf elsewhere"
    finite = plain.isfinite() & exact.isfinite()
    if not finite.any():
        return
    largest = float(exact[finite].abs().max())
    found = (ours, plain) if near is None else (ours, plain, near)
    error, *others = (float((t - exact)[finite].abs().max()) for t in found)
    if fp64:
        # The slope 1 - h^2 of a saturated tanh has an error of about eps in the reference, too.
        allowed = 1e-11 * largest + 16 * eps
    else:
        allowed = factor * max(others) + 8 * eps * largest
    assert error <= allowed, f"{what}: error {error}, allowed {allowed}"


def check_gradients(
    data: st.DataObject,
    used: tuple[int, ...],
    asked: dict[str, bool],
    eps: float,
    *runs: tuple[tuple[Tensor, ...], Arguments],
) -> None:
    """Compares each gradient in `asked`, computed from the results `used`. `runs` are results and
    inputs of treadle, of the composition, of the composition in float64, and of the same with
    rounded inputs."""
    ours = runs[0][0]
    assert [t.requires_grad for t in ours] == [any(asked.values())] * len(ours)
    if not any(asked.values()):
        return
    cotangents = [data.draw(tensors(t.shape, t.dtype, special=False)) for t in ours]

    def gradients(results: tuple[Tensor, ...], inputs: Arguments) -> list[Any]:
        outputs = [results[i] for i in used]
        grads = [place(cotangents[i], t.device).to(t) for i, t in zip(used, outputs, strict=True)]
        of = [t for t in inputs if t is not None and t.requires_grad]
        return list(torch.autograd.grad(outputs, of, grads, allow_unused=True))

    names = [name for name, want in asked.items() if want]
    found = zip(names, *(gradients(*run) for run in runs), strict=True)
    for name, mine, theirs, true, near in found:
        if theirs is None:
            assert mine is None or not mine.any(), name
        else:
            close(mine, theirs, true, 3, eps, f"gradient of {name}", near)


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(data=st.data())
def test_lltm_cell(device: str, data: st.DataObject) -> None:
    """Checks both outputs and every requested gradient of one or both outputs."""
    drawn = data.draw(arguments())
    wanted = [t is not None and data.draw(st.booleans()) for t in drawn]
    used = data.draw(st.sampled_from([(0, 1), (0, 1), (0,), (1,)]))
    ours_in, plain_in = (leaves(drawn, wanted, device) for _ in range(2))
    exact_in = in_double(plain_in)
    eps = torch.finfo(drawn[0].dtype).eps  # type: ignore[union-attr]
    ours = treadle.lltm_cell(*ours_in)
    given = (plain_in, exact_in, rounded(exact_in, eps))
    runs = [(ours, ours_in), *((cell_reference(*inputs), inputs) for inputs in given)]
    for name, *results in zip(("new_h", "new_cell"), *(run[0] for run in runs[:3]), strict=True):
        close(*results, 2, eps, name)
    check_gradients(data, used, dict(zip(NAMES, wanted, strict=True)), eps, *runs)
