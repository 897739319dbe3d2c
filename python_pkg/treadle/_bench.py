"""Times treadle.nn.LSTM and GRU against torch's on this machine: ``python -m treadle --bench``.

The results show treadle's authors how fast it is on GPUs that they do not have. Each row of the
results is for one cell, dtype and shape. Outputs are first compared with those of torch's float32
layer. If the error is too large, the row has no times.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from treadle import _build
from treadle.nn import GRU, LSTM

Shape = tuple[int, int, int]  # batch, steps and hidden size, which is also the input size
# The same shapes as in benchmarks/recurrent/sweep_cells.py.
SHAPES: tuple[Shape, ...] = (
    *((1, 512, 128), (16, 512, 128), (64, 200, 128), (16, 512, 256), (128, 128, 256)),
    *((256, 365, 256), (16, 512, 512), (64, 512, 512)),
    *((16, 256, 1024), (64, 256, 1024), (256, 256, 1024)),
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A row is timed only if its error, relative to the largest output, is at most this.
LIMITS = {torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
CELLS: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "LSTM": (LSTM, nn.LSTM),
    "GRU": (GRU, nn.GRU),
}


def call(layer: nn.Module, x: Tensor, training: bool) -> Callable[[], Tensor]:
    """A function that runs the layer, and with ``training`` also its backward pass."""

    def run() -> Tensor:
        with torch.set_grad_enabled(training):
            output: Tensor = layer(x)[0]
            if training:
                torch.autograd.backward(output, torch.ones_like(output))
        return output

    return run


def seconds(run: Callable[[], Tensor], at_least: float) -> float:
    run()
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=at_least).median)


def row(
    cell: str, shape: Shape, dtype: torch.dtype, device: torch.device, at_least: float
) -> dict[str, Any]:
    """The error and, if it is small enough, the µs per step of both layers, in inference and in
    training."""
    b, t, h = shape
    found: dict[str, Any] = {"cell": cell, "shape": shape, "dtype": str(dtype).split(".")[-1]}
    ours, theirs = (kind(h, h).to(device) for kind in CELLS[cell])
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(t, b, h, device=device)
    with torch.no_grad():
        right = theirs(x)[0]
        layers = [layer.to(dtype) for layer in (ours, theirs)]
        error = (layers[0](x.to(dtype))[0].float() - right).abs().max() / right.abs().max()
    found["error"] = float(error)
    if not found["error"] <= LIMITS[dtype]:
        return {**found, "wrong": True}
    for mode in ("inference", "training"):
        given = x.to(dtype).requires_grad_(mode == "training")
        for name, layer in zip(("treadle", "torch"), layers, strict=True):
            took = seconds(call(layer, given, mode == "training"), at_least)
            found[f"{mode}_{name}_us"] = round(took / t * 1e6, 3)
    return found


def rows(
    device: torch.device, shapes: tuple[Shape, ...] = SHAPES, at_least: float = 0.2
) -> Iterator[dict[str, Any]]:
    for shape, dtype, cell in product(shapes, DTYPES, CELLS):
        yield row(cell, shape, dtype, device, at_least)


def machine(device: torch.device) -> dict[str, Any]:
    facts = _build.facts()
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "torch": torch.__version__,
        "treadle": facts["version"],
        "treadle_archs": facts["archs"],
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return found


def main(path: Path, device: torch.device, shapes: tuple[Shape, ...] = SHAPES) -> int:
    """Prints a line per row and writes all rows to ``path``. Returns 1 if a result was wrong."""
    done = []
    for one in rows(device, shapes):
        done.append(one)
        b, t, h = one["shape"]
        title = f"{one['cell']} {b},{t},{h} {one['dtype']}"
        if one.get("wrong"):
            print(f"{title}: WRONG, error {one['error']:.1e}", flush=True)
            continue
        speeds = (
            one[f"{mode}_torch_us"] / one[f"{mode}_treadle_us"]
            for mode in ("inference", "training")
        )
        print(title, *(f"{speed:.2f} ×" for speed in speeds), flush=True)
    path.write_text(json.dumps({"machine": machine(device), "rows": done}, indent=1) + "\n")
    print(f"written to {path}; n × is n times torch's speed, in inference and in training")
    return 1 if any(one.get("wrong") for one in done) else 0
