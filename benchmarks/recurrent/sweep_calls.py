"""The calls that sweep.py times: layers of every form, forced algorithms, and modules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import treadle
from benchmarks.harness.verify import verify, verify_baseline
from benchmarks.recurrent.layer_calls import (
    STEPS,
    Args,
    Shape,
    arguments,
    check,
    check_finite,
    check_torch,
    layer,
    lstm_arguments,
    packed_arguments,
    packed_layer,
    without_cudnn,
)
from treadle import _build, reference


@dataclass(frozen=True)
class Form:
    """The form of a call: the number of layers, one or both directions, and whether the batch is
    packed."""

    name: str = ""  # follows the shape in keys and labels
    layers: int = 1
    both: bool = False
    packed: bool = False

    def arguments(self, shape: Shape, device: str, dtype: torch.dtype, backward: bool) -> Args:
        padded = arguments(shape, device, dtype, backward, self.layers, self.both)
        return packed_arguments(shape, padded) if self.packed else padded

    def lstm_arguments(self, args: Args) -> Args:
        return lstm_arguments(args, self.layers, self.both)

    def call(self, op: Callable[..., Any], train: bool) -> Callable[..., Any]:
        if self.packed:
            return packed_layer(op, train)
        return layer(op, train, self.layers, self.both)

    def ours(self, train: bool) -> Callable[..., Any]:
        ops = torch.ops.treadle.lltm
        return self.call(ops.data if self.packed else ops.input, train)

    def check(self, args: Args) -> Callable[..., float]:
        """A check of the first steps. Calls in both directions need `check_both_ways`."""
        if self.both:
            return partial(check_both_ways, args=args)
        plain = layer(reference.lltm, layers=self.layers) if self.layers > 1 else None
        return partial(check, args=args, plain=plain)

    def check_lstm(self, function: Callable[..., Any], args: Args) -> Callable[[], float]:
        """A check of a call of nn.LSTM with `args`, which `lstm_arguments` made."""
        plain = self.call(torch.lstm, args[0].requires_grad)
        if self.both:
            own = {"plain": without_cudnn(plain), "rule": verify_baseline, "op": "nn.LSTM"}
            return partial(check_both_ways, function, args, **own)
        return partial(check_torch, function, args, "lstm", plain=plain)


def check_both_ways(
    function: Callable[..., Any],
    args: Args,
    steps: int = STEPS,
    *,
    plain: Callable[..., Any] | None = None,
    poison: bool = False,
    rule: Callable[..., float] = verify,
    op: str = "lltm",
) -> float:
    """`check` for one layer in both directions. The first steps of the second direction are the
    last steps in time."""
    x, others, hidden = args[0].detach(), args[1:], args[1].shape[-1]
    whole = plain or layer(reference.lltm, both=True)
    if 2 * steps >= len(x):
        return rule(function, op, args, plain=whole, poison=poison)
    middle = x[steps:-steps]

    def ends(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        first, last = x[:steps], x[steps:]
        output, *states = function(torch.cat([first, middle, last]), *others)
        check_finite(output, *states, op=op)
        states = function(first, *others)[1:]
        return output[:steps, :, :hidden], output[-steps:, :, hidden:], *states

    def plain_ends(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        one, *states = whole(x[:steps], *others)
        other = whole(x[steps:], *others)[0]
        return one[..., :hidden], other[..., hidden:], *states

    both = torch.cat([x[:steps], x[-steps:]]).requires_grad_(args[0].requires_grad)
    return rule(ends, op, (both, *others), plain=plain_ends, poison=poison)


def in_algorithm(algorithm: str, cell: str = "lltm") -> Callable[..., Any]:
    """One layer as a function of tensors, with the planner's choice or a forced algorithm."""
    op = torch.ops.treadle.recurrent_layer.default

    def call(x: Tensor, h0: Tensor, *rest: Tensor) -> Any:
        c0, *params = (h0, *rest) if cell == "gru" else rest
        weights = [p.unsqueeze(0) for p in params]
        weights += [None] * (4 - len(weights))  # LLTM has one bias
        output, h_n, c_n = op(x, None, h0, c0, *weights, cell=cell, algorithm=algorithm)
        return (output, h_n) if cell == "gru" else (output, h_n, c_n)

    return call


def chosen(function: Callable[..., Any], args: Args) -> str:
    """The algorithms that a forward call launches; "" if it launches none of our kernels."""
    bindings = _build.bindings()
    bindings.take_launches()
    bindings.record_launches(True)
    # If the call raises, the check that follows refuses it and gives the reason.
    with suppress(RuntimeError):
        function(*args)
    bindings.record_launches(False)
    algorithms = [launch.algorithm for launch in bindings.take_launches() if launch.algorithm]
    return ", ".join(dict.fromkeys(algorithms))


def module(
    kind: type[nn.Module], shape: Shape, device: str, dtype: torch.dtype, backward: bool
) -> tuple[Callable[..., Any], Args]:
    """Returns treadle.nn.LLTM or nn.LSTM as a function of tensors, and the arguments of this
    function, which end with the module's parameters."""
    net = kind(shape.i, shape.h, device=device, dtype=dtype).requires_grad_(backward)
    net.train(backward)
    x, h0, c0 = arguments(shape, device, dtype, backward)[:3]

    def call(x: Tensor, h0: Tensor, c0: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        output, (h, c) = net(x, (h0, c0))
        return output, h, c

    return call, (x, h0, c0, *net.parameters())


MODULES = (treadle.nn.LLTM, nn.LSTM)
