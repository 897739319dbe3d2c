"""The ops of treadle in plain PyTorch: specification, oracle of the tests, benchmark baseline.

Every function has the name, the arguments and the result of its fused twin ``treadle.<name>``,
runs on any device in any floating dtype, and is differentiated by autograd. In float64 it is the
truth that the kernels are measured against; in a kernel's own dtype it says how much rounding is
reasonable.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "cosine",
    "cosine_backward",
    "lltm",
    "lltm_cell",
    "recurrent_layer",
    "scale",
    "sine",
    "sine_backward",
    "sine_linear",
    "vector_add",
]


def vector_add(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Tensor:
    """``a + alpha * b``.

    Args:
        a: [...], broadcast against ``b``.
        b: [...] or a number.
        alpha: the number that ``b`` is multiplied by.

    Returns:
        [...], in the dtype that ``a`` and ``b`` promote to.

    Source: ``torch.add``.
    """
    return torch.add(a, b, alpha=alpha)


def scale(x: Tensor, factor: float) -> Tensor:
    """``factor * x``.

    Args:
        x: [...].
        factor: a number.

    Returns:
        [...], in the dtype that ``x`` and ``factor`` promote to.

    Source: ``torch.mul`` with a number.
    """
    return torch.mul(x, factor)


def sine(x: Tensor) -> Tensor:
    """``sin(x)``, in radians.

    Args:
        x: [...]; integers are computed in the default floating dtype.

    Returns:
        [...].

    Source: ``torch.sin``.
    """
    return torch.sin(x)


def sine_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`sine` with respect to ``x``: ``grad * cos(x)``.

    Args:
        grad: [...], the gradient of the result of ``sine(x)``.
        x: [...], what ``sine`` was given.

    Returns:
        [...].
    """
    return grad * torch.cos(x)


def cosine(x: Tensor) -> Tensor:
    """``cos(x)``, in radians.

    Args:
        x: [...]; integers are computed in the default floating dtype.

    Returns:
        [...].

    Source: ``torch.cos``.
    """
    return torch.cos(x)


def cosine_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of :func:`cosine` with respect to ``x``: ``-grad * sin(x)``.

    Args:
        grad: [...], the gradient of the result of ``cosine(x)``.
        x: [...], what ``cosine`` was given.

    Returns:
        [...].
    """
    return -grad * torch.sin(x)


def sine_linear(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    """``sin(omega * (input @ weight.T + bias))``, a layer of a SIREN.

    Args:
        input: [..., I].
        weight: [O, I].
        bias: [O] or None.
        omega: a number.

    Returns:
        [..., O].

    Source: Sitzmann et al., Implicit Neural Representations with Periodic Activation Functions;
    ``torch.nn.functional.linear``.
    """
    return torch.sin(omega * F.linear(input, weight, bias))


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
        h0, c0: [D, B, H].
        weight_ih: [D, 3H, I]; weight_hh: [D, 3H, H]; bias_ih: [D, 3H] or None. Rows i, o, z.
        bias_hh: None, because LLTM has one bias.
        cell: "lltm".

    Returns:
        ``output`` [T, B, D*H] or [S, D*H], the h of every step, and ``h_n`` and ``c_n`` [D, B, H],
        those after each row's last step (backward in time: its first).

    Source: :func:`lltm_cell`, step by step.
    """
    if cell != "lltm" or bias_hh is not None:
        raise ValueError(f"recurrent_layer: no twin of the cell {cell} with these biases")
    data = input.flatten(0, 1) if batch_sizes is None else input
    steps, rows = input.shape[:2] if batch_sizes is None else (len(batch_sizes), 0)
    sizes = [rows] * steps if batch_sizes is None else batch_sizes.tolist()
    starts = [0, *accumulate(sizes)]
    outputs, last_h, last_c = [], [], []
    for d in range(len(h0)):
        weights = torch.cat([weight_hh[d], weight_ih[d]], dim=1)
        bias = None if bias_ih is None else bias_ih[d]
        h, c = h0[d], c0[d]
        found: dict[int, Tensor] = {}
        for t in reversed(range(steps)) if d == 1 else range(steps):
            n = sizes[t]
            x = data[starts[t] : starts[t] + n]
            new_h, new_c = lltm_cell(x, weights, bias, h[:n], c[:n])
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
    packed = isinstance(arguments[0], Tensor)
    batch_sizes, rest = (arguments[0], arguments[1:]) if packed else (None, arguments)
    hx, params, has_biases, num_layers, dropout, train, bidirectional, *last = rest
    batch_first = bool(last and last[0])
    h0, c0 = hx
    directions, each = (2 if bidirectional else 1), (3 if has_biases else 2)
    x = input.transpose(0, 1) if batch_first else input
    last_h, last_c = [], []
    for layer in range(num_layers):
        if layer > 0:
            x = F.dropout(x, dropout, train)
        first = layer * directions
        own = params[first * each : (first + directions) * each]
        stacked = [torch.stack(list(own[k::each])) for k in range(each)]
        states = (t[first : first + directions] for t in (h0, c0))
        biases = [None] * (2 if each == 2 else 1)
        x, h, c = recurrent_layer(x, batch_sizes, *states, *stacked, *biases, cell="lltm")
        last_h.append(h)
        last_c.append(c)
    output = x.transpose(0, 1) if batch_first else x
    return output, torch.cat(last_h), torch.cat(last_c)
