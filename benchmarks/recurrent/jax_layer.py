"""Times GRU and LSTM layers of treadle.jax against jax.lax.scan and flax, all under jax.jit.

Shapes are B, T, H, where I is H, or B, T, I, H. Layers have one direction. As in layer.py, a time
is that of a whole call: forward, or forward and backward with the gradients of the input and of
all parameters. In float32, no candidate uses TF32. JAX is imported when the first row is built, so
listing the keys of all rows does not need JAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.harness.cases import Case, Plan, Settings, Target
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer import Kind
from benchmarks.recurrent.layer_calls import Shape
from benchmarks.recurrent.sweep import of_best

SUITE = "jax"
CELLS = ("gru", "lstm")
CPU_SIZES = ((1, 100, 64, 128), (8, 200, 16, 64))  # B, T, I, H
CUDA_SIZES = ((16, 512, 512), (16, 512, 256), (64, 256, 1024))  # B, T, H
# On the CPU, the layers of treadle.jax have no kernels for half types.
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.bfloat16, torch.float32)}
HEADLINE = ("gru", "16,512,512", torch.bfloat16)
TIMES_AS_FAST = 5


def plans(settings: Settings) -> Iterator[Plan]:
    sizes = CPU_SIZES if settings.device == "cpu" else CUDA_SIZES
    for cell in CELLS:
        for own in sizes:
            for dtype in DTYPES[settings.device]:
                for backward in (False, True):
                    kind = Kind(Shape.of(own, settings.quick), dtype, backward, cell=cell)
                    yield Plan(_key(settings, kind), partial(case, settings, kind))


def _key(settings: Settings, kind: Kind) -> str:
    return f"{settings.device}/{SUITE}/{kind.cell}/{kind.shape.name}/{kind.digits}/{kind.mode}"


def target_of(kind: Kind) -> Target:
    """The headline row has a separate target; other rows must not be slower than the baseline."""
    headline = kind.backward and (kind.cell, kind.shape.name, kind.dtype) == HEADLINE
    times = TIMES_AS_FAST if headline else 1
    text = f"at least {times} × the speed of the fastest of lax.scan and flax"
    return Target(text, partial(of_best, 1 / times))


def facts(settings: Settings, kind: Kind) -> dict[str, Any]:
    what = f"{kind.cell} layer in JAX"
    return layer.facts(settings, kind) | {
        "suite": SUITE,
        "group": f"{what}, {settings.device.upper()}",
        "label": f"{kind.cell} {kind.shape.name} {kind.digits} {kind.mode}, JAX",
        "digits": kind.digits,
        "mode": kind.mode,
        "what": kind.shape.name,
    }


def case(settings: Settings, kind: Kind) -> Case:
    try:
        from benchmarks.recurrent import jax_calls
    except ImportError as problem:  # the row reports it
        raise RuntimeError(str(problem)) from problem
    return jax_calls.case(settings, kind, target_of(kind), facts(settings, kind))
