"""Compares DTensor results of two processes with one process's results, for dtensor_cases.py."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

PROCESSES = 2
R, SUM = Replicate(), Partial()
Part = Placement | tuple[Placement, ...]
Given = list[tuple[tuple[int, ...], Part]]  # shapes and placements
CASES: dict[str, Callable[[], None]] = {}


def s(dim: int) -> Shard:
    return Shard(dim)


def placed(t: Tensor, part: Part, mesh: Any) -> DTensor:
    return distribute_tensor(t, mesh, part if isinstance(part, tuple) else (part,))


def tensors(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def equal(
    function: Callable[..., Any],
    given: Given,
    results: Sequence[Part],
    grads: Sequence[Part],
    grid: tuple[int, ...] = (PROCESSES,),
) -> None:
    """Checks that values and gradients equal those of one process, and that their placements are
    `results` and `grads`."""
    mesh = init_device_mesh("cpu", grid)
    whole = [t.requires_grad_() for t in tensors([shape for shape, _ in given])]
    cut = [
        placed(t.detach(), p, mesh).requires_grad_() for t, (_, p) in zip(whole, given, strict=True)
    ]
    wanted, found = outputs(function(*whole)), outputs(function(*cut))
    check(found, wanted, results)
    weights = tensors([tuple(t.shape) for t in wanted])
    of_cut = [placed(w, y.placements, mesh) for w, y in zip(weights, found, strict=True)]
    check(
        torch.autograd.grad(found, cut, of_cut), torch.autograd.grad(wanted, whole, weights), grads
    )


def check(found: Sequence[Any], wanted: Sequence[Tensor], parts: Sequence[Part]) -> None:
    for ours, theirs, part in zip(found, wanted, parts, strict=True):
        assert ours.shape == theirs.shape
        placements = part if isinstance(part, tuple) else (part,)
        assert ours.placements == placements, (ours.placements, placements)
        torch.testing.assert_close(ours.full_tensor(), theirs.detach(), rtol=1e-10, atol=1e-10)


def case(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(run: Callable[[], None]) -> Callable[[], None]:
        CASES[name] = run
        return run

    return add


def add_equal(name: str, *arguments: Any, **options: Any) -> None:
    CASES[name] = lambda: equal(*arguments, **options)


def run_all(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(seconds=30),
    )
    errors = {}
    for name, run in CASES.items():
        try:
            run()
            errors[name] = ""
        except Exception:
            errors[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(errors))
    dist.destroy_process_group()
