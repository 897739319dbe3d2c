"""Detects which kind of cell a state dict belongs to, and converts state dicts between LLTM and
LLTMCell."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Cell(NamedTuple):
    article: str
    gates: str
    biases: int

    @property
    def described(self) -> str:
        gates = f"{len(self.gates.split(', '))} gates ({self.gates})" if self.gates else "no gates"
        return f"{gates} and {self.biases} bias" + ("es" if self.biases > 1 else "")


_CELLS = {
    "RNN": _Cell("an", "", 2),
    "GRU": _Cell("a", "r, z, n", 2),
    "LSTM": _Cell("an", "i, f, g, o", 2),
    "LLTM": _Cell("an", "i, o, z", 1),
}

# The version in the metadata of LLTM.state_dict(); torch's modules have version 1. Without biases,
# the weights of an LLTM and of a GRU have the same names and shapes, and only the version differs.
LLTM_VERSION = 2


@contextmanager
def hooks_run(module: Any, state_dict: dict[str, Any], *args: Any) -> Iterator[None]:
    """Runs the hooks that change a state dict before loading, and disables them in this context.
    torch runs them in _load_from_state_dict, which is too late for the module's own code."""
    hooks = module._load_state_dict_pre_hooks
    for hook in hooks.values():
        hook(state_dict, *args)
    module._load_state_dict_pre_hooks = OrderedDict()
    try:
        yield
    finally:
        module._load_state_dict_pre_hooks = hooks


def _found(state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> str | None:
    """The kind of cell whose weights are below ``prefix``, or None if it is unknown."""
    suffix = "_l0" if f"{prefix}weight_hh_l0" in state_dict else ""
    weight = state_dict.get(f"{prefix}weight_hh{suffix}")
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.size(1):
        return None
    blocks = {1: "RNN", 3: "GRU", 4: "LSTM"}
    rows, hidden = weight.shape
    name = blocks.get(rows // hidden) if rows % hidden == 0 else None
    if name != "GRU" or f"{prefix}bias_ih{suffix}" in state_dict:
        return name
    if f"{prefix}bias{suffix}" in state_dict:
        return "LLTM"
    version = metadata.get("version")
    return None if version is None else "LLTM" if version >= LLTM_VERSION else "GRU"


def wrong_cell(
    module: str, cell: str, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> str | None:
    """The reason why ``module``, whose cell is ``cell``, cannot load the weights below ``prefix``,
    or None if it can."""
    name = _found(state_dict, prefix, metadata)
    if name is None or name == cell:
        return None
    own, other = _CELLS[cell], _CELLS[name]
    our, their = f"{own.article} {cell}", f"{other.article} {name}"
    return (
        f"{module}: the state dict must be {our}'s, got {their}'s: {their} has {other.described}, "
        f"but {our} has {own.described}, so the weights cannot be converted"
    )


def layer_from_cell(layer: Any, state_dict: dict[str, Any], prefix: str) -> str | None:
    """Turns an LLTMCell's entries into those of an LLTM, or returns why that is impossible."""
    weights = state_dict.get(f"{prefix}weights")
    if not isinstance(weights, Tensor):
        return None
    if layer.num_layers != 1 or layer.bidirectional:
        return (
            "LLTM: num_layers must be 1 and bidirectional False for the state dict of an LLTMCell, "
            f"got {layer.num_layers} and {layer.bidirectional}"
        )
    sizes = [layer.hidden_size, layer.input_size]
    if weights.dim() != 2 or weights.size(1) != sum(sizes):
        return None  # load_state_dict reports the wrong shape
    del state_dict[f"{prefix}weights"]
    with torch.no_grad():
        hh, ih = torch.split(weights, sizes, dim=1)
        state_dict[f"{prefix}weight_ih_l0"] = ih.contiguous()
        state_dict[f"{prefix}weight_hh_l0"] = hh.contiguous()
        if isinstance(bias := state_dict.pop(f"{prefix}bias", None), Tensor):
            state_dict[f"{prefix}bias_l0"] = bias.flatten()  # it is [1, 3H] in PyTorch's tutorial
    return None


def cell_from_layer(state_dict: dict[str, Any], prefix: str) -> str | None:
    """Turns an LLTM's entries into those of an LLTMCell, or returns why that is impossible."""
    names = [f"{prefix}weight_hh_l0", f"{prefix}weight_ih_l0"]
    if any(name not in state_dict for name in names):
        return None
    if any(f"{names[0][:-1]}{other}" in state_dict for other in ("1", "0_reverse")):
        return (
            "LLTMCell: the state dict of an LLTM must be of one layer in one direction, got more: "
            "the docstring of treadle.nn.LLTM shows how to copy one of them"
        )
    with torch.no_grad():
        state_dict[f"{prefix}weights"] = torch.cat([state_dict.pop(n) for n in names], dim=1)
    if f"{prefix}bias_l0" in state_dict:
        state_dict[f"{prefix}bias"] = state_dict.pop(f"{prefix}bias_l0")
    return None
