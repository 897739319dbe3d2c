"""Treadle extends some modules of torch that are slow to import. It does so when the user imports
them, not when treadle is imported.

The user need not call anything, and the import hooks are removed afterwards.
"""

from __future__ import annotations

from tests.support import installed

LATER = """
import sys
finders = list(sys.meta_path)
import torch, treadle
assert "torch.utils.flop_counter" not in sys.modules
assert "torch.distributed.tensor" not in sys.modules and "treadle._torch.sharded" not in sys.modules

from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as count:
    treadle.nn.SineLinear(2, 3)(torch.ones(5, 2))
assert count.get_total_flops() == 2 * 5 * 2 * 3

if torch.distributed.is_available():
    import torch.distributed.tensor
    assert "treadle._torch.sharded" in sys.modules
    assert sys.meta_path == finders
loader = sys.modules["torch.utils.flop_counter"].__loader__
assert "exec_module" not in vars(loader)
"""


def test_imported_after_treadle() -> None:
    done = installed.python("-W", "error", "-c", LATER)
    assert done.returncode == 0, done.stderr
