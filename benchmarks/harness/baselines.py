"""Baselines other than torch's ops: torch.compile, Triton and CuPy, if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CUPY = {"vector_add": "add", "scale": "multiply", "sine": "sin", "cosine": "cos"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile of this function, for static shapes."""
    # torch.compile gives up after eight shapes of one function, so every case resets it.
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def elementwise(
    op: str, twin: Callable[..., Any], dtype: torch.dtype
) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """The baselines of an elementwise op on CUDA, and notes on missing ones."""
    # The lambda gives the compiler a Python function instead of a builtin.
    found: dict[str, Callable[..., Any]] = {"torch.compile": compiled(lambda *args: twin(*args))}
    notes: list[str] = []
    if importlib.util.find_spec("triton") is None:
        notes.append("Triton is not installed")
    else:
        from benchmarks.harness import triton_baselines

        found["Triton"] = getattr(triton_baselines, op)
    if importlib.util.find_spec("cupy") is None:
        notes.append("CuPy is not installed")
    elif dtype == torch.bfloat16:
        notes.append("CuPy has no bfloat16")
    else:
        found["CuPy"] = cupy(op)
    return found, notes


def cupy(op: str) -> Callable[..., Tensor]:
    """CuPy's op on torch's memory; both use the default stream."""
    import cupy as cp

    function = getattr(cp, CUPY[op])

    def call(*args: Any) -> Tensor:
        there = [cp.from_dlpack(a) if isinstance(a, Tensor) else a for a in args]
        return torch.from_dlpack(function(*there))

    return call
