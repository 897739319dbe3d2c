"""What treadle registers with torch in addition to kernels: fake kernels, and rules for nested
tensors, DTensors and FLOP counts."""

from __future__ import annotations

from . import fakes, flops, jagged
from .on_import import on_import


def _register_sharded() -> None:
    from . import sharded

    sharded.register()


def register() -> None:
    """Makes all registrations; called once per process, after the ops have been loaded."""
    fakes.register()
    jagged.register()
    on_import("torch.utils.flop_counter", flops.register)
    on_import("torch.distributed.tensor", _register_sharded)
