"""Runs an LSTM with projections as layers without projections.

Let m = o tanh(c), of size H. A layer with projections has h = W_hr m, of size P, and adds W_hh h to
its gates. Since W_hh h = (W_hh W_hr) m, m is the h of a layer without projections whose recurrent
weight is W_hh W_hr. One product then computes h of all steps from m.

For a given h0, there may be no m with W_hr m = h0. So h0 is appended to the input of each row's
first step, 0 is appended to the inputs of other steps, and W_hh is appended to the input weights.
The h of ``reset_hx``, from which a row continues after a reset, is treated in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._check.tensors import dtype_name
from ._check import HALVES
from ._projected_rows import PackedRows, PaddedRows, Rows
from ._sequence import Options, States
from ._tracers import differs, is_tracing

__all__ = ["run_projected"]

Op = Callable[..., tuple[Tensor, ...]]


def run_projected(
    run: Op,
    layer: Any,
    input: tuple[Tensor, ...],
    states: States | None,
    net: tuple[Any, ...],
    rest: tuple[bool, ...],
    options: Options,
) -> tuple[Tensor, ...]:
    """The forward pass of ``layer``. It calls ``run`` to run a layer without projections.

    If h0 is zero, ``states`` has only c0.
    """
    parameters, bias, num_layers, dropout, training, both = net
    batch_first = rest == (True,)
    _check(layer, input, states, batch_first, options)
    if batch_first:
        input, options = (input[0].transpose(0, 1),), _time_first(options)
    rows = PackedRows(*input) if len(input) == 2 else PaddedRows(input[0], options.lengths)
    each, directions = len(parameters) // num_layers, 2 if both else 1
    x, last = input[0], []
    for n in range(num_layers):
        if n and dropout and training:
            x = F.dropout(x, dropout, training)
        own = slice(directions * n, directions * (n + 1))
        found = _one_layer(
            lambda *args: run(layer, *args),
            rows,
            x,
            _of_directions(parameters[each * n : each * (n + 1)], directions),
            None if states is None else tuple(state[own] for state in states),
            options._replace(
                reset_hx=tuple(state[own] for state in options.reset_hx),
                return_cells=options.return_cells and n + 1 == num_layers,
            ),
            (bias, 1, 0.0, training, both),
            input[0].dtype if states is None else states[-1].dtype,
        )
        x = found[0]
        last.append(found[1:3])
    h_n, c_n = (torch.cat(states) for states in zip(*last, strict=True))
    output, *cells = (t.transpose(0, 1) if batch_first else t for t in (x, *found[3:]))
    return output, h_n, c_n, *cells


def _one_layer(
    run: Op,
    rows: Rows,
    x: Tensor,
    weights: list[list[Tensor]],
    states: States | None,
    options: Options,
    flags: tuple[Any, ...],
    dtype_of_c: torch.dtype,
) -> tuple[Tensor, ...]:
    """Returns output, h_n, c_n and, if requested, the cell states (c of all steps).

    For each direction, ``weights`` has weight_ih, weight_hh, the biases and weight_hr.
    """
    h0 = states[0] if states is not None and len(states) == 2 else None
    reset_h = options.reset_hx[0] if options.reset_hx else None
    # For a single step, h0 is padded with zeros to the size of m, and weight_hh with zero columns.
    # The result is the same, and W_hh W_hr need not be computed.
    single = isinstance(rows.steps, int) and rows.steps == 1
    joined: list[Tensor] = []
    if is_tracing() and rows.batch_sizes and (h0 is not None or reset_h is not None):
        raise RuntimeError(
            "LSTM: a layer with projections that gets hx or reset_hx must be traced with a padded "
            "input and lengths=, got a PackedSequence"
        )
    if not single and (h0 is not None or reset_h is not None):
        joined = [_joined(rows, options.reset, h0, reset_h, d) for d in range(len(weights))]
    params = []
    for d, (weight_ih, weight_hh, *biases, weight_hr) in enumerate(weights):
        if joined:
            others = [torch.zeros_like(weight_hh)] * len(joined)
            weight_ih = torch.cat([weight_ih, *others[:d], weight_hh, *others[d + 1 :]], 1)
        pad = (0, weight_hr.size(1) - weight_hh.size(1))
        merged = F.pad(weight_hh, pad) if single else _product(weight_hh, weight_hr)
        params += [weight_ih, merged, *biases]

    def of_m(h: Tensor | None, c: Tensor) -> States:
        if single and h is not None:
            return F.pad(h, (0, c.size(-1) - h.size(-1))), c
        return x.new_zeros(()).expand(c.shape), c

    if options.reset_hx:
        options = options._replace(reset_hx=of_m(*options.reset_hx))
    m, m_n, c_n, *cells = run(
        (torch.cat([x, *joined], -1) if joined else x, *rows.batch_sizes),
        None if states is None else of_m(h0, states[-1]),
        (params, *flags),
        () if rows.batch_sizes else (False,),
        options,
    )
    if x.is_cpu and torch.is_autocast_enabled("cpu"):  # c keeps its dtype, as in torch
        c_n, *cells = (t.to(torch.promote_types(t.dtype, dtype_of_c)) for t in (c_n, *cells))
    hrs = [own[-1] for own in weights]
    hs = [_projected(part, hr) for part, hr in zip(m.chunk(len(hrs), -1), hrs, strict=True)]
    ends = []
    for d, (h, hr) in enumerate(zip(hs, hrs, strict=True)):
        end = rows.ends(h, None if h0 is None else h0[d], d)
        ends.append(F.linear(m_n[d], hr) if end is None else end)
    return hs[0] if len(hs) == 1 else torch.cat(hs, -1), torch.stack(ends), c_n, *cells


def _joined(
    rows: Rows, marks: Tensor | None, h0: Tensor | None, reset_h: Tensor | None, direction: int
) -> Tensor:
    """[T, B, P], or [S, P] for a packed batch: the given h where a step begins a row or follows a
    reset, else 0."""
    if h0 is None:
        assert reset_h is not None
        h0 = reset_h.new_zeros(direction + 1, rows.batch, reset_h.size(-1))
    found = rows.firsts(h0[direction], direction)
    if marks is None:
        return found
    own = None if reset_h is None else reset_h[direction]
    where, states = rows.after_resets(marks, own, direction)
    return torch.where(where, 0 if states is None else states, found)


def _product(weight_hh: Tensor, weight_hr: Tensor) -> Tensor:
    """weight_hh @ weight_hr, rounded once to their dtype."""
    if weight_hh.is_cpu and weight_hh.dtype in HALVES:  # GPUs accumulate in float32
        return (weight_hh.float() @ weight_hr.float()).to(weight_hh.dtype)
    return weight_hh @ weight_hr


def _projected(m: Tensor, weight_hr: Tensor) -> Tensor:
    if m.dim() == 3 and hasattr(m, "device_mesh"):  # F.linear cannot merge T and a sharded B
        return torch.bmm(m, weight_hr.mT.expand(m.size(0), -1, -1))
    return F.linear(m, weight_hr)


def _of_directions(parameters: list[Tensor], directions: int) -> list[list[Tensor]]:
    each = len(parameters) // directions
    return [parameters[each * d : each * (d + 1)] for d in range(directions)]


def _time_first(options: Options) -> Options:
    """The options for the same rows in the layout [T, B, ...]."""
    return options._replace(
        reset=None if options.reset is None else options.reset.transpose(0, 1),
        reset_hx=tuple(t.transpose(1, 2) if t.dim() == 4 else t for t in options.reset_hx),
    )


# ---- checks of arguments that the op cannot check, because it receives them in another form


def _check(
    layer: Any,
    input: tuple[Tensor, ...],
    states: States | None,
    batch_first: bool,
    options: Options,
) -> None:
    x, (reset, reset_hx, *_) = input[0], options
    given = {f"reset_hx[{k}]": state for k, state in enumerate(reset_hx[:1])}
    if states is not None and len(states) == 2:
        given["h0"] = states[0]
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        for name, h in given.items():
            if h.dtype is not x.dtype:
                raise RuntimeError(
                    f"lstm: {name} must have the dtype of input, {dtype_name(x.dtype)}, "
                    f"got {dtype_name(h.dtype)}"
                )
    if reset is None:
        return
    places = tuple(x.shape[:-1])
    if differs(tuple(reset.shape), places):
        letters = "[S]" if len(input) == 2 else "[B, T]" if batch_first else "[T, B]"
        raise RuntimeError(
            f"lstm: reset must have shape {letters} = {list(places)}, got {list(reset.shape)}"
        )
    if reset.dtype is not torch.bool:
        raise RuntimeError(
            f"lstm: reset must have dtype bool, got {dtype_name(reset.dtype)}: call reset.bool()"
        )
    if not reset_hx or is_tracing():
        return
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    batch = int(input[1][0]) if len(input) == 2 else x.size(0 if batch_first else 1)
    for k, state in enumerate(reset_hx):
        size = (layer.proj_size, layer.hidden_size)[k]
        forms = [count, batch, size], [count, *places, size]
        if list(state.shape) not in forms:
            raise RuntimeError(
                f"lstm: reset_hx[{k}] must have shape [L*D, B, {'PH'[k]}] = {forms[0]}, or, with "
                f"one state for each step, {forms[1]}, got {list(state.shape)}"
            )
