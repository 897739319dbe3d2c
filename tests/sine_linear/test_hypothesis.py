"""Tests sine_linear with sizes, strides, dtypes and omegas that Hypothesis draws.

The tests check results, gradients and, in float64, second derivatives. tests/support/rule.py
defines the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import treadle
from tests.sine_linear.cases import sine_reference
from tests.support.drawn import SETTINGS, place, tensors
from tests.support.inputs import DEVICES, FLOATING
from tests.support.rule import within_rule

Arguments = tuple[list[Tensor | None], float]


@st.composite
def arguments(draw: st.DrawFn) -> Arguments:
    """Small sizes, some of which exceed a SIMD vector. Each tensor's layout is drawn separately."""
    i, o = (draw(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 17, 64])) for _ in range(2))
    lead = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 9]), max_size=3)))
    layers = draw(st.sampled_from([(), (), (), (1,), (3,)]))
    dtype = draw(st.sampled_from(FLOATING))
    omega = draw(st.sampled_from([1.0, 0.3, -2.0, 30.0, 0.0]))
    by = 1.5 * (i + 1) ** -0.5 / max(1.0, abs(omega))
    return [
        draw(tensors((*layers, *lead, i), dtype, special=False)),
        draw(tensors((*layers, o, i), dtype, special=False, by=by)),
        draw(tensors((*layers, o), dtype, special=False, by=by)) if draw(st.booleans()) else None,
    ], omega


def results(
    function: Callable[..., Tensor], given: list[Tensor | None], omega: float
) -> list[Tensor]:
    leaves = [t for t in given if t is not None]
    y = function(*given, omega)
    ones = torch.ones_like(y)
    twice = y.dtype == torch.float64
    grads = torch.autograd.grad(y, leaves, ones, create_graph=twice)
    found = [y.detach(), *(g.detach() for g in grads)]
    if twice:
        total = sum((g.square().sum() for g in grads), y.sum())
        found += torch.autograd.grad(total, leaves)
    return found


@pytest.mark.parametrize("device", DEVICES)
@given(drawn=arguments())
@SETTINGS
def test_by_the_rule(device: str, drawn: Arguments) -> None:
    given_tensors, omega = drawn
    placed = [None if t is None else place(t, device) for t in given_tensors]
    dtype = given_tensors[0].dtype  # type: ignore[union-attr]

    def run(function: Any, cast: torch.dtype) -> list[Tensor]:
        own = [None if t is None else t.detach().to(cast).requires_grad_() for t in placed]
        return results(function, own, omega)

    ours = run(treadle.sine_linear, dtype)
    truth = run(sine_reference, torch.float64)
    composition = run(sine_reference, dtype)
    for n, (a, c) in enumerate(zip(ours, composition, strict=True)):
        within_rule(a, truth[n], c, gradient=n > 0, what=f"result {n}")
