"""A value that is not finite affects only its own row of the batch: the other rows keep their bits.
No block waits forever for such a value, even if its bits mean "not written yet"."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels.persistent_calls import DTYPES, Cases, Given
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.support.layer_cases import Lengths
from treadle import reference

ROW = 6  # the row with a bad value; in a packed batch it ends early
LENGTHS = (6, 6, 5, 5, 4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0)
BATCH = len(LENGTHS)
# The bits of the bad values. In some kernels all ones mean "not written yet".
VALUES = {
    "ones": {"float16": -1, "bfloat16": -1, "float32": -1},
    "nan": {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000},
    "inf": {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000},
    "-inf": {"float16": -0x400, "bfloat16": -0x80, "float32": -0x800000},
}
# The arguments that get a bad value, and whether each is a sequence.
PLACES = {"input": True, "h0": False, "c0": False, "grad_output": True, "grad_h_n": False}


@dataclass(frozen=True)
class Row:
    """One row of the batch: the positions of its steps among the steps of all rows, and those of
    the other rows' steps. They are computed once, so that cases do not wait for the GPU."""

    index: int
    steps: tuple[int, ...]
    step_places: Tensor
    other_places: Tensor
    others: Tensor  # the indices of the other rows

    @staticmethod
    def of(one: Given, index: int) -> Row:
        batch = one.valid.shape[1]
        places = [place % batch for place in one.places.tolist()]
        own = [s for s, b in enumerate(places) if b == index]
        other = [s for s, b in enumerate(places) if b != index]
        rows = [b for b in range(batch) if b != index]
        tensors = [torch.tensor(x, device=calls.DEVICE).long() for x in (own, other, rows)]
        return Row(index, tuple(own), *tensors)


@dataclass(frozen=True)
class Setting:
    """A call, and its results with finite arguments."""

    algorithm: str
    dtype: str
    one: Given
    rows: dict[int, Row]
    clean: list[Tensor]

    @staticmethod
    def of(algorithm: str, dtype: str, h: int, lengths: Lengths) -> Setting:
        size = (6, BATCH, h)
        one = calls.given("rows", DTYPES[dtype], size, lengths=lengths, features=9)
        rows = {index: Row.of(one, index) for index in (ROW, 0, BATCH - 1)}
        return Setting(algorithm, dtype, one, rows, calls.both(one, algorithm))


def put(t: Tensor, at: tuple[int | slice, ...], bits: int) -> Tensor:
    """A copy with these bits at this position."""
    t = t.clone()
    t.view({2: torch.int16, 4: torch.int32}[t.element_size()])[at] = bits
    return t


