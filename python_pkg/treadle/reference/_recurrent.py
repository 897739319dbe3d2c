"""The recurrent layers of treadle.reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._formula.cell import Cell
from ._cells import formula_cell, gru_cell, lltm_cell, lstm_cell, rnn_cell

States = tuple[Tensor, Tensor]


def _lltm_step(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
) -> States:
    """:func:`lltm_cell`, called with the arguments that the other cells take."""
    if bias_hh is not None:
        raise ValueError("recurrent_layer: bias_hh must be None for the cell lltm, got a tensor")
    weights = torch.cat([weight_hh, weight_ih], dim=1)
    return lltm_cell(input, weights, bias_ih, old_h, old_cell)


_CELLS: dict[str, Callable[..., States]] = {
    "lltm": _lltm_step,
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": rnn_cell,
    "rnn_relu": partial(rnn_cell, nonlinearity="relu"),
}


def recurrent_layer(
    input: Tensor,
    batch_sizes: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    *,
    cell: str | Cell,
    reset: Tensor | None = None,
    reset_h: Tensor | None = None,
    reset_c: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of cells over a sequence, in D = 1 or 2 directions; the second is backward in time.

    Args:
        input: [T, B, I]; or [S, I], the data of a packed batch, where S is the sum of batch_sizes.
        batch_sizes: [T], int64 on the CPU, the number of rows of each step of a packed batch; or
            None.
        h0, c0: [D, B, H]. For a GRU, an RNN, or a Cell whose only state is h, c0 is the unrounded
            h0, in float32 with half types. For a Cell, c0 is [D, B, K H]: its K states besides h
            (or the unrounded h0) and values.
        weight_ih: [D, GH, I], where G is 4 for LSTM, 3 for GRU and LLTM, and 1 for RNN. The blocks
            of H rows are in the order of the cell's gates. The weights and biases of a Cell are
            those of :class:`treadle.nn.Recurrent`, with the leading dimension D.
        weight_hh: [D, GH, H], or [D, GH, H/n] with n diagonal blocks (not LLTM).
        bias_ih, bias_hh: [D, GH] or None. For LLTM, bias_hh must be None.
        cell: "lltm", "lstm", "gru", "rnn_tanh", "rnn_relu", or a :class:`treadle.Cell`, whose
            formula then runs on tensors.
        reset: [T, B, 1] or [S, 1], bool, or None. Where it is true, the row resets before that
            step. The second direction resets the row before step t if reset is true at step t + 1.
        reset_h, reset_c: the state after a reset, [D, B, H], [D, T, B, H] or [D, S, H]; None for
            zeros.

    Returns:
        ``output`` [T, B, D*H] or [S, D*H], the h of every step; and ``h_n`` and ``c_n`` [D, B, H],
        the states after each row's last step (in the second direction, after its first).

    Source: :func:`lltm_cell`, :func:`lstm_cell`, :func:`gru_cell` or :func:`rnn_cell`, step by
    step.
    """
    given = weight_ih, weight_hh, bias_ih, bias_hh
    resets = reset, reset_h, reset_c
    return _every_step(cell, input, batch_sizes, (h0, c0), given, resets)[:3]


