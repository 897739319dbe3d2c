"""treadle's kernels as modules: parameters, their initialisation, and PyTorch's conventions."""

from .cell import LLTMCell
from .layer import LLTM
from .sine import SineLinear, Siren

__all__ = ["LLTM", "LLTMCell", "SineLinear", "Siren"]
