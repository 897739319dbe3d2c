"""Dense tensors over sizes. CUDA: all ops, in the L2 cache. CPU: add and scale; more in sine.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from .cases import Plan, Settings
from .elementwise import DTYPES, EXACT, dtype_name, size_case
from .overhead import OPS

POWERS = (14, 16, 18, 20, 22, 24)
IN_CACHE = (10, 12, 14, 16, 18, 20, 22)
# A half type of each kind would say the same twice.
CACHED_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        yield from cpu_plans(settings)
        return
    for op in OPS:
        for dtype in CACHED_DTYPES:
            for power in IN_CACHE:
                key = f"cuda/sizes/{op}/{dtype_name(dtype)}/2^{power}"
                yield Plan(key, partial(size_case, settings, op, dtype, power))


def cpu_plans(settings: Settings) -> Iterator[Plan]:
    """Every second power of two, one thread and more."""
    for count in settings.threads:
        for op in EXACT:
            for dtype in DTYPES:
                for power in POWERS[:2] if settings.quick else POWERS:
                    name = dtype_name(dtype)
                    key = f"cpu/elementwise/{op}/{name}/2^{power}/{count} threads"
                    yield Plan(key, partial(size_case, settings, op, dtype, power, count))
