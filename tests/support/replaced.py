"""A net in which treadle.nn.replace has replaced layers, for tests of copies and tools."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from treadle.nn import Replaced, replace

B, T, I, H = 5, 9, 12, 16  # noqa: E741
EACH = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
X = torch.randn(B, T, I)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = getattr(nn, kind)(I, H, batch_first=True)
        self.head = nn.Linear(H, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


def replaced(kind: str) -> Net:
    net = Net(kind)
    assert replace(net) == Replaced(["rnn"], {})
    return net


def nodes(node: Any) -> list[Any]:
    """The autograd nodes that are reachable from this one."""
    found, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.add(one)
            waiting += [parent for parent, _ in one.next_functions]
    return list(found)


def is_ours(net: nn.Module) -> bool:
    """Whether a call of net.rnn runs treadle's op."""
    output, _ = net.rnn(X)
    return "RecurrentLayerBackward" in {node.name() for node in nodes(output.grad_fn)}


def in_file(save: Callable[[io.BytesIO], Any], load: Callable[[io.BytesIO], Any]) -> Any:
    file = io.BytesIO()
    save(file)
    file.seek(0)
    return load(file)
