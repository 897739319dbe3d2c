"""treadle's kernels as modules: parameters, their initialisation, and PyTorch's conventions."""

from .lltm import LLTM
from .lltm_cell import LLTMCell
from .siren import SineLinear, Siren

__all__ = ["LLTM", "LLTMCell", "SineLinear", "Siren"]
