"""Times forward and backward of a recurrent state-space model, which loops over a GRU cell.

The model is Dreamer's with a Gaussian state. A step computes the GRU's state from the last action
and sample, a prior from the state, and a posterior from the state and the observation's features;
then it draws the next sample from the posterior. Because the next step needs this sample, no GRU
kernel can run several steps in one launch.

The candidates are a loop over torch's cell, the same loop with a compiled step, a loop over
treadle's cell, and `make_training_step` of the whole loop ("treadle") or of one step. All of them
use the same parameter tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

import treadle
from benchmarks.harness.cases import OURS, Case, Plan, Settings, calls
from benchmarks.harness.verify import leaves, verify, verify_baseline
from benchmarks.recurrent.layer import at_most
from benchmarks.recurrent.layer_calls import set_tf32
from treadle.nn import make_training_step

SUITE = "training_step"
DTYPES = (torch.float32, torch.bfloat16)
LOOP, COMPILED = "loop of nn.GRUCell", "torch.compile of the step"
OUR_LOOP, ONE_STEP = "loop of treadle's GRU", "make_training_step of one step"
OF_LOOP = 1 / 3
Args = tuple[Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """The numbers of rows, steps and units, and of the features of an observation, a sample and an
    action."""

    b: int = 16
    t: int = 64
    h: int = 512
    features: int = 1024
    sample: int = 32
    action: int = 6


QUICK = Sizes(2, 3, 8, 4, 3, 2)


class OneStep(nn.Module):
    """treadle's layer, used as a cell, with the parameters of ``cell``."""

    def __init__(self, cell: nn.GRUCell) -> None:
        super().__init__()
        kind = {"device": cell.weight_hh.device, "dtype": cell.weight_hh.dtype}
        self.layer = treadle.nn.GRU(cell.input_size, cell.hidden_size, **kind)
        for name, p in cell.named_parameters():
            setattr(self.layer, f"{name}_l0", p)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        output: Tensor = self.layer(x.unsqueeze(0), h.unsqueeze(0))[0][0]
        return output


def our_cell(cell: nn.GRUCell) -> nn.Module:
    """treadle's cell with the parameters of `cell`. A OneStep if treadle.nn has no GRUCell."""
    if not hasattr(treadle.nn, "GRUCell"):
        return OneStep(cell)
    kind = {"device": cell.weight_hh.device, "dtype": cell.weight_hh.dtype}
    ours: nn.Module = treadle.nn.GRUCell(cell.input_size, cell.hidden_size, **kind)
    for name, p in cell.named_parameters():
        setattr(ours, name, p)
    return ours


