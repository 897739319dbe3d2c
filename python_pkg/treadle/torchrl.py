"""TorchRL's LSTMModule and GRUModule on treadle's kernels: trajectories are neither split nor
padded.

``import treadle`` does not import this module, so write ``import treadle.torchrl``.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    from tensordict import set_lazy_legacy
    from tensordict.nn import dispatch
    from torchrl import modules as theirs
except ModuleNotFoundError as error:
    raise ImportError(f"treadle.torchrl needs {error.name}: pip install torchrl") from error

from . import nn
from .nn._check import check_bool
from .nn._methods import parameters_of
from .recurrent import gru, lstm

__all__ = ["GRUModule", "LSTMModule"]

TensorDict = Any  # mypy does not know tensordict's types


class _Fused:
    """The forward pass over whole sequences, for both modules. TorchRL's classes do the rest."""

    _layers_name: str
    in_keys: list[Any]
    out_keys: list[Any]
    recurrent_mode: bool

    def __init__(
        self,
        *args: Any,
        recurrent_backend: str = "treadle",
        recurrent_recompute: str = "none",
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        if recurrent_backend != "treadle":
            raise ValueError(
                f"{name}: recurrent_backend must be 'treadle', got {recurrent_backend!r}: "
                f"for other backends, use torchrl.modules.{name}"
            )
        if recurrent_recompute not in ("none", "full"):
            raise ValueError(
                f"{name}: recurrent_recompute must be 'none' or 'full', got {recurrent_recompute!r}"
            )
        super().__init__(*args, **kwargs)
        self.recurrent_backend = recurrent_backend
        self.recurrent_recompute = recurrent_recompute
        nn.replace(self._layers)

    @property
    def _layers(self) -> Any:
        return getattr(self, self._layers_name)

    def make_cudnn_based(self) -> Any:
        """Makes the layers run on treadle's kernels again, after ``make_python_based``."""
        super().make_cudnn_based()  # type: ignore[misc]
        nn.replace(self._layers)
        return self

    @dispatch  # type: ignore[untyped-decorator]
    @set_lazy_legacy(False)  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDict) -> TensorDict:
        """Runs whole sequences. Single steps and unsupported layers go to TorchRL's forward."""
        ours = isinstance(self._layers, (nn.LSTM, nn.GRU)) and not self._layers.bidirectional
        ours = ours and not self._layers.proj_size
        if not (ours and self.recurrent_mode and tensordict.ndim):
            return super().forward(tensordict)  # type: ignore[misc]
        shape = tensordict.shape

        def by_time(value: Tensor) -> Tensor:
            return value.reshape(-1, shape[-1], *value.shape[len(shape) :]).transpose(0, 1)

        marks = tensordict["is_init"].reshape(shape)
        output, *last = self._sequence(
            by_time(tensordict[self.in_keys[0]]),
            by_time(marks),
            [by_time(state) for state in self._given(tensordict)],
        )
        for key, value in zip(self.out_keys, (output, *last), strict=True):
            value = value.transpose(0, 1)
            tensordict.set(key, value.reshape(*shape, *value.shape[2:]))
        return tensordict

    def _given(self, tensordict: TensorDict) -> list[Tensor]:
        """The states in the tensordict, or an empty list if it has none."""
        keys = self.in_keys[1 : len(self.out_keys)]
        found = [state for key in keys if (state := tensordict.get(key, None)) is not None]
        if len(found) not in (0, len(keys)):
            raise RuntimeError(
                f"{type(self).__name__}: the tensordict must have all of {keys} or none, "
                f"got {len(found)}"
            )
        return found

    def _sequence(self, input: Tensor, marks: Tensor, given: list[Tensor]) -> list[Tensor]:
        """The output [T, B, H], and each state [T, B, L, H], which is 0 except where a trajectory
        ends.

        ``given`` has the states [T, B, L, H] from which trajectories start. If it is empty, they
        start from zeros.
        """
        layers, found = self._layers, []
        weights = iter(parameters_of(layers))
        for layer, names in enumerate(layers._all_weights):
            if layer and layers.dropout:
                input = F.dropout(input, layers.dropout, layers.training)
            starts = [state[:, :, layer] for state in given]
            params = list(islice(weights, len(names)))
            found.append(self._one_layer(input, marks, starts, params))
            input = found[-1][0]
        ends = torch.cat([marks[1:], torch.ones_like(marks[:1])])[..., None, None]
        states = (torch.stack(each, 2) for each in zip(*found, strict=True))
        return [input, *(torch.where(ends, state, 0) for state in states)]

    def _one_layer(
        self, input: Tensor, marks: Tensor, starts: list[Tensor], params: list[Tensor]
    ) -> list[Tensor]:
        """The states [T, B, H] after every step, h first."""
        raise NotImplementedError

    def _flags(self, marks: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The op's positional arguments after ``params``, and its keyword arguments."""
        flags = (self._layers.bias, 1, 0.0, self._layers.training, False, False)
        return flags, {"recompute": self.recurrent_recompute == "full", "reset": marks}


class LSTMModule(_Fused, theirs.LSTMModule):  # type: ignore[misc]
    """``torchrl.modules.LSTMModule`` on treadle's kernels.

    Arguments, keys, primers and results are TorchRL's. If a trajectory begins in the middle of a
    row in recurrent mode, the row resets (see :func:`treadle.lstm`) to the states that the
    tensordict has at that step. Nothing is split, padded or packed, and the host does not wait for
    the device. Single steps also run treadle's layers. TorchRL's own code runs layers that are
    bidirectional, have projections, or are written in Python (``python_based``).

    Args:
        recurrent_backend: only "treadle". For others, use ``torchrl.modules.LSTMModule``.
        recurrent_recompute: "full" saves less for the backward pass, like ``recompute`` of
            :func:`treadle.lstm`.
        inner_cells: whether to also return c where a trajectory ends before the last step. This
            takes one more pass (``return_cells`` of :func:`treadle.lstm`). If False, c is 0 there.
        lstm: a layer, which is changed in place by :func:`treadle.nn.replace`.
        Other arguments: as in ``torchrl.modules.LSTMModule``.

    Raises:
        ValueError: ``recurrent_backend`` or ``recurrent_recompute`` has another value.
        TypeError: ``inner_cells`` is not a bool.
        RuntimeError: a tensordict has only one of the two states.
        Other errors are TorchRL's.
    """

    _layers_name = "lstm"

    def __init__(self, *args: Any, inner_cells: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.inner_cells = check_bool("LSTMModule", "inner_cells", inner_cells)

    def _one_layer(
        self, input: Tensor, marks: Tensor, starts: list[Tensor], params: list[Tensor]
    ) -> list[Tensor]:
        flags, options = self._flags(marks)
        if starts:
            options["reset_hx"] = [state.unsqueeze(0) for state in starts]
        else:
            starts = [input.new_zeros(1, input.shape[1], self.lstm.hidden_size)] * 2
        options["return_cells"] = self.inner_cells
        output, _, last, *cells = lstm(input, [s[:1] for s in starts], params, *flags, **options)
        inner = cells[0] if cells else torch.zeros_like(output, dtype=last.dtype)
        return [output, torch.cat([inner[:-1], last])]


class GRUModule(_Fused, theirs.GRUModule):  # type: ignore[misc]
    """``torchrl.modules.GRUModule`` on treadle's kernels; see :class:`LSTMModule`.

    Args:
        recurrent_backend: only "treadle". For others, use ``torchrl.modules.GRUModule``.
        recurrent_recompute: "full" saves less for the backward pass, like ``recompute`` of
            :func:`treadle.gru`.
        gru: a layer, which is changed in place by :func:`treadle.nn.replace`.
        Other arguments: as in ``torchrl.modules.GRUModule``.

    Raises:
        ValueError: ``recurrent_backend`` or ``recurrent_recompute`` has another value.
        Other errors are TorchRL's.
    """

    _layers_name = "gru"

    def _one_layer(
        self, input: Tensor, marks: Tensor, starts: list[Tensor], params: list[Tensor]
    ) -> list[Tensor]:
        flags, options = self._flags(marks)
        if starts:
            options["reset_hx"] = starts[0].unsqueeze(0)
            start = starts[0][:1]
        else:
            start = input.new_zeros(1, input.shape[1], self.gru.hidden_size)
        return [gru(input, start, params, *flags, **options)[0]]
