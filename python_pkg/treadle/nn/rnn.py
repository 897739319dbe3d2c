"""LSTM, GRU and RNN: torch.nn's modules on treadle's kernels."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ._check import check_bool, check_dtype, check_groups
from ._methods import Replaceable
from ._sequence import CellLayers, SequenceLayers
from ._torch_front import GRU_FRONT, LSTM_FRONT, RNN_FRONT

__all__ = ["GRU", "LSTM", "RNN"]


class _TorchLayers(SequenceLayers):
    """The interface of torch.nn.RNNBase, with the forward pass of SequenceLayers."""

    # The defaults for torch's modules whose __class__ was set to this class.
    recompute = False
    groups = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
        recompute: bool,
        groups: int,
        **kind: Any,
    ) -> None:
        name = self._front.name
        if not (isinstance(dtype, torch.dtype) and dtype.is_complex):  # torch runs complex layers
            check_dtype(name, dtype)
        # super() is called instead of nn.LSTM, because some programs replace nn.LSTM by this class.
        super().__init__(  # type: ignore[call-arg]
            input_size,
            hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            device=device if groups == 1 else "meta",
            dtype=dtype,
            **kind,
        )
        self.bidirectional = check_bool(name, "bidirectional", bidirectional)
        self.recompute = check_bool(name, "recompute", recompute)
        self.groups = check_groups(name, groups, self.hidden_size)
        if self.groups > 1:
            self._make_blocks(device)

    def _make_blocks(self, device: torch.device | str | int | None) -> None:
        """Makes the parameters of a module that was constructed on the meta device, with the
        columns of one block in each weight_hh."""
        layer: Any = self
        if layer.proj_size:
            raise ValueError(
                f"{self._front.name}: groups must be 1 with proj_size, got {self.groups}"
            )
        for name, whole in list(layer._parameters.items()):
            rows, *columns = whole.shape
            if name.startswith("weight_hh"):
                columns = [self.hidden_size // self.groups]
            made = torch.empty(rows, *columns, device=device, dtype=whole.dtype)
            setattr(self, name, nn.Parameter(made))
        layer._init_flat_weights()
        layer.reset_parameters()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "qconfig":  # torch.ao.quantization sets it on every module of a model
            warnings.warn(
                f"{self._front.name}: torch.ao.quantization leaves this module in floating point, "
                "because it quantizes only torch.nn's class: call treadle.nn.restore(model) first",
                stacklevel=2,
            )
        super().__setattr__(name, value)

    def flatten_parameters(self) -> None:
        """Does nothing, because the kernels read each weight where it is. For cuDNN, torch makes
        all weights views of one block of memory, into which safetensors cannot load."""

    def extra_repr(self) -> str:
        words: str = super().extra_repr()  # type: ignore[misc]
        words += f", groups={self.groups}" if self.groups > 1 else ""
        return f"{words}, recompute=True" if self.recompute else words


class LSTM(_TorchLayers, CellLayers, nn.LSTM, metaclass=Replaceable):
    """:class:`torch.nn.LSTM` on treadle's kernels, which can run all steps in one launch.

    This is a subclass of torch's class, with the same parameters, initialisation, ``state_dict``,
    arguments and results. :func:`treadle.nn.replace` gives its forward pass to the modules of an
    existing model. Double backward, forward mode and vmap also work. torch.compile breaks the graph
    at every such module unless torch._dynamo.config.allow_rnn is True. torch.export works without
    this setting.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.LSTM.
        proj_size: P, less than H; 0 for no projections. With projections, h is
            ``weight_hr_l0 @ (o * tanh(c))``, of size P. The layer runs like a layer without
            projections whose recurrent weight is ``weight_hh_l0 @ weight_hr_l0``. Then one product
            computes h of all steps. Where torch's ops are faster, they run instead.
        groups: the number of diagonal blocks of each gate's part of W_hh, a divisor of hidden_size.
            A hidden unit then reads only h of its group of H / groups adjacent units, and
            ``weight_hh_l0`` is [4H, H / groups]. ``groups`` must be 1 with projections.
        recompute: save less for the backward pass, which then recomputes the rest;
            :func:`treadle.lstm` lists the bytes.

    Raises:
        The errors of torch.nn.LSTM; TypeError, ValueError: ``groups`` or ``recompute`` is
        not as above.

    Example::

        layer = treadle.nn.LSTM(8, 64, num_layers=2)
        output, (h, c) = layer(rows)        # [T, B, 8] -> [T, B, 64], [2, B, 64] each
    """

    _front = LSTM_FRONT

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
        groups: int = 1,
        recompute: bool = False,
    ) -> None:
        if not isinstance(proj_size, Integral) or isinstance(proj_size, bool):
            raise TypeError(f"LSTM: proj_size must be an integer, got {proj_size!r}")
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            recompute,
            groups,
            proj_size=int(proj_size),
        )


class _LayersOfH(_TorchLayers):
    """Layers without projections, whose only state is h."""

    @classmethod
    def _refuse(cls, proj_size: object) -> None:
        if proj_size is not None:
            raise ValueError(
                f"{cls._front.name}: proj_size argument is only supported for LSTM, not RNN or "
                f"GRU, got {proj_size}"
            )

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
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

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any: ...


class GRU(_LayersOfH, nn.GRU, metaclass=Replaceable):
    """:class:`torch.nn.GRU` on treadle's kernels, which can run all steps in one launch.

    This is a subclass of torch's class, with the same parameters, initialisation, ``state_dict``,
    arguments and results. :func:`treadle.nn.replace` gives its forward pass to the modules of an
    existing model. Double backward, forward mode and vmap also work. torch.compile breaks the graph
    at every such module unless torch._dynamo.config.allow_rnn is True. torch.export works without
    this setting.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.GRU.
        groups: the number of diagonal blocks of each gate's part of W_hh, a divisor of hidden_size.
            A hidden unit then reads only h of its group of H / groups adjacent units, and
            ``weight_hh_l0`` is [3H, H / groups].
        recompute: save less for the backward pass, which then recomputes the rest;
            :func:`treadle.gru` lists the bytes.
        proj_size: must not be given, as in torch.nn.GRU.

    Raises:
        The errors of torch.nn.GRU; TypeError, ValueError: ``groups`` or ``recompute`` is
        not as above.

    Example::

        layer = treadle.nn.GRU(8, 64, num_layers=2)
        output, h = layer(rows)             # [T, B, 8] -> [T, B, 64], [2, B, 64]
    """

    _front = GRU_FRONT

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
        groups: int = 1,
        recompute: bool = False,
        proj_size: None = None,
    ) -> None:
        self._refuse(proj_size)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            recompute,
            groups,
        )


class RNN(_LayersOfH, nn.RNN, metaclass=Replaceable):
    """:class:`torch.nn.RNN` on treadle's kernels, which can run all steps in one launch.

    This is a subclass of torch's class, with the same parameters, initialisation, ``state_dict``,
    arguments and results. :func:`treadle.nn.replace` gives its forward pass to the modules of an
    existing model. Double backward, forward mode and vmap also work. torch.compile breaks the graph
    at every such module unless torch._dynamo.config.allow_rnn is True. torch.export works without
    this setting.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout,
            bidirectional, device, dtype: as in torch.nn.RNN.
        groups: the number of diagonal blocks of each gate's part of W_hh, a divisor of hidden_size.
            A hidden unit then reads only h of its group of H / groups adjacent units, and
            ``weight_hh_l0`` is [H, H / groups].
        recompute: save less for the backward pass, which then recomputes the rest;
            :func:`treadle.rnn_tanh` lists the bytes.
        proj_size: must not be given, as in torch.nn.RNN.

    Raises:
        The errors of torch.nn.RNN; TypeError, ValueError: ``groups`` or ``recompute`` is
        not as above.

    Example::

        layer = treadle.nn.RNN(8, 64, num_layers=2)
        output, h = layer(rows)             # [T, B, 8] -> [T, B, 64], [2, B, 64]
    """

    _front = RNN_FRONT

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        groups: int = 1,
        recompute: bool = False,
        proj_size: None = None,
    ) -> None:
        self._refuse(proj_size)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            recompute,
            groups,
            nonlinearity=nonlinearity,
        )
