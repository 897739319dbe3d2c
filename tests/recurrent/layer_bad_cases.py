"""What recurrent_layer and its backward op must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.layer_cases import NAMES, batch_sizes, layer, layer_arguments
from tests.support.bad_arguments import (
    REAL,
    refused_dtypes,
    sparse,
    without_storages,
    wrong_devices,
    wrong_dtypes,
)
from tests.support.inputs import Bad, Call, Make, of_dtype

T, B, I, H = SIZES = (2, 3, 5, 4)  # noqa: E741
D, S = 2, 5
LENGTHS = (2, 2, 1)
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "h0": ("[D, B, H]", (D, B, H)),
    "c0": ("[D, B, H]", (D, B, H)),
    "weight_ih": ("[D, 3H, I]", (D, 3 * H, I)),
    "weight_hh": ("[D, 3H, H]", (D, 3 * H, H)),
    "bias_ih": ("[D, 3H]", (D, 3 * H)),
}


def good(make: Make, lengths: tuple[int, ...] | None = None) -> Call:
    return layer_arguments(make, SIZES, directions=D, lengths=lengths)


def run(make: Make, lengths: tuple[int, ...] | None = None, **replaced: Tensor) -> Any:
    """recurrent_layer on good arguments, some replaced."""
    return (
        good(make, lengths).with_args({NAMES.index(n): t for n, t in replaced.items()}).run(layer)
    )


def changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    """recurrent_layer on good arguments, one of them changed."""
    call, index = good(make), NAMES.index(name)
    return call.with_args({index: change(call.args[index])}).run(layer)


def with_sizes(make: Make, change: Callable[[Tensor], Tensor]) -> Any:
    """recurrent_layer on a packed batch with other sizes."""
    call, sizes = good(make, LENGTHS), batch_sizes(LENGTHS)
    assert sizes is not None
    return call.with_args({1: change(sizes)}).run(torch.ops.treadle.recurrent_layer)


def shapes() -> list[Bad]:
    wrong: dict[str, tuple[tuple[int, ...], ...]] = {
        "c0": ((2, 2, 4), (1, 3, 4), (2, 3, 5), (3, 4), (1, 2, 3, 4)),
        "weight_ih": ((2, 12, 4), (2, 11, 5), (12, 5), (1, 12, 5), (2, 60)),
        "weight_hh": ((2, 12, 5), (2, 4, 12), (12, 4), (1, 12, 4)),
        "bias_ih": ((12,), (2, 11), (1, 12), (2, 1, 12), (24,), ()),
    }
    found = [
        Bad(
            f"recurrent_layer {name} {list(shape)}, {'dense' if lengths is None else 'packed'}",
            lambda m, name=name, shape=shape, lengths=lengths: run(m, lengths, **{name: m(*shape)}),
            f"recurrent_layer: {name} must have shape {SHAPES[name][0]} = {list(SHAPES[name][1])}, "
            f"got {list(shape)}",
        )
        for name, shapes in wrong.items()
        for shape in shapes
        for lengths in (None, LENGTHS)
    ]
    inputs = [(None, "[T, B, I]", s) for s in ((), (5,), (3, 5), (1, 2, 3, 5))]
    inputs += [(LENGTHS, "[S, I] beside batch_sizes", s) for s in ((5,), (2, 3, 5))]
    for lengths, letters, shape in inputs:
        found.append(
            Bad(
                f"recurrent_layer input {list(shape)}, {letters}",
                lambda m, shape=shape, lengths=lengths: run(m, lengths, input=m(*shape)),
                f"recurrent_layer: input must have shape {letters}, got {list(shape)}",
            )
        )
    states = [(s, "have shape [D, B, H]") for s in ((3, 4), (4,), (1, 2, 3, 4))]
    states += [((count, B, H), "have one or two directions") for count in (0, 3)]
    for shape, rule in states:
        found.append(
            Bad(
                f"recurrent_layer h0 {list(shape)}",
                lambda m, shape=shape: run(m, h0=m(*shape)),
                f"recurrent_layer: h0 must {rule}, got {list(shape)}",
            )
        )
    found += [
        Bad(
            "recurrent_layer h0 of fewer rows",
            lambda m: run(m, h0=m(2, 2, 4)),
            "recurrent_layer: h0 must have shape [D, B, H] = [2, 3, 4], got [2, 2, 4]",
        ),
        Bad(
            "recurrent_layer input wider than weight_ih",
            lambda m: run(m, input=m(2, 3, 6)),
            "recurrent_layer: weight_ih must have shape [D, 3H, I] = [2, 12, 6], got [2, 12, 5]",
        ),
    ]
    return found


def sizes_of_packed_batches() -> list[Bad]:
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
            lambda m, sizes=sizes: with_sizes(m, lambda _: torch.tensor(sizes)),
            f"{op} {words}",
            REAL,
        )
        for name, (sizes, words) in listed.items()
    ]
    found += [
        Bad(
            "recurrent_layer batch_sizes int32",
            lambda m: with_sizes(m, Tensor.int),
            f"{op} be int64 of shape [T], got int32 of shape [2]",
        ),
        Bad(
            "recurrent_layer batch_sizes 2-D",
            lambda m: with_sizes(m, lambda s: s[None]),
            f"{op} be int64 of shape [T], got int64 of shape [1, 2]",
        ),
        Bad(
            "recurrent_layer batch_sizes on the GPU",
            lambda m: with_sizes(m, Tensor.cuda),
            f"{op} be on the CPU, got cuda:0",
            ("cuda",),
        ),
        Bad(
            "recurrent_layer batch_sizes on meta",
            lambda m: with_sizes(m, lambda s: s.to("meta")),
            f"{op} be on the CPU, got meta",
            REAL,
        ),
    ]
    return found


def dtypes_and_devices() -> list[Bad]:
    def in_dtype(m: Make, dtype: torch.dtype) -> Any:
        return good(m).map(lambda t: of_dtype(m, dtype, *t.shape)).run(layer)

    like_input = dict.fromkeys(SHAPES, "input")
    return [
        *wrong_dtypes("recurrent_layer", changed, like_input),
        *wrong_devices("recurrent_layer", changed, like_input),
        *refused_dtypes("recurrent_layer", in_dtype),
        Bad(
            "recurrent_layer float64 cell beside halves",
            lambda m: layer_arguments(
                Make("", m.device, torch.float16), SIZES, state=torch.float64
            ).run(layer),
            "recurrent_layer: c0 must have the dtype of input, float16, or float32, got float64",
        ),
    ]


def cells() -> list[Bad]:
    op = "recurrent_layer"

    def named(m: Make, cell: str) -> Any:
        return good(m).with_options(cell=cell).run(layer)

    found = [
        Bad(f"{op} cell {cell!r}", lambda m, cell=cell: named(m, cell), f"{op}: {words}")
        for cell, words in (
            ("lstm", "cell must be lltm, got lstm"),
            ("LLTM", "cell must be lltm, got LLTM"),
            ("", "cell must be lltm, got "),
        )
    ]
    return [
        *found,
        Bad(
            f"{op} bias_hh",
            lambda m: run(m, bias_hh=m(D, 3 * H)),
            f"{op}: bias_hh must be None for the cell lltm, got a tensor of shape [2, 12]",
        ),
    ]


def memory() -> list[Bad]:
    shapes = {"input": (T, B, I)} | {name: shape for name, (_, shape) in SHAPES.items()}
    return [
        *without_storages("recurrent_layer", changed, shapes),
        *sparse("recurrent_layer", changed, shapes),
    ]


def backward(
    make: Make, change: Callable[[dict[str, Any]], Any], lengths: tuple[int, ...] | None = None
) -> Any:
    """recurrent_layer_backward on good arguments after ``change``."""
    call = good(make, lengths)
    rows = (T, B) if lengths is None else (S,)
    values: dict[str, Any] = {
        "grad_output": make(*rows, D * H),
        "grad_h_n": make(D, B, H),
        "grad_c_n": make(D, B, H),
        **dict(zip(NAMES, call.args, strict=True)),
        "output": make(*rows, D * H),
        "gates": make(D, *rows, 3 * H),
        "cell": "lltm",
        "recompute": False,
    }
    values["lengths"] = batch_sizes(lengths)
    change(values)
    return torch.ops.treadle.recurrent_layer_backward(*values.values(), "auto", [True] * 7)


# Arguments that only the backward op has: shape, and what is said of it, dense and packed.
OUTPUT = ((T, B, D * H), "[T, B, D*H] = [2, 3, 8]", "[S, D*H] = [5, 8]")
STATE = ((D, B, H), *["that of h0 = [2, 3, 4]"] * 2)
KEPT: dict[str, tuple[tuple[int, ...], str, str]] = {
    "grad_output": OUTPUT,
    "grad_h_n": STATE,
    "grad_c_n": STATE,
    "output": OUTPUT,
    "gates": ((D, T, B, 3 * H), "[D, T, B, 3H] = [2, 2, 3, 12]", "[D, S, 3H] = [2, 5, 12]"),
}


def backward_changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    return backward(make, lambda values: values.update({name: change(values[name])}))


def backward_rules() -> list[Bad]:
    op = "recurrent_layer_backward"
    wrong_shapes = [
        Bad(
            f"{op} {name} shape, {'dense' if lengths is None else 'packed'}",
            lambda m, n=name, to=lengths: backward(m, lambda v: v.update({n: m(2, 4)}), to),
            f"{op}: {name} must have shape {shape}, got [2, 4]",
        )
        for name, (_, *letters) in KEPT.items()
        for lengths, shape in zip((None, LENGTHS), letters, strict=True)
    ]
    like = {name: "c0" if name == "grad_c_n" else "input" for name in KEPT}
    return [
        *wrong_shapes,
        *wrong_dtypes(op, backward_changed, like),
        *without_storages(op, backward_changed, {name: kept[0] for name, kept in KEPT.items()}),
        Bad(
            f"{op} gates beside recompute",
            lambda m: backward(m, lambda v: v.update(recompute=True)),
            f"{op}: gates must have shape [0] with recompute = [0], got [2, 2, 3, 12]",
        ),
        Bad(
            f"{op} cell",
            lambda m: backward(m, lambda v: v.update(cell="gru")),
            f"{op}: cell must be lltm, got gru",
        ),
        Bad(
            f"{op} weight_hh",
            lambda m: backward(m, lambda v: v.update(weight_hh=m(2, 12, 3))),
            f"{op}: weight_hh must have shape [D, 3H, H] = [2, 12, 4], got [2, 12, 3]",
        ),
    ]


def layer_bad() -> list[Bad]:
    return [
        *shapes(),
        *sizes_of_packed_batches(),
        *dtypes_and_devices(),
        *cells(),
        *memory(),
        *backward_rules(),
    ]
