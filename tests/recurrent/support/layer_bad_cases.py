"""Calls for which recurrent_layer must raise. layer_bad_backward.py has those for its backward
op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.layer_bad_backward import (
    LENGTHS,
    SIZES,
    B,
    D,
    H,
    I,
    T,
    backward_rules,
    good,
    shapes_of,
)
from tests.recurrent.support.layer_cases import (
    BLOCKS,
    CELLS,
    NAMES,
    batch_sizes,
    layer,
    layer_arguments,
)
from tests.support.bad_arguments import (
    REAL,
    Run,
    refused_dtypes,
    sparse,
    without_storages,
    wrong_devices,
    wrong_dtypes,
)
from tests.support.inputs import Bad, Make, of_dtype


def run(make: Make, cell: str, lengths: tuple[int, ...] | None = None, **replaced: Tensor) -> Any:
    """Calls recurrent_layer on valid arguments with some of them replaced."""
    values = {NAMES.index(n): t for n, t in replaced.items()}
    return good(make, cell, lengths).with_args(values).run(layer)


def changed(cell: str) -> Run:
    """A function that calls recurrent_layer on valid arguments with one of them changed."""

    def run_changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
        call, index = good(make, cell), NAMES.index(name)
        return call.with_args({index: change(call.args[index])}).run(layer)

    return run_changed


def with_sizes(make: Make, cell: str, change: Callable[[Tensor], Tensor]) -> Any:
    """Calls recurrent_layer on a packed batch with changed batch sizes."""
    call, sizes = good(make, cell, LENGTHS), batch_sizes(LENGTHS)
    assert sizes is not None
    return call.with_args({1: change(sizes)}).run(torch.ops.treadle.recurrent_layer)


def shapes(cell: str) -> list[Bad]:
    right, w = shapes_of(cell), BLOCKS[cell] * H
    biases = ((w,), (2, w - 1), (1, w), (2, 1, w), (2 * w,), ())
    wrong: dict[str, tuple[tuple[int, ...], ...]] = {
        "c0": ((2, 2, 4), (1, 3, 4), (2, 3, 5), (3, 4), (1, 2, 3, 4)),
        "weight_ih": ((2, w, 4), (2, w - 1, 5), (w, 5), (1, w, 5), (2, w * 5)),
        "weight_hh": ((2, w, 5), (2, 4, w), (w, 4), (1, w, 4)),
        **{name: biases for name in ("bias_ih", "bias_hh") if name in right},
    }
    found = [
        Bad(
            f"recurrent_layer {name} {list(shape)}, {'dense' if lengths is None else 'packed'}",
            lambda m, name=name, shape=shape, lengths=lengths: run(
                m, cell, lengths, **{name: m(*shape)}
            ),
            f"recurrent_layer: {name} must have shape {right[name][0]} = {list(right[name][1])}, "
            f"got {list(shape)}",
        )
        for name, shapes in wrong.items()
        for shape in shapes
        if shape != tuple(right[name][1])  # valid for an RNN, whose weights have one block of rows
        for lengths in (None, LENGTHS)
    ]
    inputs = [(None, "[T, B, I]", s) for s in ((), (5,), (3, 5), (1, 2, 3, 5))]
    inputs += [(LENGTHS, "[S, I] with batch_sizes", s) for s in ((5,), (2, 3, 5))]
    for lengths, letters, shape in inputs:
        found.append(
            Bad(
                f"recurrent_layer input {list(shape)}, {letters}",
                lambda m, shape=shape, lengths=lengths: run(m, cell, lengths, input=m(*shape)),
                f"recurrent_layer: input must have shape {letters}, got {list(shape)}",
            )
        )
    states = [(s, "have shape [D, B, H]") for s in ((3, 4), (4,), (1, 2, 3, 4))]
    states += [((count, B, H), "have one or two directions") for count in (0, 3)]
    for shape, rule in states:
        found.append(
            Bad(
                f"recurrent_layer h0 {list(shape)}",
                lambda m, shape=shape: run(m, cell, h0=m(*shape)),
                f"recurrent_layer: h0 must {rule}, got {list(shape)}",
            )
        )
    found += [
        Bad(
            "recurrent_layer h0 of fewer rows",
            lambda m: run(m, cell, h0=m(2, 2, 4)),
            "recurrent_layer: h0 must have shape [D, B, H] = [2, 3, 4], got [2, 2, 4]",
        ),
        Bad(
            "recurrent_layer input wider than weight_ih",
            lambda m: run(m, cell, input=m(2, 3, 6)),
            f"recurrent_layer: weight_ih must have shape {right['weight_ih'][0]} = [2, {w}, 6], "
            f"got [2, {w}, 5]",
        ),
    ]
    return found


def sizes_of_packed_batches(cell: str) -> list[Bad]:
    op = "recurrent_layer: batch_sizes must"
    listed: dict[str, tuple[list[int], str]] = {
        "grow": ([2, 3], "be non-increasing and from 0 to B = 3, got 3 after 2 at step 1"),
        "more than B": ([4, 1], "be non-increasing and from 0 to B = 3, got 4 at step 0"),
        "negative": ([3, 2, -1], "be non-increasing and from 0 to B = 3, got -1 after 2 at step 2"),
        "too few": ([3, 1], "add up to the rows of input, 5, got 4"),
        "too many": ([3, 3], "add up to the rows of input, 5, got 6"),
    }
    found = [
        Bad(
            f"recurrent_layer batch_sizes {name}",
            lambda m, sizes=sizes: with_sizes(m, cell, lambda _: torch.tensor(sizes)),
            f"{op} {words}",
            REAL,
        )
        for name, (sizes, words) in listed.items()
    ]
    found += [
        Bad(
            "recurrent_layer batch_sizes int32",
            lambda m: with_sizes(m, cell, Tensor.int),
            f"{op} be int64 of shape [T], got int32 of shape [2]",
        ),
        Bad(
            "recurrent_layer batch_sizes 2-D",
            lambda m: with_sizes(m, cell, lambda s: s[None]),
            f"{op} be int64 of shape [T], got int64 of shape [1, 2]",
        ),
        Bad(
            "recurrent_layer batch_sizes on the GPU",
            lambda m: with_sizes(m, cell, Tensor.cuda),
            f"{op} be on the CPU, got cuda:0",
            ("cuda",),
        ),
        Bad(
            "recurrent_layer batch_sizes on meta",
            lambda m: with_sizes(m, cell, lambda s: s.to("meta")),
            f"{op} be on the CPU, got meta",
            REAL,
        ),
    ]
    return found


def dtypes_and_devices(cell: str) -> list[Bad]:
    def in_dtype(m: Make, dtype: torch.dtype) -> Any:
        return good(m, cell).map(lambda t: of_dtype(m, dtype, *t.shape)).run(layer)

    like_input = dict.fromkeys(shapes_of(cell), "input")
    return [
        *wrong_dtypes("recurrent_layer", changed(cell), like_input),
        *wrong_devices("recurrent_layer", changed(cell), like_input),
        *refused_dtypes("recurrent_layer", in_dtype),
        Bad(
            "recurrent_layer float64 cell beside halves",
            lambda m: layer_arguments(
                Make("", m.device, torch.float16), SIZES, cell=cell, state=torch.float64
            ).run(layer),
            "recurrent_layer: c0 must have the dtype of input, float16, or float32, got float64",
        ),
    ]


def cells() -> list[Bad]:
    op = "recurrent_layer"

    def named(m: Make, cell: str) -> Any:
        return good(m, "lltm").with_options(cell=cell).run(layer)

    found = [
        Bad(f"{op} cell {cell!r}", lambda m, cell=cell: named(m, cell), f"{op}: {words}")
        for cell, words in (
            (
                "rnn",
                "cell must be lltm, lstm, gru, rnn_tanh, rnn_relu or a Cell's key, got rnn",
            ),
            (
                "LLTM",
                "cell must be lltm, lstm, gru, rnn_tanh, rnn_relu or a Cell's key, got LLTM",
            ),
            (
                "",
                "cell must be lltm, lstm, gru, rnn_tanh, rnn_relu or a Cell's key, got ",
            ),
        )
    ]
    return [
        *found,
        Bad(
            f"{op} bias_hh",
            lambda m: run(m, "lltm", bias_hh=m(D, 3 * H)),
            f"{op}: bias_hh must be None for the cell lltm, got a tensor of shape [2, 12]",
        ),
    ]


def memory(cell: str) -> list[Bad]:
    shapes = {"input": (T, B, I)} | {name: shape for name, (_, shape) in shapes_of(cell).items()}
    return [
        *without_storages("recurrent_layer", changed(cell), shapes),
        *sparse("recurrent_layer", changed(cell), shapes),
    ]


def layer_bad() -> list[Bad]:
    groups = shapes, sizes_of_packed_batches, dtypes_and_devices, memory, backward_rules
    found = [
        replace(bad, id=f"{bad.id}, {cell}")
        for cell in CELLS
        for group in groups
        for bad in group(cell)
    ]
    return [*found, *cells()]
