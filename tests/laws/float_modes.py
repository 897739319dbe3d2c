"""Runs each call in a new process, then checks torch's arithmetic on subnormal numbers.

``python -m tests.laws.float_modes NAME`` runs one group of calls, each in a child process, and
prints the calls after which one of torch's threads flushes subnormal numbers to zero. The program
must start in a process in which torch has not computed anything: a thread inherits the mode of the
thread that created it, and OpenMP creates its threads at the first parallel loop.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import treadle

CELLS = ("LSTM", "GRU", "RNN", "LLTM")
# T, B and H. Small products run in one thread, larger ones in several.
SIZES = ((1, 1, 4), (1, 3, 16), (17, 3, 16), (17, 8, 40), (3, 64, 128))
Calls = Iterator[tuple[str, Callable[[], Any]]]


def flushed() -> bool:
    """Whether any thread of the pool or of BLAS, or the caller's thread, flushes subnormals."""
    tiny = torch.full((1 << 17,), 1.1753312e-38)
    product = torch.full((64, 8), 1.1753312e-38) @ torch.full((8, 64), 2.0**-10)
    return bool(((tiny * 0.5) == 0).any()) or bool((product == 0).any())


def layer(
    cell: str, size: tuple[int, int, int], backward: bool, dtype: torch.dtype, **options: Any
) -> None:
    steps, batch, hidden = size
    module = getattr(treadle.nn, cell)(8, hidden, dtype=dtype)
    x = torch.randn(steps, batch, 8, dtype=dtype, requires_grad=backward)
    results = module(x, **options)
    if backward:
        sum(x.sum() for x in results if isinstance(x, torch.Tensor)).backward()  # type: ignore


def first_calls() -> Calls:
    dtypes = (torch.float32, torch.bfloat16)
    for cell, size, backward, dtype in itertools.product(CELLS, SIZES, (False, True), dtypes):
        case = cell, size, backward, dtype
        yield f"{case}", partial(layer, *case)


def other_roads() -> Calls:
    for cell, size in itertools.product(CELLS, SIZES):
        steps, batch, _ = size
        roads: dict[str, dict[str, Any]] = {
            "lengths": {"lengths": torch.arange(batch) % (steps + 1)},
            "reset": {"reset": torch.arange(steps * batch).view(steps, batch) % 3 == 0},
            "return_cells": {"return_cells": True},
        }
        for name, options in roads.items():
            if name != "return_cells" or cell in ("LSTM", "LLTM"):
                case = cell, size, True, torch.float32
                yield f"{name} {case}", partial(layer, *case, **options)
    for batch, hidden in ((1, 4), (3, 16), (8, 40), (64, 128)):
        yield f"LLTMCell {batch, hidden}", partial(lltm_cell, batch, hidden)


def lltm_cell(batch: int, hidden: int) -> None:
    x = torch.randn(batch, 8, requires_grad=True)
    treadle.nn.LLTMCell(8, hidden)(x)[0].sum().backward()


def thread_counts() -> Calls:
    """Yields calls that make the thread pool grow and shrink between layers."""
    for counts in ((1, 4), (4, 1, 4), (2, 8), (8, 2, 6), (1, 1, 3)):
        for size in SIZES:

            def call(counts: tuple[int, ...] = counts, size: Any = size) -> None:
                for count in counts:
                    torch.set_num_threads(count)
                    layer("LSTM", size, True, torch.float32)
                    torch.randn(3, 8).mm(torch.randn(8, 64))

            yield f"{counts} {size}", call


def python_threads() -> Calls:
    """Calls ops in several Python threads. Each thread checks its own thread pool."""
    for size, count in itertools.product(SIZES, (1, 3)):

        def call(size: Any = size, count: int = count) -> None:
            found = []

            def work() -> None:
                layer("GRU", size, True, torch.float32)
                found.append(flushed())

            threads = [threading.Thread(target=work) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [False] * count, found

        yield f"{size} {count}", call


def c_api() -> Calls:
    from tests.c_api import layers

    def call(cell: str, sizes: layers.Sizes, threads: int) -> None:
        layer = layers.Layer.random(cell, sizes, torch.float32, biases=False)
        output, h_n, c_n, gates = layers.forward(layer, threads=threads)
        grads = torch.ones_like(output), h_n, c_n
        layers.backward(layer, gates, grads, threads=threads)

    sizes = [layers.Sizes(*size) for size in SIZES]
    for cell, size, threads in itertools.product(layers.CELLS, sizes, (1, 3)):
        yield f"{cell} {size} {threads}", partial(call, cell, size, threads)


def jax_handlers() -> Calls:
    import jax.numpy as jnp

    import treadle.jax

    def call(arrays: list[np.ndarray]) -> None:
        for result in treadle.jax.lstm(*map(jnp.asarray, arrays)):
            result.block_until_ready()

    for steps, batch, hidden in SIZES[-2:]:
        states = [(1, batch, hidden)] * 2
        shapes = [(steps, batch, 8), *states, (4 * hidden, 8), (4 * hidden, hidden)]
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        yield f"{steps, batch, hidden}", partial(call, arrays)


GROUPS: dict[str, Callable[[], Calls]] = {
    group.__name__: group
    for group in (first_calls, other_roads, thread_counts, python_threads, c_api, jax_handlers)
}


def in_a_child(call: Callable[[], Any]) -> bool:
    """Whether no thread flushes subnormals after the call, even if the thread pool grows."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            now = torch.get_num_threads()
            after = [flushed()]
            for count in (now + 3, now):
                torch.set_num_threads(count)
                after.append(flushed())
            status = int(any(after))
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def main(name: str) -> int:
    calls = list(GROUPS[name]())
    bad = [label for label, call in calls if not in_a_child(call)]
    print(f"{len(bad)} of {len(calls)} wrong", *bad[:5], sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
