"""Times the host's overhead of a module call. This overhead matters for short sequences: a policy
acts one step at a time, and recurrent reinforcement learning trains on sequences of 16 to 128
steps.

The baselines are torch's modules with the same parameters. On a GPU the sizes are those of a
policy. On the CPU the layer is so small that the overhead dominates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import treadle
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target, calls
from benchmarks.harness.timing import Calls, Host, Wall
from benchmarks.harness.verify import compare, poisoned_memory
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer import Kind, at_most
from benchmarks.recurrent.layer_calls import (
    TORCHS,
    Args,
    Shape,
    arguments,
    check,
    check_torch,
    plain_layer,
    set_tf32,
)

SUITE = "layer_overhead"
CELLS = ("lstm", "gru", "lltm")
BATCH, HIDDEN = 16, {"cuda": 512, "cpu": 8}  # the input also has HIDDEN features
TRAINED = (64, 128)  # steps of a training call
DTYPES = {"cuda": (torch.float32, torch.bfloat16), "cpu": (torch.float32,)}
ACTED = 20  # steps of make_step that are verified
# The targets: the longest time of a step of make_step, and of a training call relative to nn.LSTM.
STEP_US, OF_LSTM = 25, 0.6
GRU, LSTM = "nn.GRU", "nn.LSTM"


def plans(settings: Settings) -> Iterator[Plan]:
    thread = settings.threads[0] if settings.device == "cpu" else None
    for cell in CELLS:
        for dtype in DTYPES[settings.device]:
            one = Kind(shape_of(settings, 1), dtype, False, thread, cell=cell)
            kinds = [
                one,
                *(replace(one, shape=shape_of(settings, t), backward=True) for t in TRAINED),
            ]
            for kind in kinds:
                yield Plan(_key(settings, kind), partial(call_case, settings, kind))
            for clock in ("host", "wall"):
                build = partial(step_case, settings, one, clock)
                yield Plan(_key(settings, one, "make_step", clock), build)


def shape_of(settings: Settings, steps: int) -> Shape:
    hidden = HIDDEN[settings.device]
    return Shape.of((BATCH, steps, hidden, hidden), settings.quick)


def _key(settings: Settings, kind: Kind, what: str = "", clock: str = "host") -> str:
    call = what or kind.mode
    return f"{settings.device}/{SUITE}/{kind.cell}/{kind.shape.name}/{kind.digits}/{call}/{clock}"


def facts(settings: Settings, kind: Kind, what: str = "") -> dict[str, Any]:
    return {
        "suite": SUITE,
        "group": f"call overhead of layers, {settings.device.upper()}",
        "label": f"{kind.cell} T{kind.shape.t} {kind.digits} {what or kind.mode}",
        "dtype": kind.digits,
        "shape": [kind.shape.b, kind.shape.t, kind.shape.i, kind.shape.h],
    }


# ---- whole calls


def ours_of(cell: str, args: Args, states: int) -> Any:
    """treadle's module, with the tensors of ``args`` as its parameters."""
    kind = {"device": args[0].device, "dtype": args[0].dtype}
    net = getattr(treadle.nn, cell.upper())(args[0].shape[-1], args[1].shape[-1], **kind)
    names = [name for name, _ in net.named_parameters()]
    for name, parameter in zip(names, args[1 + states :], strict=True):
        setattr(net, name, parameter)
    return net


