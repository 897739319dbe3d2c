"""Resets in the algorithms that run a layer in one launch: values, bits, NaN, and CUDA graphs whose
reset marks change."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels.persistent_calls import DTYPES, Cases
from tests.recurrent.kernels.persistent_rule import by_rule
from tests.recurrent.support.layer_cases import Lengths
from tests.recurrent.support.reset_cases import MARKS, STARTS, marks_of, reset_arguments
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import FLOATING, HALVES, Call, Case, Make

# T, B, I, H. They cover every kernel of both passes, with fewer rows than a tile and with several
# tiles. A warp reads the marks of 32 steps at once, and the grid's ring buffer has 64 slots; some
# of these sizes have more steps.
SIZES: tuple[tuple[int, int, int, int], ...] = (
    (9, 5, 3, 31),
    (6, 150, 3, 31),  # in half types, more rows than the single-block kernels run
    (37, 3, 3, 64),
    (7, 200, 3, 96),
    (70, 17, 5, 128),
    (9, 3, 5, 257),
    (66, 40, 5, 512),
    (6, 33, 5, 768),
    (5, 9, 3, 1024),
    (5, 20, 3, 2048),
    (5, 300, 3, 192),
    (9, 20, 3, 384),
)
LENGTHS: tuple[Lengths, ...] = (None, (37, *[21] * 7, *[2] * 9, 1))


def cases(algorithm: str, dtype: str, cell: str) -> Cases:
    """The op's own cases, and large cases with two directions."""
    op = OPS[f"recurrent_layer {cell} resets"]
    for case in op.cases:
        if DTYPES[dtype] in case.dtypes:
            yield case.id, partial(by_rule, op, case, DTYPES[dtype], algorithm)
    for turn, (size, lengths) in enumerate(itertools.product(SIZES, LENGTHS)):
        starts = STARTS[turn % 3]
        if not calls.fits(algorithm, DTYPES[dtype], size[3], cell, lengths, resets=True):
            continue
        options: dict[str, Any] = {"lengths": lengths, "cell": cell, "directions": 2}

        def build(
            make: Make, size: tuple[int, int, int, int], starts: str, options: dict[str, Any]
        ) -> Call:
            return reset_arguments(make, size, starts, "some", **options)

        named = f"resets T{size[0]} B{size[1]} H{size[3]} {lengths} {starts}"
        made = partial(build, size=size, starts=starts, options=options)
        case = Case(f"{cell} {named}", made, FLOATING)
        yield named, partial(by_rule, op, case, DTYPES[dtype], algorithm)


def layer_of(
    one: calls.Given, algorithm: str, marks: Tensor | None, *others: Tensor | None
) -> list[Tensor]:
    """Results and all gradients except those of replacement states."""
    resets = {"reset": marks, "reset_h": None, "reset_c": None}
    for name, t in zip(("reset_h", "reset_c"), others, strict=False):
        resets[name] = t
    options = {"cell": one.cell, "algorithm": algorithm, **resets}
    mask = [getattr(one, name) is not None for name in calls.NAMES] + [False] * 2
    with calls.allowing(algorithm, one.input.dtype):
        forward = torch.ops.treadle.recurrent_layer_forward(*one.arguments, **options)
        output, _, _, gates = forward
        grads = torch.ops.treadle.recurrent_layer_backward(
            *one.grads, *one.arguments, output, gates, one.cell, False, algorithm, mask, **resets
        )
    return [*forward, *(t for t, wanted in zip(grads, mask, strict=True) if wanted)]


OF_WEIGHT_HH = 4 + calls.NAMES.index("weight_hh")  # index into the result of layer_of


def marked(one: calls.Given, marks: str) -> Tensor:
    return marks_of(marks, one.input, None)


def splits(algorithm: str, dtype: torch.dtype, hidden: int) -> bool:
    """Whether the forward pass of dense batches without marks uses tensor cores for float32."""
    return algorithm == "cluster" and dtype == torch.float32 and hidden > 96


def no_marks(algorithm: str, dtype: torch.dtype, size: calls.Sizes, cell: str) -> None:
    """Marks that are all false give the same bits as a call without marks, with these exceptions.
    In "cluster", gradients are only close, because dense batches without marks may run other
    kernels, which sum in another order. If those kernels multiply float32 on tensor cores, all
    results are only close. So are all results of RNN, LLTM and formulas in "cluster", because half
    types may run in clusters of another shape; where relu's argument is about 0, even single
    gradients are not close. In float32, the gradient of weight_hh takes one product with marks and
    two without."""
    one = calls.given("none", dtype, size, cell=cell, features=8)
    found = layer_of(one, algorithm, marked(one, "none"))
    forward = 4 if algorithm == "cluster" and dtype in HALVES else len(found)
    other_shape = algorithm == "cluster" and (cell not in ("lstm", "gru"))
    if splits(algorithm, dtype, size[2]) or other_shape:
        forward = 0
    by_parts = () if dtype in HALVES else (OF_WEIGHT_HH,)
    for n, (ours, theirs) in enumerate(zip(found, layer_of(one, algorithm, None), strict=True)):
        if n < forward and n not in by_parts:
            same_bits(ours, theirs)
        else:
            longer = dtype == torch.float32 and (forward == 0 or n in by_parts)
            bound = (64 if longer else 16 if other_shape else 4) * torch.finfo(dtype).eps
            if other_shape:
                assert (ours - theirs).double().norm() <= bound * theirs.double().norm()
            else:
                torch.testing.assert_close(
                    ours, theirs, rtol=bound, atol=bound * theirs.abs().max()
                )