def spoilt(one: Given, place: str, bits: int, row: Row, whole: bool) -> Given:
    """Returns a copy of the arguments in which one element of the row is overwritten, or all its
    elements at one step."""
    unit = slice(None) if whole else slice(1, 2)

    def sequence(t: Tensor) -> Tensor:
        if not row.steps:
            return t
        middle = row.steps[len(row.steps) // 2]
        return put(t.flatten(0, -2), (middle, unit), bits).view(t.shape)

    def state(t: Tensor) -> Tensor:
        return put(t, (slice(None), row.index, unit), bits)

    grad_output, grad_h_n, grad_c_n = one.grads
    assert grad_output is not None
    if place == "input":
        return replace(one, input=sequence(one.input))
    if place == "h0":
        return replace(one, h0=state(one.h0))
    if place == "c0":
        return replace(one, c0=state(one.c0))
    if place == "grad_output":
        return replace(one, grads=(sequence(grad_output), grad_h_n, grad_c_n))
    return replace(one, grads=(grad_output, state(grad_h_n), grad_c_n))


def other_rows(found: list[Tensor], row: Row) -> list[Tensor]:
    """The other rows of output, h_n, c_n, gates and the gradients of input, h0 and c0."""
    output, h_n, c_n, gates, grad_input, grad_h0, grad_c0, *_ = found
    sequences = [output.flatten(0, -2), gates.flatten(1, -2).transpose(0, 1)]
    sequences.append(grad_input.flatten(0, -2))
    states = [h_n, c_n, grad_h0, grad_c0]
    return [
        *(t.index_select(0, row.other_places) for t in sequences),
        *(t.index_select(1, row.others) for t in states),
    ]


def kind(t: Tensor) -> Tensor:
    """0 for finite numbers, 1 for inf, 2 for -inf, 3 for NaN."""
    return t.isnan() * 3 + t.isposinf() * 1 + t.isneginf() * 2


def composition(one: Given, backward: bool) -> list[Tensor]:
    """The results in float32 and, if ``backward``, the gradients of input, h0 and c0."""
    wide = one.map(lambda t: t.float())
    leaves = [t.requires_grad_() for t in (wide.input, wide.h0, wide.c0)]
    results = reference.recurrent_layer(*wide.arguments, cell=one.cell)
    found = [t.detach() for t in results]
    if backward:
        grads = [t for t in wide.grads if t is not None]
        found += torch.autograd.grad(results, leaves, grads)
    return found


def stays(setting: Setting, place: str, value: str, row: Row, whole: bool) -> None:
    bad = spoilt(setting.one, place, VALUES[value][setting.dtype], row, whole)
    found = calls.both(bad, setting.algorithm)
    with Checks() as checks:
        others = other_rows(found, row)
        checks.all_bits(others, other_rows(setting.clean, row), "other rows")
        for t in others:
            checks.finite(t, "other rows")
        # Where infinities meet zeros, gradients depend on which values were rounded to zero.
        backward = value in ("nan", "ones")
        ours = [*found[:3], *found[4:7]] if backward else found[:3]
        theirs = composition(bad, backward)
        for n, (t, like) in enumerate(zip(ours, theirs, strict=True)):
            checks.no(kind(t) != kind(like), f"kind of result {n}", t, like)
        if backward:
            none = ~torch.stack([t.isnan().any() for t in ours]).any(0, keepdim=True)
            checks.no(none, "NaN anywhere", none, none)


def saved_ones(setting: Setting) -> None:
    """The backward pass reads saved gates and h that are NaNs with all bits set."""
    row = setting.rows[ROW]
    output, h_n, c_n, gates = setting.clean[:4]
    bits = {2: torch.int16, 4: torch.int32}[output.element_size()]
    gates, output = gates.clone(), output.clone()
    gates.view(bits).flatten(1, -2).index_fill_(1, row.step_places, -1)
    output.view(bits).flatten(0, -2).index_fill_(0, row.step_places, -1)
    grads = calls.backward(setting.one, [output, h_n, c_n, gates], setting.algorithm)
    found = [*setting.clean[:4], *grads]
    with Checks() as checks:
        checks.all_bits(other_rows(found, row), other_rows(setting.clean, row), "other rows")
        own = found[4].flatten(0, -2).index_select(0, row.step_places)
        checks.no(~own.isnan(), "NaN in its row", own, own)


def rows(algorithm: str, dtype: str, h: int) -> Cases:
    for form, lengths in (("dense", None), ("packed", LENGTHS)):
        setting = Setting.of(algorithm, dtype, calls.fitting(algorithm, h), lengths)
        for turn, (place, value) in enumerate(itertools.product(PLACES, VALUES)):
            # Tests the row that ends early and, alternately, the first or the last row. The last
            # row of a packed batch has no step.
            for index in (ROW, (0, BATCH - 1)[(turn + turn // len(VALUES)) % 2]):
                row = setting.rows[index]
                if PLACES[place] and not row.steps:
                    continue
                by_turns = (turn // 2 + index) % 2 == 0
                for whole in (False, True) if value == "ones" else (by_turns,):
                    name = f"H{h} {form} {place} {value} row {index}{' whole' if whole else ''}"
                    yield name, partial(stays, setting, place, value, row, whole)
        yield f"H{h} {form} saved ones", partial(saved_ones, setting)


def weight_stays_with_its_unit(one: Given, algorithm: str, bits: int) -> None:
    """A bad weight that connects the first unit's h to the last unit's gate i affects only the last
    unit, because there is a single step. In the backward pass it reaches only the gradient of h0,
    so the gradients of the other units' gates are finite."""
    d, _, h = one.h0.shape
    bad = replace(one, weight_hh=put(one.weight_hh, (slice(None), h - 1, slice(0, 1)), bits))
    grad_bias = calls.both(bad, algorithm)[-1].view(d, -1, h)
    with Checks() as checks:
        checks.finite(grad_bias[..., :-1], "gradients of the other units")


def weights(algorithm: str, dtype: str, h: int) -> Cases:
    h = calls.fitting(algorithm, h)
    for form, lengths in (("dense", None), ("packed", tuple(min(n, 1) for n in LENGTHS))):
        one = calls.given("weights", DTYPES[dtype], (1, BATCH, h), lengths=lengths)
        for value in ("nan", "inf"):
            bits = VALUES[value][dtype]
            name = f"H{h} {form} {value}"
            yield name, partial(weight_stays_with_its_unit, one, algorithm, bits)


GROUPS = {"rows": rows, "weights": weights}
