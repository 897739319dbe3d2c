"""LSTM and GRU: torch.nn's modules on treadle's kernels."""

from __future__ import annotations

from numbers import Integral
from operator import is_
from typing import Any, Literal, overload
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ..recurrent import gru, lstm
from ._check import check_bool, check_dtype
from ._sequence import SequenceLayers

__all__ = ["GRU", "LSTM"]

Pair = tuple[Tensor, Tensor]


class _TorchLayers(SequenceLayers):
    """The interface of torch.nn.RNNBase, with the forward pass of SequenceLayers."""

    # The default for modules that were made as torch's and then replaced (treadle.nn.replace).
    recompute = False
    # Whether _flat_weight_refs is known to be of the parameters, which is no longer so once one is
    # set. Until a forward pass has compared them, False.
    _compared = False

    # What torch.nn.RNNBase keeps of the parameters.
    _flat_weights: list[Any]
    _flat_weights_names: list[str]
    _flat_weight_refs: list[Any]

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        own = self.__dict__
        if "_compared" in own and name in own["_flat_weights_names"]:
            del own["_compared"]

    def _parameters_in_order(self) -> list[Tensor]:
        own: dict[str, Tensor] = self._parameters  # type: ignore[attr-defined]
        flat = self._flat_weights
        if self._compared and all(map(is_, map(own.get, self._flat_weights_names), flat)):
            return flat
        return self._compare_weights()

    def _compare_weights(self) -> list[Tensor]:
        """The parameters; or _flat_weights, which counts where it was written to and no parameter
        has become another tensor since the last call. It is the rule of torch.nn.RNNBase."""
        found, own = super()._parameters_in_order(), self.__dict__
        pairs = zip(self._flat_weight_refs, found, strict=True)
        changed = any(r is not None and r() is not weight for r, weight in pairs)
        if torch.compiler.is_compiling():
            return found if changed else self._flat_weights  # what it traces with is not to stay
        if changed:
            held = own["_parameters"]
            if not all(name in held or name in own for name in self._flat_weights_names):
                return found  # nn.utils.parametrize computes one at every call
            self._flat_weights, self._flat_weight_refs = found, [ref(w) for w in found]
        self._compared = True
        return self._flat_weights

    def flatten_parameters(self) -> None:
        """Nothing: the kernels read weights where they are. As torch does it for cuDNN, all of them
        become views of one piece of memory, which safetensors refuses to load into."""

    def extra_repr(self) -> str:
        words: str = super().extra_repr()  # type: ignore[misc]
        return f"{words}, recompute=True" if self.recompute else words


class LSTM(_TorchLayers, nn.LSTM):
    """:class:`torch.nn.LSTM` on treadle's kernels: one launch for all steps, any derivative.

    Parameters, their names and initialisation, ``state_dict``, arguments and results are
    torch's, and so is this class by ``isinstance``; :func:`treadle.nn.replace` turns the modules of
    a finished model into it. Derivatives beyond torch's: double backward, forward mode, vmap.
    torch.compile breaks the graph at every such module unless torch._dynamo.config.allow_rnn is
    True; torch.export does not.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as torch.nn.LSTM.
        proj_size: 0; torch.nn.LSTM has projections.
        recompute: keep less for the backward pass, and compute it there again;
            :func:`treadle.lstm` says how many bytes.

    Raises:
        ValueError: ``proj_size`` is not 0. Others: as torch.nn.LSTM.

    Example::

        layer = treadle.nn.LSTM(8, 64, num_layers=2)
        output, (h, c) = layer(rows)        # [T, B, 8] -> [T, B, 64], [2, B, 64] each
    """

    _name, _states, _op = "LSTM", ("h0", "c0"), lstm

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        recompute: bool = False,
    ) -> None:
        if not isinstance(proj_size, Integral):
            raise TypeError(f"LSTM: proj_size must be an integer, got {proj_size!r}")
        if proj_size:
            raise ValueError(
                f"LSTM: proj_size must be 0, got {proj_size}: torch.nn.LSTM has projections"
            )
        check_dtype("LSTM", dtype)
        # Not nn.LSTM's, which may by now be this class: some put it there.
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self.bidirectional = check_bool("LSTM", "bidirectional", bidirectional)
        self.recompute = check_bool("LSTM", "recompute", recompute)
        self._compared = True

    @overload
    def forward(
        self,
        input: Tensor,
        hx: Pair | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: Pair | None = None,
        lengths: Tensor | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[Tensor, Pair]: ...

    @overload
    def forward(
        self,
        input: Tensor,
        hx: Pair | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: Pair | None = None,
        lengths: Tensor | None = None,
        return_cells: Literal[True],
    ) -> tuple[Tensor, Pair, Tensor]: ...

    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: Pair | None = None,
        *,
        reset: Tensor | PackedSequence | None = None,
        reset_hx: Pair | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[PackedSequence, Pair]: ...

    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: Pair | None = None,
        *,
        reset: Tensor | PackedSequence | None = None,
        reset_hx: Pair | None = None,
        return_cells: Literal[True],
    ) -> tuple[PackedSequence, Pair, PackedSequence]: ...

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        reset: Any = None,
        reset_hx: Any = None,
        lengths: Any = None,
        return_cells: bool = False,
    ) -> Any:
        """Run whole sequences through all layers.

        Args:
            input: [T, B, I] ([B, T, I] if ``batch_first``), or [T, I] without a batch, or a
                ``PackedSequence``, its sequences in any order.
            hx: ``(h0, c0)``, each [num_layers * D, B, H] ([num_layers * D, H] without a batch);
                ``c0`` may be float32 with half-precision inputs, and c then stays so. None starts
                from zeros.
            reset: [T, B] bool ([B, T] if ``batch_first``; [T] without a batch; for a
                ``PackedSequence`` another of marks, or [S] in the order of its data): where it is
                true, the sequence resets. :func:`treadle.lstm` says how.
            reset_hx: what it begins with instead of zeros: as ``hx``, or one for each step,
                [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``).
            lengths: [B], int64 or int32 on the device of ``input`` ([] without a batch), instead of
                packing: the number of steps of each sequence. :func:`treadle.lstm` says what
                happens in the padding and for other values.
            return_cells: whether to return c of all steps, too, as a last result.

        Returns:
            ``output``, ``(h_n, c_n)`` as torch.nn.LSTM; and ``cells``, in the form of ``output``,
            if ``return_cells``.

        Raises:
            ValueError, TypeError: a shape, or ``hx``, is not as above.
            RuntimeError: dtypes or devices do not go together; :func:`treadle.lstm` says how.
            Each is of the class that torch.nn.LSTM raises, too.
        """
        return self._forward(input, hx, reset, reset_hx, lengths, return_cells)


