"""The JAX layers that jax_layer.py times (treadle.jax, lax.scan and flax), and checks of their
results against torch's own layer in float64.

Every layer is a function of x [T, B, I], states [B, H] (h0 and, for an LSTM, c0) and parameters. It
returns the output and the last states. Parameters have torch's layout, except those of flax.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness.cases import OURS, Case, Row, Settings, Target
from benchmarks.harness.timing import Effort, Wall
from benchmarks.harness.verify import Refused, compare
from benchmarks.recurrent import jax_flax
from benchmarks.recurrent.layer import Kind
from benchmarks.recurrent.layer_calls import STEPS

# By default, JAX would allocate most of the GPU's memory, which torch needs too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import treadle.jax  # noqa: E402

SCAN, FLAX = "lax.scan", "flax"
UNROLL = 8
UNROLLED = f"{SCAN}, unroll={UNROLL}"
# The limit of a result's error, as a multiple of eps times the largest value. The limit of a
# gradient's error is three times as large.
ROUNDINGS = 16
GATES = {"gru": 3, "lstm": 4}


class Blocking(Wall):
    """The host's time until JAX has computed the last result. On the CPU, JAX would run calls
    concurrently, so there the timer waits for each call."""

    def __init__(self, device: str, effort: Effort) -> None:
        super().__init__("cpu", effort)
        self.each = device == "cpu"

    def _seconds(self, turns: cycle[Callable[[], object]], count: int) -> float:
        start = time.perf_counter()
        for call in islice(turns, count):
            result = call()
            if self.each:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Given:
    """The inputs of all candidates and, for training, the gradients of the results."""

    x: Any
    states: tuple[Any, ...]
    params: tuple[Any, ...]  # weight_ih, weight_hh, bias_ih, bias_hh
    grads: tuple[Any, ...]
    first_grads: tuple[Any, ...]  # grads, but 0 after the first STEPS steps

    @staticmethod
    def random(kind: Kind) -> Given:
        s, rows = kind.shape, GATES[kind.cell] * kind.shape.h
        rng, dtype = np.random.default_rng(1), str(kind.dtype)[6:]

        def uniform(*shape: int) -> Any:
            return rng.uniform(-1, 1, shape) * s.h**-0.5

        # In flax, one bias is the sum of these two. The sum is exact in every dtype, because both
        # are multiples of 1/256.
        biases = (np.round(256 * uniform(rows)) / 256 for _ in range(2))
        states = [rng.normal(size=(s.b, s.h)) for _ in range(2 if kind.cell == "lstm" else 1)]
        output = rng.normal(size=(s.t, s.b, s.h))
        ends = [rng.normal(size=(s.b, s.h)) for _ in states]
        first = [output * (np.arange(s.t) < STEPS)[:, None, None], *(0 * end for end in ends)]
        groups = (
            [rng.normal(size=(s.t, s.b, s.i))],
            states,
            [uniform(rows, s.i), uniform(rows, s.h), *biases],
            [output, *ends],
            first,
        )
        (x,), *rest = (tuple(jnp.asarray(a, dtype) for a in group) for group in groups)
        return Given(x, *rest)


@dataclass(frozen=True)
class Candidate:
    """A layer under jit with its arguments."""

    run: Callable[..., Any]
    given: Given
    params: Any
    restored: Callable[[Any], tuple[Any, ...]]  # converts gradients of params to torch's layout
    training: bool

    @staticmethod
    def of(
        layer: Callable[..., Any],
        given: Given,
        training: bool,
        params: Any = None,
        restored: Callable[[Any], tuple[Any, ...]] = lambda grads: grads,
    ) -> Candidate:
        def train(x: Any, states: Any, params: Any, grads: Any) -> Any:
            results, pull = jax.vjp(lambda x, params: layer(x, states, params), x, params)
            return results, pull(grads)

        run = jax.jit(train if training else layer)
        return Candidate(run, given, params or given.params, restored, training)

    def __call__(self) -> Any:
        more = (self.given.grads,) if self.training else ()
        return self.run(self.given.x, self.given.states, self.params, *more)

    def first_steps(self) -> list[Tensor]:
        """Returns the first outputs of the compiled call that is timed and, in training, the
        gradients of x and params that these outputs cause. So later steps do not affect the
        comparison. Raises Refused unless all results are finite and the last output is h_n."""
        given = self.given
        more = (given.first_grads,) if self.training else ()
        found = self.run(given.x, given.states, self.params, *more)
        results, (of_x, of_params) = found if self.training else (found, (None, None))
        output, h_n, *_ = results
        if not all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(found)):
            raise Refused("not all results are finite")
        if not bool((output[-1] == h_n).all()):
            raise Refused("the last state is not the last output")
        made = [output[:STEPS]]
        if self.training:
            made += [of_x[:STEPS], *self.restored(of_params)]
        return [to_torch(array) for array in made]


def to_torch(array: Any) -> Tensor:
    """The array as a tensor on the CPU, in its own dtype."""
    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(np.array(array, np.float64)).to(dtype)


# ---- layers


def ours(cell: str, x: Any, states: Any, params: Any) -> Any:
    output, *ends = getattr(treadle.jax, cell)(x, *(s[None] for s in states), *params)
    return output, *(end[0] for end in ends)


def scanned(cell: str, unroll: int, x: Any, states: Any, params: Any) -> Any:
    """A hand-written layer: one input product for all steps, then the scan."""
    weight_ih, weight_hh, bias_ih, bias_hh = params

    def gru(state: Any, of_x: Any) -> Any:
        (h,) = state
        r, z, n = jnp.split(of_x, 3, axis=-1)
        r_h, z_h, n_h = jnp.split(h @ weight_hh.T + bias_hh, 3, axis=-1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)
        h = n + jax.nn.sigmoid(z + z_h) * (h - n)
        return (h,), h

    def lstm(state: Any, of_x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(of_x + h @ weight_hh.T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    products = x @ weight_ih.T + (bias_ih if cell == "gru" else bias_ih + bias_hh)
    step = gru if cell == "gru" else lstm
    ends, output = jax.lax.scan(step, states, products, unroll=unroll)
    return output, *ends


def candidates(kind: Kind, given: Given) -> dict[str, Candidate]:
    make = partial(Candidate.of, given=given, training=kind.backward)
    found = {
        OURS: make(partial(ours, kind.cell)),
        SCAN: make(partial(scanned, kind.cell, 1)),
        UNROLLED: make(partial(scanned, kind.cell, UNROLL)),
    }
    if jax_flax.linen is not None:
        layer = partial(jax_flax.layer, kind.cell, kind.shape.h, given.x.dtype)
        params = jax_flax.params(kind.cell, given.params)
        found[FLAX] = make(layer, params=params, restored=partial(jax_flax.restored, kind.cell))
    return found


# ---- expected results


def true_first_steps(kind: Kind, given: Given) -> list[Tensor]:
    """Computes the expected results with torch's own layer, in float64 on the CPU."""
    x, *others = (to_torch(a).double() for a in (given.x[:STEPS], *given.states, *given.params))
    states, params = others[:-4], others[-4:]
    leaves = [t.requires_grad_(kind.backward) for t in (x, *params)]
    hx = [state[None] for state in states]
    run = getattr(torch, kind.cell)
    hx = hx if kind.cell == "lstm" else hx[0]
    output = run(leaves[0], hx, leaves[1:], True, 1, 0.0, kind.backward, False, False)[0]
    if not kind.backward:
        return [output]
    grad = to_torch(given.first_grads[0][:STEPS]).double()
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def check(
    candidate: Candidate,
    truths: list[Tensor],
    plain: Callable[[], list[Tensor]],
    poison: bool = False,
) -> float:
    """The largest error divided by its limit. All candidates must keep the limit that ROUNDINGS
    sets. treadle's candidate, for which `poison` is true, must also satisfy the rule of verify.py.
    The plain composition of this rule is `plain`, which runs lax.scan in the same dtype."""
    found, worst = candidate.first_steps(), 0.0
    others = plain() if poison else found
    for index, (value, other, truth) in enumerate(zip(found, others, truths, strict=True)):
        what = f"result {index}" if index == 0 else f"gradient {index - 1}"
        limit = ROUNDINGS * (1 if index == 0 else 3) * torch.finfo(value.dtype).eps
        error = float((value.double() - truth).abs().max() / truth.abs().max())
        if not error <= limit:
            raise Refused(f"{what} is wrong by {error:.2e} of its largest value")
        by_rule = compare(what, value, other, truth, index == 0) if poison else 0.0
        worst = max(worst, error / limit, by_rule)
    return worst


