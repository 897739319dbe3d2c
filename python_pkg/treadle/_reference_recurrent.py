"""The recurrent functions of treadle.reference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

States = tuple[Tensor, Tensor]


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the LLTM ("long long-term memory"), an LSTM that never forgets.

    With ``X = [old_h, input]`` and the gates ``X W^T + b`` cut into three parts of H::

        i = sigmoid(gates[0])    o = sigmoid(gates[1])    z = elu(gates[2])
        new_cell = old_cell + z * i
        new_h    = tanh(new_cell) * o

    Args:
        input: [B, I].
        weights: [3H, H+I]: rows i, o, z; columns first ``old_h``, then ``input``.
        bias: [3H], or [1, 3H] as in the tutorial, or None.
        old_h: [B, H].
        old_cell: [B, H], in the dtype of ``input`` or wider: a cell that only ever grows is worth
            keeping in float32 beside half-precision inputs. The wider dtype computes the update.

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

    With the gates ``input W_ih^T + b_ih + old_h W_hh^T + b_hh`` cut into four parts of H::

        i = sigmoid(gates[0])    f = sigmoid(gates[1])
        z = tanh(gates[2])       o = sigmoid(gates[3])
        new_cell = f * old_cell + i * z
        new_h    = o * tanh(new_cell)

    Args:
        input: [B, I].
        weight_ih: [4H, I]; weight_hh: [4H, H]; bias_ih, bias_hh: [4H] or None.
        old_h: [B, H].
        old_cell: [B, H], in the dtype of ``input`` or wider; the wider dtype computes the update.

    Returns:
        ``new_h`` [B, H] in the dtype of ``input`` (under autocast: of the matrix product), and
        ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: ``torch.nn.LSTMCell``.
    """
    gates = F.linear(input, weight_ih, bias_ih) + F.linear(old_h, weight_hh, bias_hh)
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

    With ``x = input W_ih^T + b_ih`` and ``s = old_h W_hh^T + b_hh``, each cut into three parts of
    H::

        r = sigmoid(x[0] + s[0])    z = sigmoid(x[1] + s[1])    n = tanh(x[2] + r * s[2])
        new_cell = n + z * (old_cell - n)

    Args:
        input: [B, I].
        weight_ih: [3H, I]; weight_hh: [3H, H]; bias_ih, bias_hh: [3H] or None. Rows r, z, n.
        old_h: [B, H].
        old_cell: [B, H], ``old_h`` before it was rounded, in the dtype of ``input`` or wider: h is
            a sum over the steps. The wider dtype computes the update.

    Returns:
        ``new_h`` [B, H], which is ``new_cell`` in the dtype of ``input`` (under autocast: of the
        matrix product), and ``new_cell`` [B, H] in the dtype of ``old_cell``.

    Source: ``torch.nn.GRUCell``, whose two states are one.
    """
    of_input, of_h = F.linear(input, weight_ih, bias_ih), F.linear(old_h, weight_hh, bias_hh)
    wide = torch.promote_types(of_input.dtype, old_cell.dtype)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (t.to(wide).chunk(3, dim=-1) for t in (of_input, of_h))
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    new_cell = n + z * (old_cell - n)
    return new_cell.to(of_input.dtype), new_cell.to(old_cell.dtype)


def _lltm_step(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    old_h: Tensor,
    old_cell: Tensor,
) -> States:
    """:func:`lltm_cell`, with the arguments of the others."""
    if bias_hh is not None:
        raise ValueError("recurrent_layer: bias_hh must be None for the cell lltm, got a tensor")
    weights = torch.cat([weight_hh, weight_ih], dim=1)
    return lltm_cell(input, weights, bias_ih, old_h, old_cell)


_CELLS: dict[str, Callable[..., States]] = {
    "lltm": _lltm_step,
    "lstm": lstm_cell,
    "gru": gru_cell,
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
    cell: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of cells over a sequence, in D directions: 1, or 2 with one backward in time.

    Args:
        input: [T, B, I]; or [S, I], the data of a packed batch, S rows in all.
        batch_sizes: [T], int64 on the CPU, the rows of each step of a packed batch; or None.
        h0, c0: [D, B, H]; c0 of a GRU is h0 before it was rounded.
        weight_ih: [D, GH, I]; weight_hh: [D, GH, H]; bias_ih: [D, GH] or None. G is 3, of an LSTM
            4. Rows are those of the cell.
        bias_hh: as bias_ih; None for the LLTM, which has one bias.
        cell: "lltm", "lstm" or "gru".

    Returns:
        ``output`` [T, B, D*H] or [S, D*H], the h of every step, and ``h_n`` and ``c_n`` [D, B, H],
        those after each row's last step (backward in time: its first).

    Source: :func:`lltm_cell`, :func:`lstm_cell` or :func:`gru_cell`, step by step.
    """
    step = _CELLS[cell]
    data = input.flatten(0, 1) if batch_sizes is None else input
    steps, rows = input.shape[:2] if batch_sizes is None else (len(batch_sizes), 0)
    sizes = [rows] * steps if batch_sizes is None else batch_sizes.tolist()
    starts = [0, *accumulate(sizes)]
    outputs, last_h, last_c = [], [], []
    for d in range(len(h0)):
        given = weight_ih, weight_hh, bias_ih, bias_hh
        weights = [None if t is None else t[d] for t in given]
        h, c = h0[d], c0[d]
        found: dict[int, Tensor] = {}
        for t in reversed(range(steps)) if d == 1 else range(steps):
            n = sizes[t]
            new_h, new_c = step(data[starts[t] : starts[t] + n], *weights, h[:n], c[:n])
            found[t] = new_h
            # Rows that have no such step keep their state.
            h, c = torch.cat([new_h, h[n:].to(new_h)]), torch.cat([new_c, c[n:]])
        none = h0[d][:0].to(h.dtype)
        outputs.append(torch.cat([none, *(found[t] for t in range(steps))]))
        last_h.append(h)
        last_c.append(c)
    output = torch.cat(outputs, dim=1)
    if batch_sizes is None:
        output = output.view(steps, rows, output.shape[1])
    return output, torch.stack(last_h), torch.stack(last_c)