class Model(nn.Module):
    """The recurrent state-space model; ``forward`` observes all steps."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        h, two = sizes.h, 2 * sizes.sample
        self.inward = nn.Linear(sizes.sample + sizes.action, h)
        self.cell: Any = nn.GRUCell(h, h)
        self.prior = nn.Sequential(nn.Linear(h, h), nn.SiLU(), nn.Linear(h, two))
        both = h + sizes.features
        self.posterior = nn.Sequential(nn.Linear(both, h), nn.SiLU(), nn.Linear(h, two))

    def step(self, features: Tensor, action: Tensor, noise: Tensor, h: Tensor, z: Tensor) -> Args:
        h = self.cell(silu(self.inward(torch.cat([z, action], -1))), h)
        posterior = self.posterior(torch.cat([h, features], -1))
        mean, deviation = posterior.chunk(2, -1)
        z = mean + (softplus(deviation) + 0.1) * noise
        return h, z, self.prior(h), posterior

    def forward(self, *args: Tensor) -> Args:
        return looped(self.step, *args)


def looped(
    step: Callable[..., Args], features: Tensor, actions: Tensor, noise: Tensor, *state: Tensor
) -> Args:
    """The results of all steps, each [T, B, ...]."""
    found = []
    for row in zip(features, actions, noise, strict=True):
        state = step(*row, *state[:2])
        found.append(state)
    return tuple(map(torch.stack, zip(*found, strict=True)))


def plans(settings: Settings) -> Iterator[Plan]:
    """Yields all rows on CUDA. On the CPU, where make_training_step only calls the function, yields
    rows only in a quick run."""
    if settings.device == "cpu" and not settings.quick:
        return
    for dtype in DTYPES:
        key = f"{settings.device}/{SUITE}/{str(dtype).removeprefix('torch.')}"
        yield Plan(key, partial(case, settings, dtype))


def arguments(settings: Settings, dtype: torch.dtype, sizes: Sizes) -> Args:
    """Features, actions, noise, and the first state and sample. Only noise and actions have no
    gradient."""
    kind = {"device": settings.device, "dtype": dtype}
    steps = (sizes.t, sizes.b)
    return (
        torch.randn(*steps, sizes.features, **kind).requires_grad_(),
        torch.randn(*steps, sizes.action, **kind),
        torch.randn(*steps, sizes.sample, **kind),
        torch.zeros(sizes.b, sizes.h, **kind).requires_grad_(),
        torch.zeros(sizes.b, sizes.sample, **kind).requires_grad_(),
    )


def called(function: Callable[..., Args], count: int) -> Callable[..., Args]:
    """The function, called without the last arguments, which are parameters of its module."""
    return lambda *args: function(*args[:count])


def case(settings: Settings, dtype: torch.dtype) -> Case:
    set_tf32(False)
    sizes = QUICK if settings.quick else Sizes()
    theirs = Model(sizes).to(settings.device, dtype)
    ours = Model(sizes).to(settings.device, dtype)
    ours.load_state_dict(theirs.state_dict())
    for name, p in theirs.named_parameters():
        module, _, last = name.rpartition(".")
        setattr(ours.get_submodule(module), last, p)
    ours.cell = our_cell(ours.cell)
    inputs = arguments(settings, dtype, sizes)
    parameters = dict(theirs.named_parameters())
    args = (*inputs, *parameters.values())

    def plain(*args: Tensor) -> Args:
        values = dict(zip(parameters, args[len(inputs) :], strict=True))
        found: Args = torch.func.functional_call(theirs, values, args[: len(inputs)])
        return found

    row = tuple(t[0] for t in inputs[:3])
    sample = (row[0].detach().requires_grad_(), *row[1:], *inputs[3:])
    one = make_training_step(ours.step, sample, calls=sizes.t)
    functions = {OURS: make_training_step(ours, inputs), LOOP: theirs}
    if not settings.quick:
        torch.compiler.reset()
        functions[COMPILED] = partial(looped, torch.compile(theirs.step, dynamic=False))
    beside = {OUR_LOOP: ours, ONE_STEP: partial(looped, one)}
    functions, beside = (
        {name: called(function, len(inputs)) for name, function in of.items()}
        for of in (functions, beside)
    )
    checked = partial(verify_baseline, op=SUITE, args=args, plain=plain)
    digits = str(dtype).removeprefix("torch.")
    return Case(
        op=SUITE,
        functions=functions,
        inputs=[args],
        timer=settings.wall(seconds=0.3, warmup=0.05, rounds=(5, 51)),
        yardsticks={name: calls(function, [args]) for name, function in beside.items()},
        target=at_most(OF_LOOP, LOOP) if settings.device == "cuda" else None,
        # The error is compared with that of the loop over treadle's cell. This loop runs the same
        # kernels on the same numbers, so its rounding errors grow equally.
        check=partial(verify, op=SUITE, args=args, plain=beside_of(ours, plain, beside[OUR_LOOP])),
        check_baseline=checked,
        check_yardsticks={name: partial(checked, function) for name, function in beside.items()},
        facts=facts(settings, digits, sizes, len(leaves(args))),
    )


def beside_of(
    ours: Model, plain: Callable[..., Args], loop: Callable[..., Args]
) -> Callable[..., Args]:
    """Returns a function that calls the loop over treadle's cell if the arguments have the dtype of
    that cell, and otherwise (in float64) the plain model."""
    dtype = ours.inward.weight.dtype
    return lambda *args: (loop if args[0].dtype == dtype else plain)(*args)


def facts(settings: Settings, digits: str, sizes: Sizes, gradients: int) -> dict[str, Any]:
    return {
        "suite": SUITE,
        "group": f"training call of a recurrent state-space model, {settings.device.upper()}",
        "label": f"RSSM B{sizes.b} T{sizes.t} H{sizes.h} {digits}",
        "dtype": digits,
        "mode": "training",
        "shape": [sizes.b, sizes.t, sizes.h],
        "gradients": gradients,
    }
