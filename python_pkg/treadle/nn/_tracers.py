"""How the modules behave under tracers: torch.fx, TorchScript, torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch.fx
from torch import nn
from torch.nn.utils import rnn

PAD_REASON = (
    "torch cannot trace this function; treadle's recurrent layers take lengths= instead, and then "
    "need neither packing nor padding"
)

DEFAULTS = (None, False)  # of the keyword arguments of modules
# Whether torch.jit.trace is running. torch._C also has such a function, but torch.compile cannot
# call it.
is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]


def fx_leaf(module: Any, input: object, *args: object, **kwargs: object) -> Any:
    """The node that calls ``module`` in torch.fx's graph, or None if torch.fx is not tracing.

    By default torch.fx treats only modules of torch.nn as leaves, and traces into all others.
    """
    first = input.data if isinstance(input, rnn.PackedSequence) else input
    if not isinstance(first, torch.fx.Proxy):
        return None
    tracer: Any = first.tracer
    path = tracer.path_of_module(module)
    if not path:
        raise TypeError(
            f"{type(module).__name__} is a leaf of torch.fx graphs; trace a module that contains it"
        )
    # Values are compared by identity, because == of a Proxy adds a node to the graph.
    given = {key: value for key, value in kwargs.items() if not any(value is d for d in DEFAULTS)}
    return tracer.create_proxy("call_module", path, (input, *args), given)


def differs(found: object, wanted: object) -> bool:
    """Whether sizes differ; False while torch.jit.trace runs.

    During tracing a size is a tensor, and comparing it warns. The op checks sizes anyway.
    """
    return not is_tracing() and found != wanted


def _refuse_script(module: nn.Module) -> NoReturn:
    torchs = isinstance(module, (nn.LSTM, nn.GRU, nn.RNN, nn.RNNCellBase))
    torchs = torchs and getattr(module, "groups", 1) == 1
    way = ", or scripted after treadle.nn.restore(model)" if torchs else ""
    raise RuntimeError(
        f"{type(module).__name__}: the model must be exported by torch.export or traced by "
        f"torch.jit.trace{way}, got torch.jit.script, which cannot read this module"
    )


class _RefusesScript:
    """An attribute that raises if read from a module, and is an empty list on the class."""

    def __get__(self, module: nn.Module | None, owner: object) -> list[str]:
        return [] if module is None else _refuse_script(module)


class NotScripted:
    """A module that raises an error with an explanation if TorchScript tries to read it."""

    # torch.jit.script first calls this method of every module.
    __prepare_scriptable__ = _refuse_script
    # A torch.jit.ScriptModule does not call that method. It first reads this attribute of its
    # submodules.
    __jit_ignored_attributes__ = _RefusesScript()

    def __dir__(self) -> list[str]:
        # torch.jit.trace, inspect.getmembers and debuggers read every attribute that is listed.
        return [name for name in super().__dir__() if name != "__jit_ignored_attributes__"]


def break_graphs_at_pad() -> None:
    """Make Dynamo skip pad_packed_sequence, as it skips pack_padded_sequence.

    In torch 2.15 Dynamo skips both. Older versions trace pad_packed_sequence and raise, because the
    sizes of its results depend on the data. With a torch.nn.LSTM this never happens, because Dynamo
    skips the whole function that calls the module.
    """
    pad: Any = rnn.pad_packed_sequence
    # A program that uses torch.compile has already imported torch._dynamo. The attributes set here
    # are those that torch.compiler.disable would set.
    if "torch._dynamo" in sys.modules and not hasattr(pad, "_torchdynamo_disable"):
        pad._torchdynamo_disable, pad._torchdynamo_disable_msg = True, PAD_REASON


# With this attribute, torch.compile calls the function and treats its result as a constant. The
# decorator torch.compiler.assume_constant_result sets it too, but its import takes a second.
break_graphs_at_pad._dynamo_marked_constant = True  # type: ignore[attr-defined]
