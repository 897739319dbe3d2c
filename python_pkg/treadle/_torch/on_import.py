"""Runs an action when the program imports a module that treadle itself does not need.

Importing these modules takes longer than importing treadle: torch.utils.flop_counter, which imports
triton, takes 0.06 s, and torch.distributed.tensor 0.3 s.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Watch(MetaPathFinder):
    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self.module, self.action = module, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.action()

        # This changes only this loader object, which loads no other module.
        loader.exec_module = exec_module
        return spec


def on_import(module: str, action: Callable[[], None]) -> None:
    """Call ``action`` after the module's import, or now if it has already been imported."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(module, action))
