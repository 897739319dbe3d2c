"""What a call launched on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _build
from . import elementwise as _elementwise
from . import recurrent as _recurrent
from .sine_linear import sine_linear as _sine_linear

__all__ = ["launch_info"]

_OPS: dict[str, Callable[..., Any]] = {
    **{name: getattr(_elementwise, name) for name in _elementwise.__all__},
    **{name: getattr(_recurrent, name) for name in _recurrent.__all__},
    "sine_linear": _sine_linear,
}
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
    "algorithm",
    "reason",
)


def launch_info(op: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """Run an op and say what it launched on the GPU: grids, blocks, threads and what they use.

    Args:
        op: what to call, for example ``treadle.scale`` or a module; or the name of a function of
            this package, ``"scale"``.
        args: its arguments, and ``kwargs`` its keyword arguments. CUDA tensors, to see anything.

    Returns:
        One dict a kernel of ours, in launch order (cuBLAS's are not among them): ``kernel``,
        ``grid`` and ``block`` (x, y, z), ``vector_width`` (elements a memory access),
        ``elements_per_thread``, ``registers`` (a thread), ``shared_bytes`` (a block),
        ``local_bytes`` (a thread; 0 unless it spills), ``blocks_per_sm`` and ``occupancy`` (of the
        resident threads a multiprocessor can hold); for ``lltm``, ``algorithm`` (how its steps are
        run) and ``reason`` (why so), which are empty strings elsewhere. The list is empty where
        nothing was launched on a GPU.

    Raises:
        ValueError: if there is no op of this name.

    Source: kernels/common/launch.cuh, where every launch is made and observed.
    """
    function = _OPS.get(op) if isinstance(op, str) else op
    if not callable(function):
        names = ", ".join(sorted(_OPS))
        raise ValueError(f"launch_info: op must be one of {names}, or what is called, got {op!r}")
    bindings = _build.bindings()
    bindings.take_launches()
    bindings.record_launches(True)
    try:
        function(*args, **kwargs)
    finally:
        bindings.record_launches(False)
    launches = bindings.take_launches()
    return [{name: getattr(launch, name) for name in _FIELDS} for launch in launches]
