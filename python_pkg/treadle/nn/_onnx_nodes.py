"""Exports layers as ONNX's own nodes, for torch.onnx.export without a translation table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# For each of torch's ops: the ONNX node, the index of each of its gates in torch's order (i, f, g,
# o or r, z, n), and the node's attributes for each direction.
_NODES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "lstm": ("LSTM", (0, 3, 1, 2), {}),
    "gru": ("GRU", (1, 0, 2), {}),
    "rnn_tanh": ("RNN", (0,), {"activations": ["Tanh"]}),
    "rnn_relu": ("RNN", (0,), {"activations": ["Relu"]}),
}


def onnx_layers(
    op: str,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    parameters: list[Tensor],
    bias: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Returns the same as torch's function ``op``, such as torch.lstm, for a padded batch. This
    works only in torch.onnx.export."""
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if bidirectional else 1
    width = (4 if bias else 2) * directions
    x, last = input.transpose(0, 1) if batch_first else input, []
    for layer in range(num_layers):
        if layer and dropout and training:
            x = F.dropout(x, dropout)
        weights = parameters[width * layer : width * (layer + 1)]
        rows = slice(directions * layer, directions * (layer + 1))
        x, *found = _layer(op, x, [state[rows] for state in states], weights, directions)
        last.append(found)
    output = x.transpose(0, 1) if batch_first else x
    return (output, *(torch.cat(each) for each in zip(*last, strict=True)))


def _layer(
    op: str, x: Tensor, states: list[Tensor], weights: list[Tensor], directions: int
) -> list[Tensor]:
    steps, rows, hidden = x.size(0), x.size(1), states[0].size(-1)
    node, gates, attributes = _NODES[op]

    def ordered(weight: Tensor) -> Tensor:
        return torch.cat([weight.narrow(0, gate * hidden, hidden) for gate in gates])

    each = len(weights) // directions
    # For each kind of parameter (weight_ih, weight_hh and the biases), a tensor [D, ...].
    kinds = [torch.stack([ordered(w) for w in weights[kind::each]]) for kind in range(each)]
    biases = torch.cat(kinds[2:], dim=1) if each == 4 else None
    options: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if node == "GRU":
        options["linear_before_reset"] = 1
    options |= {name: value * directions for name, value in attributes.items()}
    state = [directions, rows, hidden]
    output, *last = torch.onnx.ops.symbolic_multi_out(
        node,
        [x, *kinds[:2], biases, None, *states],
        options,
        dtypes=[x.dtype] * (1 + len(states)),
        shapes=[[steps, directions, rows, hidden], *([state] * len(states))],
    )
    return [output.transpose(1, 2).flatten(2), *last]  # from [T, D, B, H]
