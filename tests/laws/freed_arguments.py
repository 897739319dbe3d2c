"""Calls every op in every way with one tensor whose storage was freed, in a process per call.

``python -m tests.laws.freed_arguments [NAME]...`` prints the calls that killed their process with a
signal. A run of all calls takes minutes. A freed tensor must raise an error: sharded training frees
the storage of parameters between steps.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import BLOCKS
from tests.support.cases import OPS, outputs
from tests.support.inputs import Call, Op

Run = Callable[[], Any]
T, B, I, H = 5, 3, 2, 4  # noqa: E741


def free(t: Tensor) -> None:
    t.untyped_storage().resize_(0)


def floating(tensors: Sequence[Any]) -> list[Tensor]:
    return [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]


def grads(results: Any, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    used = [y for y in outputs(results) if isinstance(y, Tensor) and y.requires_grad]
    ones = [torch.ones_like(y) for y in used]
    found = torch.autograd.grad(used, inputs, ones, allow_unused=True, **options)
    return [g for g in found if g is not None]


# ---- when to free the tensor: each function receives a call, its tensors and the one to free


def before_the_call(function: Run, tensors: list[Tensor], lost: Tensor) -> None:
    free(lost)
    function()


def before_backward(function: Run, tensors: list[Tensor], lost: Tensor) -> None:
    leaves = [t.requires_grad_() for t in floating(tensors)]
    results = function()
    free(lost)
    grads(results, leaves)


def before_the_graph_of_backward(function: Run, tensors: list[Tensor], lost: Tensor) -> None:
    leaves = [t.requires_grad_() for t in floating(tensors)]
    results = function()
    free(lost)
    grads(results, leaves, create_graph=True)


def before_the_second_backward(function: Run, tensors: list[Tensor], lost: Tensor) -> None:
    leaves = [t.requires_grad_() for t in floating(tensors)]
    first = grads(function(), leaves, create_graph=True)
    free(lost)
    grads(tuple(first), leaves)


WHEN = (
    before_the_call,
    before_backward,
    before_the_graph_of_backward,
    before_the_second_backward,
)

# ---- the calls: each function returns a call and the new tensors that it reads


def of_op(op: Op, kwargs: dict[str, Any] | None = None) -> tuple[Run, list[Tensor]]:
    call = op.cases[0].call("cpu", torch.float32 if torch.float32 in op.dtypes else None)
    args = [a.detach().clone() if isinstance(a, Tensor) else a for a in call.args]
    made = Call(tuple(args), call.kwargs)
    return partial(made.run, op.function), [a for a in args if isinstance(a, Tensor)]


def of_list(cell: str, bidirectional: bool, packed: bool, given: tuple[str, ...]) -> Any:
    """Calls treadle.lstm or another cell's function, with the optional arguments in `given`."""
    directions, gates = 1 + bidirectional, BLOCKS[cell]
    x = torch.randn(T * B, I) if packed else torch.randn(T, B, I)
    states = [
        torch.randn(directions, B, H) for _ in range(1 if cell not in ("lltm", "lstm") else 2)
    ]
    shapes = [(gates * H, I), (gates * H, H), (gates * H,), (gates * H,)]
    params = [torch.randn(s) for s in shapes[: 3 if cell == "lltm" else 4] * directions]
    options: dict[str, Any] = {}
    tensors = [x, *states, *params]
    if "reset" in given:
        options["reset"] = torch.arange(T * B).view(x.shape[:-1]) % 3 == 0
        tensors.append(options["reset"])
    if "reset_hx" in given:
        own = [torch.randn(directions, B, H) for _ in states]
        options["reset_hx"] = own[0] if cell not in ("lltm", "lstm") else own
        tensors += own
    if "lengths" in given:
        options["lengths"] = torch.arange(B) + 1
        tensors.append(options["lengths"])
    options |= {name: True for name in ("return_cells", "recompute") if name in given}
    hx = states[0] if cell not in ("lltm", "lstm") else states
    rest = True, 1, 0.0, False, bidirectional
    if packed:
        sizes = torch.full((T,), B)
        call = partial(getattr(treadle, cell), x, sizes, hx, params, *rest, **options)
        return call, [*tensors, sizes]
    return partial(getattr(treadle, cell), x, hx, params, *rest, False, **options), tensors