def call_of(net: Any, states: int) -> Callable[..., tuple[Tensor, ...]]:
    """The module as a function of x, the states and its own parameters."""

    def call(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        output, last = net(x, rest[:states] if states > 1 else rest[0])
        return output, *(last if states > 1 else (last,))

    return call


def states_of(cell: str) -> int:
    return 1 if cell == "gru" else 2


def of_torch(name: str, settings: Settings, kind: Kind) -> tuple[Args, Callable[..., Any]]:
    """The arguments and the call of nn.LSTM or nn.GRU, with its parameters in one cuDNN buffer."""
    cell = name[3:].lower()
    x, *given = arguments(kind.shape, settings.device, kind.dtype, kind.backward)[:3]
    net = TORCHS[cell](kind.shape.i, kind.shape.h, device=settings.device, dtype=kind.dtype)
    net.requires_grad_(kind.backward)
    states = states_of(cell)
    return (x, *given[:states], *net.parameters()), call_of(net, states)


def call_case(settings: Settings, kind: Kind) -> Case:
    set_tf32(False)
    states, functions = states_of(kind.cell), {}
    if kind.cell == "lltm":
        made = arguments(kind.shape, settings.device, kind.dtype, kind.backward)
        args = (*made[:3], *(nn.Parameter(p.detach(), kind.backward) for p in made[3:]))
        plain = None
    else:
        args, functions[layer.baseline(kind)] = of_torch(layer.baseline(kind), settings, kind)
        plain = plain_layer(kind.cell, kind.dtype, kind.backward)
    ours = call_of(ours_of(kind.cell, args, states), states)
    yardsticks: dict[str, Calls] = {}
    checks: dict[str, Callable[[], float]] = {}
    for name in (GRU, LSTM):
        if name not in functions:
            other, function = of_torch(name, settings, kind)
            yardsticks[name] = calls(function, [other])
            checks[name] = partial(check_torch, function, other, name[3:].lower())
    target = at_most(OF_LSTM, LSTM) if kind.backward else at_most(1, GRU)
    return Case(
        op=kind.cell,
        functions={OURS: ours, **functions},
        inputs=[args],
        timer=settings.host(),
        yardsticks=yardsticks,
        target=target if settings.device == "cuda" else None,
        check=partial(check, args=args, plain=plain),
        check_baseline=partial(check_torch, args=args, cell=kind.cell),
        check_yardsticks=checks,
        threads=kind.threads,
        facts=facts(settings, kind),
    )


# ---- step by step


class Acting:
    """Calls a module for one step at a time, with the interface of make_step's result."""

    def __init__(self, net: Any) -> None:
        self.net, self.hx = net, None

    def __call__(self, x: Tensor) -> Tensor:
        output, self.hx = self.net(x.unsqueeze(0), self.hx)
        return output[0]

    def reset_all(self) -> None:
        self.hx = None


def check_steps(function: Any, net: Any, x: Tensor, *, poison: bool = False) -> float:
    """Compares the results of single steps with one float64 call of the layer for all of them."""
    function.reset_all()
    if poison:
        with poisoned_memory():
            found = torch.stack([function(row).clone() for row in x])
    else:
        found = torch.stack([function(row).clone() for row in x])
    other, _ = net(x)
    exact, _ = net.double()(x.double())
    net.to(x.dtype)
    return compare("make_step: output", found, other, exact, True)


def step_case(settings: Settings, kind: Kind, clock: str) -> Case:
    """Times make_step against calls of modules. Its host time and its wall time have targets."""
    set_tf32(False)
    cell, device = kind.cell.upper(), settings.device
    sizes, options = (kind.shape.i, kind.shape.h), {"device": device, "dtype": kind.dtype}
    net = getattr(treadle.nn, cell)(*sizes, **options).requires_grad_(False)
    step = treadle.nn.make_step(net, kind.shape.b)
    functions = {OURS: step, "call by call": Acting(net)}
    yardsticks: dict[str, Calls] = {}
    x = torch.randn(ACTED, kind.shape.b, kind.shape.i, device=device).to(kind.dtype)
    for name in (GRU, LSTM):
        other = Acting(getattr(nn, name[3:])(*sizes, **options).requires_grad_(False))
        yardsticks[name] = calls(other, [(x[0],)])
    # The check gets a separate module, because it changes the module's dtype and restores it, which
    # moves the parameters to other addresses.
    twin = getattr(treadle.nn, cell)(*sizes, **options).requires_grad_(False)
    twin.load_state_dict(net.state_dict())
    timer: Wall | Host = settings.host() if clock == "host" else settings.wall()
    return Case(
        op=kind.cell,
        functions=functions,
        inputs=[(x[0],)],
        timer=timer,
        yardsticks=yardsticks,
        target=Target(f"at most {STEP_US} µs", lambda medians: STEP_US)
        if device == "cuda"
        else None,
        check=partial(check_steps, net=twin, x=x),
        threads=kind.threads,
        facts=facts(settings, kind, f"make_step, {clock}"),
    )
