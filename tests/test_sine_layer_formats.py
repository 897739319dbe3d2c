"""What docs/sine_layer.md says of the formats holds: their bounds, and the page's gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import treadle
from benchmarks import sine_layer_page
from docs import sine_layer_phase as phase
from docs.sine_layer_formats import (
    Format,
    LowBits,
    RootAndRest,
    SignOrCosine,
    Turn,
    cosine_of,
    waves,
)


@pytest.mark.parametrize("form", [LowBits(), RootAndRest()])
@pytest.mark.parametrize("name", ["N(0, 1)", "up to 1e4", "all near pi/2 and 3 pi/2"])
def test_cosine_comes_back(name: str, form: Format) -> None:
    u = phase.phases()[name]
    y, c = waves(u)
    code = form.pack(u, y, c)
    assert np.ptp(code) < 1 << 16
    s, back = form.unpack(code, y)
    # Half a step, and for the second the rounding of its sum.
    assert s is y and np.abs(back.astype(np.float64) - c).max() <= 2.0**-24
    turn = Turn(16).unpack(Turn(16).pack(u, y, c), y)
    for ours, exact in zip(turn, (np.sin, np.cos), strict=True):
        assert np.abs(ours - exact(u.astype(np.float64))).max() < math.pi / 2**16 + 1e-7


def test_low_bits_need_no_more_than_y_tells() -> None:
    u = phase.phases()["all near pi/2 and 3 pi/2"]
    y, c = waves(u)
    apart = np.abs(cosine_of(y) - np.abs(c)).max()
    assert 1e-4 < apart < 2.0**-10
    # A step eight times finer leaves less room than y takes: cosines come back wrong.
    wrong = LowBits(scale=27).unpack(LowBits(scale=27).pack(u, y, c), y)[1]
    assert np.abs(wrong - c).max() > 1e-4


@pytest.mark.parametrize("name", ["N(0, 1)", "up to 1e4", "all near pi/2 and 3 pi/2"])
def test_the_op_keeps_what_the_page_says(name: str) -> None:
    """Its gradient for a weight and an omega of 1 is the cosine, as that format gives it back."""
    u = phase.phases()[name]
    y, c = waves(u)
    cosine = RootAndRest().unpack(RootAndRest().pack(u, y, c), y)[1]
    x = torch.from_numpy(u).unsqueeze(1).requires_grad_()
    out = treadle.sine_linear(x, torch.ones(1, 1), None, 1.0)
    assert torch.equal(out.detach().squeeze(1), torch.from_numpy(y))
    (grad,) = torch.autograd.grad(out.sum(), x)
    same = torch.from_numpy(cosine)
    torch.testing.assert_close(grad.squeeze(1), same, rtol=0, atol=2.0**-24)
    assert (grad.squeeze(1) == same).float().mean() > 0.99


@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf])
def test_nan_comes_back_as_nan(x: float) -> None:
    u = np.full(3, x, np.float32)
    with np.errstate(invalid="ignore"):
        y, c = waves(u)
        assert np.isnan(LowBits().unpack(LowBits().pack(u, y, c), y)[1]).all()


def test_page_has_the_errors_of_this_build() -> None:
    """treadle's, whose bits do not depend on the machine."""
    found = sine_layer_page.figures()["cosine"]["formats"]
    for name, u in phase.phases().items():
        y, c = waves(u)
        exact = np.cos(u.astype(np.float64))
        for label, form in phase.FORMATS.items():
            error = np.abs(form.unpack(form.pack(u, y, c), y)[1] - exact)
            largest, mean = found[label][name]
            assert largest == pytest.approx(error.max(), rel=0.02), "docs/sine_layer_phase.py"
            assert mean == pytest.approx(np.sqrt(np.mean(error**2)), rel=0.02)


def test_page_is_not_worse_than_eager_by_more_than_chance() -> None:
    """The rule by which the formats were chosen; the largest entry of a gradient varies more."""
    found = sine_layer_page.figures()["gradients"]
    for dtype, cases in found.items():
        chosen = phase.CHOSEN if dtype == "float32" else "16-bit turn"
        for name, case in cases.items():
            assert sine_layer_page.worst(case, chosen, 0) < 1.05, (dtype, name)
            assert sine_layer_page.worst(case, chosen, 1) < 1.2, (dtype, name)
    float32 = found["float32"]["hidden layer, phases N(0, 1)"]
    assert sine_layer_page.worst(float32, "16-bit turn", 0) > 10


def test_emulated_gradients_follow_the_format() -> None:
    """One case again, smaller: the low bits as good as eager, a 16-bit turn far from it."""
    leaves, run = phase.single("hidden layer", torch.Generator().manual_seed(0))
    leaves = [t[:256].float() for t in leaves]
    exact = run(phase.eager, [t.double() for t in leaves])
    errors = {}
    for label, layer in {
        "eager": phase.eager,
        "low": phase.emulated(LowBits()),
        "rest": phase.emulated(RootAndRest()),
        "turn": phase.emulated(Turn(16)),
        "tau": phase.emulated(SignOrCosine(0.5)),
    }.items():
        found = run(layer, [t.clone() for t in leaves])
        errors[label] = max(e for e, _ in phase.errors(found, exact))
    assert max(errors["low"], errors["rest"]) < 1.1 * errors["eager"]
    assert errors["turn"] > 10 * errors["eager"] and errors["tau"] > 5 * errors["eager"]
