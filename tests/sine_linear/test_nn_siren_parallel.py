"""Siren's state dict, which contains omega, with wrapped or sharded parameters."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from torch import distributed
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from treadle.nn import Siren


def made(first: float = 30.0) -> Siren:
    torch.manual_seed(0)
    return Siren(2, 8, 1, 2, True, first)


def load_and_save(rank: int, world: int, folder: str) -> None:
    """Runs in each of two processes."""
    store = distributed.FileStore(f"{folder}/store", world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        net, x = made(), torch.rand(5, 2)
        wrapped = DistributedDataParallel(copy.deepcopy(net))
        assert "module.net.0._extra_state" in wrapped.state_dict()
        wrapped.load_state_dict(wrapped.state_dict())
        assert torch.equal(wrapped(x), net(x))

        sharded = copy.deepcopy(net)
        mesh = distributed.init_device_mesh("cpu", (world,))
        for layer in sharded.net:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        assert torch.equal(sharded(x), net(x))
        sharded(x).sum().backward()
        doubled = {
            name: value if "_extra_state" in name else value * 2
            for name, value in net.state_dict().items()
        }
        for options in ({}, {"broadcast_from_rank0": True}):
            full = StateDictOptions(full_state_dict=True, **options)
            set_model_state_dict(sharded, dict(doubled), options=full)
            found = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
            assert found.keys() == doubled.keys()
            assert all(torch.equal(found[name], doubled[name]) for name in doubled)
        sharded.load_state_dict(sharded.state_dict())
        state = get_model_state_dict(sharded)
        checkpoint.save(state, checkpoint_id=f"{folder}/net")
        checkpoint.load(state, checkpoint_id=f"{folder}/net")
        set_model_state_dict(sharded, state)
        with pytest.raises(RuntimeError, match=r"omega_0 must be 30.0, .* got 5.0"):
            set_model_state_dict(made(5.0), dict(doubled))
        if rank == 0:
            torch.save(True, f"{folder}/done")
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
    # Skips Python's shutdown: see tests/interop/many_gpus.py.
    os._exit(0)


@pytest.mark.timeout(300)
def test_two_processes(tmp_path: object) -> None:
    torch.multiprocessing.spawn(load_and_save, (2, str(tmp_path)), nprocs=2)
    assert torch.load(f"{tmp_path}/done")
