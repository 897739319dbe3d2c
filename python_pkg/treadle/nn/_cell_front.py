"""The forward pass of torch's cells on treadle's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._check.tensors import check_dense
from ._cell_choice import takes_cell_step, torchs_is_faster
from ._check import check_dtype, check_same_dtype
from ._tracers import NotScripted, fx_leaf, is_tracing

__all__ = ["GRU_CELL", "LSTM_CELL", "RNN_CELL", "CellFront", "TorchCell"]

# A cell is called once per step, so it calls the op for one layer directly. treadle.lstm would
# check and unpack lists of parameters at every call.
_layer = torch.ops.treadle.recurrent_layer.default

# A step of torch's cells on a GPU: one autograd node, and for few rows treadle's kernels.
_cell_step: Callable[..., list[Tensor]] = torch.ops.treadle.cell_step.default

# With this algorithm, float32 products follow torch's TF32 setting for matrix products, as in
# torch's cells. The products of layers follow torch's setting for cuDNN.
_ALGORITHM = "cell"

_torchs_lstm: Callable[..., Any] = nn.LSTMCell.forward
_torchs_gru: Callable[..., Any] = nn.GRUCell.forward
_torchs_rnn: Callable[..., Any] = nn.RNNCell.forward

_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class CellFront(NamedTuple):
    """The forward pass of a module that has the attributes of one of torch's cells."""

    name: str  # shown in errors
    step: Callable[..., Any]  # called with the module, input and hx
    torchs: Callable[..., Any]  # torch's forward pass; raises torch's error for a bad call

    def called(self, cell: Any, input: Any, hx: Any) -> Any:
        if not isinstance(input, Tensor):
            leaf = fx_leaf(cell, input, hx)
            if leaf is not None:
                return leaf
        exports = is_tracing() or torch.compiler.is_exporting()
        if exports and torch.onnx.is_in_onnx_export():
            return self.torchs(cell, input, hx)  # torch itself can export this to ONNX
        if isinstance(input, Tensor) and input.is_complex() and cell.weight_ih.is_complex():
            return self.torchs(cell, input, hx)  # the kernels do not support complex numbers
        try:
            return self.step(cell, input, hx)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            self._explain(cell, input, hx)
            raise

    def _explain(self, cell: Any, input: Any, hx: Any) -> None:
        """Raises torch's error for a call that failed, if torch also raises one."""
        with torch.no_grad():
            if isinstance(input, Tensor):
                check_dense(self.name, "input", input)
                weight = _parameters_of(cell)[0]
                if input.dtype is not weight.dtype:
                    # torch's cell checks sizes before dtypes, so an error about sizes comes first.
                    self.torchs(cell, input.to(weight.dtype), _in_dtype(hx, weight.dtype))
                check_same_dtype(self.name, "input", input, weight)
            self.torchs(cell, input, hx)


def _in_dtype(hx: Any, dtype: torch.dtype) -> Any:
    if isinstance(hx, tuple):
        return tuple(_in_dtype(t, dtype) for t in hx)
    return hx.to(dtype) if isinstance(hx, Tensor) else hx


def _parameters_of(cell: Any) -> list[Tensor]:
    # They are read at every call, because nn.utils.parametrize and functional_call replace them.
    # Reading an attribute of a module takes five times as long as reading this dict.
    own: dict[str, Tensor] = cell._parameters
    return [own[name] if name in own else getattr(cell, name) for name in _NAMES]


def _zeros(cell: Any, input: Tensor) -> Tensor:
    """The initial state if the caller gives none. It is a DTensor if ``input`` is one."""
    return input.new_zeros((*input.shape[:-1], cell.hidden_size))


def _lstm_step(cell: Any, input: Tensor, hx: Any) -> tuple[Tensor, Tensor]:
    if hx is None:
        h = c = _zeros(cell, input)
    elif isinstance(hx, Tensor):
        raise TypeError  # like torch's cell, which does not unpack a tensor's two rows as h and c
    else:
        h, c = hx
    parameters = _parameters_of(cell)
    rows = _lstm_rows
    if torchs_is_faster("lstm", cell.hidden_size, input, h, c, parameters):
        rows = _torchs_lstm_rows
    elif input.is_cuda and c.dtype is torch.float32 and torch.is_autocast_enabled("cuda"):
        c = c.to(torch.get_autocast_dtype("cuda"))  # the op would keep it in float32
    if input.dim() != 1:
        return rows(input, h, c, *parameters)
    new_h, new_c = rows(input.unsqueeze(0), h.unsqueeze(0), c.unsqueeze(0), *parameters)
    return new_h.squeeze(0), new_c.squeeze(0)


