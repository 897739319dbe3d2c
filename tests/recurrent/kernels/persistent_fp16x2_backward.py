"""Tests the float32 backward kernels of recurrent_layer in the grid. They multiply W_hh and
gradients on tensor cores, each number as two float16 terms (fp16x2) or, if TF32 is allowed, as one
term. The cases test which calls use these kernels, and inputs for which fp16x2 could lose
accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels.persistent_calls import NAMES, Cases, Given, as_tf32, rounding
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.kernels.persistent_fp16x2 import CELLS, F32, NOT_FINITE, drawn
from tests.recurrent.kernels.persistent_rows import kind
from tests.support.rule import within_rule
from treadle import reference

WIDTHS = (129, 512, 513, 1024)  # two up to H 512, and two above, which use another kernel


def with_grads(one: Given, change: Any) -> Given:
    output, h_n, c_n = one.grads
    grads = (None if output is None else change(output), change(h_n), change(c_n))
    return replace(one, grads=grads)


def composition(one: Given, dtype: torch.dtype) -> list[Tensor]:
    """The reference's gradients, in the order in which calls.backward() returns them."""
    leaves = one.map(lambda t: t.detach().to(dtype).requires_grad_())
    inputs = [t for t in (getattr(leaves, name) for name in NAMES) if t is not None]
    results = reference.recurrent_layer(*leaves.arguments, cell=one.cell)
    grads = [t.detach() for t in leaves.grads if t is not None]
    return list(torch.autograd.grad(results[-len(grads) :], inputs, grads, allow_unused=True))


def obeys(one: Given, tf32: bool = False, slack: float = 1) -> None:
    """Checks all gradients by the rule (tests/support/rule.py), where the composition is algorithm
    "step". All gradients are computed from the same forward results, because weights of widely
    different sizes would make forward errors far larger than backward errors."""
    saved = calls.forward(one, "step")
    with rounding(tf32):
        ours = calls.backward(one, saved, "grid")
    truth = calls.backward(one.map(Tensor.double), [t.double() for t in saved], "step")
    # With TF32, the composition's error includes the rounding of each factor to eleven bits.
    theirs = calls.backward(one.map(as_tf32) if tf32 else one, saved, "step")
    for n, each in enumerate(zip(ours, truth, theirs, strict=True)):
        within_rule(*each, gradient=True, what=f"gradient {n}", slack=slack)


# ---- which kernel


def kernels(cell: str, batch: int, hidden: int) -> None:
    lengths = (5, *[2] * (batch - 1))
    for some, tf32 in itertools.product((None, lengths), (False, True)):
        one = drawn("kernels", cell, batch, hidden, lengths=some)
        saved = calls.forward(one, "step")
        with rounding(tf32):
            found = calls.launches(lambda one=one, saved=saved: calls.backward(one, saved, "grid"))
        names = [str(one.kernel) for one in found if "_backward" in str(one.kernel)]
        assert len(names) == 1 and "grid_split_backward" in names[0], names


# ---- values


def weights(cell: str, hidden: int, tf32: bool) -> None:
    """Tests columns of W_hh that are zero, lie far outside the range of fp16x2, or mix large and
    small weights."""
    one = drawn("weights", cell, 9, hidden)
    w = one.weight_hh.clone()
    w[:, :, 1] = 0
    w[:, :, 2] *= 2.0**-100
    w[:, :, 3] *= 1e-40
    w[:, 6, 7], w[:, 8:, 7] = 2.0**12, w[:, 8:, 7] * 2.0**-20
    w[:, :, hidden - 1] *= 2.0**8
    obeys(replace(one, weight_hh=w), tf32, slack=4 if tf32 else 1)
    obeys(replace(one, weight_hh=one.weight_hh * 2.0**-40), tf32)


def long(cell: str, hidden: int, tf32: bool) -> None:
    """Tests more steps than the ring buffer of the grid has slots, and rows that end at various
    steps."""
    lengths = (75, 75, 64, 41, 33, 32, 9, 2, *[1] * 12)
    obeys(drawn("long", cell, 20, hidden, lengths=lengths), tf32, slack=4)


