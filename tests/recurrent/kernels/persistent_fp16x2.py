"""Tests the float32 forward kernels of recurrent_layer that multiply weights and h on tensor cores,
in clusters and in the grid, each number as two float16 terms (fp16x2) or, in the grid if TF32 is
allowed, as one term. The cases test which calls use these kernels, and inputs for which they could
lose accuracy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels.persistent_calls import Cases, Given, as_tf32, rounding
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.kernels.persistent_rows import kind
from tests.recurrent.support.layer_cases import BLOCKS, Lengths
from tests.support import gpus
from tests.support.rule import within_rule
from treadle import reference

F32 = torch.float32
CELLS = ("lltm", "lstm", "gru", "rnn_tanh")  # rnn_relu has other kernels in clusters
LARGE = (20.0, 1e4, 2.0**40, 1e38)  # factors for one row's h0
NOT_FINITE = (float("inf"), float("-inf"), float("nan"))


def drawn(name: str, cell: str, batch: int, hidden: int, **options: Any) -> Given:
    return calls.given(name, F32, (5, batch, hidden), cell=cell, features=8, **options)


def composition(one: Given, dtype: torch.dtype = F32) -> list[Tensor]:
    return list(reference.recurrent_layer(*one.map(lambda t: t.to(dtype)).arguments, cell=one.cell))


def inference(one: Given, algorithm: str, tf32: bool) -> list[Tensor]:
    with rounding(tf32):
        return calls.inference(one, algorithm)


def obeys(
    one: Given,
    algorithm: str,
    tf32: bool,
    rows: slice = slice(None),
    more: Given | None = None,
) -> None:
    """Checks these rows of the batch by the rule (tests/support/rule.py). With TF32, the
    composition's error includes the rounding of its operands. The rows of `more` also count when
    the composition's error is measured."""
    cut = as_tf32 if tf32 else (lambda t: t)
    truth, theirs = composition(one, torch.float64), composition(one.map(cut))
    ours = inference(one, algorithm, tf32)
    found = [[t[:, rows] for t in ts] for ts in (ours, truth, theirs)]
    if more is not None:
        truth, theirs = composition(more, torch.float64), composition(more.map(cut))
        found = [
            [torch.cat(pair, 1) for pair in zip(*both, strict=True)]
            for both in zip(found, (theirs, truth, theirs), strict=True)
        ]
    for n, each in enumerate(zip(*found, strict=True)):
        within_rule(*each, what=f"result {n}", slack=4 if tf32 or more is not None else 1)


# ---- which kernel


def kernel_of(run: Callable[[], Any]) -> str:
    (name,) = (launch.kernel for launch in calls.launches(run) if "_forward" in str(launch.kernel))
    return str(name)


def kernels(algorithm: str, cell: str, batch: int, hidden: int, tf32: bool) -> None:
    dense = drawn("kernels", cell, batch, hidden, directions=1)
    name = kernel_of(lambda: inference(dense, algorithm, tf32))
    split = f"{algorithm}_split_forward"
    assert split in name
    if algorithm == "grid":
        words = re.search(r"GridSplit<\d+, \d+, \d+, (\d)", name)
        assert words and words[1] == ("1" if tf32 else "2"), name
    packed = drawn("kernels", cell, batch, hidden, lengths=(5, *[2] * (batch - 1)), directions=1)
    marks = torch.zeros(5, batch, 1, dtype=torch.bool, device=calls.DEVICE)
    op = torch.ops.treadle.recurrent_layer
    for run in (
        lambda: inference(packed, algorithm, tf32),
        lambda: op(*dense.arguments, cell=cell, algorithm=algorithm, reset=marks),
    ):
        with rounding(tf32):
            ragged = kernel_of(run)
        assert split in ragged and (ragged != name or algorithm == "grid")


# ---- values


def weights(algorithm: str, cell: str, hidden: int, tf32: bool) -> None:
    """Tests rows of W_hh that are zero, lie far outside the range of fp16x2, or mix large and small
    weights."""
    one = drawn("weights", cell, 9, hidden)
    w = one.weight_hh.clone()
    w[:, 1] = 0
    w[:, 2] *= 2.0**-100
    w[:, 3] *= 1e-40
    # In the first step h = 0 multiplies the large weight, so that only the other weights matter.
    w[:, 5, 7], one.h0[:, :, 7], one.c0[:, :, 7] = 2.0**60, 0, 0
    w[:, 6, 7], w[:, 6, 8:] = 2.0**14, w[:, 6, 8:] * 2.0**-20
    if BLOCKS[cell] > 1:  # an RNN's h would depend on how a sum near 0 is rounded
        w[:, -1] *= 2.0**12
    obeys(replace(one, weight_hh=w), algorithm, tf32)
    # The weights of all units are small.
    obeys(replace(one, weight_hh=one.weight_hh * 2.0**-40), algorithm, tf32)


def enlarged(one: Given, row: int | slice, by: float) -> Given:
    h0, c0 = one.h0.clone(), one.c0.clone()
    h0[:, row, 3::5] *= by
    if one.cell not in ("lltm", "lstm"):
        c0[:, row] = h0[:, row]
    return replace(one, h0=h0, c0=c0)


