"""Formulas for torch.utils.flop_counter. As in torch, each multiply-add of a matrix product counts
as two operations, and nothing else is counted.

A formula is called with its op's arguments, with a shape in place of each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

Shape = Sequence[int]


def _sine_linear(input: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    # A jet is an input with one more dimension.
    return 2 * prod(input) * weight[-2]


def _sine_linear_backward(
    grad: Shape,
    input: Shape,
    weight: Shape,
    bias: Shape | None,
    output: Shape | None,
    phase: Shape,
    omega: float,
    mask: Sequence[bool],
    *_: Any,
    **__: Any,
) -> int:
    return (mask[0] + mask[1]) * _sine_linear(input, weight)


def _sine_linear_jet_backward(
    grad: Shape,
    jet: Shape,
    weight: Shape,
    bias: Shape | None,
    output: Shape,
    phase: Shape,
    omega: float,
    coordinates: int,
    second: str,
    mask: Sequence[bool],
    *_: Any,
    **__: Any,
) -> int:
    # The recomputed product of the second derivatives is not counted.
    return (mask[0] + mask[1]) * _sine_linear(jet, weight)


def _lltm_cell(input: Shape, weights: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(input[:-1]) * prod(weights[-2:])


def _lltm_cell_backward(
    grad_h: Shape | None,
    grad_cell: Shape | None,
    input: Shape,
    weights: Shape,
    bias: Shape | None,
    old_h: Shape,
    old_cell: Shape,
    new_cell: Shape,
    gates: Shape,
    mask: Sequence[bool],
    *_: Any,
    **__: Any,
) -> int:
    columns = mask[0] * input[-1] + mask[1] * weights[-1] + mask[3] * old_h[-1]
    return 2 * prod(gates) * columns


def _recurrent_layer(
    input: Shape,
    batch_sizes: Shape | None,
    h0: Shape,
    c0: Shape,
    weight_ih: Shape,
    weight_hh: Shape,
    *_: Any,
    **__: Any,
) -> int:
    # Weights have a dimension for the directions, unless there is only one direction.
    return 2 * prod(input[:-1]) * (prod(weight_ih) + prod(weight_hh))


def _recurrent_layer_backward(
    grad_output: Shape | None,
    grad_h_n: Shape | None,
    grad_c_n: Shape | None,
    input: Shape,
    batch_sizes: Shape | None,
    h0: Shape,
    c0: Shape,
    weight_ih: Shape,
    weight_hh: Shape,
    bias_ih: Shape | None,
    bias_hh: Shape | None,
    output: Shape,
    gates: Shape,
    cell: str,
    recompute: bool,
    algorithm: str,
    mask: Sequence[bool],
    *_: Any,
    **__: Any,
) -> int:
    of_input, of_h0, _of_c0, of_weight_ih, of_weight_hh, *_others = mask
    # The gradient of h is computed for every step, whichever gradients are requested.
    each = (of_input + of_weight_ih) * prod(weight_ih) + (1 + of_weight_hh) * prod(weight_hh)
    again = _recurrent_layer(input, batch_sizes, h0, c0, weight_ih, weight_hh) if recompute else 0
    return 2 * prod(input[:-1]) * each + again


_FORMULAS: dict[Callable[..., int], tuple[str, ...]] = {
    _sine_linear: (
        *("sine_linear", "sine_linear_forward"),
        *("sine_linear_jet", "sine_linear_jet_forward"),
    ),
    _sine_linear_backward: ("sine_linear_backward",),
    _sine_linear_jet_backward: ("sine_linear_jet_backward",),
    _lltm_cell: ("lltm_cell", "lltm_cell_forward"),
    _lltm_cell_backward: ("lltm_cell_backward",),
    _recurrent_layer: ("recurrent_layer", "recurrent_layer_forward"),
    _recurrent_layer_backward: ("recurrent_layer_backward",),
}


def register() -> None:
    """Registers the formulas; called once per process, after the ops have been loaded."""
    from torch.utils.flop_counter import register_flop_formula

    for formula, names in _FORMULAS.items():
        register_flop_formula([getattr(torch.ops.treadle, name) for name in names])(formula)
