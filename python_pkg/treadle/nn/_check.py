"""Checks of arguments, shared by the modules.

Errors have the same form as those of ops: ``<module>: <argument> must <rule>, got <fact>``. An
exception is the error of torch's layers for an input of another dtype.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .._check.tensors import check_bool as check_bool
from .._check.tensors import check_tensor, dtype_name, refuse_strided
from ._errors import (
    DtypeError,
    FewStatesError,
    NoTensorError,
    ParameterDtypeError,
    ShapeError,
    StateCountError,
)
from ._tracers import differs

_CASTS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
}

# The modules whose error for a wrong dtype is that of torch's class.
_TORCHS_LAYERS = ("LSTM", "GRU", "RNN")

HALVES = (torch.float16, torch.bfloat16)


def check_count(module: str, name: str, count: object, least: int = 1) -> int:
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"{module}: {name} must be an integer of at least {least}, got {count!r}")
    if count < least:
        raise ValueError(f"{module}: {name} must be an integer of at least {least}, got {count!r}")
    # torch.compile cannot read a NumPy integer, so the result is Python's.
    return int(count)


def check_groups(module: str, groups: object, hidden_size: int, name: str = "groups") -> int:
    found = check_count(module, name, groups)
    if hidden_size % found != 0:
        raise ValueError(f"{module}: {name} must divide hidden_size, {hidden_size}, got {found}")
    return found


def check_probability(module: str, name: str, value: object) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= 1:
        raise ValueError(f"{module}: {name} must be a number between 0 and 1, got {value!r}")
    return float(value)


def check_omega(module: str, name: str, omega: object, zero: bool = False) -> float:
    """Returns ``omega`` as a float. It must be finite, and may be 0 only if ``zero``."""
    if not isinstance(omega, Real) or isinstance(omega, bool):
        raise TypeError(f"{module}: {name} must be a number, got {omega!r}")
    if not math.isfinite(omega) or (omega == 0 and not zero):
        rule = "a finite number" if zero else "a finite number other than 0"
        raise ValueError(f"{module}: {name} must be {rule}, got {omega!r}")
    return float(omega)


def check_dtype(module: str, dtype: object) -> None:
    """Raises unless parameters can have this dtype. None means torch's default dtype."""
    if dtype is None:
        return
    rule = f"{module}: dtype must be float64, float32, float16 or bfloat16, got"
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{rule} {dtype!r}")
    if dtype not in _CASTS:
        raise ParameterDtypeError(f"{rule} {dtype_name(dtype)}")


def check_features(module: str, letters: str, input: Tensor) -> None:
    """Raises unless ``input`` is floating-point or complex. Without this check, a tensor of indices
    [T, B] would be taken for features [T, I]."""
    if not input.is_floating_point() and not input.is_complex():
        raise DtypeError(
            f"{module}: input must be features of shape {letters}, got "
            f"{dtype_name(input.dtype)} of shape {list(input.shape)}: pass indices "
            "through a torch.nn.Embedding first"
        )


def check_same_dtype(module: str, name: str, input: Tensor, weight: Tensor) -> None:
    """Raises if ``input`` has another dtype than the parameters, such as NumPy's float64."""
    found, wanted = input.dtype, weight.dtype
    if found == wanted or wanted not in _CASTS:
        return
    device = input.device.type
    castable = (found == torch.float64) == (wanted == torch.float64)
    if castable and device != "meta" and torch.is_autocast_enabled(device):
        return  # the op decides what is cast
    if module in _TORCHS_LAYERS and name == "input":
        raise DtypeError(  # what follows the colon is torch's message
            f"{module}: RNN input dtype ({found}) does not match weight dtype ({wanted}). "
            f"Convert input: input.to({wanted}), or convert model: model.to({found})"
        )
    # torch.nn.LSTM raises RuntimeError for a packed batch, because it lets its op check the dtype.
    error = RuntimeError if (module, name) == ("LSTM", "input.data") else DtypeError
    raise error(
        f"{module}: {name} must have the dtype of the parameters, {dtype_name(wanted)}, "
        f"got {dtype_name(found)}: call {name}.{_CASTS[wanted]}()"
    )


