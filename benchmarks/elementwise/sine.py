"""Times sine and cosine by the magnitude of arguments: 1 GiB on CUDA, several sizes on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.elementwise.dense import (
    DTYPES,
    MIXTURE,
    dtype_name,
    large_case,
    size_case,
)
from benchmarks.elementwise.overhead import twin_name
from benchmarks.harness.cases import Case, Plan, Settings, Target, at_least

PERIODIC = ("sine", "cosine")
# The target on CUDA for each magnitude of the arguments, relative to a copy's speed. In float64,
# where arithmetic limits the speed, it is relative to torch's. None means no target.
SHARES: dict[torch.dtype, dict[str, float | None]] = {
    torch.float32: {"1": 0.97, "30": 0.97, "1e3": 0.97, MIXTURE: 0.97, "1e6": 0.92, "1e30": 0.92},
    torch.bfloat16: {"1": 0.97, "30": 0.97, "1e3": 0.97, MIXTURE: 0.97, "1e6": 0.97, "1e30": 0.90},
    torch.float16: {"1": 0.97, "30": 0.97, "1e3": 0.97, MIXTURE: 0.97, "6e4": 0.97},
    torch.float64: {"1": 1.0, "1e6": 1.0, "1e30": None},
}
POWERS = (14, 16, 18, 20, 22, 24, 26)


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cpu":
        yield from cpu_plans(settings)
        return
    for op in PERIODIC:
        for dtype in DTYPES:
            for argument in SHARES[dtype]:
                key = f"cuda/elementwise/{op}/{dtype_name(dtype)}"
                if argument != "1":
                    key += f"/{argument}"
                yield Plan(key, partial(argument_case, settings, op, dtype, argument))


def target(op: str, dtype: torch.dtype, argument: str) -> Target | None:
    share = SHARES[dtype][argument]
    if share is None:
        return None
    return at_least(share, twin_name(op) if dtype == torch.float64 else "copy")


def argument_case(settings: Settings, op: str, dtype: torch.dtype, argument: str) -> Case:
    # The compilers use libdevice's sine, as torch does, so it is enough to time them once.
    baselines = argument == "1"
    reach = target(op, dtype, argument)
    case = large_case(settings, op, dtype, argument, target=reach, all_baselines=baselines)
    case.facts |= {
        "group": f"{op} by argument, 1 GiB a tensor, CUDA",
        "label": f"{op} {dtype_name(dtype)} {argument}",
        "series": "argument",
        "argument": argument,
    }
    return case


def cpu_plans(settings: Settings) -> Iterator[Plan]:
    """Plans for arguments that are fast in torch's vector code, and for slower ones."""
    for count in settings.threads:
        for op in PERIODIC:
            for dtype in DTYPES:
                large = "6e4" if dtype == torch.float16 else "1e6"
                for argument, share in (("1", 0.98), (large, 1.5)):
                    for power in POWERS[:2] if settings.quick else POWERS:
                        size = f"{dtype_name(dtype)}/2^{power}"
                        if argument != "1":
                            size += f"/{argument}"
                        yield Plan(
                            f"cpu/elementwise/{op}/{size}/{count} threads",
                            partial(size_case, settings, op, dtype, power, count, argument, share),
                        )
