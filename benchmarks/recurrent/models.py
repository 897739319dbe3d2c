"""Times the recurrent layers of public models: treadle.nn.LSTM and GRU against torch's.

A row times a call of a whole module, with the sizes in a project's own configuration: batch, steps,
features, layers and directions. The weights are random, and the same for both modules. In float32,
TF32 is allowed, which is torch's default for recurrent layers.

Results are checked twice: the first steps by the rule of all benchmarks (verify.py), and the whole
call against torch without cuDNN in float64. The first steps are not enough, because a second
direction and later layers read all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import treadle
from benchmarks.harness.cases import OURS, Case, Plan, Settings
from benchmarks.harness.verify import evaluate, exact, leaves, off_by, verify
from benchmarks.recurrent import layer
from benchmarks.recurrent.layer import Kind, at_most
from benchmarks.recurrent.layer_calls import (
    STEPS,
    TORCHS,
    Args,
    Shape,
    as_tf32,
    set_tf32,
    without_cudnn,
)
from benchmarks.recurrent.sweep import LONG_SAMPLE
from benchmarks.recurrent.sweep_calls import chosen

SUITE = "models"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EFFORT = (LONG_SAMPLE, 0.06, (3, 51))  # sample, seconds and rounds, as in sweep.py
SHORTEST = 3  # each row of a packed batch has at least T / SHORTEST steps


@dataclass(frozen=True)
class Stack:
    """A model's recurrent layers, and the project whose configuration has these sizes."""

    name: str
    project: str
    cell: str
    b: int
    t: int
    i: int
    h: int
    layers: int = 1
    both: bool = False
    packed: bool = False

    @property
    def form(self) -> str:
        parts = [f"{self.layers} layers"] if self.layers > 1 else []
        parts += ["bidirectional"] if self.both else []
        return ", ".join([*parts, "packed"] if self.packed else parts)


STACKS = (
    Stack("AWD-LSTM, middle", "salesforce/awd-lstm-lm", "lstm", 80, 70, 1150, 1150),
    Stack("AWD-LSTM, last", "salesforce/awd-lstm-lm", "lstm", 80, 70, 1150, 400),
    Stack("word_language_model 200", "pytorch/examples", "lstm", 20, 35, 200, 200, 2),
    Stack("word_language_model 650", "pytorch/examples", "lstm", 20, 35, 650, 650, 2),
    Stack("word_language_model 1500", "pytorch/examples", "lstm", 20, 35, 1500, 1500, 2),
    Stack("EnCodec", "facebookresearch/encodec", "lstm", 8, 375, 512, 512, 2),
    Stack("Tacotron 2, encoder", "NVIDIA/tacotron2", "lstm", 64, 160, 512, 256, 1, True, True),
    Stack("Deep Speech 2", "deepspeech.pytorch", "gru", 32, 400, 800, 800, 3, True, True),
    Stack("Bonito, hac", "nanoporetech/bonito", "lstm", 64, 1667, 384, 384),
    Stack("Bonito, sup", "nanoporetech/bonito", "lstm", 64, 833, 1024, 1024),
    Stack("NeuralHydrology", "neuralhydrology", "lstm", 256, 365, 32, 256),
    Stack("DeepAR", "awslabs/gluonts", "lstm", 128, 100, 24, 40, 3),
    Stack("PPO, Atari", "vwxyzjn/cleanrl", "lstm", 8, 128, 512, 128),
    Stack("RSL-RL, 4096 robots", "leggedrobotics/rsl_rl", "gru", 4096, 24, 48, 256),
    Stack("TF-GridNet", "espnet/espnet", "lstm", 1000, 65, 192, 192, 1, True),
    Stack("DPRNN", "asteroid-team/asteroid", "lstm", 400, 100, 64, 128, 1, True),
    Stack("Kokoro", "hexgrad/kokoro", "lstm", 1, 300, 640, 256, 1, True),
    Stack("OpenAI Five", "arXiv:1912.06680", "lstm", 60, 16, 2048, 4096),
    Stack("LPCNet", "xiph/LPCNet", "gru", 128, 2400, 512, 384),
    Stack("Dreamer 1024", "danijar/dreamerv3", "gru", 16, 64, 1024, 1024),
    Stack("Dreamer 2048", "danijar/dreamerv3", "gru", 16, 64, 1024, 2048),
)


@dataclass(frozen=True)
class Model(Kind):
    """The model, shape and mode that one row times."""

    stack: Stack = STACKS[0]


def plans(settings: Settings) -> Iterator[Plan]:
    """Yields all rows on CUDA. On the CPU, where full sizes take minutes, yields rows only in a
    quick run."""
    if settings.device == "cpu" and not settings.quick:
        return
    for stack, dtype, backward in product(STACKS, DTYPES, (False, True)):
        shape = Shape.of((stack.b, stack.t, stack.i, stack.h), settings.quick)
        tf32 = dtype == torch.float32
        kind = Model(shape, dtype, backward, tf32=tf32, cell=stack.cell, stack=stack)
        key = f"{settings.device}/{SUITE}/{stack.name}/{kind.digits}/{kind.mode}"
        yield Plan(key, partial(case, settings, kind))


def facts(settings: Settings, kind: Model) -> dict[str, Any]:
    stack = kind.stack
    return layer.facts(settings, kind) | {
        "suite": SUITE,
        "group": f"{kind.cell} layers of public models, {kind.digits}, {settings.device.upper()}",
        "label": f"{stack.name} {kind.digits} {kind.mode}",
        "what": stack.name,
        "project": stack.project,
        "form": stack.form,
        "digits": kind.digits,
        "mode": kind.mode,
    }


