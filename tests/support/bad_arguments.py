"""Bad cases for any op: one argument has the wrong dtype, device or layout, or no storage.
`run(make, name, change)` calls the op with valid arguments, after applying `change` to the argument
`name`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tests.support.inputs import Bad, Make, elsewhere, without_storage

Run = Callable[[Make, str, Callable[[Tensor], Any]], Any]
REAL = ("cpu", "cuda")  # devices whose tensors have storage


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def wrong_dtypes(
    op: str, run: Run, like: Mapping[str, str], dtype: torch.dtype = torch.float64
) -> list[Bad]:
    """`like` maps each argument to the one whose dtype it must have."""
    return [
        Bad(
            f"{op} {name} dtype",
            lambda m, name=name: run(m, name, lambda t: t.to(dtype)),
            f"{op}: {name} must have the dtype of {other}, float32, got {dtype_name(dtype)}",
        )
        for name, other in like.items()
    ]


def wrong_devices(op: str, run: Run, like: Mapping[str, str]) -> list[Bad]:
    return [
        Bad(
            f"{op} {name} device",
            lambda m, name=name: run(m, name, lambda t: elsewhere(m, *t.shape)),
            f"{op}: {name} must be on the device of {other}, {{device}}, got {{other}}",
        )
        for name, other in like.items()
    ]


def without_storages(op: str, run: Run, shapes: Mapping[str, tuple[int, ...]]) -> list[Bad]:
    return [
        Bad(
            f"{op} {name} storage",
            lambda m, name=name: run(m, name, without_storage),
            f"{op}: {name} must have a storage of at least {4 * torch.Size(shape).numel()} bytes, "
            "got 0 bytes",
            REAL,
        )
        for name, shape in shapes.items()
    ]


def sparse(op: str, run: Run, names: Iterable[str]) -> list[Bad]:
    return [
        Bad(
            f"{op} {name} sparse",
            lambda m, name=name: run(m, name, Tensor.to_sparse),
            f"{op}: tensors must be dense and on a CPU or CUDA device, got a Sparse tensor of "
            "float32 on {device}",
            REAL,
            NotImplementedError,
        )
        for name in names
    ]


def refused_dtypes(op: str, run_in: Callable[[Make, torch.dtype], Any]) -> list[Bad]:
    """Calls in which all tensors have a dtype that the op does not support."""
    return [
        Bad(
            f"{op} {dtype_name(dtype)}",
            lambda m, dtype=dtype: run_in(m, dtype),
            f"{op}: input must have dtype float16, bfloat16, float32 or float64, got {shown}",
        )
        for dtype, shown in (
            (torch.int64, "int64"),
            (torch.bool, "bool"),
            (torch.complex64, "complex64"),
            (torch.float8_e5m2, "Float8_e5m2"),
        )
    ]
