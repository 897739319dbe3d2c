"""Switches the recurrent modules of a model to treadle's forward pass, and back to torch's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._check.tensors import dtype_name
from ._methods import (
    GRUCellMethods,
    GRUMethods,
    LSTMCellMethods,
    LSTMMethods,
    Methods,
    RNNCellMethods,
    RNNMethods,
    is_forward_ours,
    methods_of,
    put,
    remove,
)
from ._speed import why_maybe_slower
from .rnn import GRU, LSTM, RNN
from .rnn_cells import GRUCell, LSTMCell, RNNCell

__all__ = ["Replaced", "replace", "restore"]

_METHODS: dict[type[nn.Module], type[Methods]] = {
    nn.LSTM: LSTMMethods,
    nn.GRU: GRUMethods,
    nn.RNN: RNNMethods,
    nn.LSTMCell: LSTMCellMethods,
    nn.GRUCell: GRUCellMethods,
    nn.RNNCell: RNNCellMethods,
}
_TORCHS: dict[type[nn.Module], type[nn.Module]] = {
    LSTM: nn.LSTM,
    GRU: nn.GRU,
    RNN: nn.RNN,
    LSTMCell: nn.LSTMCell,
    GRUCell: nn.GRUCell,
    RNNCell: nn.RNNCell,
}
_OURS = tuple(_TORCHS)
_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Replaced:
    """The result of :func:`replace` and :func:`restore`. Names are those of ``named_modules``; ""
    is the model itself.

    Attributes:
        replaced: names of the modules whose forward pass changed.
        left: names of the modules that are unchanged, each with the reason.
    """

    replaced: list[str]
    left: dict[str, str]


def replace(model: nn.Module, *, only_if_faster: bool = False) -> Replaced:
    """Make every LSTM, GRU, RNN, LSTMCell, GRUCell and RNNCell of torch.nn in ``model`` run on
    treadle's kernels, in place.

    The modules stay the same objects of the same class, but their forward pass becomes that of the
    class with the same name in treadle.nn. They keep their parameters, buffers, hooks and tied
    weights, and references to them stay valid. ``isinstance`` is true for torch's class and for
    treadle's. ``recompute`` is off; to turn it on for a layer, set that attribute.

    Tools that know torch's classes work on a replaced model as before, with the same results as
    for torch's modules. Such tools are TorchScript, ``torch.onnx.export``, int8 quantization by
    ``torch.ao.quantization``, FLOP counters and Opacus. The documentation lists all of them, and
    the exceptions. The forward pass is an attribute that is bound to the module, so a shallow copy
    of the module (``copy.copy``) must be replaced again.

    On NVIDIA GPUs of compute capability 7.5, or if H is too large for the kernels that run all
    steps in one launch, a layer launches a matrix product and a kernel at each step. In these cases
    float16 LSTM layers, and float32 layers of H up to about 128, are up to eight times slower than
    cuDNN's. ``only_if_faster`` does not replace such layers. Time the model before and after.

    Args:
        model: a module; it may itself be such a module.
        only_if_faster: do not replace a float32 or float16 layer that would launch a product and a
            kernel at each step for 16 rows of 128 steps. Cells on a GPU are not replaced either:
            treadle's are faster, except that inference of more than 32 rows takes up to 1.15 times
            as long as with torch's. Move the model to its GPU and dtype first.

    Returns:
        The modules that were replaced, and those that were not, each with the reason. A module is
        not replaced if it has complex parameters, if it is of a subclass (which may override the
        forward pass), or if its ``forward`` was set, for example by accelerate's hooks.

    Raises:
        TypeError: ``model`` is not a module.
        ImportError: ``only_if_faster`` needs treadle._C, which was not built for the running
            Python.

    Example::

        print(treadle.nn.replace(model))    # Replaced(replaced=['encoder.rnn'], left={})
    """
    replaced, left = [], {}
    for name, module in _modules(model, "replace"):
        if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)) or isinstance(module, _OURS):
            continue
        why = _why_left(module)
        if why is None and only_if_faster:
            why = why_maybe_slower(module)
        if why is None:
            put(_METHODS[parametrize.type_before_parametrizations(module)], module)
            replaced.append(name)
        else:
            left[name] = why
    return Replaced(replaced, left)


def restore(model: nn.Module) -> Replaced:
    """Undo :func:`replace`: make the modules of treadle.nn in ``model`` torch's again, in place.

    This includes modules that were created as ``treadle.nn.LSTM`` and so on. Tools that look for
    torch's exact classes find these modules only after this call.

    Args:
        model: a module.

    Returns:
        The restored modules, as ``replaced``. Subclasses, modules whose ``forward`` was set after
        :func:`replace`, and layers with ``groups``, which torch does not have, are not restored.

    Raises:
        TypeError: ``model`` is not a module.
    """
    replaced, left = [], {}
    for name, module in _modules(model, "restore"):
        if getattr(module, "groups", 1) != 1 and isinstance(module, _OURS):
            left[name] = "torch has no layers with groups"
            continue
        if type(module) in _TORCHS:
            module.__class__ = _TORCHS[type(module)]
        elif is_forward_ours(module):
            remove(module)
        elif isinstance(module, _OURS):
            left[name] = (
                f"{type(module).__name__} is a subclass"
                if methods_of(module) is None
                else "its forward was set on the module after replace: remove that forward first"
            )
            continue
        else:
            continue
        if isinstance(module, nn.RNNBase):
            module._update_flat_weights()  # tensors left by functional_call have no memory
            module.flatten_parameters()  # cuDNN needs one block of memory
        replaced.append(name)
    return Replaced(replaced, left)


def _why_left(module: nn.Module) -> str | None:
    """The reason why one of torch's recurrent modules cannot be replaced, or None if it can."""
    kind = parametrize.type_before_parametrizations(module)
    torchs = next((cls for cls in _METHODS if isinstance(module, cls)), None)
    if torchs is None:
        return f"treadle has no {kind.__name__}"
    if other := {p.dtype for p in module.parameters()} - _DTYPES:
        return f"it has parameters of {', '.join(sorted(map(dtype_name, other)))}"
    if kind not in _METHODS:
        name = torchs.__name__
        return (
            f"{kind.__name__} is a subclass and may have its own forward pass; if that pass calls "
            f"torch.nn.{name}.forward, define class Ours({kind.__name__}, treadle.nn.{name}) to "
            "call treadle's instead, and create the module from Ours or set its __class__ to Ours"
        )
    if "forward" in vars(module) and not is_forward_ours(module):
        return "its forward was set on the module: call replace before setting it"
    return None


def _modules(model: object, function: str) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"treadle.nn.{function}: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    return list(model.named_modules())
