"""Fused CUDA kernels for PyTorch, with CPU kernels beside them, registered as torch ops.

``treadle.vector_add``, ``scale``, ``sine``, ``cosine``, ``sine_linear``, ``lltm_cell`` and
``lltm`` are the documented fronts of ``torch.ops.treadle.*``; ``treadle.nn`` has the modules,
``treadle.reference`` the same functions in plain PyTorch. ``python -m treadle`` reports what was
built and tests it.
"""

from . import _build

_build.load()

from . import _fakes, nn, reference  # noqa: E402  (the ops must be registered first)
from .ops import (  # noqa: E402
    cosine,
    cosine_,
    launch_info,
    lltm,
    lltm_cell,
    scale,
    scale_,
    sine,
    sine_,
    sine_linear,
    vector_add,
    vector_add_,
)

_fakes.register()

__version__: str = _build.facts()["version"]

__all__ = [
    "__version__",
    "cosine",
    "cosine_",
    "launch_info",
    "lltm",
    "lltm_cell",
    "nn",
    "reference",
    "scale",
    "scale_",
    "sine",
    "sine_",
    "sine_linear",
    "vector_add",
    "vector_add_",
]
