"""Calls for which recurrent_layer_backward must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    BLOCKS,
    GATES,
    NAMES,
    batch_sizes,
    layer_arguments,
)
from tests.support.bad_arguments import without_storages, wrong_dtypes
from tests.support.inputs import Bad, Call, Make

T, B, I, H = SIZES = (2, 3, 5, 4)  # noqa: E741
D, S = 2, 5
LENGTHS = (2, 2, 1)


def shapes_of(cell: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Shapes of the arguments after input, in letters and in numbers."""
    g = BLOCKS[cell]
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "h0": ("[D, B, H]", (D, B, H)),
        "c0": ("[D, B, H]", (D, B, H)),
        "weight_ih": (f"[D, {g}H, I]", (D, g * H, I)),
        "weight_hh": (f"[D, {g}H, H]", (D, g * H, H)),
        "bias_ih": (f"[D, {g}H]", (D, g * H)),
        "bias_hh": (f"[D, {g}H]", (D, g * H)),
    }
    return {name: found[name] for name in found if NAMES.index(name) in ARGUMENTS[cell]}


def good(make: Make, cell: str, lengths: tuple[int, ...] | None = None) -> Call:
    return layer_arguments(make, SIZES, cell=cell, directions=D, lengths=lengths)


def backward(
    make: Make,
    cell: str,
    change: Callable[[dict[str, Any]], Any],
    lengths: tuple[int, ...] | None = None,
) -> Any:
    """Calls recurrent_layer_backward on valid arguments after ``change``."""
    call = good(make, cell, lengths)
    rows = (T, B) if lengths is None else (S,)
    values: dict[str, Any] = {
        "grad_output": make(*rows, D * H),
        "grad_h_n": make(D, B, H),
        "grad_c_n": make(D, B, H),
        **dict(zip(NAMES, call.args, strict=True)),
        "output": make(*rows, D * H),
        "gates": make(D, *rows, GATES[cell] * H),
        "cell": cell,
        "recompute": False,
    }
    values["lengths"] = batch_sizes(lengths)
    change(values)
    return torch.ops.treadle.recurrent_layer_backward(*values.values(), "auto", [True] * 9)


# Arguments that only the backward op has: their shapes, and how errors describe these for dense and
# packed batches.
OUTPUT = ((T, B, D * H), "shape [T, B, D*H] = [2, 3, 8]", "shape [S, D*H] = [5, 8]")
STATE = ((D, B, H), *["the same shape as h0, [2, 3, 4]"] * 2)


def kept(cell: str) -> dict[str, tuple[tuple[int, ...], str, str]]:
    g, w = GATES[cell], GATES[cell] * H
    letters = (f"shape [D, T, B, {g}H] = [2, 2, 3, {w}]", f"shape [D, S, {g}H] = [2, 5, {w}]")
    gates = (D, T, B, w), *letters
    of_c = tuple(letters.replace("h0", "c0") for letters in STATE[1:])
    states = {"grad_h_n": STATE, "grad_c_n": (STATE[0], *of_c)}
    return {"grad_output": OUTPUT, **states, "output": OUTPUT, "gates": gates}


def backward_rules(cell: str) -> list[Bad]:
    op, every = "recurrent_layer_backward", kept(cell)
    letters, (_, width, _) = shapes_of(cell)["weight_hh"]

    def backward_changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
        return backward(make, cell, lambda values: values.update({name: change(values[name])}))

    wrong_shapes = [
        Bad(
            f"{op} {name} shape, {'dense' if lengths is None else 'packed'}",
            lambda m, n=name, to=lengths: backward(m, cell, lambda v: v.update({n: m(2, 4)}), to),
            f"{op}: {name} must have {shape}, got [2, 4]",
        )
        for name, (_, *letters) in every.items()
        for lengths, shape in zip((None, LENGTHS), letters, strict=True)
    ]
    like = {name: "c0" if name == "grad_c_n" else "input" for name in every}
    return [
        *wrong_shapes,
        *wrong_dtypes(op, backward_changed, like),
        *without_storages(
            op, backward_changed, {name: shape for name, (shape, *_) in every.items()}
        ),
        Bad(
            f"{op} gates beside recompute",
            lambda m: backward(m, cell, lambda v: v.update(recompute=True)),
            f"{op}: gates must have shape [0] with recompute=True, "
            f"got [2, 2, 3, {GATES[cell] * H}]",
        ),
        Bad(
            f"{op} cell",
            lambda m: backward(m, cell, lambda v: v.update(cell="rnn")),
            f"{op}: cell must be lltm, lstm, gru, rnn_tanh, rnn_relu or a Cell's key, got rnn",
        ),
        Bad(
            f"{op} weight_hh",
            lambda m: backward(m, cell, lambda v: v.update(weight_hh=m(2, width, 3))),
            f"{op}: weight_hh must have shape {letters} = [2, {width}, 4], got [2, {width}, 3]",
        ),
    ]