def check_rows(
    module: str, input: object, features: int, weight: Tensor | None, name: str = "input"
) -> None:
    """Raises unless ``input`` has shape [..., features] and, if ``weight`` is given, the dtype of
    ``weight``. Errors call the argument ``name``."""
    if not isinstance(input, Tensor):
        check_tensor(module, name, input)
        return  # a torch.fx proxy
    if input.is_nested and input.layout is torch.strided:
        refuse_strided(module, name)
    if weight is not None:
        check_same_dtype(module, name, input, weight)
    if input.dim() == 0 or differs(input.shape[-1], features):
        raise ValueError(
            f"{module}: {name} must have shape [..., {features}], got {list(input.shape)}"
        )


def check_hx(
    module: str,
    names: tuple[str, ...],
    hx: object,
    letters: str,
    shape: tuple[int, ...],
    projection: int = 0,
) -> tuple[Tensor, ...]:
    """Returns the states of ``hx``. Raises unless each has ``shape``, which errors show as
    ``letters``. If ``projection`` is not 0, it replaces H in the shape of h."""
    states: Any = (hx,)
    if len(names) > 1:
        if not isinstance(hx, (tuple, list)) or len(hx) != len(names):
            count = f" of length {len(hx)}" if isinstance(hx, (tuple, list)) else ""
            raise _wrong_count(hx, len(names), () if projection else shape)(
                f"{module}: hx must be {_several(names)} ({', '.join(names)}), "
                f"got {type(hx).__name__}{count}"
            )
        states = tuple(hx)
    for k, (name, state) in enumerate(zip(names, states, strict=True)):
        if not isinstance(state, Tensor):
            raise NoTensorError(f"{module}: {name} must be a tensor, got {type(state).__name__}")
        wanted, form = shape, letters
        if projection and k == 0:
            wanted, form = (*shape[:-1], projection), letters.replace("H]", "P]")
        if differs(tuple(state.shape), wanted):
            raise ShapeError(
                f"{module}: {name} must have shape {form} = {list(wanted)}, got {list(state.shape)}"
            )
    return states  # type: ignore[no-any-return]


def _several(names: tuple[str, ...]) -> str:
    return "a pair of tensors" if len(names) == 2 else f"a tuple of {len(names)} tensors"


def _wrong_count(hx: object, count: int, shape: tuple[int, ...]) -> type[Exception]:
    """The class that torch.nn raises for an ``hx`` that is not a sequence of ``count`` states.
    torch.nn treats a tensor as a sequence of its rows."""
    if isinstance(hx, Tensor):
        if hx.dim() == 0 or hx.size(0) < count:
            return FewStatesError
        return TypeError if tuple(hx.shape[1:]) == shape else StateCountError
    if isinstance(hx, (tuple, list)):
        return FewStatesError if len(hx) < count else StateCountError
    return NoTensorError


def check_resets(
    module: str, names: tuple[str, ...], reset: object, reset_hx: object
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Returns ``reset`` as a tensor or None, and the tuple of the states of ``reset_hx``, which is
    empty if ``reset_hx`` is None. The op checks shapes, dtypes and devices."""
    if isinstance(reset, PackedSequence):
        reset = reset.data
    if reset is not None and not isinstance(reset, Tensor):
        raise TypeError(
            f"{module}: reset must be a tensor, a PackedSequence or None, "
            f"got {type(reset).__name__}"
        )
    if reset_hx is None:
        return reset, ()
    if reset is None:
        raise TypeError(f"{module}: reset_hx must be given together with reset, got only reset_hx")
    states = (reset_hx,) if len(names) == 1 else reset_hx
    if not isinstance(states, (tuple, list)) or len(states) != len(names):
        count = f" of length {len(reset_hx)}" if isinstance(reset_hx, (tuple, list)) else ""
        raise TypeError(
            f"{module}: reset_hx must be {_several(names)} "
            f"({', '.join(name[:-1] for name in names)}), got {type(reset_hx).__name__}{count}"
        )
    for state in states:
        if not isinstance(state, Tensor):
            raise TypeError(f"{module}: reset_hx must hold tensors, got {type(state).__name__}")
    return reset, tuple(states)


def check_lengths(module: str, input: object, lengths: object) -> Tensor | None:
    """Returns ``lengths``. The op checks its shape, dtype and device."""
    if lengths is None:
        return None
    if isinstance(input, PackedSequence):
        raise TypeError(f"{module}: lengths must come with a padded input, got a PackedSequence")
    if not isinstance(lengths, Tensor):
        raise TypeError(f"{module}: lengths must be a tensor or None, got {type(lengths).__name__}")
    return lengths
