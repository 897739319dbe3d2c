"""Runs all cases of test_many_gpus.py, in each process of one process group.

Every case trains a net for STEPS steps on this process's part of the batch, clips gradients,
and resumes from a checkpoint before the last step. The results must equal those of one process with
the whole batch.
"""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.interop.nets import (
    MOST_NORM,
    NETS,
    STEPS,
    Results,
    batches,
    loss_of,
    net,
    optimizer_of,
    results,
    whole,
)

SAVED_AFTER = 2


@dataclass
class Process:
    rank: int
    world: int
    backend: str
    folder: Path

    @property
    def device(self) -> str:
        return f"cuda:{self.rank}" if self.backend == "nccl" else "cpu"

    def parts(self) -> list[Tensor]:
        """This process's rows of each step's batch."""
        return [x.chunk(self.world)[self.rank] for x in batches(self.device)]

    def mean(self, loss: Tensor) -> Tensor:
        """The mean over all processes."""
        total = loss.detach().clone()
        distributed.all_reduce(total)
        return total / self.world


def train(
    process: Process,
    make: Callable[[int], nn.Module],
    restart: Callable[[nn.Module, torch.optim.Optimizer, nn.Module, torch.optim.Optimizer], None],
    parts: int = 1,
) -> Results:
    """`make` makes the net from a seed. `restart` saves a checkpoint of one net and loads it into
    another. Each batch is processed in `parts`, and only the last part synchronises gradients."""
    model = make(0)
    optimizer, losses, norms = optimizer_of(model), [], []
    for step, x in enumerate(process.parts()):
        if step == SAVED_AFTER:
            # A net with other parameters, all of which the checkpoint must replace.
            fresh = make(1)
            fresh_optimizer = optimizer_of(fresh)
            restart(model, optimizer, fresh, fresh_optimizer)
            model, optimizer = fresh, fresh_optimizer
        optimizer.zero_grad()
        total = torch.zeros((), device=process.device)
        for index, part in enumerate(x.chunk(parts)):
            alone = isinstance(model, DistributedDataParallel) and index < parts - 1
            with model.no_sync() if alone else nullcontext():
                loss = loss_of(model, part) / parts
                loss.backward()
            total += loss.detach()
        losses.append(process.mean(total))
        norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), MOST_NORM)))
        optimizer.step()
    return results(losses, norms, model)


def ddp(process: Process, name: str, parts: int = 1, **options: Any) -> Results:
    def make(seed: int) -> nn.Module:
        ids = [process.rank] if process.backend == "nccl" else None
        model = net(name, process.device, seed)
        return DistributedDataParallel(model, device_ids=ids, **options)

    def restart(model: Any, optimizer: Any, fresh: Any, fresh_optimizer: Any) -> None:
        path = process.folder / "ddp.pt"
        if process.rank == 0:
            torch.save([model.module.state_dict(), optimizer.state_dict()], path)
        distributed.barrier()
        saved, saved_optimizer = torch.load(path, map_location=process.device)
        fresh.module.load_state_dict(saved)
        fresh_optimizer.load_state_dict(saved_optimizer)
        distributed.barrier()

    return train(process, make, restart, parts)


def fsdp(process: Process, name: str, **options: Any) -> Results:
    """Applies FSDP2 to every child and to the net. The sharded checkpoint is kept for a test that
    reads it."""
    # If there are GPUs, the default mesh would use them even for a net on the CPU.
    mesh = init_device_mesh(process.device.partition(":")[0], (process.world,))
    path = process.folder / f"fsdp {name}{' in bfloat16' if options else ''}"

    def make(seed: int) -> nn.Module:
        model = net(name, process.device, seed)
        for child in model.children():
            fully_shard(child, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    def restart(model: Any, optimizer: Any, fresh: Any, fresh_optimizer: Any) -> None:
        shards = [len(p.to_local()) < len(p) for p in model.parameters() if len(p) > 1]
        assert all(shards) or process.world == 1, "nothing was sharded"
        weights, moments = state_dict.get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
        weights, moments = state_dict.get_state_dict(fresh, fresh_optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=path)
        state_dict.set_state_dict(
            fresh, fresh_optimizer, model_state_dict=weights, optim_state_dict=moments
        )

    return train(process, make, restart)


def fsdp_in_bfloat16(process: Process, name: str) -> Results:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(process, name, mp_policy=policy)


def accelerated(process: Process, name: str) -> Results:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=process.backend == "gloo")
    assert accelerator.num_processes == process.world

    def prepared(seed: int) -> tuple[nn.Module, Any]:
        model = net(name, "cpu", seed)
        return accelerator.prepare(model, optimizer_of(model))  # type: ignore[no-any-return]

    model, optimizer = prepared(0)
    losses, norms = [], []
    for step, x in enumerate(process.parts()):
        if step == SAVED_AFTER:
            accelerator.save_state(str(process.folder / "accelerate"))
            accelerator.free_memory()
            model, optimizer = prepared(1)
            accelerator.load_state(str(process.folder / "accelerate"))
        optimizer.zero_grad()
        loss = loss_of(model, x)
        accelerator.backward(loss)
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean())
        norms.append(accelerator.clip_grad_norm_(model.parameters(), MOST_NORM))
        optimizer.step()
    accelerator.free_memory()
    return results(losses, norms, model)


def in_lightning(process: Process, name: str) -> Results:
    """Uses Lightning's DDP and clipping. A second Trainer resumes from the first one's
    checkpoint."""
    from tests.interop.with_lightning import Module, fit

    path = process.folder / "lightning.ckpt"
    first = Module(net(name, "cpu"), process.parts())
    fit(first, process.world, process.backend, SAVED_AFTER).save_checkpoint(path)
    second = Module(net(name, "cpu", seed=1), process.parts())
    fit(second, process.world, process.backend, STEPS, path)
    losses = [process.mean(loss) for loss in (*first.losses, *second.losses)]
    return results(losses, [*first.norms, *second.norms], second.net)


PACKAGES = {"accelerate": "accelerate", "Lightning": "lightning"}
CASES: dict[str, Callable[[Process, str], Results]] = {
    "DDP": ddp,
    "DDP, parts of a batch": lambda process, name: ddp(process, name, parts=2),
    "FSDP2": fsdp,
    "FSDP2, bfloat16": fsdp_in_bfloat16,
    "accelerate": accelerated,
    "Lightning": in_lightning,
}


def missing(case: str) -> str | None:
    """Returns the package that a case needs but that is not installed, or None."""
    package = PACKAGES.get(case)
    return None if package is None or importlib.util.find_spec(package) else package


def work(rank: int, world: int, backend: str, folder: str) -> None:
    """Runs all cases and saves their results, or the first error, to this process's file."""
    process = Process(rank, world, backend, Path(folder))
    torch.set_num_threads(1)
    # These are variables that a launcher would set. The processes find each other through a file.
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    )
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch._C._set_cudnn_allow_tf32(False)  # treadle's layers also follow this setting
    found: Results = {}
    try:
        distributed.init_process_group(
            backend,
            store=distributed.FileStore(f"{folder}/store", world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=120),
        )
        for case in (case for case in CASES if missing(case) is None):
            for name in NETS:
                found[f"{case}/{name}"] = CASES[case](process, name)
        distributed.barrier()
    except BaseException:
        found["error"] = traceback.format_exc()
    torch.save(found, f"{folder}/rank{rank}.pt")
    # Skips Python's shutdown. A thread of torch that takes the GIL during shutdown sometimes ends
    # the process with a signal (pytorch issue 38228).
    os._exit(0)