def same_layer(one: Given) -> dict[str, Any]:
    return {name: getattr(one, name) for name in calls.NAMES[3:]}


def states(algorithm: str, cell: str, batch: int, hidden: int, tf32: bool) -> None:
    """The results of a row with a large h0 obey the rule, and the other rows keep their bits. A
    single row's error depends on how much its sums happen to cancel. So the composition's error is
    measured over many such rows, and the bound is four times that of the rule."""
    one = drawn("states", cell, batch, hidden)
    many = drawn("many", cell, 400, hidden)
    clean = inference(one, algorithm, tf32)
    for row, large in itertools.product({0, batch - 1}, LARGE):
        bad = enlarged(one, row, large)
        if large < 1e30:
            more = replace(enlarged(many, slice(None), large), **same_layer(one))
            obeys(bad, algorithm, tf32, slice(row, row + 1), more)
        others = [r for r in range(batch) if r != row]
        with Checks() as checks:
            for ours, theirs in zip(inference(bad, algorithm, tf32), clean, strict=True):
                checks.bits(ours[:, others], theirs[:, others], "other rows")


def not_finite(algorithm: str, cell: str, hidden: int, value: float, tf32: bool) -> None:
    one = drawn("not finite", cell, 5, hidden)
    w = one.weight_hh.clone()
    other = hidden if BLOCKS[cell] > 1 else 9
    w[:, 4, hidden - 1] = value
    w[:, other, :] = 0
    w[:, other, 2] = value
    bad = replace(one, weight_hh=w)
    with Checks() as checks:
        for ours, theirs in zip(inference(bad, algorithm, tf32), composition(bad), strict=True):
            checks.no(kind(ours) != kind(theirs), "kind of result", ours, theirs)


def growing(algorithm: str, batch: int, hidden: int, tf32: bool) -> None:
    """With relu, |h| exceeds the range of fp16x2 after the first steps, in every row."""
    one = drawn("growing", "rnn_relu", batch, hidden)
    one = replace(one, weight_hh=one.weight_hh.abs())
    output = inference(one, algorithm, tf32)[0][..., :hidden].amax(-1)
    assert output[0].max() < 15 and output[-1].min() > 15, (output[0], output[-1])
    obeys(one, algorithm, tf32)


def rounded(algorithm: str, batch: int, hidden: int, tf32: bool) -> None:
    """Tests sums of positive numbers. The errors of tensor cores accumulate in such sums, unless
    truncation is rare."""
    one = calls.given("rounded", F32, (3, batch, hidden), directions=1)
    one = replace(
        one,
        input=one.input.abs(),
        h0=one.h0.abs().clamp(max=1),
        c0=one.c0.abs(),
        weight_hh=one.weight_hh.abs() * 0.5,
    )
    with rounding(tf32):
        output, _, _, gates = calls.forward(one, algorithm)
    before = torch.cat([one.h0, output[:-1]]).double()
    w = one.weight_hh[0].double()
    expected = one.input.double() + before @ w.t()
    assert one.bias_ih is not None
    expected += one.bias_ih[0].double()
    size = expected + 2 * one.bias_ih[0].double().abs()
    with Checks() as checks:
        bits = 11 if tf32 else 24  # with TF32, the input products are rounded, too
        checks.close(gates[0], expected, 6 * 2.0**-bits * size, "gates")


def large_resets(
    algorithm: str,
    cell: str,
    batch: int,
    hidden: int,
    lengths: Lengths,
    per_step: bool,
    tf32: bool,
) -> None:
    """Results obey the rule even if some initial and replacement states are outside the range of
    fp16x2. In some rows, some units have such large values. The other rows have the same bits as
    without large values."""
    one = calls.given("resets", F32, (7, batch, hidden), cell=cell, features=8, lengths=lengths)
    draw = calls.Draw(f"{hidden} {per_step}", F32)
    directions = one.h0.shape[0]
    shape = (directions, *one.input.shape[:-1], hidden) if per_step else one.h0.shape
    marks = draw(*one.input.shape[:-1], 1) > 0.5
    small = {"h0": one.h0, "reset_h": draw(*shape)}
    reset_c = draw(*shape)
    large = {name: t.clone() for name, t in small.items()}
    rows = torch.arange(batch, device=calls.DEVICE)
    for name, t in large.items():
        large_rows = rows % 2 == 1
        if name == "reset_h" and lengths is not None and per_step:
            counts = [sum(n > t for n in lengths) for t in range(max(lengths))]
            large_rows = torch.cat([large_rows[:count] for count in counts])
        t[..., large_rows, 5::9] *= 1e3
        t[..., large_rows, 8::18] *= 1e3

    def given(states: dict[str, Tensor]) -> tuple[Given, dict[str, Any]]:
        with_c = cell in ("lltm", "lstm")
        layer = replace(one, h0=states["h0"], c0=one.c0 if with_c else states["h0"])
        reset_h = states["reset_h"]
        return layer, {
            "reset": marks,
            "reset_h": reset_h,
            "reset_c": reset_c if with_c else reset_h,
        }

    def run(layer: Given, resets: dict[str, Any]) -> list[Tensor]:
        op = torch.ops.treadle.recurrent_layer
        with rounding(tf32):
            return list(op(*layer.arguments, cell=cell, algorithm=algorithm, **resets))

    one, resets = given(large)
    found = [run(one, resets)]
    with Checks() as checks:
        for ours, theirs in zip(found[0][1:], run(*given(small))[1:], strict=True):
            checks.bits(ours[:, ::2], theirs[:, ::2], "rows without large values")
    for change in (Tensor.double, as_tf32 if tf32 else Tensor.float):
        to = one.map(change)
        wide = {n: t if n == "reset" else change(t) for n, t in resets.items()}
        found.append(list(reference.recurrent_layer(*to.arguments, cell=cell, **wide)))
    for n, each in enumerate(zip(*found, strict=True)):
        within_rule(*each, what=f"result {n}", slack=4)