def _every_step(
    cell: str | Cell,
    input: Tensor,
    batch_sizes: Tensor | None,
    hx: States,
    parameters: Sequence[Tensor | None],
    resets: tuple[Tensor | None, ...],
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Like :func:`recurrent_layer`, but also returns c of every step, shaped like output.
    ``lengths`` [B] has the number of steps of each row of a padded batch."""
    step = partial(formula_cell, cell) if isinstance(cell, Cell) else _CELLS[cell]
    reset, *others = resets
    steps, rows = input.shape[:2] if batch_sizes is None else (len(batch_sizes), 0)
    real = None
    if lengths is not None:
        real = torch.arange(steps, device=input.device).view(-1, 1, 1) < lengths.view(1, -1, 1)
        input = torch.where(real, input, 0)
        reset = None if reset is None else reset & real
    data = input.flatten(0, 1) if batch_sizes is None else input
    sizes = [rows] * steps if batch_sizes is None else batch_sizes.tolist()
    starts = [0, *accumulate(sizes)]
    found_of: list[list[Tensor]] = [[], [], [], []]
    for d in range(len(hx[0])):
        weights = [None if t is None else t[d] for t in parameters]
        h, c = hx[0][d], hx[1][d]
        found: dict[int, States] = {}
        for t in reversed(range(steps)) if d == 1 else range(steps):
            n = sizes[t]
            before = h, c = _restarted(h, c, reset, (others[0], others[1]), (sizes, starts), d, t)
            new = step(data[starts[t] : starts[t] + n], *weights, h[:n], c[:n])
            found[t] = new
            if real is not None:
                found[t] = torch.where(real[t], new[0], 0), torch.where(real[t], new[1], 0)
                new = (
                    torch.where(real[t], new[0], before[0].to(new[0])),
                    torch.where(real[t], new[1], before[1]),
                )
            # Rows without this step keep their state.
            h, c = torch.cat([new[0], h[n:].to(new[0])]), torch.cat([new[1], c[n:]])
        for k, state in enumerate((h, c)):
            every = [found[t][k] for t in range(steps)]
            found_of[k].append(torch.cat([hx[k][d][:0].to(state.dtype), *every]))
            found_of[2 + k].append(state)
    output, cells = (torch.cat(found_of[k], dim=1) for k in range(2))
    if batch_sizes is None:
        output, cells = (t.view(steps, rows, t.shape[1]) for t in (output, cells))
    return output, torch.stack(found_of[2]), torch.stack(found_of[3]), cells


def _restarted(
    h: Tensor,
    c: Tensor,
    reset: Tensor | None,
    states: tuple[Tensor | None, Tensor | None],
    rows: tuple[list[int], list[int]],
    d: int,
    t: int,
) -> States:
    """The h and c [B, H] from which step t of direction d starts, with resets applied."""
    (sizes, starts), at = rows, t + d
    if reset is None or at == len(sizes):
        return h, c
    n, marks = sizes[at], reset.reshape(-1, 1)
    mark = marks[starts[at] : starts[at] + n]
    found = []
    for state, given in zip((h, c), states, strict=True):
        if given is None:
            other = torch.zeros_like(state[:n])
        elif given.dim() == 3 and given.shape[1] == len(state):
            other = given[d, :n]
        else:
            other = given[d].reshape(-1, state.shape[1])[starts[t] : starts[t] + n]
        found.append(torch.cat([torch.where(mark, other, state[:n]), state[n:]]))
    return found[0], found[1]


def _layers(
    cell: str,
    input: Tensor,
    batch_sizes: Tensor | None,
    hx: tuple[Tensor, Tensor],
    *rest: Any,
    reset: Tensor | None = None,
    reset_hx: tuple[Tensor, Tensor] | None = None,
    lengths: Tensor | None = None,
    return_cells: bool = False,
) -> tuple[Tensor, ...]:
    """Runs the layers one after another. ``rest`` has the arguments of :func:`lltm` after hx."""
    params, has_biases, num_layers, dropout, train, bidirectional, *last = rest
    batch_first = bool(last and last[0])
    directions = 2 if bidirectional else 1
    each = 2 if not has_biases else 3 if cell == "lltm" else 4
    x = input.transpose(0, 1) if batch_first else input
    if batch_first and reset is not None:
        reset = reset.transpose(0, 1)
    if batch_first and reset_hx is not None and reset_hx[0].dim() == 4:
        reset_hx = reset_hx[0].transpose(1, 2), reset_hx[1].transpose(1, 2)
    marks = None if reset is None else reset.unsqueeze(-1)
    last_h, last_c = [], []
    for layer in range(num_layers):
        if layer > 0:
            x = F.dropout(x, dropout, train)
        first = layer * directions
        own = params[first * each : (first + directions) * each]
        weights = [torch.stack(list(own[k::each])) if k < each else None for k in range(4)]
        states = hx[0][first : first + directions], hx[1][first : first + directions]
        others = [
            None if reset_hx is None else t[first : first + directions] for t in reset_hx or hx
        ]
        given = batch_sizes, states, weights, (marks, *others), lengths
        x, h, c, cells = _every_step(cell, x, *given)
        last_h.append(h)
        last_c.append(c)
    output, cells = (t.transpose(0, 1) if batch_first else t for t in (x, cells))
    states = torch.cat(last_h), torch.cat(last_c)
    return (output, *states, cells) if return_cells else (output, *states)


def _unpacked(arguments: tuple[Any, ...]) -> tuple[Tensor | None, tuple[Any, ...]]:
    """Separates batch_sizes from the rest. If the first argument after input is an int64 tensor, it
    is batch_sizes."""
    packed = isinstance(arguments[0], Tensor) and arguments[0].dtype == torch.int64
    return (arguments[0], arguments[1:]) if packed else (None, arguments)


def lltm(
    input: Tensor, *arguments: Any, recompute: bool = False, **options: Any
) -> tuple[Tensor, ...]:
    """Layers of LLTM cells over a sequence; arguments in the order of ``torch.lstm``.

    Call ``lltm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch ``lltm(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``.

    Args:
        input: [T, B, I] (or [B, T, I] if ``batch_first``), or the data [S, I] of a packed batch.
        arguments: ``hx`` is (h0, c0), each [num_layers * D, B, H]; ``params`` has weight_ih
            [3H, I or D*H], weight_hh [3H, H] and, if ``has_biases``, bias [3H], for each layer and
            each of its directions; ``dropout`` is applied between layers if ``train``.
        recompute: ignored. If True, the fused op saves less for the backward pass.
        options: ``reset`` [T, B] ([B, T] if ``batch_first``; [S] for a packed batch); ``reset_hx``,
            (h, c) shaped like hx or with a state for each step, as in :func:`recurrent_layer`;
            ``lengths`` [B], the number of steps of each row of a padded batch; ``return_cells``.

    Returns:
        ``output`` of the last layer, and ``h_n`` and ``c_n`` of all layers, shaped as in
        :func:`recurrent_layer`; with ``return_cells`` also c of every step of the last layer,
        shaped like ``output``.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.lstm``.
    """
    batch_sizes, (hx, *rest) = _unpacked(arguments)
    return _layers("lltm", input, batch_sizes, hx, *rest, **options)


def lstm(
    input: Tensor, *arguments: Any, recompute: bool = False, **options: Any
) -> tuple[Tensor, ...]:
    """Layers of LSTM cells over a sequence; arguments in the order of ``torch.lstm``.

    Args:
        input: as in :func:`lltm`.
        arguments: as in :func:`lltm`, but weights and biases have 4H rows, and ``params`` has two
            biases for each layer and direction.
        recompute: ignored. If True, the fused op saves less for the backward pass.
        options: as in :func:`lltm`.

    Returns:
        ``output``, ``h_n``, ``c_n`` as in :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.lstm``.
    """
    batch_sizes, (hx, *rest) = _unpacked(arguments)
    return _layers("lstm", input, batch_sizes, hx, *rest, **options)


def _layers_of_h(
    cell: str,
    input: Tensor,
    arguments: tuple[Any, ...],
    reset: Tensor | None,
    reset_hx: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Layers of a cell whose only state is h. Between steps, h of half types is in float32."""
    batch_sizes, (hx, *rest) = _unpacked(arguments)

    def wide(h: Tensor) -> States:
        return h, h.float() if h.dtype.itemsize == 2 else h

    others = None if reset_hx is None else wide(reset_hx)
    given: dict[str, Any] = {"reset": reset, "reset_hx": others, "lengths": lengths}
    output, h_n, _ = _layers(cell, input, batch_sizes, wide(hx), *rest, **given)
    return output, h_n


def gru(
    input: Tensor,
    *arguments: Any,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers of GRU cells over a sequence; arguments as in :func:`lltm`, except for ``hx``.

    Args:
        input: as in :func:`lltm`.
        arguments: as in :func:`lltm`, but ``hx`` is only h0, and ``params`` has two biases for each
            layer and direction. With half types, h is passed from step to step in float32.
        recompute: ignored. If True, the fused op saves less for the backward pass.
        reset, reset_hx, lengths: as in :func:`lltm`; ``reset_hx`` has only h.

    Returns:
        ``output``, ``h_n`` as in :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.gru``.
    """
    return _layers_of_h("gru", input, arguments, reset, reset_hx, lengths)


def rnn_tanh(
    input: Tensor,
    *arguments: Any,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers of RNN cells with ``tanh`` over a sequence; arguments as in :func:`gru`.

    Args:
        input: as in :func:`lltm`.
        arguments: as in :func:`gru`; weights and biases have H rows.
        recompute: ignored. If True, the fused op saves less for the backward pass.
        reset, reset_hx, lengths: as in :func:`gru`.

    Returns:
        ``output``, ``h_n`` as in :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.rnn_tanh``.
    """
    return _layers_of_h("rnn_tanh", input, arguments, reset, reset_hx, lengths)


def rnn_relu(
    input: Tensor,
    *arguments: Any,
    recompute: bool = False,
    reset: Tensor | None = None,
    reset_hx: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers of RNN cells with ``relu`` over a sequence; arguments as in :func:`gru`.

    Args:
        input: as in :func:`lltm`.
        arguments: as in :func:`gru`; weights and biases have H rows.
        recompute: ignored. If True, the fused op saves less for the backward pass.
        reset, reset_hx, lengths: as in :func:`gru`.

    Returns:
        ``output``, ``h_n`` as in :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.rnn_relu``.
    """
    return _layers_of_h("rnn_relu", input, arguments, reset, reset_hx, lengths)
