"""Measures the bytes that a layer keeps for its backward pass and, on CUDA, the peak of a step.

Kept bytes are those in use between forward and backward, except for inputs, parameters and results,
which the caller has anyway. On CUDA the allocator reports them. On the CPU they are counted in the
autograd graph. This graph does not show the saved tensors of every op: nn.LSTM's are hidden in
oneDNN.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness.cases import OURS, Plan, Row, Settings, first_line
from benchmarks.harness.verify import Refused, as_tuple, leaves
from benchmarks.recurrent.layer_calls import (
    LOOP,
    LSTM,
    Args,
    Shape,
    arguments,
    check,
    layer,
    loop,
    lstm_arguments,
    set_tf32,
)

CPU_SIZES = (32, 50, 128, 256)  # B, T, I, H
CUDA_SIZES = ((64, 512, 512), (16, 256, 1024))  # B, T, H; I is H
DTYPES = (torch.bfloat16, torch.float32)
DEFAULT = "default"


def weigh(function: Callable[..., Any], args: Args) -> dict[str, int]:
    """`kept` and, on CUDA, `peak`: the largest increase of allocated bytes in a forward and
    backward pass."""
    if args[0].device.type == "cpu":
        return {"kept": kept_by_graph(function, args)}
    # Libraries allocate workspaces in the first call and keep them.
    step(function, args)
    gc.collect()
    before = requested("current")
    results = as_tuple(function(*args))
    kept = requested("current") - before - sum(own_bytes(results).values())
    del results
    torch.cuda.reset_peak_memory_stats()
    step(function, args)
    return {"kept": kept, "peak": requested("peak") - before}


@dataclass
class Weighing:
    """A row with the bytes of several functions. It compares treadle's with `part` times the bytes
    of the function `against`."""

    functions: dict[str, tuple[Callable[..., Any], Args]]
    check: Callable[..., float]
    against: str
    part: float
    text: str  # what the target's text calls these bytes
    most: float | None  # the target: the largest ratio of treadle's bytes to these bytes
    facts: dict[str, Any]
    op: str = "lltm"
    weigh: Callable[[Callable[..., Any], Args], dict[str, int]] = weigh

    def row(self, key: str) -> Row:
        row: Row = {"key": key, "op": self.op, **self.facts, "notes": [], "timer": "memory"}
        try:
            row["error_over_limit"] = self.check(self.functions[OURS][0], poison=True)
        except (Refused, RuntimeError) as problem:
            return row | {"refused": first_line(problem)}
        row["memory"] = found = {name: self.weigh(*call) for name, call in self.functions.items()}
        mine, whole = found[OURS]["kept"], self.part * found[self.against]["kept"]
        row["against"] = {"name": self.text, "bytes": whole, "ratio": mine / max(1, whole)}
        if self.most is not None:
            limit = self.most * whole
            text = f"at most {self.most:g} × {self.text}"
            row["target"] = {"text": text, "limit_bytes": limit, "reached": mine <= limit}
        return row


def plans(settings: Settings) -> Iterator[Plan]:
    pairs: list[tuple[tuple[int, ...], torch.dtype]] = [(CPU_SIZES, torch.float32)]
    if settings.device == "cuda":
        pairs = [(sizes, dtype) for sizes in CUDA_SIZES for dtype in DTYPES]
    for sizes, dtype in pairs:
        shape = Shape.of(sizes, settings.quick)
        for recompute in (False, True):
            what = f"{shape.name}{', recompute' if recompute else ''}/{dtype_name(dtype)}"
            key = f"{settings.device}/layer/{what}/training/memory"
            yield Plan(key, partial(weighing, settings, shape, dtype, recompute))


def weighing(settings: Settings, shape: Shape, dtype: torch.dtype, recompute: bool) -> Weighing:
    set_tf32(False)
    args = arguments(shape, settings.device, dtype, backward=True)
    op = torch.ops.treadle.lltm.input
    functions = {OURS: (layer(op, recompute=recompute), args)}
    if recompute:
        functions[DEFAULT] = (layer(op), args)
        against, part, text, most = DEFAULT, 1.0, "the default's bytes", 0.5
    else:
        functions[LOOP] = (loop, args)
        against, part, text, most = LOOP, 1.0, f"bytes of a {LOOP}", None
    if settings.device == "cuda" and not recompute:
        functions[LSTM] = (layer(torch.lstm), lstm_arguments(args))
        # LLTM has three gates, nn.LSTM four.
        against, part, text, most = LSTM, 3 / 4, f"{LSTM}'s bytes a gate", 1.0
    label = f"{shape.name} {dtype_name(dtype)}{', recompute=True' if recompute else ''}"
    return Weighing(
        functions=functions,
        check=partial(check, args=args),
        against=against,
        part=part,
        text=text,
        most=most,
        facts={
            "group": f"lltm layer, bytes kept for backward, {settings.device.upper()}",
            "label": label,
            "dtype": dtype_name(dtype),
            "shape": [shape.b, shape.t, shape.i, shape.h],
        },
    )


def requested(which: str) -> int:
    """Bytes requested from the allocator, whose blocks may be larger."""
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])


def step(function: Callable[..., Any], args: Args) -> None:
    """Runs forward and backward."""
    results = as_tuple(function(*args))
    torch.autograd.grad(results, leaves(args), [torch.ones_like(r) for r in results])


def own_bytes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """How many bytes of each storage these tensors cover, by the storage's address."""
    found: dict[int, int] = {}
    for t in tensors:
        memory = t.untyped_storage()
        seen = found.get(memory.data_ptr(), 0) + t.nbytes
        found[memory.data_ptr()] = min(seen, memory.nbytes())
    return found


def kept_by_graph(function: Callable[..., Any], args: Args) -> int:
    """Bytes of all saved tensors except inputs and results; each storage counts once."""
    saved: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        # The detached tensor keeps its storage alive, because a freed address may be reused.
        saved[t.untyped_storage().data_ptr()] = t.detach()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        results = as_tuple(function(*args))
    known = own_bytes(t for t in (*args, *results) if isinstance(t, Tensor))
    sizes = {address: t.untyped_storage().nbytes() for address, t in saved.items()}
    return sum(size - known.get(address, 0) for address, size in sizes.items())
