"""A baseline that computes lltm_cell like the extension of PyTorch's tutorial on C++ extensions.

A Python autograd.Function makes one C++ call in the forward pass (concatenate, addmm, one pointwise
kernel) and one in the backward pass (one pointwise kernel, two products, sums). The code is our own
but has the tutorial's structure: for example, results are filled with zeros before they are
written. The bias is [3H].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)
SOURCES = ("tutorial_lltm.cpp", "tutorial_lltm.cu")


def forward(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> Any:
    """The extension's forward in torch ops, used if it cannot be compiled."""
    both = torch.cat([old_h, input], dim=1)
    gates = torch.addmm(bias, both, weights.t())
    i, o, z = gates.chunk(3, dim=1)
    i, o, z = torch.sigmoid(i), torch.sigmoid(o), torch.nn.functional.elu(z)
    new_cell = old_cell + z * i
    return torch.tanh(new_cell) * o, new_cell, i, o, z, both, gates


def backward(
    grad_h: Tensor,
    grad_cell: Tensor,
    new_cell: Tensor,
    i: Tensor,
    o: Tensor,
    z: Tensor,
    both: Tensor,
    gates: Tensor,
    weights: Tensor,
) -> Any:
    """The extension's backward in torch ops."""
    t = torch.tanh(new_cell)
    d_cell = grad_h * o * (1 - t * t) + grad_cell
    z_slope = torch.where(gates.chunk(3, dim=1)[2] > 0, 1.0, z + 1)
    d_gates = torch.cat(
        [d_cell * z * i * (1 - i), grad_h * t * o * (1 - o), d_cell * i * z_slope], dim=1
    )
    d_both = d_gates.mm(weights)
    h = new_cell.size(1)
    return d_both[:, h:], d_gates.t().mm(both), d_gates.sum(0), d_both[:, :h], d_cell


def function_of(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    class Cell(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Tensor) -> tuple[Tensor, Tensor]:
            new_h, new_cell, *saved = forward(*args)
            ctx.save_for_backward(new_cell, *saved, args[1])
            return new_h, new_cell

        @staticmethod
        def backward(ctx: Any, grad_h: Tensor, grad_cell: Tensor) -> Any:
            # A std::vector from C++ becomes a list, but autograd requires a tuple.
            return tuple(backward(grad_h.contiguous(), grad_cell.contiguous(), *ctx.saved_tensors))

    return Cell.apply


@cache
def cell() -> tuple[Callable[..., Any], str]:
    """The cell, and a note if it consists of torch ops instead of the compiled extension."""
    try:
        from torch.utils import cpp_extension

        if cpp_extension.CUDA_HOME is None:
            raise RuntimeError("there is no nvcc here")
        folder = Path(__file__).resolve().parent
        extension = cpp_extension.load(
            name="treadle_tutorial_lltm",
            sources=[str(folder / name) for name in SOURCES],
            extra_cflags=["-O3"],
            extra_cuda_cflags=["-O3"],
        )
    except Exception as problem:  # no compiler, or any failure of it
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        note = f"torch ops ran, because the tutorial's extension was not built ({lines[0][:120]})"
        return function_of(forward, backward), note
    return function_of(extension.forward, extension.backward), ""