def _lstm_rows(input: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    x, h0, c0 = input.unsqueeze(0), h.unsqueeze(0), c.unsqueeze(0)
    _, h_n, c_n = _layer(x, None, h0, c0, *parameters, cell="lstm", algorithm=_ALGORITHM)
    return h_n.squeeze(0), c_n.squeeze(0)


def _torchs_lstm_rows(
    input: Tensor, h: Tensor, c: Tensor, *parameters: Tensor
) -> tuple[Tensor, Tensor]:
    _check_rows(input, h, c)
    if takes_cell_step(input, h, c, [*parameters]):
        new_h, new_c = _cell_step(input, h, c, *parameters, cell="lstm")
        return new_h, new_c
    return torch.lstm_cell(input, (h, c), *parameters)


def _gru_step(cell: Any, input: Tensor, hx: Any) -> Tensor:
    return _step_of_h("gru", torch.gru_cell, cell, input, hx)


def _rnn_step(cell: Any, input: Tensor, hx: Any) -> Tensor:
    if cell.nonlinearity == "tanh":
        return _step_of_h("rnn_tanh", torch.rnn_tanh_cell, cell, input, hx)
    if cell.nonlinearity == "relu":
        return _step_of_h("rnn_relu", torch.rnn_relu_cell, cell, input, hx)
    return _torchs_rnn(cell, input, hx)  # type: ignore[no-any-return]


def _step_of_h(
    kind: str, torchs: Callable[..., Tensor], cell: Any, input: Tensor, hx: Any
) -> Tensor:
    h, parameters = _zeros(cell, input) if hx is None else hx, _parameters_of(cell)
    one_row = input.dim() == 1
    if one_row:
        input, h = input.unsqueeze(0), h.unsqueeze(0)
    if torchs_is_faster(kind, cell.hidden_size, input, h, h, parameters):
        _check_rows(input, h, h)
        if takes_cell_step(input, h, h, parameters):
            (new_h,) = _cell_step(input, h, None, *parameters, cell=kind)
        else:
            new_h = torchs(input, h, *parameters)
    else:
        x, h0 = input.unsqueeze(0), h.unsqueeze(0)
        # The last result is h before rounding. It is not used, because torch's cell has no such
        # result.
        _, h_n, _ = _layer(x, None, h0, h0, *parameters, cell=kind, algorithm=_ALGORITHM)
        new_h = h_n.squeeze(0)
    return new_h.squeeze(0) if one_row else new_h


def _check_rows(input: Tensor, h: Tensor, c: Tensor) -> None:
    """Raises for shapes that torch's op accepts but torch's module does not."""
    if not input.dim() == h.dim() == c.dim() == 2:
        raise TypeError  # replaced by the error of torch's module


LSTM_CELL = CellFront("LSTMCell", _lstm_step, _torchs_lstm)
GRU_CELL = CellFront("GRUCell", _gru_step, _torchs_gru)
RNN_CELL = CellFront("RNNCell", _rnn_step, _torchs_rnn)


class TorchCell(NotScripted):
    """The interface of torch.nn.RNNCellBase, with the forward pass of ``_front``."""

    _front: CellFront

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **kind: str,
    ) -> None:
        check_dtype(self._front.name, dtype)
        # super() is called instead of nn.LSTMCell, because some programs replace nn.LSTMCell by
        # treadle's class.
        super().__init__(  # type: ignore[call-arg]
            input_size, hidden_size, bias, device=device, dtype=dtype, **kind
        )

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take one step.

        Args:
            input: [B, I], or [I] without a batch.
            hx: ``(h, c)`` from the previous step, or only ``h`` (GRU, RNN), each [B, H] (or [H]).
                With half-precision inputs, ``c`` may be float32, and then ``new_c`` is as well. If
                None, the states start as zeros in the dtype of ``input``.

        Returns:
            ``(new_h, new_c)``, or only ``new_h``, with the shapes and dtypes of ``hx``. Under
            autocast the dtypes are those of torch's cell: the lower precision or, on a CPU, float32
            if ``c`` (or ``h`` of a GRU) is float32.

            Where torch's op is faster, it runs instead of treadle's. On a CPU, it is faster under
            autocast; for RNN cells of most sizes; in float32 and float64 with B * H >= 2048, or a
            single row with H > 64; without gradients for GRU cells, single rows and most LSTM
            cells; and in half types with H > 64 if the CPU multiplies them in hardware. On a GPU,
            torch's kernels run with B > 32. There, under torch.compile, vmap or forward-mode AD,
            and for a float32 ``c`` with half-precision inputs, treadle's op of layers runs.

        Raises:
            ValueError, RuntimeError, TypeError, AttributeError: the errors of torch's cell.
            RuntimeError: the dtype of ``input`` is not that of the parameters; the error shows the
                call that casts it.
        """
        return self._called(input, hx)

    def _called(self, *args: Any) -> Any:
        return self._front.called(self, *args)
