"""vector_add, scale and sine: at the speed of memory on CUDA, over sizes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import rivals
from .cases import OURS, Bar, Case, Plan, Settings, ours
from .overhead import OPS, TWINS, arguments, twin_name

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EXACT = ("vector_add", "scale")  # the bits of torch, DESIGN §4 of both
GIB = 1 << 30


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        yield from size_plans(settings)
        return
    for op in OPS:
        for dtype in DTYPES:
            key = f"cuda/elementwise/{op}/{dtype_name(dtype)}"
            yield Plan(key, partial(large_case, settings, op, dtype))
    for name, (op, make) in VIEWS.items():
        yield Plan(f"cuda/views/{name}", partial(view_case, settings, name, op, make))


def size_plans(settings: Settings) -> Iterator[Plan]:
    """The CPU: every second power of two, one thread and more."""
    powers = (14, 16) if settings.quick else (14, 16, 18, 20, 22, 24)
    for count in settings.threads:
        for op in OPS:
            for dtype in DTYPES:
                for power in powers:
                    name = dtype_name(dtype)
                    key = f"cpu/elementwise/{op}/{name}/2^{power}/{count} threads"
                    yield Plan(key, partial(size_case, settings, op, dtype, power, count))


def size_case(settings: Settings, op: str, dtype: torch.dtype, power: int, count: int) -> Case:
    x, y = (torch.randn(1 << power).to(dtype) for _ in range(2))
    return Case(
        op=op,
        functions={OURS: ours(op), twin_name(op): TWINS[op]},
        inputs=[arguments(op, x, y)],
        timer=settings.wall(1e-3),
        bar=Bar(
            f"at least 0.98 × {twin_name(op)}'s speed",
            lambda medians: medians[twin_name(op)] / 0.98,
        ),
        bits=op in EXACT,
        threads=count,
        facts={
            "group": f"{op}, CPU, {count} thread{'s' * (count > 1)}",
            "label": f"{dtype_name(dtype)} 2^{power}",
            "series": True,
            "dtype": dtype_name(dtype),
            "shape": [1 << power],
            "bytes": (3 if op == "vector_add" else 2) * x.nbytes,
        },
    )


def large_case(settings: Settings, op: str, dtype: torch.dtype) -> Case:
    """1 GiB a tensor, dense, beside torch, the compilers and a device copy."""
    size = (1 << 20) if settings.quick else GIB
    elements = size // dtype.itemsize
    x, y = (torch.randn(elements, device="cuda", dtype=dtype) for _ in range(2))
    target = torch.empty_like(x)
    functions = {OURS: ours(op), twin_name(op): TWINS[op]}
    notes: list[str] = []
    if not settings.quick:
        found, notes = rivals.elementwise(op, TWINS[op], dtype)
        functions |= found
    bar = None
    if op in EXACT:
        name = twin_name(op)
        bar = Bar(f"at least 0.98 × {name}'s speed", lambda medians: medians[name] / 0.98)
    return Case(
        op=op,
        functions=functions,
        inputs=[arguments(op, x, y)],
        timer=settings.device_time(),
        yardsticks={"copy": [partial(target.copy_, x)]},
        bar=bar,
        bits=op in EXACT,
        notes=notes,
        facts={
            "group": "1 GiB a tensor, CUDA",
            "label": f"{op} {dtype_name(dtype)}",
            "dtype": dtype_name(dtype),
            "shape": [elements],
            "bytes": (3 if op == "vector_add" else 2) * size,
            "copy_bytes": 2 * size,
        },
    )


class Maker:
    """Random tensors of 2^25 elements in float32 (64 MiB or more, beyond the L2 cache)."""

    def __init__(self, quick: bool) -> None:
        self.rows, self.columns = (64, 128) if quick else (8192, 4096)

    def dense(self, dtype: torch.dtype = torch.float32, columns: int = 1) -> Tensor:
        return torch.randn(self.rows, columns * self.columns, device="cuda").to(dtype)

    def misaligned(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Begins one element behind an aligned address."""
        flat = torch.randn(self.rows * self.columns + 1, device="cuda").to(dtype)
        return flat[1:].view(self.rows, self.columns)

    def row(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(self.columns, device="cuda").to(dtype)

    def column(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(self.rows, 1, device="cuda").to(dtype)

    def transposed(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(self.columns, self.rows, device="cuda").to(dtype).t()

    def every_second(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.dense(dtype, columns=2)[:, ::2]

    def small(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(1 << 20, device="cuda").to(dtype)


HALF = torch.float16
# Views that real programs have, and mixed dtypes. For information: no bar.
VIEWS: dict[str, tuple[str, Callable[[Maker], tuple[Any, ...]]]] = {
    "add, both misaligned": ("vector_add", lambda m: (m.misaligned(), m.misaligned())),
    "add, both misaligned, fp16": (
        "vector_add",
        lambda m: (m.misaligned(HALF), m.misaligned(HALF)),
    ),
    "add, broadcast row": ("vector_add", lambda m: (m.dense(), m.row())),
    "add, broadcast column": ("vector_add", lambda m: (m.dense(), m.column())),
    "add, broadcast column, fp16": ("vector_add", lambda m: (m.dense(HALF), m.column(HALF))),
    "add, fp64 row to misaligned": (
        "vector_add",
        lambda m: (m.misaligned(), m.row(torch.float64)),
    ),
    "add, fp64 row to misaligned fp16": (
        "vector_add",
        lambda m: (m.misaligned(HALF), m.row(torch.float64)),
    ),
    "add, both transposed": ("vector_add", lambda m: (m.transposed(), m.transposed())),
    "add, transposed to dense": ("vector_add", lambda m: (m.dense(), m.transposed())),
    "add, every second column": ("vector_add", lambda m: (m.every_second(), m.every_second())),
    "add, bf16 to fp32": ("vector_add", lambda m: (m.dense(), m.dense(torch.bfloat16))),
    "add, fp16 to bf16": ("vector_add", lambda m: (m.dense(HALF), m.dense(torch.bfloat16))),
    "add, 2^20 elements": ("vector_add", lambda m: (m.small(), m.small())),
    "add, 2^20 elements, bf16 to fp32": (
        "vector_add",
        lambda m: (m.small(), m.small(torch.bfloat16)),
    ),
    "scale, misaligned fp16": ("scale", lambda m: (m.misaligned(HALF), 1.5)),
    "scale, every second column": ("scale", lambda m: (m.every_second(), 1.5)),
    "sine, misaligned fp16": ("sine", lambda m: (m.misaligned(HALF),)),
    "sine, every second column": ("sine", lambda m: (m.every_second(),)),
}


def view_case(
    settings: Settings, name: str, op: str, make: Callable[[Maker], tuple[Any, ...]]
) -> Case:
    # The small ones fit the cache: enough of them in turn do not.
    copies = 24 if "2^20" in name and not settings.quick else 2
    inputs = [make(Maker(settings.quick)) for _ in range(copies)]
    first = inputs[0][0]
    return Case(
        op=op,
        functions={OURS: ours(op), twin_name(op): TWINS[op]},
        inputs=inputs,
        timer=settings.device_time(),
        bits=op in EXACT,
        facts={
            "group": "views and mixed dtypes, CUDA",
            "label": name,
            "dtype": dtype_name(first.dtype),
            "shape": list(first.shape),
        },
    )
