"""Puts treadle's LSTM and GRU into a model in place of torch's, and takes them out again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .._check_tensor import dtype_name
from .rnn import GRU, LSTM

__all__ = ["Replaced", "replace", "restore"]

_OURS: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: LSTM, nn.GRU: GRU}
_TORCHS = {ours: torchs for torchs, ours in _OURS.items()}
_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Replaced:
    """Names of modules, as ``named_modules`` has them; "" is the model itself.

    Attributes:
        replaced: those that are of another class now.
        left: those that stay as they are, each with the reason.
    """

    replaced: list[str]
    left: dict[str, str]


def replace(model: nn.Module) -> Replaced:
    """Make every torch.nn.LSTM and torch.nn.GRU in ``model`` treadle's, in place.

    The modules are the same objects with another class: parameters, hooks, buffers, ties and
    references to them stay. ``recompute`` is off; set it on a module to switch it on.

    On NVIDIA GPUs before Hopper (compute capability below 9.0) a layer launches a matrix product
    and a kernel for each step. There float16 LSTM layers, and float32 layers of H up to about 128,
    are slower than cuDNN's, up to 16 times; time the model before and after.

    Args:
        model: a module; it may itself be an LSTM or a GRU.

    Returns:
        What was replaced, and what was left: modules with projections or complex parameters, and
        subclasses, whose forward pass may be their own. What looks for torch's very classes, as
        ``torch.ao.quantization.quantize_dynamic``, finds none: call :func:`restore` first.

    Raises:
        TypeError: ``model`` is not a module.

    Example::

        print(treadle.nn.replace(model))    # Replaced(replaced=['encoder.rnn'], left={})
    """
    replaced, left = [], {}
    for name, module in _modules(model, "replace"):
        ours = _OURS.get(type(module))
        if ours is None:
            if isinstance(module, (nn.LSTM, nn.GRU)) and type(module) not in _TORCHS:
                left[name] = f"{type(module).__name__} is a subclass"
        elif getattr(module, "proj_size", 0):
            left[name] = "it has projections (proj_size > 0)"
        elif other := {p.dtype for p in module.parameters()} - _DTYPES:
            left[name] = f"it has parameters of {', '.join(sorted(map(dtype_name, other)))}"
        else:
            module.__class__ = ours
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
            assert isinstance(module, nn.RNNBase)
            module.flatten_parameters()  # cuDNN's one piece of memory, which ours never asked for
            replaced.append(name)
        elif isinstance(module, (LSTM, GRU)):
            left[name] = f"{type(module).__name__} is a subclass"
    return Replaced(replaced, left)


def _modules(model: object, function: str) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"treadle.nn.{function}: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    return list(model.named_modules())