class GRU(_TorchLayers, nn.GRU):
    """:class:`torch.nn.GRU` on treadle's kernels: one launch for all steps, any derivative.

    Parameters, their names and initialisation, ``state_dict``, arguments and results are
    torch's, and so is this class by ``isinstance``; :func:`treadle.nn.replace` turns the modules of
    a finished model into it. Derivatives beyond torch's: double backward, forward mode, vmap.
    torch.compile breaks the graph at every such module unless torch._dynamo.config.allow_rnn is
    True; torch.export does not.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as torch.nn.GRU.
        recompute: keep less for the backward pass, and compute it there again;
            :func:`treadle.gru` says how many bytes.
        proj_size: refused, as by torch.nn.GRU.

    Raises:
        As torch.nn.GRU.

    Example::

        layer = treadle.nn.GRU(8, 64, num_layers=2)
        output, h = layer(rows)             # [T, B, 8] -> [T, B, 64], [2, B, 64]
    """

    _name, _states, _op = "GRU", ("h0",), gru

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
        proj_size: None = None,
    ) -> None:
        if proj_size is not None:
            raise ValueError(
                f"GRU: proj_size must not be given, got {proj_size}: torch.nn.LSTM has projections"
            )
        check_dtype("GRU", dtype)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self.bidirectional = check_bool("GRU", "bidirectional", bidirectional)
        self.recompute = check_bool("GRU", "recompute", recompute)
        self._compared = True

    @overload
    def forward(
        self,
        input: Tensor,
        hx: Tensor | None = None,
        *,
        reset: Tensor | None = None,
        reset_hx: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def forward(
        self,
        input: PackedSequence,
        hx: Tensor | None = None,
        *,
        reset: Tensor | PackedSequence | None = None,
        reset_hx: Tensor | None = None,
    ) -> tuple[PackedSequence, Tensor]: ...

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        reset: Any = None,
        reset_hx: Any = None,
        lengths: Any = None,
        return_cells: bool = False,
    ) -> Any:
        """Run whole sequences through all layers.

        Args:
            input: [T, B, I] ([B, T, I] if ``batch_first``), or [T, I] without a batch, or a
                ``PackedSequence``, its sequences in any order.
            hx: h0 [num_layers * D, B, H] ([num_layers * D, H] without a batch). None starts from
                zeros.
            reset: [T, B] bool ([B, T] if ``batch_first``; [T] without a batch; for a
                ``PackedSequence`` another of marks, or [S] in the order of its data): where it is
                true, the sequence resets. :func:`treadle.lstm` says how.
            reset_hx: what it begins with instead of zeros: as ``hx``, or one for each step,
                [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``).
            lengths: [B], int64 or int32 on the device of ``input`` ([] without a batch), instead of
                packing: the number of steps of each sequence. :func:`treadle.gru` says what
                happens in the padding and for other values.
            return_cells: False; the state of each step is the output.

        Returns:
            ``output``, ``h_n`` as torch.nn.GRU.

        Raises:
            ValueError, TypeError: a shape, or ``hx``, is not as above.
            RuntimeError: dtypes or devices do not go together; :func:`treadle.gru` says how.
            Each is of the class that torch.nn.GRU raises, too.
        """
        return self._forward(input, hx, reset, reset_hx, lengths, return_cells)
