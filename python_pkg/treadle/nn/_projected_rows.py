"""Selects the first and last steps of a batch's rows, and steps after resets, in both directions.

P is the size of h in a layer with projections. S is the number of rows of a packed batch's data.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PackedRows", "PaddedRows", "Rows"]


class PaddedRows:
    """Rows of a batch [T, B, ...], of variable length if ``lengths`` [B] are given."""

    def __init__(self, input: Tensor, lengths: Tensor | None) -> None:
        self.steps, self.batch = input.size(0), input.size(1)
        self.batch_sizes: tuple[Tensor, ...] = ()
        self._lengths = lengths
        if lengths is not None:
            self._stop = lengths.clamp_max(self.steps)
            self._t = torch.arange(self.steps, device=lengths.device).unsqueeze(1)  # [T, 1]

    def firsts(self, h: Tensor, direction: int) -> Tensor:
        """[T, B, P]: ``h`` [B, P] at each row's first step, 0 at all other steps."""
        if direction and self._lengths is not None:
            return torch.where(self._is_last(), h, 0)
        after = self.steps - 1
        return F.pad(h.unsqueeze(0), (0, 0, 0, 0, *((after, 0) if direction else (0, after))))

    def after_resets(
        self, marks: Tensor, h: Tensor | None, direction: int
    ) -> tuple[Tensor, Tensor | None]:
        """Returns which steps follow a reset, [T, B, 1], and the states before these steps, which
        broadcast to [T, B, P].

        ``h`` is [B, P] or [T, B, P]; None means 0.
        """
        if direction:
            marks = F.pad(marks[1:], (0, 0, 0, 1))
            if self._lengths is not None:
                marks = marks & (self._t + 1 < self._stop)
        return marks.unsqueeze(-1), h

    def ends(self, h: Tensor, h0: Tensor | None, direction: int) -> Tensor | None:
        """[B, P]: ``h`` [T, B, P] at each row's last step. Rows without steps get ``h0`` or 0."""
        if direction or self._lengths is None:
            end = h[0] if direction else h[-1]
        else:  # the derivative of a sum, unlike that of an index, needs no scatter
            end = h.masked_fill(self._is_last().logical_not(), 0).sum(0)
        if self._lengths is None or h0 is None:
            return end
        return torch.where((self._stop <= 0).unsqueeze(-1), h0.to(end.dtype), end)

    def _is_last(self) -> Tensor:
        return (self._t + 1 == self._stop).unsqueeze(-1)


class PackedRows:
    """Rows of the data [S, ...] of a packed batch."""

    def __init__(self, data: Tensor, batch_sizes: Tensor) -> None:
        self.batch_sizes = (batch_sizes,)
        self.steps, self._count = len(batch_sizes), data.size(0)

    @property
    def batch(self) -> int:
        return int(self.batch_sizes[0][0])

    def firsts(self, h: Tensor, direction: int) -> Tensor:
        """[S, P]: ``h`` [B, P] at each row's first step, 0 at all other steps."""
        others = h.new_zeros(()).expand(self._count, h.size(1))
        if not direction:
            return torch.cat([h, others[len(h) :]])
        return torch.cat([p for n, m in self._sizes() for p in (others[:m], h[m:n])])

    def after_resets(
        self, marks: Tensor, h: Tensor | None, direction: int
    ) -> tuple[Tensor, Tensor | None]:
        """Returns which steps follow a reset, [S, 1], and the states before these steps, [S, P].

        ``h`` is [B, P] or [S, P]; None means 0.
        """
        sizes = self._sizes()
        if direction:
            nexts = [*torch.split(marks, [n for n, _ in sizes])[1:], marks[:0]]
            pairs = zip(nexts, sizes, strict=True)
            marks = torch.cat([F.pad(m, (0, n - len(m))) for m, (n, _) in pairs])
        if h is not None and len(h) != self._count:
            h = torch.cat([h[:n] for n, _ in sizes])
        return marks.unsqueeze(-1), h

    def ends(self, h: Tensor, h0: Tensor | None, direction: int) -> Tensor | None:
        """Returns None. The caller then projects the last state of each row itself."""
        return None

    def _sizes(self) -> list[tuple[int, int]]:
        """The number of rows of each step and of the step after it."""
        sizes = self.batch_sizes[0].tolist()
        return list(zip_longest(sizes, sizes[1:], fillvalue=0))


Rows = PaddedRows | PackedRows