def powers_of_two(cell: str, batch: int, hidden: int, tf32: bool) -> None:
    """Scaling gradients by powers of two scales the results exactly, even if each row has its own
    power."""
    one = drawn("powers", cell, batch, hidden)
    saved = calls.forward(one, "step")
    with rounding(tf32):
        plain = calls.backward(one, saved, "grid")
        row = torch.ones(batch, 1, device=calls.DEVICE)
        for power in (-60, -20, 17, 40):
            row[power % batch] = 2.0**power
            scaled = calls.backward(with_grads(one, lambda t: t * row), saved, "grid")
            with Checks() as checks:
                for n in (0, 1):  # the gradients of input and h0, which have a dimension B
                    expected = (plain[n].double() * row.double()).float()
                    checks.bits(scaled[n], expected, f"2^{power}, {n}")


def large(cell: str, batch: int, hidden: int, tf32: bool) -> None:
    """A row with gradients outside the range of fp16x2 obeys the rule, and other rows keep their
    bits. In some pairs of adjacent units one unit has such gradients, in other pairs both do."""
    one = drawn("large", cell, batch, hidden)
    saved = calls.forward(one, "step")
    with rounding(tf32):
        clean = calls.backward(one, saved, "grid")
    for row, size in itertools.product({0, batch - 1}, (2.0**61, 2.0**90)):

        def enlarged(t: Tensor, row: int = row, size: float = size) -> Tensor:
            t = t.clone()
            t[..., row, 3::18] *= size
            t[..., row, 8::18] *= size
            t[..., row, 9::18] *= size
            return t

        bad = with_grads(one, enlarged)
        with rounding(tf32):
            found = calls.backward(bad, saved, "grid")
        truth, theirs = composition(bad, torch.float64), composition(bad, F32)
        for n in (0, 1):
            each = [t[..., row, :] for t in (found[n], truth[n], theirs[n])]
            within_rule(*each, gradient=True, what=f"gradient {n}", slack=2.0**13 if tf32 else 4)
            others = [r for r in range(batch) if r != row]
            with Checks() as checks:
                checks.bits(found[n][..., others, :], clean[n][..., others, :], "other rows")


def spread(cell: str, hidden: int, power: int) -> None:
    """Every 16th gradient is multiplied by 2^power."""
    one = drawn("spread", cell, 9, hidden)

    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t[..., 5::16] *= 2.0**power
        return t

    obeys(with_grads(one, change), slack=4)


def not_finite(cell: str, hidden: int, value: float, tf32: bool) -> None:
    """If a gradient or a weight is not finite, in a batch with shorter rows, NaN and inf appear
    where algorithm "step" has them."""
    one = drawn("not finite", cell, 5, hidden, lengths=(5, 5, 4, 1, 1))
    w = one.weight_hh.clone()
    w[:, hidden - 1, 4] = value

    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t[..., 2, hidden - 1] = value
        return t

    saved = calls.forward(one, "step")
    for bad in (replace(one, weight_hh=w), with_grads(one, change)):
        with rounding(tf32):
            found = calls.backward(bad, saved, "grid")
        expected = calls.backward(bad, saved, "step")
        with Checks() as checks:
            for n in (0, 1):
                ours, theirs = found[n], expected[n]
                checks.no(kind(ours) != kind(theirs), f"kind of gradient {n}", ours, theirs)


def of_both(which: Any, *given: Any) -> Iterator[Any]:
    for tf32 in (False, True):
        yield (
            f"{which.__name__} {given} {'TF32' if tf32 else 'exact'}",
            partial(which, *given, tf32),
        )


def split_backward(cell: str) -> Cases:
    assert cell in CELLS
    for hidden, batch in ((129, 5), (512, 64), (513, 5), (1024, 32)):
        yield f"kernels B{batch} H{hidden}", partial(kernels, cell, batch, hidden)
    for hidden in WIDTHS:
        yield from of_both(weights, cell, hidden)
        yield from of_both(long, cell, hidden)
        for power in (4, 13, 40):
            yield f"spread H{hidden} 2^{power}", partial(spread, cell, hidden, power)
        for value in NOT_FINITE:
            yield from of_both(not_finite, cell, hidden, value)
    for hidden, batch in itertools.product(WIDTHS, (1, 9, 33, 130)):
        yield from of_both(powers_of_two, cell, batch, hidden)
    for hidden, batch in itertools.product((500, 999), (1, 17)):
        yield from of_both(large, cell, batch, hidden)


GROUPS = {"split backward": split_backward}
