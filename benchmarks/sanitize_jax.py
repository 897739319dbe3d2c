"""Runs every function of treadle.jax with its gradients, for compute-sanitizer; see sanitize.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import treadle.jax as functions

FLOATS = ("float32", "float16", "bfloat16")
GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}
# T, B, I, H, directions. The first layer runs the algorithm `cluster`, the second runs `grid`.
SIZES = ((3, 17, 5, 64, 2), (2, 20, 16, 1024, 1))


def drawn(*shape: int, dtype: str) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), dtype)


def elementwise() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    for dtype in FLOATS:
        x, row, few = (drawn(*shape, dtype=dtype) for shape in ((131, 77), (77,), (5, 131, 1)))
        for name in ("sine", "cosine"):
            yield getattr(functions, name), (x,)
            yield jax.vmap(getattr(functions, name)), (x,)
        yield lambda x: functions.scale(x, 0.3), (x,)
        yield lambda a, b: functions.vector_add(a, b, 0.3), (x, row)
        yield jax.vmap(lambda a, b: functions.vector_add(a, b, 2), (0, None)), (few, row)


def layers() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    for dtype in FLOATS:
        for steps, batch, inputs, hidden, directions in SIZES:
            lead = () if directions == 1 else (directions,)
            for cell, gates in GATES.items():
                rows = gates * hidden
                states = [(directions, batch, hidden)] * (2 if cell == "lstm" else 1)
                shapes = [(steps, batch, inputs), *states, (*lead, rows, inputs)]
                shapes += [(*lead, rows, hidden), (*lead, rows), (*lead, rows)]
                yield getattr(functions, cell), tuple(drawn(*s, dtype=dtype) for s in shapes)


def run(platform: str, share: Callable[[Iterator[Any]], Iterable[Any]] = iter) -> int:
    """Runs every call, or those that `share` picks, and computes all gradients. Returns the number
    of calls."""
    count = 0
    with jax.default_device(jax.devices(platform)[0]):
        for function, arguments in share(chain(elementwise(), layers())):
            results, pull = jax.vjp(jax.jit(function), *arguments)
            jax.block_until_ready(pull(results))
            count += 1
    return count
