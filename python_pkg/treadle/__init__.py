"""Fused CUDA and CPU kernels for PyTorch, registered as torch ops.

``treadle.scale``, ``treadle.lstm`` and the other functions are the documented interface to
``torch.ops.treadle.*``. ``treadle.nn`` has the modules, and ``treadle.reference`` has the same
functions in plain PyTorch. ``python -m treadle`` reports what was built and tests it.
"""

if "__version__" in globals():
    raise ImportError("treadle cannot be reloaded; restart Python")

from . import _build  # noqa: E402

try:
    _build.load()
except ImportError as _error:
    if not _build.reporting():
        raise
    # `python -m treadle` imports the package first. Users run it when something is wrong, so it
    # must report this error instead of failing with it.
    from .__main__ import main as _main

    raise SystemExit(_main(problem=str(_error))) from None

# The ops must be registered before these modules are imported.
from . import (  # noqa: E402
    _torch,
    elementwise,
    jets,
    launches,
    nn,
    recurrent,
    reference,
)
from ._formula.cell import Cell  # noqa: E402
from .elementwise import *  # noqa: E402, F403
from .jets import *  # noqa: E402, F403
from .launches import *  # noqa: E402, F403
from .recurrent import *  # noqa: E402, F403
from .sine_linear import sine_linear, sine_linear_jet  # noqa: E402
from .snake import snake, snake_  # noqa: E402

_torch.register()

__version__: str = _build.facts()["version"]

__all__ = [
    "Cell",
    "__version__",
    "nn",
    "reference",
    "sine_linear",
    "sine_linear_jet",
    "snake",
    "snake_",
]
__all__ += elementwise.__all__
__all__ += jets.__all__
__all__ += launches.__all__
__all__ += recurrent.__all__
