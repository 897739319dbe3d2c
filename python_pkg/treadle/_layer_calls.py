"""Which overload of an op of layers a call means."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Overloads(NamedTuple):
    """Of one op. Without a choice torch would try the first one at every call."""

    name: str
    input: Any
    data: Any
    input_cells: Any = None  # with the cells of all steps as a last result
    data_cells: Any = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, Tensor) and first.is_nested:
            raise NotImplementedError(
                f"{self.name}: input must be dense, got a nested tensor of layout {first.layout}; "
                "pad it and give lengths"
            )
        cells = kwargs.pop("return_cells", False)
        if not isinstance(cells, bool):
            kind = type(cells).__name__
            raise TypeError(f"{self.name}: return_cells must be a bool, got {kind}")
        if cells and self.input_cells is None:
            raise RuntimeError(
                f"{self.name}: return_cells must be False, got True: the state of each step is "
                "the output"
            )
        if not _packed(args, kwargs):
            return (self.input_cells if cells else self.input)(*args, **kwargs)
        if kwargs.pop("lengths", None) is not None:
            raise RuntimeError(
                f"{self.name}: lengths must come with a padded input, got batch_sizes"
            )
        return (self.data_cells if cells else self.data)(*args, **kwargs)


def overloads(name: str) -> Overloads:
    op = getattr(torch.ops.treadle, name)
    # In the order of Overloads.
    found = {each: getattr(op, each) for each in Overloads._fields[1:] if each in op.overloads()}
    return Overloads(name, **found)


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call has batch_sizes, the only int64 tensor that may come second."""
    if "batch_sizes" in kwargs:
        return True
    return len(args) > 1 and isinstance(args[1], Tensor) and args[1].dtype == torch.int64
