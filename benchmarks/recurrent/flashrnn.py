"""FlashRNN's sLSTM (Pöppel, Beck and Hochreiter, 2024), which is timed beside treadle's if the
package flashrnn is installed. It has several backends, which compile on their first call."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

BACKENDS = ("cuda_fused", "cuda", "triton_fused")


def slstm(
    backend: str, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> Tensor:
    """The output [T, B, H] of an sLSTM for x [T, B, I], starting from zeros. The weights are those
    of treadle.nn.SLSTM."""
    from flashrnn import flashrnn  # type: ignore[import-not-found]

    steps, rows, _ = x.shape
    own = w_hh.shape[1]  # the hidden units of a head
    heads = w_hh.shape[0] // (4 * own)
    of_x = torch.nn.functional.linear(x, w_ih).view(steps, rows, 4, heads, own)
    bias = (b_ih + b_hh).view(4, heads, own)
    states, _ = flashrnn(
        of_x.transpose(0, 1),  # [B, T, gates, heads, own]
        w_hh.view(4, heads, own, own),
        bias,
        function="slstm",
        backend=backend,
    )
    return states[0].flatten(2).transpose(0, 1)  # type: ignore[no-any-return]


def rivals(args: tuple[Tensor, ...]) -> dict[str, Callable[..., Any]]:
    """The backends that run on these arguments of ``slstm``, by name."""
    if importlib.util.find_spec("flashrnn") is None:
        return {}
    found: dict[str, Callable[..., Any]] = {}
    for backend in BACKENDS:
        run = partial(slstm, backend)
        try:
            output = run(*args)
            if output.requires_grad:
                output.sum().backward()
        except Exception as error:  # a compiler or a launch failed
            reason = (str(error) or type(error).__name__).strip().splitlines()[-1]
            print(f"FlashRNN {backend} does not run: {reason}", file=sys.stderr)
            continue
        found[f"FlashRNN {backend}"] = run
    for leaf in args:
        leaf.grad = None
    return found
