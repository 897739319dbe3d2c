"""Common mistakes with recurrent functions and modules, and their error texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import treadle
from treadle.nn import GRU, LLTM, LSTM, LLTMCell

T, B, I, H = 5, 3, 8, 7  # noqa: E741
REST = (False, 1, 0.0, False, False)
SIZES = torch.full((T,), B)
GATES = {"lltm": 3, "lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
EACH = pytest.mark.parametrize("kind", [LSTM, GRU, LLTM])


def operands(name: str, device: str = "cpu") -> tuple[Tensor, Tensor, list[Tensor]]:
    rows = GATES[name] * H
    weights = [torch.zeros(rows, I, device=device), torch.zeros(rows, H, device=device)]
    return torch.zeros(T, B, I, device=device), torch.zeros(1, B, H, device=device), weights


def said(call: Callable[[], Any], kind: type[Exception] = RuntimeError) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


# ---- indices without an embedding


@EACH
@pytest.mark.parametrize("shape", [(T, B), (T, I), (T, B, I), (T,)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_indices_are_told_of_the_embedding(kind: Any, shape: Any, batch_first: bool) -> None:
    letters = "[B, T, I]" if batch_first else "[T, B, I]"
    layer, tokens = kind(I, H, batch_first=batch_first), torch.zeros(shape, dtype=torch.int64)
    assert said(lambda: layer(tokens)) == (
        f"{kind.__name__}: input must be features of shape {letters}, got int64 of shape "
        f"{list(shape)}: pass indices through a torch.nn.Embedding first"
    )


@EACH
def test_packed_indices_and_those_of_a_cell(kind: Any) -> None:
    packed = PackedSequence(torch.zeros(T * B, dtype=torch.int32), SIZES)
    words = "input must be features of shape [S, I], got int32 of shape [15]: pass indices"
    assert said(lambda: kind(I, H)(packed)).startswith(f"{kind.__name__}: {words}")
    words = "LLTMCell: input must be features of shape [B, I], got bool of shape [3, 8]: pass in"
    assert said(lambda: LLTMCell(I, H)(torch.zeros(B, I) > 0)).startswith(words)
    words = "LLTMCell: input must be a tensor, got list"
    assert said(lambda: LLTMCell(I, H)([1.0]), TypeError) == words


# ---- h instead of (h, c), and vice versa


@pytest.mark.parametrize("name", ["lltm", "lstm"])
def test_one_state_where_two_are_wanted(name: str) -> None:
    function = getattr(treadle, name)
    x, h, weights = operands(name)
    data = x.flatten(0, 1)
    words = f"{name}: hx must be a pair of tensors (h0, c0), got a tensor"
    assert said(lambda: function(x, h, weights, *REST, False), TypeError) == words
    assert said(lambda: function(x, h, h, weights, *REST, False), TypeError) == words
    assert said(lambda: function(data, SIZES, h, weights, *REST), TypeError) == words
    names = ("has_biases", "num_layers", "dropout", "train", "bidirectional")
    by_name = {"hx": h, "params": weights, **dict(zip(names, REST, strict=True))}
    assert said(lambda: function(x, **by_name, batch_first=False), TypeError) == words
    assert said(lambda: function(data, batch_sizes=SIZES, **by_name), TypeError) == words
    three = f"{name}: hx must be two tensors, h0 and c0, got 3"
    assert said(lambda: function(x, (h, h, h), weights, *REST, False)).startswith(three)


def test_two_states_where_one_is_wanted() -> None:
    x, h, weights = operands("gru")
    words = "gru: hx must be a tensor (h0), got tuple"
    assert said(lambda: treadle.gru(x, (h, h), weights, *REST, False), TypeError) == words
    data = x.flatten(0, 1)
    assert said(lambda: treadle.gru(data, SIZES, [h], weights, *REST), TypeError) == (
        "gru: hx must be a tensor (h0), got list"
    )


# ---- arguments that are not tensors


NO_TENSORS: tuple[Any, ...] = (np.ones(3), [1.0], {"x": torch.ones(999)}, 0.5, None)


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("value", NO_TENSORS, ids=lambda value: type(value).__name__)
def test_no_tensors(value: Any, name: str) -> None:
    """The message is one line, whereas torch.ops prints the whole value."""
    function, got = getattr(treadle, name), f"got {type(value).__name__}"
    x, h, weights = operands(name)
    hx = h if name not in ("lltm", "lstm") else (h, h)
    words = f"{name}: input must be a tensor, {got}"
    assert said(lambda: function(value, hx, weights, *REST, False), TypeError) == words
    words = f"{name}: data must be a tensor, {got}"
    assert said(lambda: function(value, SIZES, hx, weights, *REST), TypeError) == words
    if isinstance(value, list):
        return  # a list is a valid hx or params; the op checks its elements
    rule = "a tensor (h0)" if name not in ("lltm", "lstm") else "a pair of tensors (h0, c0)"
    words = f"{name}: hx must be {rule}, {got}"
    assert said(lambda: function(x, value, weights, *REST, False), TypeError) == words
    words = f"{name}: params must be a list of tensors, {got}"
    assert said(lambda: function(x, hx, value, *REST, False), TypeError) == words


@pytest.mark.parametrize("value", NO_TENSORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["input", "weights", "bias", "old_h", "old_cell"])
def test_no_tensors_of_a_cell(name: str, value: Any) -> None:
    given = {"input": torch.zeros(B, I), "weights": torch.zeros(3 * H, H + I)}
    given |= {"bias": torch.zeros(3 * H), "old_h": torch.zeros(B, H), "old_cell": torch.zeros(B, H)}
    given[name] = value
    if name == "bias" and value is None:
        assert len(treadle.lltm_cell(**given)) == 2
        return
    words = f"lltm_cell: {name} must be a tensor, got {type(value).__name__}"
    assert said(lambda: treadle.lltm_cell(**given), TypeError) == words


@EACH
def test_sparse_input_is_no_business_of_an_inner_op(kind: Any) -> None:
    x, h, weights = operands(kind.__name__.lower())
    words = "input must be dense, got a tensor of layout torch.sparse_coo"
    layer, function = kind(I, H), getattr(treadle, kind.__name__.lower())
    assert said(lambda: layer(x.to_sparse())) == f"{kind.__name__}: {words}"
    hx = h if kind is GRU else (h, h)
    call = lambda: function(x.to_sparse(), hx, weights, *REST, False)  # noqa: E731
    assert said(call) == f"{function.__name__}: {words}"


# ---- the name in the error


@pytest.mark.parametrize("name", ["lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("way", ["cpu", "meta", "grad", "vmap", "compiled"])
@pytest.mark.usefixtures("fresh_compile")
def test_the_function_that_was_called_speaks(name: str, way: str) -> None:
    """The message contains the name of the called function, not of the op that it calls."""
    x, h, weights = operands(name, "meta" if way == "meta" else "cpu")
    weights[1] = weights[1][:, 1:]
    if way == "grad":
        weights = [w.requires_grad_() for w in weights]
    hx = h if name not in ("lltm", "lstm") else (h, h)

    def call(x: Tensor) -> Any:
        return getattr(treadle, name)(x, hx, weights, *REST, False)

    run: Callable[[Tensor], Any] = call
    if way == "vmap":
        run, x = torch.func.vmap(call), x.unsqueeze(0)
    elif way == "compiled":
        run = torch.compile(call, backend="aot_eager")
    rows = GATES[name] * H
    words = f"{name}: weight_hh must have shape [{GATES[name]}H, H] = [{rows}, 7], got [{rows}, 6]"
    assert re.search(rf"(?<!_){re.escape(words)}", said(lambda: run(x)))


@EACH
@pytest.mark.parametrize("way", ["cpu", "compiled"])
@pytest.mark.usefixtures("fresh_compile")
def test_a_module_or_its_function_speaks(kind: Any, way: str) -> None:
    layer, x = kind(I, H), torch.zeros(T, B, I)
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0.double())
    run = torch.compile(layer, backend="aot_eager") if way == "compiled" else layer
    assert f"{kind.__name__.lower()}: weight_hh must " in said(lambda: run(x))
