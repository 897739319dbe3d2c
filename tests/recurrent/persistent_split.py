"""recurrent_layer in float32, forward, where tensor cores multiply weights and h that were split
into two float16 numbers: which calls that takes, and what splitting could lose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.recurrent import persistent_calls as calls
from tests.recurrent.persistent_calls import Cases, Given
from tests.recurrent.persistent_checks import Checks
from tests.recurrent.persistent_rows import kind
from tests.support.rule import within_rule
from treadle import reference

F32 = torch.float32
CELLS = ("lltm", "lstm", "gru")
LARGE = (20.0, 1e4, 2.0**40, 1e38)  # h0 of a row
NOT_FINITE = (float("inf"), float("-inf"), float("nan"))


def drawn(name: str, cell: str, batch: int, hidden: int, **options: Any) -> Given:
    return calls.given(name, F32, (5, batch, hidden), cell=cell, features=8, **options)


def composition(one: Given, dtype: torch.dtype = F32) -> list[Tensor]:
    return list(reference.recurrent_layer(*one.map(lambda t: t.to(dtype)).arguments, cell=one.cell))


def obeys(one: Given, rows: slice = slice(None), more: Given | None = None) -> None:
    """These rows of the batch, by the rule of all ops, for which the composition computes `more`,
    too."""
    truth, theirs = composition(one, torch.float64), composition(one)
    found = [[t[:, rows] for t in ts] for ts in (calls.inference(one, "cluster"), truth, theirs)]
    if more is not None:
        truth, theirs = composition(more, torch.float64), composition(more)
        found = [
            [torch.cat(pair, 1) for pair in zip(*both, strict=True)]
            for both in zip(found, (theirs, truth, theirs), strict=True)
        ]
    for n, each in enumerate(zip(*found, strict=True)):
        within_rule(*each, what=f"result {n}", slack=1 if more is None else 4)


# ---- which kernel


def kernel_of(run: Callable[[], Any]) -> str:
    (name,) = (launch.kernel for launch in calls.launches(run) if "_forward" in str(launch.kernel))
    return str(name)


def kernels(cell: str, batch: int, hidden: int) -> None:
    dense = drawn("kernels", cell, batch, hidden)
    assert "cluster_split_forward" in kernel_of(lambda: calls.inference(dense, "cluster"))
    packed = drawn("kernels", cell, batch, hidden, lengths=(5, *[2] * (batch - 1)))
    marks = torch.zeros(5, batch, 1, dtype=torch.bool, device=calls.DEVICE)
    op = torch.ops.treadle.recurrent_layer
    for run in (
        lambda: calls.inference(packed, "cluster"),
        lambda: op(*dense.arguments, cell=cell, algorithm="cluster", reset=marks),
    ):
        assert "cluster_fp32_forward" in kernel_of(run)


# ---- values


def weights(cell: str, hidden: int) -> None:
    """Rows that are zero, far above or below what is split, and of a wide spread."""
    one = drawn("weights", cell, 9, hidden)
    w = one.weight_hh.clone()
    w[:, 1] = 0
    w[:, 2] *= 2.0**-100
    w[:, 3] *= 1e-40
    # The large one meets no h in the first step, where the others alone count.
    w[:, 5, 7], one.h0[:, :, 7], one.c0[:, :, 7] = 2.0**60, 0, 0
    w[:, 6, 7], w[:, 6, 8:] = 2.0**14, w[:, 6, 8:] * 2.0**-20
    w[:, -1] *= 2.0**12
    obeys(replace(one, weight_hh=w))
    # Of no unit more than what is small.
    obeys(replace(one, weight_hh=one.weight_hh * 2.0**-40))


def enlarged(one: Given, row: int | slice, by: float) -> Given:
    h0, c0 = one.h0.clone(), one.c0.clone()
    h0[:, row, 3::5] *= by
    if one.cell == "gru":
        c0[:, row] = h0[:, row]
    return replace(one, h0=h0, c0=c0)


def same_layer(one: Given) -> dict[str, Any]:
    return {name: getattr(one, name) for name in calls.NAMES[3:]}


def states(cell: str, batch: int, hidden: int) -> None:
    """A row with a large h0 among others, each held to the rule by itself; the bits of the others
    are those that they have without it. How much of a row's sums cancels is a matter of luck: so
    the composition's error is that of many such rows, four times."""
    one = drawn("states", cell, batch, hidden)
    many = drawn("many", cell, 400, hidden)
    clean = calls.inference(one, "cluster")
    for row, large in itertools.product({0, batch - 1}, LARGE):
        bad = enlarged(one, row, large)
        if large < 1e30:
            more = replace(enlarged(many, slice(None), large), **same_layer(one))
            obeys(bad, slice(row, row + 1), more)
        others = [r for r in range(batch) if r != row]
        with Checks() as checks:
            for ours, theirs in zip(calls.inference(bad, "cluster"), clean, strict=True):
                checks.bits(ours[:, others], theirs[:, others], "other rows")


def not_finite(cell: str, hidden: int, value: float) -> None:
    one = drawn("not finite", cell, 5, hidden)
    w = one.weight_hh.clone()
    w[:, 4, hidden - 1] = value
    w[:, hidden, :] = 0
    w[:, hidden, 2] = value
    bad = replace(one, weight_hh=w)
    with Checks() as checks:
        for ours, theirs in zip(calls.inference(bad, "cluster"), composition(bad), strict=True):
            checks.no(kind(ours) != kind(theirs), "kind of result", ours, theirs)


def rounded(batch: int) -> None:
    """Sums of positive numbers: tensor cores cut off, which adds up unless it is done seldom."""
    one = calls.given("rounded", F32, (3, batch, 512), directions=1)
    one = replace(
        one,
        input=one.input.abs(),
        h0=one.h0.abs().clamp(max=1),
        c0=one.c0.abs(),
        weight_hh=one.weight_hh.abs() * 0.5,
    )
    output, _, _, gates = calls.forward(one, "cluster")
    before = torch.cat([one.h0, output[:-1]]).double()
    w = one.weight_hh[0].double()
    expected = one.input.double() + before @ w.t()
    assert one.bias_ih is not None
    expected += one.bias_ih[0].double()
    size = expected + 2 * one.bias_ih[0].double().abs()
    with Checks() as checks:
        checks.close(gates[0], expected, 6 * 2.0**-24 * size, "gates")


def split() -> Cases:
    for cell, (batch, hidden) in itertools.product(CELLS, ((20, 129), (40, 256), (64, 512))):
        yield f"{cell} kernel B{batch} H{hidden}", partial(kernels, cell, batch, hidden)
    for cell, hidden in itertools.product(CELLS, (129, 256, 511, 512)):
        yield f"{cell} weights H{hidden}", partial(weights, cell, hidden)
        for value in NOT_FINITE:
            yield f"{cell} H{hidden} {value}", partial(not_finite, cell, hidden, value)
    # Clusters of 1 to 10 rows.
    for cell, batch in itertools.product(CELLS, (1, 9, 17, 26, 33, 50, 64)):
        yield f"{cell} states B{batch}", partial(states, cell, batch, 512 if batch % 2 else 257)
    for batch in (1, 28, 50, 64):
        yield f"rounded B{batch}", partial(rounded, batch)


GROUPS = {"split": split}
