"""Times layers whose cells are formulas, against treadle's LSTM and GRU and against loops.

A row is the wall time of a call of treadle.nn.Recurrent with one layer and I = H. LSTM and GRU
written as formulas are compared with treadle.nn.LSTM and GRU of the same sizes. Light GRU and sLSTM
are compared with loops over time, eager and as TorchScript. The loop of Light GRU is SpeechBrain's,
and its sizes are those of a layer in SpeechBrain's recipes for speech. sLSTM in bfloat16 is also
compared with FlashRNN, if that package is installed.

The rows `compile` measure compilation: the time of a cell's first call in a process, forward and
backward, minus the time of a later call. Another cell with weights of the same shapes runs before,
because the first matrix product of each shape loads a kernel of cuBLAS. The folder of compiled
cells is empty in one measurement, and in the other it already contains both cells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import treadle
from benchmarks.elementwise.dense import dtype_name
from benchmarks.harness.cases import OURS, Case, Plan, Row, Settings, Target
from benchmarks.harness.timing import summary
from benchmarks.harness.verify import verify, verify_baseline
from benchmarks.recurrent import flashrnn
from benchmarks.recurrent.layer_calls import set_tf32
from treadle import reference
from treadle.nn.formulas import CELLS

SUITE = "formulas"
CHECKED = 32  # steps whose results are compared
LOOP, SCRIPT, CACHED = "loop", "TorchScript loop", "from disk"


def lstm(i: Any, f: Any, g: Any, o: Any, c: Any) -> Any:
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(n_h: Any, r: Any, z: Any, n_x: Any, h: Any) -> Any:
    n, z = torch.tanh(n_x + torch.sigmoid(r) * n_h), torch.sigmoid(z)
    return (1 - z) * n + z * h


def ligru(a: Any, z: Any, h: Any) -> Any:
    z = torch.sigmoid(z)
    return z * h + (1 - z) * torch.relu(a)


def warm(a: Any, z: Any, h: Any) -> Any:
    return ligru(torch.tanh(a), z, h)


TIMED = {
    "lstm": treadle.Cell("lstm", gates=("i", "f", "g", "o"), states=("c",), forward=lstm),
    "gru": treadle.Cell(
        "gru", gates=("n_h", "r", "z", "n_x"), only_state="n_h", only_input="n_x", forward=gru
    ),
    "ligru": treadle.Cell("ligru", gates=("a", "z"), forward=ligru),
    "slstm": CELLS["SLSTM"],
}
WARM = treadle.Cell("warm", gates=("a", "z"), forward=warm)  # runs before ligru is compiled
HEADS = 4  # of slstm
OWN = {"lstm": treadle.nn.LSTM, "gru": treadle.nn.GRU}
SIZES = {  # B, T, H
    "cuda": {
        "lstm": ((16, 512, 512), (64, 256, 1024)),
        "gru": ((16, 512, 512), (64, 256, 1024)),
        "ligru": ((8, 1024, 512), (16, 400, 1024)),
        "slstm": ((16, 512, 512),),
    },
    "cpu": dict.fromkeys(TIMED, ((16, 100, 128),)),
}
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float32,)}


@dataclass(frozen=True)
class Kind:
    cell: str
    sizes: tuple[int, int, int]
    dtype: torch.dtype
    backward: bool

    @property
    def mode(self) -> str:
        return "training" if self.backward else "inference"

    @property
    def name(self) -> str:
        return f"{self.cell}/{','.join(map(str, self.sizes))}/{dtype_name(self.dtype)}/{self.mode}"


def plans(settings: Settings) -> Iterator[Plan]:
    device = settings.device
    for cell, dtype in product(TIMED, DTYPES[device]):
        sizes = ((2, 3, 8),) if settings.quick else SIZES[device][cell]
        for each, backward in product(sizes, (False, True)):
            kind = Kind(cell, each, dtype, backward)
            yield Plan(f"{device}/{SUITE}/{kind.name}", partial(case, settings, kind))
    for dtype in DTYPES[device]:
        compilation = Compilation(device, dtype, 8 if settings.quick else 512)
        name = f"{device}/{SUITE}/ligru/compile/{dtype_name(dtype)}"
        yield Plan(name, partial(lambda found: found, compilation))


def case(settings: Settings, kind: Kind) -> Case:
    set_tf32(False)
    rows, steps, hidden = kind.sizes
    device: dict[str, Any] = {"device": settings.device, "dtype": kind.dtype}
    groups = HEADS if kind.cell == "slstm" else 1
    layer = treadle.nn.Recurrent(TIMED[kind.cell], hidden, hidden, groups=groups, **device)
    x = torch.randn(steps, rows, hidden, **device)
    args = arguments(layer, x, kind.backward)
    functions: dict[str, Callable[..., Any]] = {OURS: lambda *args: layer(args[0])[0]}
    yardsticks = {}
    if kind.cell in LOOPS:
        plain_loop, share = LOOPS[kind.cell]
        functions |= {LOOP: plain_loop, SCRIPT: torch.jit.script(plain_loop)}
        other = LOOP if kind.cell == "ligru" else SCRIPT
        share = share if settings.device == "cuda" else 1.0
        target = Target(f"at most {share:g} × the {other}", lambda medians: share * medians[other])
        if kind.cell == "slstm" and kind.dtype is torch.bfloat16 and settings.device == "cuda":
            functions |= flashrnn.rivals(args)
    else:
        # The parameters of this module have another order, so it gets its own arguments.
        module = OWN[kind.cell](hidden, hidden, **device)
        own = arguments(module, x.clone(), kind.backward)
        name = f"treadle.nn.{kind.cell.upper()}"
        yardsticks = {name: [called(module, own)]}
        target = Target(f"at most 1.10 × {name}", lambda medians: 1.10 * medians[name])
    plain = partial(stepwise, TIMED[kind.cell])
    # Only the first steps are compared, because errors add up over hundreds of steps.
    few = (x.detach()[:CHECKED].clone().requires_grad_(kind.backward), *args[1:])
    return Case(
        op=kind.cell,
        functions=functions,
        inputs=[args],
        timer=settings.wall(2e-3 if settings.device == "cpu" else 5e-3),
        yardsticks=yardsticks,
        target=target,
        check=partial(verify, op=kind.cell, args=few, plain=plain),
        check_baseline=partial(verify_baseline, op=kind.cell, args=few, plain=plain),
        threads=1 if settings.device == "cpu" else None,
        facts={
            "suite": SUITE,
            "group": f"formula of {kind.cell}, {dtype_name(kind.dtype)}, {settings.device.upper()}",
            "label": kind.name,
            "dtype": dtype_name(kind.dtype),
            "shape": list(kind.sizes),
            "mode": kind.mode,
        },
    )


def arguments(layer: nn.Module, x: Tensor, backward: bool) -> tuple[Tensor, ...]:
    """The input and the parameters, which require grad if `backward`."""
    for parameter in layer.parameters():
        parameter.requires_grad_(backward)
    return x.requires_grad_(backward), *layer.parameters()


def called(module: nn.Module, args: tuple[Tensor, ...]) -> Callable[[], Any]:
    x, *_ = args
    if not x.requires_grad:
        return lambda: module(x)[0]
    grad = torch.randn_like(x)
    return lambda: torch.autograd.grad(module(x)[0], args, grad)


def loop(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """Light GRU as SpeechBrain computes it: one product with x for all steps, then a loop."""
    rows = torch.nn.functional.linear(x, w_ih, b_ih)
    h = torch.zeros(x.shape[1], w_hh.shape[1], dtype=x.dtype, device=x.device)
    found = []
    for t in range(x.shape[0]):
        gates = rows[t] + torch.nn.functional.linear(h, w_hh, b_hh)
        a, z = gates.chunk(2, 1)
        z = torch.sigmoid(z)
        h = z * h + (1 - z) * torch.relu(a)
        found.append(h)
    return torch.stack(found)


def slstm_loop(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """sLSTM with heads: one product with x for all steps, then a loop."""
    rows = torch.nn.functional.linear(x, w_ih, b_ih) + b_hh
    own = w_hh.shape[1]
    heads = w_hh.shape[0] // (4 * own)
    blocks = w_hh.view(4, heads, own, own).permute(1, 3, 0, 2).reshape(heads, own, 4 * own)
    h = torch.zeros(x.shape[1], heads * own, dtype=x.dtype, device=x.device)
    c = torch.zeros(x.shape[1], heads * own, dtype=torch.float32, device=x.device)
    n, m = torch.zeros_like(c), torch.zeros_like(c)
    found = []
    for t in range(x.shape[0]):
        of_h = torch.bmm(h.view(-1, heads, own).transpose(0, 1), blocks)  # [heads, B, 4 own]
        of_h = of_h.view(heads, -1, 4, own).permute(1, 2, 0, 3).flatten(1)
        i, f, z, o = (rows[t] + of_h).float().chunk(4, 1)
        kept = torch.nn.functional.logsigmoid(f) + m
        m = torch.where(n == 0, i, torch.maximum(i, kept))
        i, f = torch.exp(i - m), torch.exp(torch.clamp(kept - m, max=0.0))
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = (torch.sigmoid(o) * c / n).to(x.dtype)
        found.append(h)
    return torch.stack(found)


# Each loop, and the fraction of its time that a layer may take on a GPU: a tenth of LiGRU's eager
# loop, and a twentieth of sLSTM's loop in TorchScript.
LOOPS: dict[str, tuple[Callable[..., Tensor], float]] = {
    "ligru": (loop, 0.1),
    "slstm": (slstm_loop, 0.05),
}


def stepwise(cell: treadle.Cell, x: Tensor, *parameters: Tensor) -> Tensor:
    """Evaluates the formula on tensors, one step at a time."""
    weights = [p.unsqueeze(0) for p in parameters]
    hidden = weights[1].shape[1] // cell.state_gates
    h, c = (x.new_zeros(1, x.shape[1], width) for width in (hidden, len(cell.parts) * hidden))
    return reference.recurrent_layer(x, None, h, c, *weights, cell=cell)[0]


# ---- compilation

PROGRAM = """
import json, sys, time
import torch, treadle
from benchmarks.recurrent.formulas import TIMED, WARM
device, dtype, hidden = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
layer, other = (
    treadle.nn.Recurrent(cell, hidden, hidden, device=device, dtype=dtype)
    for cell in (TIMED["ligru"], WARM)
)
x = torch.randn(64, 8, hidden, device=device, dtype=dtype, requires_grad=True)
def seconds(module):
    start = time.perf_counter()
    module(x)[0].sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
seconds(other)
first = seconds(layer)
print(json.dumps(first - min(seconds(layer) for _ in range(5))))
"""


@dataclass(frozen=True)
class Compilation:
    """Measures how long compiling the kernels of a layer takes, in a separate process."""

    device: str
    dtype: torch.dtype
    hidden: int

    def row(self, key: str) -> Row:
        first, cached = [], []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                first.append(self.microseconds(folder))
                cached.append(self.microseconds(folder))
        return {
            "key": key,
            "op": "ligru",
            "suite": SUITE,
            "group": f"compiling a cell, {self.device.upper()}",
            "label": f"ligru, H {self.hidden}, {dtype_name(self.dtype)}",
            "dtype": dtype_name(self.dtype),
            "shape": [8, 64, self.hidden],
            "mode": "compile",
            "notes": [],
            "timer": "wall",
            "times": {OURS: summary(first), CACHED: summary(cached)},
            "yardsticks": [CACHED],
        }

    def microseconds(self, folder: str) -> float:
        arguments = [self.device, dtype_name(self.dtype), str(self.hidden)]
        environment = {**os.environ, "TREADLE_CELLS": folder}
        environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *sys.path])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return 1e6 * float(json.loads(done.stdout))
