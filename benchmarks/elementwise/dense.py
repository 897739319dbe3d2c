"""Times elementwise ops on dense tensors, in two suites. Other suites also use the functions that
create these cases, large_case and size_case.

"dense" times tensors of 1 GiB on CUDA. "sizes" times every op in the L2 cache on CUDA, and add and
scale over many sizes on the CPU; sine.py times the other ops on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.elementwise.overhead import OPS, TWINS, arguments, twin_name
from benchmarks.harness import baselines
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, at_least, ours
from benchmarks.harness.verify import CHUNK

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EXACT = ("vector_add", "scale")  # bitwise equal to torch
GIB = 1 << 30
POWERS = (14, 16, 18, 20, 22, 24)
IN_CACHE = (10, 12, 14, 16, 18, 20, 22)
# One half type suffices: both would give the same times.
CACHED_DTYPES = (torch.float32, torch.bfloat16, torch.float64)
MIXTURE = "1 % large"
# A target for the geometric mean over layouts and sizes.
MEAN = {"over": "views and sizes", "least": 1.1}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def functions_of(op: str) -> dict[str, Callable[..., Any]]:
    return {OURS: ours(op), twin_name(op): TWINS[op]}


def drawn(count: int, device: str, dtype: torch.dtype, argument: str = "1") -> Tensor:
    """Draws N(0, 1) times `argument`; in MIXTURE one number in a hundred is far larger than the
    rest."""
    x = torch.randn(count, device=device, dtype=dtype)
    if argument == MIXTURE:
        lanes = torch.randint(count, (count // 100,), device=device)
        x[lanes] *= 6e3 if dtype == torch.float16 else 1e6
    elif argument != "1":
        x *= float(argument)
    most = torch.finfo(dtype).max
    return x.clamp_(-most, most)


def repeated(count: int, device: str, dtype: torch.dtype, argument: str = "1") -> Tensor:
    """Like `drawn`, but repeats one chunk of random numbers. Drawing all numbers would take longer
    than the timed op, and `verify` needs the float64 result of only one chunk."""
    block = drawn(min(count, CHUNK[device]), device, dtype, argument)
    return block.repeat(count // len(block))


def plans(settings: Settings) -> Iterator[Plan]:
    """Yields plans for tensors of 1 GiB on CUDA. The CPU's dense rows are in the suite "sizes"."""
    if settings.device == "cpu":
        return
    for op in EXACT:
        for dtype in DTYPES:
            target = at_least(0.98, twin_name(op))
            key = f"cuda/elementwise/{op}/{dtype_name(dtype)}"
            yield Plan(
                key, partial(large_case, settings, op, dtype, target=target, all_baselines=True)
            )


def size_plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        yield from cpu_size_plans(settings)
        return
    for op in OPS:
        for dtype in CACHED_DTYPES:
            for power in IN_CACHE:
                key = f"cuda/sizes/{op}/{dtype_name(dtype)}/2^{power}"
                yield Plan(key, partial(size_case, settings, op, dtype, power))


def cpu_size_plans(settings: Settings) -> Iterator[Plan]:
    """Plans for every second power of two and each number of threads."""
    for count in settings.threads:
        for op in EXACT:
            for dtype in DTYPES:
                for power in POWERS[:2] if settings.quick else POWERS:
                    name = dtype_name(dtype)
                    key = f"cpu/elementwise/{op}/{name}/2^{power}/{count} threads"
                    yield Plan(key, partial(size_case, settings, op, dtype, power, count))


def large_case(
    settings: Settings,
    op: str,
    dtype: torch.dtype,
    argument: str = "1",
    *,
    target: Target | None,
    all_baselines: bool = False,
) -> Case:
    """Dense tensors of 1 GiB, timed against torch, a device copy and, if `all_baselines`,
    torch.compile, Triton and CuPy."""
    size = (1 << 20) if settings.quick else GIB
    elements = size // dtype.itemsize
    x = drawn(elements, settings.device, dtype, argument)
    y = drawn(elements, settings.device, dtype) if op == "vector_add" else x
    copied = torch.empty_like(x)
    functions = functions_of(op)
    notes: list[str] = []
    if all_baselines and not settings.quick:
        found, notes = baselines.elementwise(op, TWINS[op], dtype)
        functions |= found
    return Case(
        op=op,
        functions=functions,
        inputs=[arguments(op, x, y)],
        timer=settings.device_time(seconds=0.15) if settings.device == "cuda" else settings.brief(),
        yardsticks={"copy": [partial(copied.copy_, x)]},
        target=target,
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


def size_case(
    settings: Settings,
    op: str,
    dtype: torch.dtype,
    power: int,
    count: int | None = None,
    argument: str = "1",
    share: float = 0.98,
) -> Case:
    """A case of 2^power elements, on the CPU with `count` threads. All calls use the same tensors,
    which therefore stay in the cache if they fit."""
    x = repeated(1 << power, settings.device, dtype, argument)
    y = repeated(1 << power, settings.device, dtype) if op == "vector_add" else x
    what = op if argument == "1" else f"{op} of large arguments"
    where = f"CPU, {count} thread{'s' * (count > 1)}" if count is not None else "in cache, CUDA"
    label = f"{dtype_name(dtype)} 2^{power}"
    facts = {
        "group": f"{what}, {where}",
        "label": label if argument == "1" else f"{label}, {argument}",
        "series": "size",
        "argument": argument,
        "dtype": dtype_name(dtype),
        "shape": [1 << power],
        "bytes": (3 if op == "vector_add" else 2) * x.nbytes,
    }
    if settings.device == "cuda":
        facts["mean_target"] = MEAN | {"part": "sizes"}
    return Case(
        op=op,
        functions=functions_of(op),
        inputs=[arguments(op, x, y)],
        timer=settings.brief(),
        target=at_least(share, twin_name(op)),
        bits=op in EXACT,
        threads=count,
        facts=facts,
    )