def of_module(module: torch.nn.Module, *inputs: Tensor, **options: Any) -> Any:
    def call() -> Any:
        results = module(*inputs, **options)
        return tuple(results) if isinstance(results, (tuple, list)) else results

    return call, [*inputs, *(p.data for p in module.parameters())]


def of_jet(laplacian: bool) -> Any:
    siren = treadle.nn.Siren(2, 8, hidden_layers=1, out_features=1, outermost_linear=True)
    x = torch.rand(6, 2)

    def call() -> Any:
        u = siren.jet(x)
        return (u.value, u.gradient, u.laplacian) if laplacian else (u.value, u.gradient)

    return call, [x, *(p.data for p in siren.parameters())]


def of_nested(function: Callable[..., Any]) -> Any:
    values, offsets = torch.randn(6, 4), torch.tensor([0, 2, 6])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    return lambda: function(nested).values(), [values, offsets]


GIVEN = (
    (),
    ("lengths",),
    ("reset",),
    ("reset", "reset_hx"),
    ("lengths", "reset"),
    ("lengths", "reset", "reset_hx"),
    ("return_cells",),
    ("return_cells", "lengths", "reset"),
    ("recompute", "lengths"),
)


def makers() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, op in OPS.items():
        yield name, partial(of_op, op)
    for cell, both, given in itertools.product(
        ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu"), (False, True), GIVEN
    ):
        if cell not in ("lltm", "lstm") and "return_cells" in given:
            continue
        yield f"{cell} {both} {given}", partial(of_list, cell, both, False, given)
        if "lengths" not in given:
            yield f"packed {cell} {both} {given}", partial(of_list, cell, both, True, given)
    for laplacian in (False, True):
        yield f"Siren.jet {laplacian}", partial(of_jet, laplacian)
    yield "Siren", lambda: of_module(treadle.nn.Siren(2, 8, 1, 1), torch.rand(6, 2))
    yield "Snake", lambda: of_module(treadle.nn.Snake(4), torch.rand(2, 4, 6))
    yield (
        "Snake, logarithms",
        lambda: of_module(treadle.nn.Snake(4, logscale=True), torch.rand(2, 4, 6)),
    )
    yield "LLTMCell", lambda: of_module(treadle.nn.LLTMCell(2, 4), torch.rand(3, 2))
    for function in (treadle.sine, partial(treadle.scale, factor=2)):
        yield f"nested {function}", partial(of_nested, function)


def ends_the_process(make: Callable[[], Any], when: Callable[..., None], place: int) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # kills a call that hangs, so that it is reported
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            function, tensors = make()
            when(function, tensors, tensors[place])
        except Exception:
            pass
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(patterns: list[str]) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ended, count = [], 0
    for name, make in makers():
        if patterns and not any(pattern in name for pattern in patterns):
            continue
        tensors = make()[1]
        # A name with a parenthesis denotes another way to call an op that OPS already tests at all
        # moments.
        moments = (before_the_call, before_the_second_backward) if "(" in name else WHEN
        # The second backward of snake consists of torch's ops, which read the freed tensor.
        if name.lower().startswith("snake"):
            moments = WHEN[:-1]
        for when, place in itertools.product(moments, range(len(tensors))):
            count += 1
            if ends_the_process(make, when, place):
                ended.append(f"{name}: tensor {place}, freed {when.__name__}")
                print(ended[-1], flush=True)
    print(f"{len(ended)} of {count} calls ended their process", *ended, sep="\n")
    return int(bool(ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
