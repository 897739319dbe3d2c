"""The recurrent ops: a step of the LLTM, and whole sequences of LLTM, LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from ._lltm import lltm, lltm_cell
from ._overloads import overloads, with_cells, without_cells

__all__ = ["gru", "lltm", "lltm_cell", "lstm", "rnn_relu", "rnn_tanh"]

_lstm = overloads("lstm")
_gru = overloads("gru")
_rnn_tanh = overloads("rnn_tanh")
_rnn_relu = overloads("rnn_relu")


@with_cells
def lstm(*args: Any, **kwargs: Any) -> Any:
    """Layers of LSTM cells over whole sequences; ``torch.lstm`` on treadle's kernels.

    Call it as ``lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch as ``lstm(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. :class:`treadle.nn.LSTM` has the parameters and
    calls this. D is 2 if bidirectional, else 1. The gates ``x W_ih^T + b_ih + h W_hh^T + b_hh`` are
    i, f, g, o. A step is ``c = sigmoid(f) c + sigmoid(i) tanh(g)``; ``h = sigmoid(o) tanh(c)``.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows in all, with the longest sequence
            first. ``batch_sizes`` [T], int64 on the CPU, has the number of rows of each step.
        hx: (h0, c0), each [num_layers * D, B, H]. h0 has input's dtype. c0 has input's dtype, or
            float32 with half-precision inputs.
        params: for each layer and each of its directions, weight_ih [4H, I] ([4H, D*H] after the
            first layer), weight_hh [4H, H] ([4H, H/n] with n diagonal blocks) and, if
            ``has_biases``, bias_ih and bias_hh [4H].
        has_biases: whether ``params`` has biases.
        num_layers: the number of layers. Each reads the output of the previous one.
        dropout: the probability of dropping an element between two layers, if ``train``.
        train: False turns dropout off.
        bidirectional: whether a second direction in each layer reads the sequence from its end.
        batch_first: whether input and output are [B, T, ...]. It does not affect hx.
        recompute: if False, a layer saves its output (H) and the gates (4H) of each direction, step
            and row for the backward pass, in input's dtype: 20H bytes in float32, 10H in half
            types, 40H in float64. If True, it saves only the output (4H, 2H or 8H bytes), and the
            backward pass computes one more matrix product.
        reset: [T, B] ([B, T] if ``batch_first``; [S] for a packed batch), bool on input's device.
            Where it is true, the row resets, as if its sequence began with that step. The second
            direction, which reads from the end, resets before step t if reset[t + 1] is true.
        reset_hx: the state to which a row resets, by default zeros: like ``hx``, or a state for
            each step, [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``;
            [num_layers * D, S, H] for a packed batch). It gets gradients; none flow across a reset.
        lengths: [B], int64 or int32 on input's device, as an alternative to packing. Row b has
            lengths[b] steps, and the second direction begins at its last step. Padding, even NaN,
            does not affect results and gets zero gradients. The host does not wait for the values,
            and every replay of a CUDA graph reads them. They are clamped to 0 ... T. But if the
            environment has TREADLE_CHECK_LENGTHS=1, the host waits, and other values raise.
        return_cells: whether to also return the cell states, c of every step.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype; with ``lengths``, 0 after a row ends.
        h_n, c_n: [num_layers * D, B, H], h and c after each row's last step (in the second
            direction, its first), or hx for a row without steps, in the dtypes of h0 and c0.
        cells: only with ``return_cells``: c of every step, shaped like output, in c_n's dtype. It
            is computed from the gates after they were rounded to input's dtype.

        All tensors except batch_sizes, reset and lengths are differentiable twice. Under autocast
        they are cast to the lower precision, but on a CPU those of a packed batch stay float32 if
        c0 is float32, as in torch.

    Raises:
        TypeError: input, hx, params or return_cells is of another type than described above.
        RuntimeError: shapes, dtypes, devices or counts are invalid.

    Source: csrc/recurrent/lists, kernels/recurrent/plan/plan.cpp, kernels/math/cells/lstm.h.
    """
    return _lstm(args, kwargs)


@without_cells
def gru(*args: Any, **kwargs: Any) -> Any:
    """Layers of GRU cells over whole sequences; ``torch.gru`` on treadle's kernels.

    Call it as ``gru(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch as ``gru(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. :class:`treadle.nn.GRU` has the parameters and
    calls this. D is 2 if bidirectional, else 1. A step is
    ``r, z = sigmoid(x W_ih^T + b_ih + h W_hh^T + b_hh)``;
    ``n = tanh(x W_in^T + b_in + r (h W_hn^T + b_hn))``; ``h = (1 - z) n + z h``. Here, h of the
    previous step is not rounded to input's dtype.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows in all, with the longest sequence
            first. ``batch_sizes`` [T], int64 on the CPU, has the number of rows of each step.
        hx: h0, [num_layers * D, B, H], of input's dtype.
        params: for each layer and each of its directions, weight_ih [3H, I] ([3H, D*H] after the
            first layer), weight_hh [3H, H] and, if ``has_biases``, bias_ih and bias_hh [3H]. Rows
            are in the order r, z, n.
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as in :func:`lstm`.
        recompute: as in :func:`lstm`, with the same numbers of bytes.
        reset, reset_hx, lengths: as in :func:`lstm`. There is no ``return_cells``, because the
            output already is the state of each step.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype.
        h_n: [num_layers * D, B, H], h after each row's last step (in the second direction, its
            first).

        All tensors except batch_sizes, reset and lengths are differentiable twice. Under autocast
        they are cast to the lower precision, but on a CPU they stay float32 if hx is float32, as in
        torch.

    Raises:
        TypeError: input or hx is not a tensor, or params is not a list.
        RuntimeError: shapes, dtypes, devices or counts are invalid.

    Source: csrc/recurrent/lists, csrc/recurrent/run/forward.cpp, kernels/recurrent/plan/plan.cpp,
    kernels/math/cells/gru.h.
    """
    return _gru(args, kwargs)


@without_cells
def rnn_tanh(*args: Any, **kwargs: Any) -> Any:
    """Layers of RNN cells over whole sequences; ``torch.rnn_tanh`` on treadle's kernels.

    Call it as ``rnn_tanh(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch as ``rnn_tanh(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. :class:`treadle.nn.RNN` has the parameters and
    calls this. D is 2 if bidirectional, else 1. A step is
    ``h = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh)``.

    Args:
        input, data, batch_sizes, hx: as in :func:`gru`.
        params: for each layer and each of its directions, weight_ih [H, I] ([H, D*H] after the
            first layer), weight_hh [H, H] and, if ``has_biases``, bias_ih and bias_hh [H].
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as in :func:`lstm`.
        recompute: if False, a layer saves its output (H) and the sums before the nonlinearity (H)
            of each direction, step and row for the backward pass, in input's dtype. If True, it
            saves only the output, and the backward pass computes one more matrix product.
        reset, reset_hx, lengths: as in :func:`gru`.

    Returns:
        ``output`` and ``h_n`` as in :func:`gru`. All tensors except batch_sizes, reset and lengths
        are differentiable twice.

    Raises:
        TypeError: input or hx is not a tensor, or params is not a list.
        RuntimeError: shapes, dtypes, devices or counts are invalid.

    Source: csrc/recurrent/lists, csrc/recurrent/run/forward.cpp, kernels/recurrent/plan/plan.cpp,
    kernels/math/rnn.h.
    """
    return _rnn_tanh(args, kwargs)


@without_cells
def rnn_relu(*args: Any, **kwargs: Any) -> Any:
    """Layers of RNN cells over whole sequences; ``torch.rnn_relu`` on treadle's kernels.

    Call it as ``rnn_relu(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch as ``rnn_relu(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. It is like :func:`rnn_tanh`, but a step is
    ``h = relu(x W_ih^T + b_ih + h W_hh^T + b_hh)``.

    Arguments and errors: :func:`rnn_tanh`.

    Returns:
        ``output`` and ``h_n`` as in :func:`rnn_tanh`.

    Source: see :func:`rnn_tanh`.
    """
    return _rnn_relu(args, kwargs)
