"""The methods that treadle.nn.replace sets on a module of torch.nn, which keeps its class."""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import ref

from torch import Tensor, nn

from ._cell_front import GRU_CELL, LSTM_CELL, RNN_CELL, CellFront, TorchCell
from ._sequence import Front, SequenceLayers, load
from ._torch_front import GRU_FRONT, LSTM_FRONT, RNN_FRONT, TorchFront

__all__ = [
    "GRUCellMethods",
    "GRUMethods",
    "LSTMCellMethods",
    "LSTMMethods",
    "Methods",
    "RNNCellMethods",
    "RNNMethods",
    "Replaceable",
    "front_of",
    "methods_of",
]


def _read_as(torchs: Any, ours: Any) -> Callable[..., Any]:
    """Returns ``ours`` in a form for which TorchScript compiles torch's method ``torchs`` instead.

    TorchScript does not call a method but compiles its source. functools.update_wrapper makes
    TorchScript read the source of ``torchs``. TorchScript looks up names in the globals of a
    function, so the result has the globals of ``torchs``.
    """
    made = FunctionType(ours.__code__, torchs.__globals__, ours.__name__)
    made.__kwdefaults__, made.__defaults__ = ours.__kwdefaults__, ours.__defaults__
    functools.update_wrapper(made, torchs)
    made.__doc__ = ours.__doc__
    made.__signature__ = inspect.signature(ours)  # type: ignore[attr-defined]
    return made


class Methods:
    """Methods of a module that replace those of its class.

    They are attributes of the module, bound to an object of this class. A module that is copied or
    loaded from a file gets an object of its own. The object has only a weak reference to the
    module; otherwise a deleted module would keep its memory until Python collects cycles.
    """

    names: tuple[str, ...] = ("forward", "_replicate_for_data_parallel")  # replaced methods
    _front: TorchFront | CellFront
    forward: Callable[..., Any]

    def __init__(self, layer: nn.Module) -> None:
        self._ref = ref(layer)

    @property
    def layer(self) -> Any:
        layer = self._ref()
        if layer is None:
            raise RuntimeError(
                f"{self._front.name}: the module must still exist when its forward is called, got "
                "the forward of a deleted module"
            )
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> Methods:
        return type(self)(copy.deepcopy(self.layer, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layer,)

    def _called(self, *args: Any) -> Any:
        return self._front.called(self.layer, *args)

    def _replicate_for_data_parallel(self) -> Any:
        replica = type(self.layer)._replicate_for_data_parallel(self.layer)
        put(type(self), replica)
        return replica


class LayerMethods(Methods):
    names = (*Methods.names, "flatten_parameters", "extra_repr", "_load_from_state_dict")
    _front: TorchFront
    _set_compiler = SequenceLayers._set_compiler

    def flatten_parameters(self) -> None:
        """Does nothing; see treadle.nn.LSTM."""

    def extra_repr(self) -> str:
        words: str = type(self.layer).extra_repr(self.layer)
        return f"{words}, recompute=True" if self.layer.recompute else words

    def _load_from_state_dict(self, *args: Any) -> None:
        layer = self.layer
        own = functools.partial(type(layer)._load_from_state_dict, layer)
        load(layer, self._front, own, *args)


class LSTMMethods(LayerMethods):
    _front, forward = LSTM_FRONT, _read_as(nn.LSTM.forward, SequenceLayers.forward)


class GRUMethods(LayerMethods):
    _front, forward = GRU_FRONT, _read_as(nn.GRU.forward, SequenceLayers.forward)


class RNNMethods(LayerMethods):
    _front, forward = RNN_FRONT, _read_as(nn.RNN.forward, SequenceLayers.forward)


class LSTMCellMethods(Methods):
    _front, forward = LSTM_CELL, _read_as(nn.LSTMCell.forward, TorchCell.forward)


class GRUCellMethods(Methods):
    _front, forward = GRU_CELL, _read_as(nn.GRUCell.forward, TorchCell.forward)


class RNNCellMethods(Methods):
    _front, forward = RNN_CELL, _read_as(nn.RNNCell.forward, TorchCell.forward)


def put(kind: type[Methods], module: nn.Module) -> None:
    methods = kind(module)
    vars(module).update({name: getattr(methods, name) for name in methods.names})
    if isinstance(methods, LayerMethods):
        vars(module).setdefault("recompute", False)


def remove(module: nn.Module) -> None:
    for name in LayerMethods.names:
        vars(module).pop(name, None)
    if vars(module).get("recompute") is False:
        del vars(module)["recompute"]


def methods_of(module: object) -> Methods | None:
    """The Methods that replace() set on this module, or None. A shallow copy of a replaced module
    has only the Methods of the original, so the result is None."""
    own = getattr(module, "__dict__", {}).get("_replicate_for_data_parallel")
    found = getattr(own, "__self__", None)
    return found if isinstance(found, Methods) and found._ref() is module else None


def is_forward_ours(module: nn.Module) -> bool:
    return isinstance(getattr(vars(module).get("forward"), "__self__", None), Methods)


def parameters_of(layer: nn.Module) -> list[Tensor]:
    """The parameters of a treadle layer, in the order that its op expects."""
    front = front_of(layer)
    assert front is not None
    return front.parameters(layer)


def front_of(module: object) -> Front | None:
    """The Front of a treadle layer or of a replaced layer; None for any other object."""
    if isinstance(module, SequenceLayers):
        return module._front
    methods = methods_of(module)
    return methods._front if isinstance(methods, LayerMethods) else None


class Replaceable(ABCMeta):
    """The metaclass of treadle.nn's LSTM, GRU, RNN and their cells. It makes isinstance true for
    replaced modules.

    It derives from ABCMeta, because a user's subclass may have another base class with abstract
    methods, and the metaclasses of its bases must be compatible.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if super().__instancecheck__(instance):
            return True
        own = vars(cls).get("_front")  # the class's own, not one that it inherits
        methods = methods_of(instance)
        return own is not None and methods is not None and methods._front is own
