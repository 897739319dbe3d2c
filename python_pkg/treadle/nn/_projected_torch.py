"""Runs an LSTM with projections by torch's ops, where that is faster.

On a CPU, torch.lstm is composed of differentiable ops, so it supports every kind of derivative. At
each step it multiplies m = o tanh(c) by W_hr and the result by W_hh. run_projected
(_projections.py) multiplies m by the product of both matrices. This takes more multiplications, but
calls no ops at each step.

On a GPU, a single step is three matrix products and torch's fused cell, which computes m. This is
faster than padding W_hh, and has second derivatives, which cuDNN's layer lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from ._sequence import Options, States
from ._tracers import is_tracing

__all__ = ["run_torchs", "steps_of", "torchs_is_faster", "torchs_may_run"]


class _Costs(NamedTuple):
    """Times on a CPU, in units of the time of one multiplication."""

    step: float  # torch.lstm's ops, for each step
    unit: float  # the same ops, for each step, row and unit
    call: float  # run_projected's own ops, for each call
    call_from_h0: float  # the same, if h0 is given


# bfloat16 differs, because torch multiplies it in hardware, but treadle's kernels convert it to
# float32.
_COSTS = {
    torch.float64: _Costs(step=2.4e5, unit=180, call=1.1e6, call_from_h0=3e6),
    torch.float32: _Costs(step=6e5, unit=360, call=2.2e6, call_from_h0=6e6),
    torch.float16: _Costs(step=6e5, unit=360, call=2.2e6, call_from_h0=6e6),
    torch.bfloat16: _Costs(step=1e6, unit=0, call=3e6, call_from_h0=8e6),
}

torchs: Any = torch.lstm
fused_cell: Any = torch.ops.aten._thnn_fused_lstm_cell.default
_functorch_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level


def torchs_may_run(x: Tensor, states: States | None, options: Options) -> bool:
    """Whether torch's ops support this call of a layer. They may lack some derivatives."""
    if type(x) is not Tensor or torch.compiler.is_compiling() or is_tracing():
        return False
    if options.reset is not None or options.lengths is not None or options.return_cells:
        return False
    if x.numel() == 0 or _functorch_level() is not None:
        return False
    return states is None or all(state.dtype is x.dtype for state in states)


def steps_of(input: tuple[Tensor, ...], rest: tuple[bool, ...]) -> int:
    return len(input[1]) if len(input) == 2 else input[0].size(1 if rest[0] else 0)


def torchs_is_faster(
    layer: Any,
    input: tuple[Tensor, ...],
    states: States | None,
    rest: tuple[bool, ...],
    options: Options,
) -> bool:
    """Whether torch's ops support this call and are faster than run_projected."""
    x = input[0]
    if not torchs_may_run(x, states, options) or getattr(layer, "recompute", False):
        return False
    given = states is not None and len(states) == 2
    if x.dtype not in _COSTS:
        return False
    steps = steps_of(input, rest)
    if not x.is_cpu:
        # torch's fused cell has no forward-mode derivative, and autocast would not cast its inputs.
        single = x.is_cuda and steps == 1 and forward_ad._current_level < 0
        return single and not torch.is_autocast_enabled("cuda")
    if steps == 1 or torch.is_autocast_enabled("cpu"):
        return True
    costs, h, p = _COSTS[x.dtype], layer.hidden_size, layer.proj_size
    rows = x.numel() // (x.size(-1) * steps)
    more = 4 * h * (rows * (h if given else h - p) + h * p / steps)
    call = costs.call_from_h0 if given else costs.call
    return bool(more + call / steps > costs.step + costs.unit * rows * h)


def run_torchs(
    layer: Any,
    input: tuple[Tensor, ...],
    states: States | None,
    net: tuple[Any, ...],
    rest: tuple[bool, ...],
) -> tuple[Tensor, ...]:
    """Runs a layer by torch's ops, with projections or without."""
    if states is None or len(states) == 1:
        x, count = input[0], layer.num_layers * (2 if layer.bidirectional else 1)
        batch = int(input[1][0]) if len(input) == 2 else x.size(0 if rest[0] else 1)
        sizes = (layer.proj_size or layer.hidden_size, layer.hidden_size)
        states = tuple(x.new_zeros(count, batch, size) for size in sizes)
    if input[0].is_cuda:
        return _single_step(input, states, net, rest)
    return torchs(*input, states, *net, *rest)  # type: ignore[no-any-return]


def _single_step(
    input: tuple[Tensor, ...], states: States, net: tuple[Any, ...], rest: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """Output, h_n and c_n of a call with one step."""
    parameters, _, num_layers, dropout, training, both = net
    time, directions = 1 if rest == (True,) else 0, 2 if both else 1
    x = input[0] if len(input) == 2 else input[0].squeeze(time)
    each, last = len(parameters) // (num_layers * directions), []
    for n in range(num_layers):
        if n and dropout and training:
            x = F.dropout(x, dropout, training)
        for k in range(directions * n, directions * (n + 1)):
            weight_ih, weight_hh, *biases, weight_hr = parameters[each * k : each * (k + 1)]
            gates = F.linear(x, weight_ih), F.linear(states[0][k], weight_hh)
            m, c, _ = fused_cell(*gates, states[1][k], *biases)
            last.append((F.linear(m, weight_hr), c))
        x = torch.cat([h for h, _ in last[-2:]], -1) if both else last[-1][0]
    h_n, c_n = (torch.stack(found) for found in zip(*last, strict=True))
    return x if len(input) == 2 else x.unsqueeze(time), h_n, c_n