def twice(algorithm: str, dtype: torch.dtype, size: calls.Sizes, cell: str) -> None:
    one = calls.given("twice", dtype, size, cell=cell, features=8)
    marks = marked(one, "some")
    for ours, theirs in zip(*(layer_of(one, algorithm, marks) for _ in range(2)), strict=True):
        same_bits(ours, theirs)


def contained(algorithm: str, dtype: torch.dtype, size: calls.Sizes, cell: str) -> None:
    """NaN and inf do not cross a reset. A bad input before the reset changes neither the results
    nor the gradients of later steps. A bad input after the reset does not change the gradients of
    earlier steps. With this many steps the backward pass computes c in parts; the first bad step is
    the last of a part."""
    t = 8
    size = (2 * t + 1, *size[1:])
    one = calls.given("contained", dtype, size, cell=cell, directions=1, features=8)
    marks = torch.zeros_like(marked(one, "none"))
    marks[t] = True
    good = layer_of(one, algorithm, marks)
    for bad in (float("nan"), float("inf"), float("-inf")):
        before = one.input.clone()
        before[t - 1] = bad
        x = replace(one, input=before)
        output, h_n, c_n, _, grad, *_ = layer_of(x, algorithm, marks)
        for ours, theirs in ((output[t:], good[0][t:]), (h_n, good[1]), (c_n, good[2])):
            same_bits(ours, theirs)
        torch.testing.assert_close(grad[t:], good[4][t:])
        after = one.input.clone()
        after[t] = bad
        _, _, _, _, grad, *_ = layer_of(replace(one, input=after), algorithm, marks)
        torch.testing.assert_close(grad[:t], good[4][:t])


def pieces(algorithm: str, dtype: torch.dtype, size: calls.Sizes, cell: str) -> None:
    """A call that resets all rows at one step gives the results of two calls. Each gate of the LLTM
    has an input of its own here, so that cuBLAS rounds nothing."""
    t = size[0] // 2
    one = calls.given("pieces", dtype, size, directions=1)
    marks = torch.zeros(*size[:2], 1, dtype=torch.bool, device=one.input.device)
    marks[t] = True
    options = {"cell": "lltm", "algorithm": algorithm}
    op = torch.ops.treadle.recurrent_layer
    begin = replace(one, input=one.input[:t])
    end = replace(
        one, input=one.input[t:], h0=torch.zeros_like(one.h0), c0=torch.zeros_like(one.c0)
    )
    with calls.allowing(algorithm, dtype):
        output, h_n, c_n = op(*one.arguments, reset=marks, **options)
        first, second = (op(*part.arguments, **options) for part in (begin, end))
    expected = torch.cat([first[0], second[0]]), second[1], second[2]
    for ours, theirs in zip((output, h_n, c_n), expected, strict=True):
        other_shape = algorithm == "cluster" and dtype in HALVES and size[2] > 256
        if splits(algorithm, dtype, size[2]) or other_shape:
            bound = 4 * torch.finfo(dtype).eps if other_shape else 1e-5
            torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
        else:
            same_bits(ours, theirs)


def bits(algorithm: str, dtype: str, cell: str) -> Cases:
    for _, b, _, h in SIZES:
        if not calls.fits(algorithm, DTYPES[dtype], h, cell, resets=True):
            continue
        for check in (no_marks, twice, contained, *([pieces] if cell == "lltm" else [])):
            size = 9, b, h
            yield (
                f"{check.__name__} B{b} H{h}",
                partial(check, algorithm, DTYPES[dtype], size, cell),
            )


def replayed(algorithm: str, dtype: torch.dtype, cell: str) -> None:
    """A replayed CUDA graph reads the current marks."""
    one = calls.given("graph", dtype, (9, 5, 64), cell=cell, features=8)
    marks = marked(one, "some").clone()
    options = {"cell": cell, "algorithm": algorithm, "reset": marks}
    op = torch.ops.treadle.recurrent_layer
    graph = torch.cuda.CUDAGraph()
    with calls.allowing(algorithm, dtype):
        op(*one.arguments, **options)
        with torch.cuda.graph(graph):
            found = op(*one.arguments, **options)
        for kind in MARKS:
            marks.copy_(marked(one, kind))
            graph.replay()
            for ours, theirs in zip(found, op(*one.arguments, **options), strict=True):
                same_bits(ours, theirs)


def graphs(algorithm: str) -> Cases:
    for dtype, cell in itertools.product(
        calls.dtypes_of(algorithm), ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
    ):
        yield f"{cell} {dtype}", partial(replayed, algorithm, dtype, cell)


GROUPS = {"reset cases": cases, "reset bits": bits, "reset graphs": graphs}