# ---- one row


@dataclass
class JaxCase(Case):
    """A case whose calls JAX traces and runs on one device, in one precision."""

    device: Any = None
    precision: str = "default"
    versions: dict[str, Any] = field(default_factory=dict)

    def row(self, key: str) -> Row:
        with jax.default_device(self.device), jax.default_matmul_precision(self.precision):
            first = self.functions[OURS]
            assert isinstance(first, Candidate)
            self.facts["algorithm"] = "kernels" if calls_kernels(first) else SCAN
            return super().row(key) | self.versions


def calls_kernels(candidate: Candidate) -> bool:
    given = candidate.given
    more = (given.grads,) if candidate.training else ()
    traced = jax.make_jaxpr(candidate.run)(given.x, given.states, candidate.params, *more)
    return "ffi_call[" in str(traced)


def case(settings: Settings, kind: Kind, target: Target, facts: dict[str, Any]) -> JaxCase:
    device = jax.devices("gpu" if settings.device == "cuda" else "cpu")[0]
    precision = "highest" if kind.dtype == torch.float32 else "default"
    with jax.default_device(device), jax.default_matmul_precision(precision):
        given = Given.random(kind)
        functions: dict[str, Any] = candidates(kind, given)
    plain = functions[SCAN].first_steps
    effort = settings.effort(sample=16e-3, seconds=0.2, warmup=0.02, rounds=(5, 51))
    return JaxCase(
        op=kind.cell,
        functions=functions,
        inputs=[()],
        timer=Blocking(settings.device, effort),
        target=target,
        check=partial(check, truths=true_first_steps(kind, given), plain=plain),
        facts=facts | {"gates": dict.fromkeys(functions, GATES[kind.cell])},
        notes=[] if FLAX in functions else [f"{FLAX} left out: {jax_flax.WHY_NOT}"],
        device=device,
        precision=precision,
        versions={"jax": jax.__version__, "flax": jax_flax.VERSION},
    )
