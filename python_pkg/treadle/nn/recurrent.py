"""Recurrent: layers of a treadle.Cell, as a module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._check.tensors import dtype_name
from .._formula.cell import Cell
from ._check import (
    HALVES,
    check_bool,
    check_count,
    check_dtype,
    check_groups,
    check_probability,
)
from ._sequence import Front, Options, SequenceLayers, States
from ._tracers import differs

__all__ = ["Recurrent"]


class CellFront(Front):
    """The forward pass of layers of one cell."""

    def __init__(self, cell: Cell) -> None:
        states = ("h0", *(f"{state}0" for state in cell.states))
        super().__init__(cell.name, states, torch.ops.treadle.recurrent_layers.default)
        self.cell = cell
        self.reset_states = tuple(f"{state[:-1]} of reset_hx" for state in states)

    def run(
        self,
        layer: Any,
        input: tuple[Tensor, ...],
        states: States | None,
        net: tuple[Any, ...],
        rest: tuple[bool, ...],
        options: Options,
    ) -> tuple[Tensor, ...]:
        if options.return_cells:
            raise ValueError(
                f"{self.name}: return_cells must be False, got True: layers of a Cell do not "
                "support this argument"
            )
        data, batch_sizes = input if len(input) == 2 else (*input, None)
        parameters, values = self._divided(layer, net[0])
        starts = _joined(self.name, self.states, states or ())
        others = _joined(self.name, self.reset_states, options.reset_hx)
        if values is not None:
            if options.reset is not None and not others:
                others = [torch.zeros_like(start) for start in starts]
            starts, others = _with_values(starts, values), _with_values(others, values)
        found = self.op(
            data,
            batch_sizes,
            starts,
            parameters,
            *net[1:],
            *(rest or (False,)),
            cell=self.cell.key,
            recompute=layer.recompute,
            reset=options.reset,
            reset_hx=others or None,
            lengths=options.lengths,
        )
        if len(self.cell.parts) < 2:
            return found
        output, h, c = found
        states = c.chunk(len(self.cell.parts), -1)[: len(self.cell.states)]
        # Copies, because torch does not let a caller change the results of chunk in place.
        return (output, h, *(state.clone() for state in states))

    def _divided(self, layer: Any, parameters: list[Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """The op's parameters, and the cell's V values [num_layers * D, V * H], or None."""
        if not self.cell.values:
            return parameters, None
        own = 4 if layer.bias else 2
        each = own + len(self.cell.values)
        at = range(0, len(parameters), each)
        values = torch.stack([torch.cat(parameters[i + own : i + each]) for i in at])
        return [p for i in at for p in parameters[i : i + own]], values

    def op_makes_zeros(self, input: Tensor) -> bool:
        return not self.cell.values and super().op_makes_zeros(input)


def _with_values(states: list[Tensor], values: Tensor) -> list[Tensor]:
    """h and c for the op, where c also has the values. If h is the only state, c begins with h."""
    if not states:
        return []
    h = states[0]
    # Between steps, h of half types is in float32.
    c = states[1] if len(states) > 1 else h.float() if h.dtype in HALVES else h
    wide = values.to(c.dtype).view(len(values), *[1] * (c.dim() - 2), -1)
    return [h, torch.cat([c, wide.expand(*c.shape[:-1], -1)], -1)]


def _joined(name: str, names: tuple[str, ...], states: States) -> list[Tensor]:
    """h and c for the op. c has the K states besides h side by side: [num_layers * D, B, K * H]."""
    if len(states) < 3:
        return list(states)
    first = states[1]
    for state, own in zip(states[2:], names[2:], strict=True):
        if differs(tuple(state.shape), tuple(first.shape)):
            raise ValueError(
                f"{name}: {own} must have the shape of {names[1]}, "
                f"{list(first.shape)}, got {list(state.shape)}"
            )
        if state.dtype != first.dtype or state.device != first.device:
            raise RuntimeError(
                f"{name}: {own} must have the dtype and device of {names[1]}, "
                f"{dtype_name(first.dtype)} on {first.device}, got {dtype_name(state.dtype)} on "
                f"{state.device}"
            )
    return [states[0], torch.cat(states[1:], -1)]


class Recurrent(SequenceLayers, nn.Module):
    """Layers of a :class:`treadle.Cell`, with the interface of :class:`torch.nn.LSTM`.

    Args:
        cell: the cell.
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.LSTM.
        groups: the number of diagonal blocks of each gate's part of W_hh, a divisor of hidden_size.
            A hidden unit then reads only the h of its own group of H / groups adjacent units.
        recompute: save less for the backward pass, which then recomputes the rest.

    The parameters of each layer and direction have the names of torch.nn.LSTM's. ``weight_ih_l0``
    [G_i H, I] and ``bias_ih_l0`` [G_i H] have a block of H rows for each of the G_i gates that are
    computed from the input. ``weight_hh_l0`` [G_h H, H / groups] and ``bias_hh_l0`` [G_h H] have a
    block for each of the G_h gates that are computed from h. Blocks are in the order of
    ``cell.gates``. Each of the cell's learned values is a parameter [H], such as ``decay_l0`` for
    ``values=("decay",)``. All are drawn from the uniform distribution over ±1/sqrt(H).

    A call takes and returns ``h`` or, if the cell has other states, a tuple of h and these states.
    Each is [num_layers * D, B, H], where D is 2 if bidirectional, else 1.

    Raises:
        TypeError, ValueError: an argument is not as above.
    """

    _groups = "groups"  # the name of this argument in a subclass, for errors

    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        groups: int = 1,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(cell, Cell):
            raise TypeError(f"{name}: cell must be a treadle.Cell, got {type(cell).__name__}")
        self.cell = cell
        self.input_size = check_count(name, "input_size", input_size)
        self.hidden_size = check_count(name, "hidden_size", hidden_size)
        self.num_layers = check_count(name, "num_layers", num_layers)
        self.groups = check_groups(name, groups, self.hidden_size, self._groups)
        check_dtype(name, dtype)
        self.dropout = check_probability(name, "dropout", dropout)
        self.bias = check_bool(name, "bias", bias)
        self.batch_first = check_bool(name, "batch_first", batch_first)
        self.bidirectional = check_bool(name, "bidirectional", bidirectional)
        self.recompute = check_bool(name, "recompute", recompute)
        self._front = CellFront(cell)
        self._all_weights = []
        directions = 2 if bidirectional else 1
        for layer in range(num_layers):
            features = input_size if layer == 0 else hidden_size * directions
            for suffix in ("", "_reverse")[:directions]:
                shapes = {
                    "weight_ih": (cell.input_gates * hidden_size, features),
                    "weight_hh": (cell.state_gates * hidden_size, hidden_size // groups),
                    "bias_ih": (cell.input_gates * hidden_size,),
                    "bias_hh": (cell.state_gates * hidden_size,),
                    **{value: (hidden_size,) for value in cell.values},
                }
                names = []
                for name, shape in shapes.items():
                    if name in ("bias_ih", "bias_hh") and not bias:
                        continue
                    names.append(f"{name}_l{layer}{suffix}")
                    value = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(names[-1], nn.Parameter(value))
                self._all_weights.append(names)
        self.reset_parameters()

    def flatten_parameters(self) -> None:
        """Do nothing: kernels read each parameter where it is."""

    def reset_parameters(self) -> None:
        """Draw all parameters again, uniformly over ±1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_front"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._front = CellFront(self.cell)

    def _load_from_state_dict(self, *args: Any) -> None:
        # The other layers raise if weights look like those of another cell. This one does not,
        # because a formula's weights may look like those of any cell.
        nn.Module._load_from_state_dict(self, *args)

    def extra_repr(self) -> str:
        words = [f"{self.cell}, {self.input_size}, {self.hidden_size}"]
        given = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        given |= {"bidirectional": False, "groups": 1, "recompute": False}
        words += [
            f"{name}={getattr(self, name)}"
            for name, default in given.items()
            if getattr(self, name) != default
        ]
        return ", ".join(words)
