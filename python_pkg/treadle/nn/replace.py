"""Replaces torch's LSTM and GRU in a model by treadle's, and restores torch's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._check.tensors import dtype_name
from ._speed import why_maybe_slower
from .rnn import GRU, LSTM

__all__ = ["Replaced", "replace", "restore"]

_OURS: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: LSTM, nn.GRU: GRU}
_TORCHS = {ours: torchs for torchs, ours in _OURS.items()}
_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)


@dataclass(frozen=True)
class Replaced:
    """Names of modules, as ``named_modules`` has them; "" is the model itself.

    Attributes:
        replaced: those whose class changed.
        left: those that stay as they are, each with the reason.
    """

    replaced: list[str]
    left: dict[str, str]


def replace(model: nn.Module, *, only_if_faster: bool = False) -> Replaced:
    """Make every torch.nn.LSTM and torch.nn.GRU in ``model`` treadle's, in place.

    The modules are the same objects with another class: parameters, hooks, buffers, ties and
    references to them stay. ``recompute`` is off; set it on a module to switch it on.

    A replaced model supports everything that torch.nn's does, except tools that look for torch's
    exact classes or read their code: ``torch.jit.script``, a library's own ONNX export
    (``torch.onnx.export`` needs the table of treadle.onnx), int8 by ``torch.ao.quantization``
    (``quantize_dynamic`` and ``prepare`` silently skip the layers), and tools that count operations
    or take per-sample gradients by class, such as thop, ptflops and Opacus. Call :func:`restore`
    before any of them.

    On NVIDIA GPUs of compute capability 7.5, and if it is too wide for its GPU, a layer launches a
    matrix product and a kernel for each step.
    There float16 LSTM layers, and float32 layers of H up to about 128, are slower than cuDNN's, up
    to eight times. ``only_if_faster`` leaves such layers; time the model before and after.

    Args:
        model: a module; it may itself be an LSTM or a GRU.
        only_if_faster: leave float32 and float16 layers on a GPU that takes a product and a kernel
            for each of their steps, by the planner's choice for 16 rows of 128 steps. Move the
            model to its GPU and dtype first.

    Returns:
        What was replaced, and what was left, each with the reason: modules with projections or
        complex parameters; subclasses, which may override the forward pass; torch.nn's RNN,
        LSTMCell, GRUCell and RNNCell, which treadle does not have.

    Raises:
        TypeError: ``model`` is not a module.
        ImportError: ``only_if_faster`` needs treadle._C, which this package does not have for the
            running Python.

    Example::

        print(treadle.nn.replace(model))    # Replaced(replaced=['encoder.rnn'], left={})
    """
    replaced, left = [], {}
    for name, module in _modules(model, "replace"):
        if why := _why_left(module):
            left[name] = why
        elif isinstance(module, nn.RNNBase) and type(module) in _OURS:
            slower = why_maybe_slower(module) if only_if_faster else None
            if slower is not None:
                left[name] = slower
                continue
            module._update_flat_weights()
            module.__class__ = _OURS[type(module)]  # type: ignore[assignment]
            module._compared = True
            replaced.append(name)
    return Replaced(replaced, left)


def restore(model: nn.Module) -> Replaced:
    """Undo :func:`replace`: make every treadle.nn.LSTM and GRU in ``model`` torch's, in place.

    Args:
        model: a module.

    Returns:
        What was replaced; subclasses are left.

    Raises:
        TypeError: ``model`` is not a module.
    """
    replaced, left = [], {}
    for name, module in _modules(model, "restore"):
        torchs = _TORCHS.get(type(module))
        if torchs is not None:
            module.__class__ = torchs
            vars(module).pop("_compared", None)
            assert isinstance(module, nn.RNNBase)
            module._update_flat_weights()  # tensors left by functional_call have no memory
            module.flatten_parameters()  # cuDNN needs one block of memory, ours does not
            replaced.append(name)
        elif isinstance(module, (LSTM, GRU)):
            left[name] = f"{type(module).__name__} is a subclass"
    return Replaced(replaced, left)


def _why_left(module: nn.Module) -> str | None:
    """The reason why a recurrent module of torch's stays; None for any other module."""
    kind = type(module).__name__
    if isinstance(module, nn.RNN):
        return "treadle has no torch.nn.RNN"
    for cell in _CELLS:
        if isinstance(module, cell):
            return (
                f"treadle has no torch.nn.{cell.__name__}: its layers take whole sequences, and "
                "treadle.nn.make_step takes one step of a layer"
            )
    if not isinstance(module, (nn.LSTM, nn.GRU)) or isinstance(module, (LSTM, GRU)):
        return None
    if getattr(module, "proj_size", 0):
        return "it has projections (proj_size > 0)"
    if other := {p.dtype for p in module.parameters()} - _DTYPES:
        return f"it has parameters of {', '.join(sorted(map(dtype_name, other)))}"
    if parametrize.is_parametrized(module):
        return f"{kind} is parametrized: replace the model before that"
    if type(module) not in _OURS:
        name = "LSTM" if isinstance(module, nn.LSTM) else "GRU"
        return (
            f"{kind} is a subclass, whose forward pass may be its own; where it goes on to "
            f"torch.nn.{name}'s, class Ours({kind}, treadle.nn.{name}) goes on to treadle's: make "
            "the module of it, or set the module's __class__"
        )
    return None


def _modules(model: object, function: str) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"treadle.nn.{function}: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    return list(model.named_modules())
