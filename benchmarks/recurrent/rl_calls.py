"""Runs a layer over rows with several episodes, in three ways that rl.py compares.

Each way is a function of x [T, B, I], h0 (with c0 if the cell has a c) and the parameters of
torch's module. It is made for given marks [T, B], which are True where an episode begins. If x has
fewer steps than the marks, only the first marks are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from benchmarks.recurrent.layer_calls import Shape

Call = Callable[..., tuple[Tensor, ...]]
STATES = {"lstm": 2, "gru": 1}
CELLS: dict[str, Callable[..., Any]] = {"lstm": torch.lstm_cell, "gru": torch.gru_cell}


def marks_of(shape: Shape, share: float, device: str) -> Tensor:
    """Marks random steps, a fraction `share` of all. Step 3 of row 0 is always marked, so that the
    check, which compares only the first steps, sees a reset."""
    generator = torch.Generator().manual_seed(11)
    marks = torch.rand(shape.t, shape.b, generator=generator) < share
    marks[3, 0] = True
    return marks.to(device)


def with_resets(cell: str, train: bool, marks: Tensor) -> Call:
    op, states = getattr(torch.ops.treadle, cell).input, STATES[cell]

    def call(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        hx = list(rest[:states]) if states > 1 else rest[0]
        reset = marks if len(x) == len(marks) else marks[: len(x)]
        found: tuple[Tensor, ...] = op(
            x, hx, list(rest[states:]), True, 1, 0.0, train, False, False, reset=reset
        )
        return found

    return call


def loop(cell: str, marks: Tensor) -> Call:
    """Runs torch's cell step by step and multiplies the states by 0 where an episode begins."""
    step, count = CELLS[cell], STATES[cell]

    def call(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        states, params = [state[0] for state in rest[:count]], rest[count:]
        keep = (~marks[: len(x)]).to(x.dtype).unsqueeze(-1)
        output = []
        for now, kept in zip(x, keep, strict=True):
            states = [state * kept for state in states]
            found = step(now, states if count > 1 else states[0], *params)
            states = list(found) if count > 1 else [found]
            output.append(states[0])
        return torch.stack(output), *(state.unsqueeze(0) for state in states)

    return call


def padded(cell: str, train: bool, marks: Tensor) -> Call:
    """Does what TorchRL's backend `pad` does in every call: splits the rows into episodes, pads and
    packs these, runs torch's layer, and joins the results into rows."""
    op, count = getattr(torch, cell), STATES[cell]

    def call(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        steps, batch = x.shape[:2]
        begins = marks[:steps].t()
        first = begins.clone()
        first[:, 0] = True
        starts = first.flatten().nonzero().squeeze(1)
        lengths = starts.diff(append=starts.new_tensor([steps * batch]))
        longest = int(lengths.max())
        inside = torch.arange(longest, device=x.device) < lengths.unsqueeze(1)
        space = x.new_zeros(len(starts), longest, x.shape[2])
        pieces = space.masked_scatter(inside.unsqueeze(-1), x.transpose(0, 1).flatten(0, 1))
        packed = pack_padded_sequence(pieces, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # An episode that began before this call continues from the state of its row.
        new = begins.flatten()[starts].unsqueeze(-1)
        states = [torch.where(new, 0, state[:, starts // steps]) for state in rest[:count]]
        states = [state.index_select(1, packed.sorted_indices) for state in states]
        hx, params = states if count > 1 else states[0], list(rest[count:])
        data, *last = op(packed.data, packed.batch_sizes, hx, params, True, 1, 0.0, train, False)
        whole, _ = pad_packed_sequence(
            PackedSequence(data, *packed[1:]), batch_first=True, total_length=longest
        )
        output = whole[inside].unflatten(0, (batch, steps)).transpose(0, 1)
        ends = packed.unsorted_indices[first.sum(1).cumsum(0) - 1]
        return output, *(state.index_select(1, ends) for state in last)

    return call