def lengths(shape: Shape) -> Tensor:
    """The number of steps of each row: random numbers from a third of T to T, the largest first."""
    generator = torch.Generator().manual_seed(7)
    found = torch.randint(max(1, shape.t // SHORTEST), shape.t + 1, (shape.b,), generator=generator)
    found[0] = shape.t
    return found.sort(descending=True).values


def case(settings: Settings, kind: Model) -> Case:
    set_tf32(kind.tf32)
    theirs, ours = modules(settings, kind)
    args = arguments(settings, kind, theirs)
    baseline, plain = layer.baseline(kind), without_cudnn(plain_stack(kind, rounds=kind.tf32))
    whole = whole_check(kind, args)
    sample, seconds, rounds = EFFORT
    known = facts(settings, kind)
    functions = {OURS: called(ours), baseline: called(theirs)}
    if settings.device == "cuda":
        known["algorithm"] = chosen(functions[OURS], args)

    def check(function: Callable[..., Any], *, poison: bool = False) -> float:
        error = verify(function, kind.cell, opening(args, STEPS), plain=plain, poison=poison)
        whole(function, "treadle")
        return error

    return Case(
        op=kind.cell,
        functions=functions,
        inputs=[args],
        timer=settings.wall(sample, seconds=seconds, warmup=0.02, rounds=rounds),
        target=at_most(1, baseline),
        check=check,
        check_baseline=partial(whole, name=baseline),
        facts=known,
    )


def modules(settings: Settings, kind: Model) -> tuple[nn.RNNBase, nn.RNNBase]:
    """torch's module, whose parameters are in one buffer for cuDNN, and treadle's module with the
    same parameters."""
    stack, shape = kind.stack, kind.shape
    options = {"device": settings.device, "dtype": kind.dtype}
    sizes = (shape.i, shape.h, stack.layers)
    theirs = TORCHS[kind.cell](*sizes, bidirectional=stack.both, **options)
    ours = getattr(treadle.nn, kind.cell.upper())(*sizes, bidirectional=stack.both, **options)
    for net in (theirs, ours):
        net.requires_grad_(kind.backward).train(kind.backward)
    for name, parameter in theirs.named_parameters():
        setattr(ours, name, parameter)
    return theirs, ours


def arguments(settings: Settings, kind: Model, net: nn.RNNBase) -> Args:
    """The input, the sizes of a packed batch in a tuple (else None), and the parameters."""
    shape, sizes = kind.shape, None
    rows: tuple[int, ...] = (shape.t, shape.b)
    if kind.stack.packed:
        counts = (lengths(shape) > torch.arange(shape.t).unsqueeze(1)).sum(1)
        rows, sizes = (int(counts.sum()),), (counts,)
    x = torch.randn(*rows, shape.i, device=settings.device).to(kind.dtype)
    return x.requires_grad_(kind.backward), sizes, *net.parameters()


def called(net: nn.RNNBase) -> Callable[..., tuple[Tensor, ...]]:
    """The module as a function of `arguments`, which end with its parameters."""

    def call(x: Tensor, sizes: tuple[Tensor] | None, *_: Tensor) -> tuple[Tensor, ...]:
        output, last = net(x if sizes is None else PackedSequence(x, sizes[0]))
        states = last if isinstance(last, tuple) else (last,)
        return output if sizes is None else output.data, *states

    return call


def plain_stack(kind: Model, rounds: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """torch's op as a function of `arguments`. With `rounds`, it gets float32 operands that are
    already rounded to TF32, because libraries round them only at some sizes."""
    op, stack = getattr(torch, kind.cell), kind.stack
    options = (True, stack.layers, 0.0, kind.backward, stack.both)
    directions = stack.layers * (2 if stack.both else 1)

    def call(x: Tensor, sizes: tuple[Tensor] | None, *params: Tensor) -> tuple[Tensor, ...]:
        if rounds and x.dtype == torch.float32:
            x, params = as_tf32(x), tuple(map(as_tf32, params))
        batch = x.shape[1] if sizes is None else int(sizes[0][0])
        zeros = x.new_zeros(directions, batch, kind.shape.h)
        hx = [zeros, zeros] if kind.cell == "lstm" else zeros
        if sizes is None:
            return tuple(op(x, hx, list(params), *options, False))
        return tuple(op(x, sizes[0], hx, list(params), *options))

    return call


def opening(args: Args, steps: int) -> Args:
    """The arguments for a call on the first `steps` steps."""
    x, sizes, *params = args
    rows = steps
    if sizes is not None:
        sizes = (sizes[0][:steps],)
        rows = int(sizes[0].sum())
    return x.detach()[:rows].clone().requires_grad_(x.requires_grad), sizes, *params


def whole_check(kind: Model, args: Args) -> Callable[..., float]:
    """A check of a whole call. The expected results are computed once for all candidates."""
    count = 3 if kind.cell == "lstm" else 2

    @cache
    def truths() -> list[Tensor]:
        return evaluate(without_cudnn(plain_stack(kind)), exact(args))

    def check(function: Callable[..., Any], name: str) -> float:
        found = evaluate(function, args)
        assert len(found) == len(truths()) == count + len(leaves(args))
        what = [f"result {n}" if n < count else f"gradient {n - count}" for n in range(len(found))]
        parts = zip(what, found, truths(), strict=True)
        return max(off_by(f"{name}: {part}", value, truth) for part, value, truth in parts)

    return check
