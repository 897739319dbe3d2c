"""The cells of treadle.reference: one step each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._formula.cell import Cell


def _of_state(old_h: Tensor, weight_hh: Tensor, bias_hh: Tensor | None) -> Tensor:
    """The product of h with ``weight_hh`` [G H, H]. A block-diagonal weight_hh of n blocks is
    [G H, H / n], because a unit has weights only for the H / n units of its own block."""
    hidden, own = old_h.shape[-1], weight_hh.shape[-1]
    if hidden == own:
        return F.linear(old_h, weight_hh, bias_hh)
    count = hidden // own
    blocks = weight_hh.reshape(-1, count, own, own).unbind(1)  # [G, H / n, H / n] each
    parts = [
        F.linear(h, block.flatten(0, 1)).reshape(*h.shape[:-1], -1, own)
        for h, block in zip(old_h.chunk(count, -1), blocks, strict=True)
    ]
    found = torch.cat(parts, -1).flatten(-2)
    return found if bias_hh is None else found + bias_hh


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the LLTM ("long long-term memory"), an LSTM without a forget gate.

    With ``X = [old_h, input]`` and the gates ``X W^T + b`` cut into three parts [B, H]::

        i = sigmoid(gates[0])    o = sigmoid(gates[1])    z = elu(gates[2])
        new_cell = old_cell + z * i
        new_h    = tanh(new_cell) * o

    Args:
        input: [B, I].
        weights: [3H, H+I]. Rows are in the order i, o, z; columns for ``old_h`` come first, then
            those for ``input``.
        bias: [3H], or [1, 3H] as in the tutorial, or None.
        old_h: [B, H].
        old_cell: [B, H], in the dtype of ``input`` or a wider one, in which the update is computed.
            c accumulates, so keep it in float32 with half-precision inputs.

    Returns:
        ``new_h`` [B, H] in the dtype of ``input`` (under autocast: of the matrix product), and
        ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: the LLTM of PyTorch's tutorial on C++ and CUDA extensions.
    """
    gates = F.linear(
        torch.cat([old_h, input], dim=-1), weights, None if bias is None else bias.flatten()
    )
    state = gates.to(torch.promote_types(gates.dtype, old_cell.dtype))
    i, o, z = state.chunk(3, dim=-1)
    new_cell = old_cell + F.elu(z) * torch.sigmoid(i)
    new_h = torch.tanh(new_cell) * torch.sigmoid(o)
    return new_h.to(gates.dtype), new_cell.to(old_cell.dtype)


