"""Exceptions with two base classes: the one that torch.nn's LSTM and GRU raise for the same
mistake, and the one that describes the mistake best.

Programs written for torch.nn catch the first base, whose name is in ``__name__``. Tracebacks and
pickle use ``__qualname__``.
"""

from __future__ import annotations


class ShapeError(RuntimeError, ValueError):
    """A tensor has the wrong shape."""


class DtypeError(ValueError, RuntimeError):
    """An input has another dtype than the parameters."""


class ParameterDtypeError(RuntimeError, ValueError):
    """Parameters cannot have this dtype."""


class NoTensorError(AttributeError, TypeError):
    """An argument that is not a tensor. torch.nn fails when it looks up a tensor's attribute."""


class StateCountError(RuntimeError, TypeError):
    """Too many states, or one tensor in place of a pair."""


class FewStatesError(IndexError, StateCountError):
    """Too few states."""


for _error in (
    ShapeError,
    DtypeError,
    ParameterDtypeError,
    NoTensorError,
    StateCountError,
    FewStatesError,
):
    _error.__name__ = _error.__bases__[0].__name__