def _layers(
    cell: str, input: Tensor, batch_sizes: Tensor | None, h0: Tensor, c0: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer by layer; ``rest`` is what follows hx."""
    params, has_biases, num_layers, dropout, train, bidirectional, *last = rest
    batch_first = bool(last and last[0])
    directions = 2 if bidirectional else 1
    each = 2 if not has_biases else 3 if cell == "lltm" else 4
    x = input.transpose(0, 1) if batch_first else input
    last_h, last_c = [], []
    for layer in range(num_layers):
        if layer > 0:
            x = F.dropout(x, dropout, train)
        first = layer * directions
        own = params[first * each : (first + directions) * each]
        weights = [torch.stack(list(own[k::each])) if k < each else None for k in range(4)]
        states = (t[first : first + directions] for t in (h0, c0))
        x, h, c = recurrent_layer(x, batch_sizes, *states, *weights, cell=cell)
        last_h.append(h)
        last_c.append(c)
    output = x.transpose(0, 1) if batch_first else x
    return output, torch.cat(last_h), torch.cat(last_c)


def _unpacked(arguments: tuple[Any, ...]) -> tuple[Tensor | None, tuple[Any, ...]]:
    """batch_sizes, the only int64 tensor that may come second, and what follows."""
    packed = isinstance(arguments[0], Tensor) and arguments[0].dtype == torch.int64
    return (arguments[0], arguments[1:]) if packed else (None, arguments)


def lltm(input: Tensor, *arguments: Any, recompute: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Layers of LLTM cells over a sequence; arguments in the order of ``torch.lstm``.

    ``lltm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``lltm(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``.

    Args:
        input: [T, B, I] (or [B, T, I] if ``batch_first``), or the data [S, I] of a packed batch.
        arguments: ``hx`` is (h0, c0), each [num_layers * D, B, H]; ``params`` holds weight_ih
            [3H, I or D*H], weight_hh [3H, H] and, if ``has_biases``, bias [3H], for each layer and
            in it for each direction; ``dropout`` works between layers if ``train``.
        recompute: nothing here; the fused op saves less memory for it.

    Returns:
        ``output``, ``h_n``, ``c_n`` as :func:`recurrent_layer`, of the last layer and of all.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.lstm``.
    """
    batch_sizes, (hx, *rest) = _unpacked(arguments)
    return _layers("lltm", input, batch_sizes, *hx, *rest)


def lstm(input: Tensor, *arguments: Any, recompute: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Layers of LSTM cells over a sequence; arguments as :func:`lltm`, which are ``torch.lstm``'s.

    Args:
        input: as :func:`lltm`.
        arguments: as :func:`lltm`; weights and biases have 4H rows, and ``params`` two biases.
        recompute: nothing here; the fused op saves less memory for it.

    Returns:
        ``output``, ``h_n``, ``c_n`` as :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.lstm``.
    """
    batch_sizes, (hx, *rest) = _unpacked(arguments)
    return _layers("lstm", input, batch_sizes, *hx, *rest)


def gru(input: Tensor, *arguments: Any, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """Layers of GRU cells over a sequence; arguments as :func:`lltm`, but for ``hx``.

    Args:
        input: as :func:`lltm`.
        arguments: as :func:`lltm`; ``hx`` is h0 alone, and ``params`` has two biases. Half types
            carry h from step to step in float32.
        recompute: nothing here; the fused op saves less memory for it.

    Returns:
        ``output``, ``h_n`` as :func:`lltm`.

    Source: :func:`recurrent_layer`, layer by layer; ``torch.gru``.
    """
    batch_sizes, (hx, *rest) = _unpacked(arguments)
    wide = hx.float() if hx.dtype.itemsize == 2 else hx
    output, h_n, _ = _layers("gru", input, batch_sizes, hx, wide, *rest)
    return output, h_n
