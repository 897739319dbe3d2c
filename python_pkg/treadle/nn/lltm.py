"""LLTM: whole sequences through layers of cells, as a module."""

from __future__ import annotations

import math
import warnings
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..recurrent import lltm
from ._check import check_bool, check_count, check_probability
from .lltm_cell import check_hx, zeros

__all__ = ["LLTM"]

States = tuple[Tensor, Tensor]


class LLTM(nn.Module):
    """Layers of LLTM cells over whole sequences, called like :class:`torch.nn.LSTM`.

    See :func:`treadle.lltm_cell` for the formula of a step. ``h`` is bounded by ±1; ``c`` adds up
    over the steps and is never scaled down, so over long sequences of half-precision inputs start
    it in float32. docs/recurrent.md says how a GPU runs the steps.

    Args:
        input_size: I, the number of features of an input.
        hidden_size: H, the number of features of the hidden state and of the cell state.
        num_layers: each layer after the first reads the outputs of the one before.
        bias: False leaves the biases out.
        batch_first: inputs and outputs are [B, T, ...] instead of [T, B, ...]; not states.
        dropout: the probability of dropping an element of a layer's output in training; never
            of the last layer's.
        bidirectional: a second direction reads each sequence from its end. D is then 2, else 1.
        device: where the parameters are made; ``"meta"`` makes them without memory.
        dtype: of the parameters: float64, float32, float16 or bfloat16.
        recompute: keep less for the backward pass, and compute it there again;
            :func:`treadle.lltm` says how many bytes.

    Attributes:
        weight_ih_l0: [3H, I] (of later layers [3H, D*H]), the rows of the gates i, o and of the
            candidate z.
        weight_hh_l0: [3H, H].
        bias_l0: [3H]; torch.nn.LSTM has two. Missing if ``bias`` is False.

    Names of layer k end in ``_lk``, those of its second direction in ``_lk_reverse``. All are drawn
    from the uniform distribution over ±1/sqrt(H), and read at every call.

    Raises:
        TypeError, ValueError: an argument is not as above; sizes and ``num_layers`` are at least 1.

    Example::

        layer = treadle.nn.LLTM(8, 64, num_layers=2)
        output, (h, c) = layer(rows)        # [T, B, 8] -> [T, B, 64], [2, B, 64] each

    From one direction of one layer to an :class:`LLTMCell`, and back::

        weights = torch.cat([layer.weight_hh_l0, layer.weight_ih_l0], dim=1)
        cell.load_state_dict({"weights": weights, "bias": layer.bias_l0})

        hh, ih = cell.weights.split([cell.hidden_size, cell.input_size], dim=1)
        layer.load_state_dict({"weight_ih_l0": ih, "weight_hh_l0": hh, "bias_l0": cell.bias})
    """

    __constants__ = [
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "recompute",
    ]

    def __init__(
        self,
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
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.input_size = check_count("LLTM", "input_size", input_size)
        self.hidden_size = check_count("LLTM", "hidden_size", hidden_size)
        self.num_layers = check_count("LLTM", "num_layers", num_layers)
        self.bias = check_bool("LLTM", "bias", bias)
        self.batch_first = check_bool("LLTM", "batch_first", batch_first)
        self.dropout = check_probability("LLTM", "dropout", dropout)
        self.bidirectional = check_bool("LLTM", "bidirectional", bidirectional)
        self.recompute = check_bool("LLTM", "recompute", recompute)
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "LLTM: dropout acts between layers, so it needs num_layers greater than 1, "
                f"got dropout={self.dropout} and num_layers=1",
                stacklevel=2,
            )
        rows, directions = 3 * self.hidden_size, ("", "_reverse")[: self._directions()]
        self._all_weights: list[list[str]] = []  # a list for each layer and direction
        for layer in range(self.num_layers):
            columns = self.hidden_size * len(directions) if layer else self.input_size
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns)}
            shapes["weight_hh"] = rows, self.hidden_size
            if self.bias:
                shapes["bias"] = (rows,)
            for direction in directions:
                names = [f"{name}_l{layer}{direction}" for name in shapes]
                self._all_weights.append(names)
                for name, shape in zip(names, shapes.values(), strict=True):
                    parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                    self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, uniformly over ±1/sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of each layer and direction, as :class:`torch.nn.LSTM` lists its own."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Do nothing: it is there for programs that were written for :class:`torch.nn.LSTM`."""

    @overload
    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]: ...

    @overload
    def forward(
        self, input: PackedSequence, hx: States | None = None
    ) -> tuple[PackedSequence, States]: ...

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run whole sequences through all layers.

        Args:
            input: [T, B, I] ([B, T, I] if ``batch_first``), or [T, I] without a batch, or a
                ``PackedSequence``, its sequences in any order.
            hx: ``(h0, c0)``, each [num_layers * D, B, H] ([num_layers * D, H] without a batch), in
                the order of the sequences that were packed. ``c0`` may be float32 beside
                half-precision inputs, and c then stays so. None starts from zeros in the dtype of
                ``input``; under autocast c starts in float32 at least.

        Returns:
            ``output``: [T, B, D*H], [B, T, D*H], [T, D*H] or a ``PackedSequence``, as ``input`` is:
            the h of the last layer at every step, in the dtype of ``input`` (under autocast: the
            lower precision). ``(h_n, c_n)``: like ``hx``, after the last step of each sequence (of
            the second direction: its first). A sequence of no steps ends with ``hx``.

        Raises:
            ValueError, TypeError: a shape, or ``hx``, is not as above. (If sequences were packed
                already sorted, ``torch.compile`` does not detect an ``hx`` with too many rows:
                it returns the extra ones unchanged.)
            RuntimeError: dtypes or devices do not go together; :func:`treadle.lltm` says how.

        ``torch.compile`` cannot trace torch's ``pad_packed_sequence``: call it outside the
        compiled function.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_input(input)
        batched, batch_dim = input.dim() == 3, 0 if self.batch_first else 1
        states = self._states(input, hx, input.size(batch_dim) if batched else None)
        if not batched:
            input = input.unsqueeze(batch_dim)
            states = states[0].unsqueeze(1), states[1].unsqueeze(1)
        output, h_n, c_n = lltm(
            input,
            states,
            self._parameters_in_order(),
            self.bias,
            self.num_layers,
            self.dropout,
            self.training,
            self.bidirectional,
            self.batch_first,
            recompute=self.recompute,
        )
        if batched:
            return output, (h_n, c_n)
        return output.squeeze(batch_dim), (h_n.squeeze(1), c_n.squeeze(1))

    def _forward_packed(
        self, input: PackedSequence, hx: States | None
    ) -> tuple[PackedSequence, States]:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        if data.dim() != 2 or data.size(-1) != self.input_size:
            raise ValueError(
                f"LLTM: input.data must have shape [S, I] with I = {self.input_size}, "
                f"got {list(data.shape)}"
            )
        if sorted_indices is not None:
            batch = len(sorted_indices)
        elif hx is not None and torch.compiler.is_compiling():
            # batch_sizes[0] is a number that the compiler cannot compare. The op refuses too few
            # rows, and returns extra ones unchanged.
            batch = hx[0].size(1) if isinstance(hx[0], Tensor) and hx[0].dim() == 3 else 0
        else:
            batch = int(batch_sizes[0]) if len(batch_sizes) else 0
        states = self._states(data, hx, batch)
        if hx is not None:
            states = _permuted(states, sorted_indices)
        output, *last = lltm(
            data,
            batch_sizes,
            states,
            self._parameters_in_order(),
            self.bias,
            self.num_layers,
            self.dropout,
            self.training,
            self.bidirectional,
            recompute=self.recompute,
        )
        packed = PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices)
        return packed, _permuted((last[0], last[1]), unsorted_indices)

    def extra_repr(self) -> str:
        defaults = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "recompute": False,
        }
        given = {name: getattr(self, name) for name in defaults}
        words = [f"{name}={value}" for name, value in given.items() if value != defaults[name]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *words])

    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _parameters_in_order(self) -> list[Tensor]:
        # Read as attributes, so that nn.utils.parametrize and functional_call can replace them.
        return [getattr(self, name) for names in self._all_weights for name in names]

    def _check_input(self, input: object) -> None:
        if not isinstance(input, Tensor):
            raise TypeError(
                f"LLTM: input must be a tensor or a PackedSequence, got {type(input).__name__}"
            )
        if input.dim() not in (2, 3) or input.size(-1) != self.input_size:
            letters = "[B, T, I]" if self.batch_first else "[T, B, I]"
            raise ValueError(
                f"LLTM: input must have shape {letters} or [T, I] with I = {self.input_size}, "
                f"got {list(input.shape)}"
            )

    def _states(self, input: Tensor, hx: object, batch: int | None) -> States:
        """``hx``, checked, or zeros. Without a dimension for the batch if ``batch`` is None."""
        count = self.num_layers * self._directions()
        letters = "[num_layers * D, H]" if batch is None else "[num_layers * D, B, H]"
        shape = (count, *(() if batch is None else (batch,)), self.hidden_size)
        return (
            zeros(input, shape)
            if hx is None
            else check_hx("LLTM", ("h0", "c0"), hx, letters, shape)
        )


def _permuted(states: States, indices: Tensor | None) -> States:
    """The states in another order of the batch."""
    if indices is None:
        return states
    return states[0].index_select(1, indices), states[1].index_select(1, indices)
