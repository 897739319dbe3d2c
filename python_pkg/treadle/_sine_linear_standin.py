"""Stand-in until the op is there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sine_linear(input: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    return torch.sin(omega * F.linear(input, weight, bias))
