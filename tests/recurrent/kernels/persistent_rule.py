"""recurrent_layer with forced algorithms: results by the rule (tests/support/rule.py), comparisons
between algorithms, and which algorithms run or are refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels import persistent_steps as steps
from tests.recurrent.kernels.persistent_calls import DTYPES, Cases
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.support.layer_cases import CELLS, Lengths, layer_arguments
from tests.support.cases import OPS
from tests.support.compare import attempt
from tests.support.inputs import HALVES, Call, Case, Make, Op
from tests.support.rule import obeys

# T, B, I, H of layers that use more of the GPU than those of layer_cases.
LARGE = (
    (17, 17, 33, 257),
    (17, 3, 64, 512),
    (2, 200, 5, 96),
    (18, 130, 5, 512),  # enough units that a thread computes c of all steps
    (18, 520, 3, 256),
    (3, 64, 128, 768),
    (5, 17, 5, 1000),
    (3, 2, 64, 1024),
    (3, 64, 31, 1024),
    (5, 70, 31, 1100),
    (4, 7, 24, 2048),
    (3, 700, 8, 64),
    (4, 300, 24, 192),
)
PACKED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((17, *[3] * 8, *[1] * 8), 128),
    ((5, 4, 3, 2, 1), 512),
    ((9, 9, 2), 1000),
    ((4, *[3] * 200, *[1] * 100), 256),
)


def by_rule(op: Op, case: Case, dtype: torch.dtype, algorithm: str) -> None:
    call = case.call(calls.DEVICE, dtype)
    call = call.with_options(algorithm=algorithm)
    hidden, sizes = call.args[2].shape[-1], call.args[1]
    lengths = None if sizes is None else list(sizes)
    resets = call.kwargs.get("reset") is not None
    if not calls.fits(algorithm, dtype, hidden, call.kwargs["cell"], lengths, resets):
        _, error = attempt(lambda: call.run(op.function))
        assert f"algorithm {algorithm} needs" in str(error), error
        return
    if calls.rounds(algorithm, dtype):
        op = replace(op, reference=partial(of_cut_operands, op))
    with calls.allowing(algorithm, dtype):
        obeys(op, call)


def of_cut_operands(op: Op, *args: Any, **options: Any) -> Any:
    """The composition with float32 operands truncated to TF32's bits. It is the reference if TF32
    is allowed, because cuBLAS itself uses TF32 only for some sizes."""

    def cut(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dtype != torch.float32:
            return t
        return t + (calls.as_tf32(t.detach()) - t).detach()

    named = {name: cut(t) for name, t in options.items()}
    return op.reference(*(cut(t) for t in args), **named)


def cases(algorithm: str, dtype: str, cell: str) -> Cases:
    """Every case of the op: zero sizes, layouts, missing bias, wider c, packed batches."""
    op = OPS[f"recurrent_layer {cell}"]
    for case in op.cases:
        if DTYPES[dtype] in case.dtypes:
            yield case.id, partial(by_rule, op, case, DTYPES[dtype], algorithm)


def large_case(name: str, recompute: bool, size: tuple[int, int, int, int], **options: Any) -> Case:
    def build(make: Make) -> Call:
        call = layer_arguments(make, size, **{"directions": 2} | options)
        return call.with_options(recompute=recompute)

    return Case(name, build, tuple(DTYPES.values()))


def large(algorithm: str, dtype: str, cell: str) -> Cases:
    op = OPS[f"recurrent_layer {cell}"]
    sizes: list[tuple[tuple[int, int, int, int], Lengths]] = [(size, None) for size in LARGE]
    sizes += [((0, 0, 33, h), lengths) for lengths, h in PACKED]
    if algorithm == "tiles":
        sizes.append(((2, 2040, 24, 512), None))  # blocks have 64 units, even in float32
    for (size, lengths), recompute in itertools.product(sizes, (False, True)):
        if not calls.fits(algorithm, DTYPES[dtype], size[3], cell, lengths):
            continue
        name = f"T{size[0]} B{size[1]} I{size[2]} H{size[3]} {lengths} recompute {recompute}"
        state = torch.float32 if recompute else None
        options = {"cell": cell, "lengths": lengths, "state": state, "directions": 2}
        case = large_case(name, recompute, size, **options)
        yield name, partial(by_rule, op, case, DTYPES[dtype], algorithm)


def shares_of_lstm(*widths: int) -> Cases:
    """In float32, LSTM's four gates leave less memory for rows. Batches have one row, the most rows
    that all resident clusters can run at once, or more. Dense and packed batches run different
    forward kernels."""
    op = OPS["recurrent_layer lstm"]
    for turn, (h, b) in enumerate(itertools.product(widths, (1, 3, 4, 5, 28, 29, 113, 133, 257))):
        packed, recompute = turn % 2 == 0, turn // 2 % 2 == 1
        name = f"lstm B{b} H{h}{' packed' if packed else ''} recompute {recompute}"
        lengths = (5,) * (b - b // 2) + (3,) * (b // 2) if packed else None
        case = large_case(name, recompute, (5, b, 8, h), cell="lstm", lengths=lengths)
        yield name, partial(by_rule, op, case, torch.float32, "cluster")


# ---- algorithms against each other


def same_in_norm(found: list[Tensor], expected: list[Tensor], bound: float, what: str) -> None:
    with Checks() as checks:
        for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            checks.close_in_norm(ours, theirs.double(), bound, f"{what}, {n}")


def agreeing(name: str, cell: str, dtype: torch.dtype, size: calls.Sizes, lengths: Lengths) -> None:
    bounds = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}
    options: dict[str, Any] = {"lengths": lengths, "features": 96, "state": torch.float32}
    one = calls.given(name, dtype, size, cell=cell, **options)
    saved = calls.forward(one, "step")
    grads = calls.backward(one, saved, "step")
    for algorithm in ("cluster", "grid", "tiles", "warp"):
        if not calls.fits(algorithm, dtype, size[2], cell, lengths):
            continue
        bound = bounds[torch.float16 if calls.rounds(algorithm, dtype) else dtype]
        same_in_norm(calls.forward(one, algorithm), saved, bound, f"forward {algorithm}")
        # This backward pass starts from the h and gates of "step", so forward errors do not count.
        same_in_norm(calls.backward(one, saved, algorithm), grads, bound, f"backward {algorithm}")


def agree(dtype: str, cell: str) -> Cases:
    for h, lengths in itertools.product((128, 257, 512, 1000), (None, (33, *[20] * 9, *[2] * 30))):
        name = f"H{h} {lengths}"
        yield name, partial(agreeing, name, cell, DTYPES[dtype], (33, 64, h), lengths)


# ---- what runs


def algorithms_of(one: calls.Given) -> set[str]:
    """The algorithms that the public function launches for this call."""
    params = [
        p[d]
        for d in range(len(one.h0))
        for p in (one.weight_ih, one.weight_hh, one.bias_ih, one.bias_hh)
        if p is not None
    ]
    states = one.h0 if one.cell not in ("lltm", "lstm") else (one.h0, one.c0)
    options = (True, 1, 0.0, False, len(one.h0) == 2)
    arguments = [one.input, states, params, *options, False]
    if one.sizes is not None:
        arguments = [one.input, one.sizes, *arguments[1:-1]]
    return {launch["algorithm"] for launch in treadle.launch_info(one.cell, *arguments)}


def chosen(
    name: str,
    dtype: torch.dtype,
    size: calls.Sizes,
    algorithm: str,
    lengths: Lengths,
    cell: str = "lltm",
    directions: int = 2,
    backward: str = "",
) -> None:
    options: dict[str, Any] = {"lengths": lengths, "directions": directions, "features": 8}
    one = calls.given(name, dtype, size, cell=cell, **options)
    assert algorithms_of(one) == {algorithm}
    found = calls.kernels(calls.training(one, "auto"))
    assert set(found) == {algorithm, backward or calls.backward_of(algorithm, dtype, size[2])}


def auto() -> Cases:
    """The planner chooses these algorithms in both passes. In some cases no algorithm can keep the
    weights on the chip."""
    table = [
        ((16, 17, 128), "cluster"),
        ((16, 1, 768), "cluster"),
        ((16, 17, 769), "grid"),
        ((16, 1, 1024), "grid"),
        ((16, 17, 1025), "grid"),  # one direction after the other
        ((16, 17, 2049), "step"),
        ((2, 17, 512), "cluster"),
        ((2, 1, 1024), "grid"),
        ((1, 16, 512), "warp"),
        ((1, 1, 1024), "warp"),
        ((1, 17, 512), "step"),
        ((2, 70_000, 33), "step"),  # because of its many rows
    ]
    for (size, algorithm), dtype in itertools.product(table, HALVES):
        yield f"{size} {dtype}", partial(chosen, "halves", dtype, size, algorithm, None)
    exact = [
        ((16, 17, 128), "cluster"),
        ((2, 1, 512), "cluster"),
        ((16, 17, 513), "grid"),
        ((16, 17, 1025), "step"),
        ((1, 17, 128), "warp"),
        ((2, 70_000, 33), "step"),
    ]
    for size, algorithm in exact:
        yield f"{size} float32", partial(chosen, "exact", torch.float32, size, algorithm, None)
    for size, dtype, cell, algorithm in (
        ((16, 17, 512), torch.half, "lstm", "cluster"),
        ((16, 17, 513), torch.half, "lstm", "grid"),
        ((16, 5, 256), torch.float32, "lstm", "cluster"),
        ((16, 17, 513), torch.float32, "lstm", "grid"),
        ((16, 1, 768), torch.half, "gru", "cluster"),
        ((16, 17, 1024), torch.half, "gru", "grid"),
        ((16, 5, 512), torch.float32, "gru", "cluster"),
        ((16, 17, 1025), torch.half, "gru", "grid"),
    ):
        yield f"{cell} {size} {dtype}", partial(chosen, "", dtype, size, algorithm, None, cell)
    for cell in ("lltm", "lstm", "gru"):
        rest = torch.float32, (16, 256, 256), "cluster", None, cell, 1, "grid"
        yield f"{cell} of float32", partial(chosen, "many", *rest)
        for dtype in (torch.float32, torch.half):
            yield f"{cell} {dtype}", partial(chosen, "", dtype, (16, 64, 512), "grid", None, cell)
    for hidden, cell in itertools.product((1025, 2048), CELLS):
        name = f"{cell} H{hidden}, one direction"
        yield name, partial(chosen, name, torch.half, (16, 17, hidden), "grid", None, cell, 1)
    yield "float64", partial(chosen, "float64", torch.float64, (16, 17, 128), "step", None)
    for dtype in (torch.half, torch.float32):
        for lengths, algorithm in (((9, 5, 1), "cluster"), ((1, 1, 1), "warp")):
            rest = dtype, (0, 0, 257), algorithm, lengths
            yield f"packed {lengths} {dtype}", partial(chosen, "packed", *rest)
    for dtype in HALVES:
        yield f"H2048 {dtype}", partial(steps.check_given, "auto", "H2048", dtype, (6, 3, 2048))


def one_launch(
    algorithm: str, dtype: torch.dtype, lengths: Lengths, recompute: bool, cell: str, hidden: int
) -> None:
    options: dict[str, Any] = {"lengths": lengths, "features": 32}
    one = calls.given("launches", dtype, (17, 5, hidden), cell=cell, **options)
    found = calls.kernels(calls.training(one, algorithm, recompute))
    backward = calls.backward_of(algorithm, dtype, hidden)
    assert set(found) == {algorithm, backward}, found
    kernels = found[algorithm]
    for word in ("forward", "backward") if backward == algorithm else ("forward",):
        # In float32, layers of these widths run in a single block. In half types only the smaller
        # ones do, and only in the forward pass.
        narrow = dtype == torch.float32 or (hidden <= 64 and word == "forward")
        alone = algorithm == "cluster" and narrow
        engine = "block" if alone else rf"{algorithm}(_dense|_split)?"
        assert sum(bool(re.search(rf"\b{engine}_{word}\b", name)) for name in kernels) == 1, kernels
        assert sum(f"_{word}" in name for name in kernels) == 1, kernels


def launched(algorithm: str) -> Cases:
    """The forward pass of all steps and both directions is one launch, and so is the backward
    pass."""
    for dtype, lengths, recompute, cell, hidden in itertools.product(
        calls.dtypes_of(algorithm), (None, (17, 5, 5, 2, 1)), (False, True), CELLS, (64, 96)
    ):
        name = f"{cell} {dtype} {lengths} recompute {recompute} H{hidden}"
        yield name, partial(one_launch, algorithm, dtype, lengths, recompute, cell, hidden)


def refused(algorithm: str, dtype: torch.dtype, size: calls.Sizes, cell: str) -> None:
    one = calls.given("refused", dtype, size, cell=cell, features=3)
    for run in (lambda: calls.inference(one, algorithm), lambda: calls.forward(one, algorithm)):
        _, error = attempt(run)
        assert isinstance(error, RuntimeError), error
        assert str(error).startswith(f"recurrent_layer: algorithm {algorithm} needs "), error
    saved = calls.forward(one, "step")
    _, error = attempt(lambda: calls.backward(one, saved, algorithm))
    assert str(error).startswith(f"recurrent_layer: algorithm {algorithm} needs "), error


def raises(algorithm: str) -> Cases:
    for dtype, cell in itertools.product((*DTYPES.values(), torch.float64), CELLS):
        most = calls.most_hidden(algorithm, dtype, cell)
        for h in (most + 1, 2 * most) if most else (32,):
            yield f"{cell} H{h} {dtype}", partial(refused, algorithm, dtype, (5, 3, h), cell)
    # A call after one that raised gives correct results.
    for dtype in calls.dtypes_of(algorithm):
        size = 5, 3, calls.most_hidden(algorithm, dtype)
        yield f"after {dtype}", partial(steps.check_given, algorithm, "", dtype, size, directions=2)


GROUPS = {
    "cases": cases,
    "large": large,
    "float batches of lstm": shares_of_lstm,
    "agree": agree,
    "auto": auto,
    "launched": launched,
    "raises": raises,
}
