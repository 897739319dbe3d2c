"""The kernels that a call launches on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isfunction
from typing import Any

from . import _build

__all__ = ["launch_info"]

_FIELDS = (
    "kernel",
    "grid",
    "block",
    "vector_width",
    "elements_per_thread",
    "registers",
    "shared_bytes",
    "local_bytes",
    "blocks_per_sm",
    "occupancy",
    "family",
    "algorithm",
    "reason",
)


def launch_info(op: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """Run an op and list its launches on the GPU: their grids, blocks and use of resources.

    Args:
        op: a callable, for example ``treadle.scale`` or a module; or the name of a function of this
            package, such as ``"scale"``.
        args, kwargs: the arguments of ``op``. Only calls with CUDA tensors launch kernels.

    Returns:
        One dict for each of treadle's kernels (but not for cuBLAS kernels), in launch order:
        ``kernel``, ``grid`` and ``block`` (x, y, z), ``vector_width`` (elements per memory access),
        ``elements_per_thread``, ``registers`` (per thread), ``shared_bytes`` (per block),
        ``local_bytes`` (per thread; 0 unless registers spill), ``blocks_per_sm`` and ``occupancy``
        (resident threads, as a fraction of a multiprocessor's maximum). Kernels of recurrent layers
        also have the ``family`` of kernels that the plan selected (such as ``cluster_dense``), its
        ``algorithm`` and the ``reason`` for this choice. For others, these three are empty strings.
        The list is empty if nothing was launched on a GPU.

    Raises:
        ValueError: ``op`` is neither callable nor the name of an op.
        ImportError: treadle._C was not built for the running Python.

    Source: kernels/common/launch.cuh, where every launch is made and recorded.
    """
    ops = _functions()
    function = ops.get(op) if isinstance(op, str) else op
    if not callable(function):
        names = ", ".join(sorted(ops))
        raise ValueError(f"launch_info: op must be one of {names}, or a callable, got {op!r}")
    bindings = _build.bindings()
    bindings.take_launches()
    bindings.record_launches(True)
    try:
        function(*args, **kwargs)
    finally:
        bindings.record_launches(False)
    launches = bindings.take_launches()
    return [{name: getattr(launch, name) for name in _FIELDS} for launch in launches]


def _functions() -> dict[str, Callable[..., Any]]:
    """The functions of this package that are ops: all except ``launch_info``."""
    package = sys.modules[__package__]
    every = {name: getattr(package, name) for name in package.__all__ if name not in __all__}
    return {name: function for name, function in every.items() if isfunction(function)}