def lstm_cell(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM.

    With the gates ``input W_ih^T + b_ih + old_h W_hh^T + b_hh`` cut into four parts [B, H]::

        i = sigmoid(gates[0])    f = sigmoid(gates[1])
        z = tanh(gates[2])       o = sigmoid(gates[3])
        new_cell = f * old_cell + i * z
        new_h    = o * tanh(new_cell)

    Args:
        input: [B, I].
        weight_ih: [4H, I]; weight_hh: [4H, H]; bias_ih, bias_hh: [4H] or None.
        old_h: [B, H].
        old_cell: [B, H], in the dtype of ``input`` or a wider one, in which the update is computed.

    Returns:
        ``new_h`` [B, H] in the dtype of ``input`` (under autocast: of the matrix product), and
        ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: ``torch.nn.LSTMCell``.
    """
    gates = F.linear(input, weight_ih, bias_ih) + _of_state(old_h, weight_hh, bias_hh)
    state = gates.to(torch.promote_types(gates.dtype, old_cell.dtype))
    i, f, z, o = state.chunk(4, dim=-1)
    new_cell = torch.sigmoid(f) * old_cell + torch.sigmoid(i) * torch.tanh(z)
    new_h = torch.sigmoid(o) * torch.tanh(new_cell)
    return new_h.to(gates.dtype), new_cell.to(old_cell.dtype)


def gru_cell(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step of a GRU.

    With ``x = input W_ih^T + b_ih`` and ``s = old_h W_hh^T + b_hh``, each cut into three parts
    [B, H]::

        r = sigmoid(x[0] + s[0])    z = sigmoid(x[1] + s[1])    n = tanh(x[2] + r * s[2])
        new_cell = n + z * (old_cell - n)

    Args:
        input: [B, I].
        weight_ih: [3H, I]; weight_hh: [3H, H]; bias_ih, bias_hh: [3H] or None. Rows are
            in the order r, z, n.
        old_h: [B, H].
        old_cell: [B, H], ``old_h`` before it was rounded, because h accumulates over the steps. It
            has the dtype of ``input`` or a wider one, in which the update is computed.

    Returns:
        ``new_h`` [B, H], which is ``new_cell`` in the dtype of ``input`` (under autocast: of the
        matrix product), and ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: ``torch.nn.GRUCell``, which has only one state.
    """
    of_input, of_h = F.linear(input, weight_ih, bias_ih), _of_state(old_h, weight_hh, bias_hh)
    wide = torch.promote_types(of_input.dtype, old_cell.dtype)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (t.to(wide).chunk(3, dim=-1) for t in (of_input, of_h))
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    new_cell = n + z * (old_cell - n)
    return new_cell.to(of_input.dtype), new_cell.to(old_cell.dtype)


def rnn_cell(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """One step of an RNN: ``new_cell = tanh(input W_ih^T + b_ih + old_h W_hh^T + b_hh)``.

    Args:
        input: [B, I].
        weight_ih: [H, I]; weight_hh: [H, H]; bias_ih, bias_hh: [H] or None.
        old_h: [B, H].
        old_cell: [B, H], ``old_h`` before it was rounded, in the dtype of ``input`` or a wider one.
            Only its dtype is used.
        nonlinearity: "tanh" or "relu".

    Returns:
        ``new_h`` [B, H], which is ``new_cell`` in the dtype of ``input`` (under autocast: of the
        matrix product), and ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: ``torch.nn.RNNCell``, which has only one state.
    """
    of_input, of_h = F.linear(input, weight_ih, bias_ih), _of_state(old_h, weight_hh, bias_hh)
    wide = torch.promote_types(of_input.dtype, old_cell.dtype)
    gate = of_input.to(wide) + of_h.to(wide)
    new_cell = torch.relu(gate) if nonlinearity == "relu" else torch.tanh(gate)
    return new_cell.to(of_input.dtype), new_cell.to(old_cell.dtype)


def formula_cell(
    cell: Cell,
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step of a :class:`treadle.Cell`, whose formula runs on tensors.

    Args:
        input: [B, I].
        weight_ih: [G_i H, I]; weight_hh: [G_h H, H]; bias_ih: [G_i H] or None; bias_hh: [G_h H] or
            None. G_i gates have a product with the input, and G_h gates have a product with h.
        old_h: [B, H].
        old_cell: [B, K H], the K parts of the cell's c side by side (``cell.parts``): its states
            besides h, or ``old_h`` before it was rounded, and then its values. It has the dtype of
            ``input`` or a wider one, in which the formula is computed.

    Returns:
        ``new_h`` [B, H] in the dtype of ``input`` (under autocast: of the matrix product), and
        ``new_cell`` in the shape and dtype of ``old_cell``.
    """
    of_input, of_h = F.linear(input, weight_ih, bias_ih), _of_state(old_h, weight_hh, bias_hh)
    wide = torch.promote_types(of_input.dtype, old_cell.dtype)
    hidden, gates = old_h.shape[-1], len(cell.gates)
    before, after = (gates - cell.input_gates) * hidden, (gates - cell.state_gates) * hidden
    # Gates without a product with the input come first; gates without a product with h come last.
    sums = F.pad(of_input.to(wide), (before, 0)) + F.pad(of_h.to(wide), (0, after))
    given = dict(zip(cell.gates, sums.chunk(gates, dim=-1), strict=True))
    given |= zip(cell.parts, old_cell.to(wide).chunk(len(cell.parts), -1), strict=True)
    found = cell.forward(**given)
    new_h, *rest = found if cell.states else (found, found)
    rest += [given[value] for value in cell.values]
    new_cell = torch.cat([value.expand_as(new_h) for value in rest], -1)
    return new_h.to(of_input.dtype), new_cell.to(old_cell.dtype)
