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

    ``lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``. D is 2 if bidirectional, else 1; :class:`treadle.nn.LSTM` holds the
    parameters and calls this. The gates ``x W_ih^T + b_ih + h W_hh^T + b_hh`` are i, f, g, o;
    ``c = sigmoid(f) c + sigmoid(i) tanh(g)``; ``h = sigmoid(o) tanh(c)``.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows of all steps, the longest sequence
            first; ``batch_sizes`` [T], int64 on the CPU, is the number of rows of each step.
        hx: (h0, c0), each [num_layers * D, B, H]: h0 of input's dtype; c0 of input's dtype, or
            float32 with half-precision inputs.
        params: for each layer and each of its directions, weight_ih [4H, I] ([4H, D*H] after the
            first layer), weight_hh [4H, H] (block-diagonal: [4H, H/n] with n blocks) and, if
            ``has_biases``, bias_ih and bias_hh [4H].
        has_biases: whether ``params`` has biases.
        num_layers: the number of layers. Each reads the output of the previous one.
        dropout: the probability of dropping an element between two layers, if ``train``.
        train: False turns dropout off.
        bidirectional: a second direction in each layer reads the sequence from its end.
        batch_first: input and output are [B, T, ...]; hx never is.
        recompute: if False, a layer saves its output (H) and the gates (4H) of each direction, step
            and row for the backward pass, in input's dtype: 20H bytes in float32, 10H in half
            types, 40H in float64. If True it saves only the output (4H, 2H, 8H bytes), and the
            backward pass computes one more matrix product.
        reset: [T, B] ([B, T] if ``batch_first``; [S] of a packed batch), bool on input's device:
            where it is true a row resets, as if its sequence began with that step. The second
            direction, which reads from the end, resets before step t where step t + 1 is marked.
        reset_hx: the state that a row resets to instead of zeros: like ``hx``, or one for each
            step, [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``;
            [num_layers * D, S, H] of a packed batch). Gradients flow into it, not across a reset.
        lengths: [B], int64 or int32 on input's device, instead of packing: row b has lengths[b]
            steps, and the second direction begins at its last one. Padding values, NaN included,
            do not affect results and get zero gradients. The host does not wait for the lengths,
            and a captured CUDA graph reads new ones. Values are clamped to 0 ... T. With
            TREADLE_CHECK_LENGTHS=1 in the environment, the host waits for them; other values raise.
        return_cells: whether to also return the cell states, c of every step.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype; with ``lengths``, 0 after a row ends.
        h_n, c_n: [num_layers * D, B, H], h and c after each row's last step (of the second
            direction: its first), or hx for a row without steps; of h0's and c0's dtypes.
        cells: only if ``return_cells``: c of every step, shaped like output, of c_n's dtype. It is
            computed from gates in input's dtype.

        All tensors except batch_sizes, reset and lengths are differentiable twice. Under autocast
        all of them are cast to the lower precision; on a CPU those of a packed batch stay float32
        if c0 is, as in torch.

    Raises:
        TypeError: input is no tensor, hx no pair, params no list, or return_cells no bool.
        RuntimeError: shapes, dtypes, devices or counts are invalid.

    Source: csrc/recurrent/lists, kernels/recurrent/plan/plan.cpp, kernels/math/cells/lstm.h.
    """
    return _lstm(args, kwargs)


@without_cells
def gru(*args: Any, **kwargs: Any) -> Any:
    """Layers of GRU cells over whole sequences; ``torch.gru`` on treadle's kernels.

    ``gru(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``,
    or for a packed batch ``gru(data, batch_sizes, hx, params, has_biases, num_layers, dropout,
    train, bidirectional)``. D is 2 if bidirectional, else 1; :class:`treadle.nn.GRU` holds the
    parameters and calls this. ``r, z = sigmoid(x W_ih^T + b_ih + h W_hh^T + b_hh)``;
    ``n = tanh(x W_in^T + b_in + r (h W_hn^T + b_hn))``; ``h = (1 - z) n + z h``, where the h of
    the previous step is not rounded to input's dtype.

    Args:
        input: [T, B, I], or [B, T, I] if ``batch_first``; float64, float32, float16 or bfloat16.
        data: [S, I], the data of a ``PackedSequence``: S rows of all steps, the longest sequence
            first; ``batch_sizes`` [T], int64 on the CPU, is the number of rows of each step.
        hx: h0, [num_layers * D, B, H], of input's dtype.
        params: for each layer and each of its directions, weight_ih [3H, I] ([3H, D*H] after the
            first layer), weight_hh [3H, H] and, if ``has_biases``, bias_ih and bias_hh [3H]. Rows
            are in the order r, z, n.
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as in :func:`lstm`.
        recompute: as in :func:`lstm`; a GRU also saves 4H values as its gates.
        reset, reset_hx, lengths: as in :func:`lstm`. There is no ``return_cells``, because the
            state of each step is the output.

    Returns:
        output: [T, B, D*H] ([B, T, D*H] if ``batch_first``; [S, D*H] for a packed batch), the h of
            the last layer at every step, in input's dtype.
        h_n: [num_layers * D, B, H], h after each row's last step (of the second direction: its
            first).

        All tensors except batch_sizes, reset and lengths are differentiable twice. Under autocast
        all of them are cast to the lower precision; on a CPU they stay float32 if hx is, as in
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

    ``rnn_tanh(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch ``rnn_tanh(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``. D is 2 if bidirectional, else 1;
    :class:`treadle.nn.RNN` holds the parameters and calls this.
    ``h = tanh(x W_ih^T + b_ih + h W_hh^T + b_hh)``.

    Args:
        input, data, batch_sizes, hx: as in :func:`gru`.
        params: for each layer and each of its directions, weight_ih [H, I] ([H, D*H] after the
            first layer), weight_hh [H, H] and, if ``has_biases``, bias_ih and bias_hh [H].
        has_biases, num_layers, dropout, train, bidirectional, batch_first: as in :func:`lstm`.
        recompute: if False, a layer saves its output (H) and the sums before the nonlinearity (H)
            of each direction, step and row for the backward pass, in input's dtype. If True it
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

    ``rnn_relu(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
    batch_first)``, or for a packed batch ``rnn_relu(data, batch_sizes, hx, params, has_biases,
    num_layers, dropout, train, bidirectional)``, is :func:`rnn_tanh` with
    ``h = relu(x W_ih^T + b_ih + h W_hh^T + b_hh)``.

    Arguments and errors: :func:`rnn_tanh`.

    Returns:
        ``output`` and ``h_n`` as in :func:`rnn_tanh`.

    Source: see :func:`rnn_tanh`.
    """
    return _rnn_relu(args, kwargs)
