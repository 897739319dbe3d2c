"""Finds the sizes at which the GPU is faster than the CPU, with and without the time of copies.

    python examples/interop/transfer.py [--largest 28] [--json build/a.json] [--plot build/a.png]
    python examples/interop/transfer.py --read build/a.json --plot build/a.png   plot an earlier run

Times are medians in microseconds. They include the copy to the GPU and the copy back, from pageable
or from pinned memory. For data that stays on the GPU (resident) they include neither copy.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import treadle

WAYS = ("CPU", "pageable", "pinned", "resident")
BATCH, HIDDEN = 16, 256  # for the GRU layer; its number of steps varies
Op = Callable[..., torch.Tensor]


def median_us(call: Callable[[], object], seconds: float = 0.2) -> float:
    call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def on_gpu(op: Op, inputs: list[torch.Tensor]) -> Iterator[tuple[str, float]]:
    """Times three ways to use a GPU. The first two begin and end with data in the CPU's memory."""
    there = [x.cuda() for x in inputs]
    out = op(*there)
    for way, pin in (("pageable", False), ("pinned", True)):
        mine = [x.pin_memory() if pin else x for x in inputs]
        back = torch.empty(out.shape, dtype=out.dtype, pin_memory=pin)

        def call(mine: list[torch.Tensor] = mine, back: torch.Tensor = back) -> None:
            for to, x in zip(there, mine, strict=True):
                to.copy_(x, non_blocking=True)
            back.copy_(op(*there), non_blocking=True)
            torch.cuda.synchronize()

        yield way, median_us(call)

    def resident() -> None:
        op(*there)
        torch.cuda.synchronize()

    yield "resident", median_us(resident)


def cases(size: int) -> Iterator[tuple[str, Op, list[torch.Tensor], Callable[[], object]]]:
    """Each op, its inputs of `size` elements, and the same computation on the CPU."""
    a, b = (np.random.default_rng(i).standard_normal(size, dtype=np.float32) for i in (1, 2))
    out = np.empty_like(a)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    yield "add", treadle.vector_add, [x, y], lambda: np.add(a, b, out=out)
    yield "sine", treadle.sine, [x], lambda: np.sin(a, out=out)
    steps = size // (BATCH * HIDDEN)
    if not 1 <= steps <= 1 << 12:
        return
    layers = {d: treadle.nn.GRU(HIDDEN, HIDDEN, device=d) for d in devices()}

    def gru(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = layers[x.device.type](x)[0]
        return result

    sequence = x.view(steps, BATCH, HIDDEN)
    yield "gru", gru, [sequence], lambda: gru(sequence)


def devices() -> list[str]:
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def measure(largest: int) -> dict[str, Any]:
    rows = []
    for exponent in range(8, largest + 1, 2):
        for op, function, inputs, on_cpu in cases(1 << exponent):
            times = {"CPU": median_us(on_cpu)}
            if torch.cuda.is_available():
                times |= dict(on_gpu(function, inputs))
            rows.append({"op": op, "elements": 1 << exponent, "us": times})
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    machine = {"gpu": gpu, "cpu": platform.processor() or platform.machine()}
    versions = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cores": torch.get_num_threads(),
    }
    return {"machine": machine | versions | {"date": time.strftime("%Y-%m-%d")}, "rows": rows}


def break_even(found: dict[str, Any], op: str, way: str) -> int | None:
    """The smallest measured size such that this way is faster than the CPU there and at all larger
    sizes. None if there is no such size."""
    rows = [row for row in found["rows"] if row["op"] == op and way in row["us"]]
    slower = [row["elements"] for row in rows if row["us"][way] >= row["us"]["CPU"]]
    faster = [row["elements"] for row in rows if row["elements"] > max(slower, default=0)]
    return min(faster, default=None)


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    ops = list(dict.fromkeys(row["op"] for row in found["rows"]))
    _, axes = plt.subplots(1, len(ops), figsize=(4 * len(ops), 3.4), sharey=True, squeeze=False)
    for axis, op in zip(axes[0], ops, strict=True):
        rows = [row for row in found["rows"] if row["op"] == op]
        for way in WAYS:
            points = [(row["elements"], row["us"][way]) for row in rows if way in row["us"]]
            if points:
                axis.loglog(*zip(*points, strict=True), marker=".", label=way)
        axis.set(title=op, xlabel="float32 elements", ylabel="µs" if op == ops[0] else "")
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    plt.tight_layout()
    plt.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--largest", type=int, default=28, help="largest size: 2 to this power")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path, help="read an earlier run, do not measure")
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args()
    found = json.loads(chosen.read.read_text()) if chosen.read else measure(chosen.largest)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.plot:
        plot(found, chosen.plot)
    gpu = found["machine"]["gpu"]
    sizes = [
        f"{op} {way} {break_even(found, op, way)}"
        for op in ("add", "sine", "gru")
        for way in WAYS[1:]
    ]
    print(f"transfer: {gpu or 'no GPU'}; elements from which the GPU is faster: {', '.join(sizes)}")


if __name__ == "__main__":
    main()
