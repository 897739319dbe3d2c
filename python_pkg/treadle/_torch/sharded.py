"""treadle's ops on DTensors. Each process computes its part of the results from its shards.

This code runs below autograd. It does not use torch's registry of sharding rules, because the
registry caches a rule's answer and reuses it for calls with other masks and optional arguments.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.overrides import enable_reentrant_dispatch

from .._check.tensors import public_name
from .sharding import RULES, WHOLE, Rule, Tensors, Way

_library = torch.library.Library("treadle", "FRAGMENT")  # type: ignore[no-untyped-call]


def register() -> None:
    """Registers the rules; called once per process, after the ops have been loaded."""
    register_one = partial(torch.library.register_torch_dispatch, lib=_library)
    for name, rule in RULES.items():
        register_one(f"treadle::{name}", DTensor, partial(_run, rule))
    for name in ("scale", "sine", "cosine", "snake", "vector_add"):
        register_one(f"treadle::{name}.out", DTensor, _refused)


def _refused(cls: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    raise NotImplementedError(f"{public_name(func)}: out must not be given, got a DTensor")


# redistribute and from_local are autograd functions, which must not be recorded here.
@enable_reentrant_dispatch()
@torch.no_grad()
def _run(
    rule: Rule, cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    schema = func._schema.arguments
    named = {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    tensors = {name: t for name, t in named.items() if isinstance(t, Tensor)}
    written = {a.name for a in schema if a.alias_info is not None and a.alias_info.is_write}
    mesh = _mesh(public_name(func), tensors)
    ways = rule(named, tensors) + [Way({}, (WHOLE,) * len(func._schema.returns))]
    chosen = [_choose(public_name(func), ways, tensors, dim, written) for dim in range(mesh.ndim)]
    local = dict(named)
    for name, t in tensors.items():
        if isinstance(t, DTensor):
            placements = [way.inputs.get(name, WHOLE) for way in chosen]
            local[name] = t.redistribute(placements=placements).to_local()
    positional = [local[argument.name] for argument, _ in zip(schema, args, strict=False)]
    results = func(*positional, **{name: local[name] for name in kwargs})
    if not isinstance(results, (tuple, list)):
        return None if results is None else _global(results, mesh, chosen, 0, tensors)
    return tuple(_global(t, mesh, chosen, i, tensors) for i, t in enumerate(results))


def _mesh(op: str, tensors: Tensors) -> DeviceMesh:
    mesh: DeviceMesh = next(t.device_mesh for t in tensors.values() if isinstance(t, DTensor))
    for name, t in tensors.items():
        if isinstance(t, DTensor):
            if t.device_mesh != mesh:
                raise RuntimeError(
                    f"{op}: {name} must be on the mesh of the other DTensors, {mesh}, "
                    f"got {t.device_mesh}"
                )
        elif t.dim() > 0 and name != "batch_sizes":
            raise RuntimeError(
                f"{op}: {name} must be a DTensor, because other arguments are, got a plain tensor"
            )
    return mesh


def _choose(op: str, ways: list[Way], tensors: Tensors, dim: int, written: set[str]) -> Way:
    """Selects the way to shard along the mesh's dimension ``dim`` that moves the least data. If
    several ways move equally little, the first of them is selected."""
    here = {name: t.placements[dim] for name, t in tensors.items() if isinstance(t, DTensor)}

    def moved(way: Way) -> tuple[float, int]:
        elements, count = 0.0, 0
        for name, placement in here.items():
            wanted = way.inputs.get(name, WHOLE)
            if placement == wanted:
                continue
            if name in written or wanted.is_partial():
                return float("inf"), 0
            elements += 0 if placement.is_replicate() else tensors[name].numel()
            count += 1
        return elements, count

    best = min(ways, key=moved)
    if moved(best)[0] == float("inf"):
        name = next(name for name in here if name in written)
        raise RuntimeError(
            f"{op}: {name} must have the placements of the result, got {here[name]} in "
            f"dimension {dim} of the mesh"
        )
    return best


def _global(
    local: Tensor | None, mesh: DeviceMesh, ways: list[Way], index: int, tensors: Tensors
) -> DTensor | None:
    """Makes a DTensor of a local result. The global size of its sharded dimension is that of the
    sharded dimension of the arguments."""
    if local is None:
        return None
    placements, shape = [way.outputs[index] for way in ways], list(local.shape)
    for way, placement in zip(ways, placements, strict=True):
        if isinstance(placement, Shard):
            shape[placement.dim] = _cut_size(way.inputs, tensors)
    # The strides of a dense tensor with the local tensor's order of dimensions in memory.
    stride, size = [1] * local.dim(), 1
    for dim in sorted(range(local.dim()), key=lambda d: (local.stride(d), -d)):
        stride[dim], size = size, size * max(shape[dim], 1)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )


def _cut_size(inputs: dict[str, Placement], tensors: Tensors) -> int:
    return next(
        tensors[name].shape[placement.dim]
        for name, placement in inputs.items()
        if isinstance(placement, Shard) and name in tensors
    )