def of_clusters() -> Cases:
    for cell, (batch, hidden) in itertools.product(CELLS, ((20, 129), (40, 256), (64, 512))):
        one = partial(kernels, "cluster", cell, batch, hidden, tf32=False)
        yield f"{cell} kernel B{batch} H{hidden}", one
    for cell, hidden in itertools.product(CELLS, (129, 256, 511, 512)):
        yield f"{cell} weights H{hidden}", partial(weights, "cluster", cell, hidden, tf32=False)
        for value in NOT_FINITE:
            one = partial(not_finite, "cluster", cell, hidden, value, tf32=False)
            yield f"{cell} H{hidden} {value}", one
    # With these batches, a cluster runs 1 to 10 rows.
    for cell, batch in itertools.product(CELLS, (1, 9, 17, 26, 33, 50, 64)):
        hidden = 512 if batch % 2 else 257
        yield f"{cell} states B{batch}", partial(states, "cluster", cell, batch, hidden, tf32=False)
    for batch in (1, 28, 50, 64):
        yield f"rounded B{batch}", partial(rounded, "cluster", batch, 512, tf32=False)
        yield f"growing B{batch}", partial(growing, "cluster", batch, 257 + batch, tf32=False)
    # A cluster of 8 blocks runs 1, 3 and 10 rows of these batches, and one of 16 up to 10.
    for cell, batch, per_step in itertools.product(CELLS, (5, 19, 64), (False, True)):
        rest = batch - 5
        lengths = (7, 7, 6, *[4] * (rest // 2), *[2] * (rest - rest // 2), 1, 1)
        for hidden, some in itertools.product((129, 256, 511), (None, lengths)):
            name = f"{cell} resets B{batch} H{hidden} {some is not None} {per_step}"
            one = partial(large_resets, "cluster", cell, batch, hidden, some, per_step, tf32=False)
            yield name, one


def of_grids(wide: tuple[int, ...]) -> Iterator[tuple[str, Callable[..., None]]]:
    """Cases that need the argument tf32. `wide` has more widths, above 1024."""
    sizes = ((5, 129), (70, 512), (32, 1024), *((20, hidden) for hidden in wide))
    for cell, (batch, hidden) in itertools.product(CELLS, sizes):
        yield f"{cell} kernel B{batch} H{hidden}", partial(kernels, "grid", cell, batch, hidden)
    for cell, hidden in itertools.product(CELLS, (129, 512, 999, 1024, *wide)):
        yield f"{cell} weights H{hidden}", partial(weights, "grid", cell, hidden)
        for value in NOT_FINITE:
            yield f"{cell} H{hidden} {value}", partial(not_finite, "grid", cell, hidden, value)
    for cell, batch in itertools.product(CELLS, (1, 9, 33, 130)):
        for hidden in (1024, 257, *wide[:1]) if batch % 2 else (601, 512):
            name = f"{cell} states B{batch} H{hidden}"
            yield name, partial(states, "grid", cell, batch, hidden)
    for batch, hidden in itertools.product((1, 28, 64), (512, 1024)):
        yield f"rounded B{batch} H{hidden}", partial(rounded, "grid", batch, hidden)
        yield f"growing B{batch} H{hidden}", partial(growing, "grid", batch, hidden - batch)
    lengths = (7, 7, 5, *[4] * 9, 3, 3, *[1] * 5)
    for cell, hidden, some, per_step in itertools.product(
        CELLS, (257, 768), (None, lengths), (False, True)
    ):
        name = f"{cell} resets H{hidden} {some} {per_step}"
        yield name, partial(large_resets, "grid", cell, 19, hidden, some, per_step)


def split(algorithm: str) -> Cases:
    if algorithm == "cluster":
        yield from of_clusters()
        return
    # With TF32, wide layers run on GPUs with setmaxnreg and 128 multiprocessors.
    most = gpus.any_clusters() and gpus.multiprocessors() >= 128
    for tf32 in (False, True):
        for name, one in of_grids((1100, 2048) if tf32 and most else ()):
            yield f"{name} {'TF32' if tf32 else 'exact'}", partial(one, tf32=tf32)


GROUPS = {"split": split}
