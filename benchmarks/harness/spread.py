"""Measures rows on several GPUs of one machine at the same time, with one process per GPU.

This is for rows that measure device time and whose baselines take minutes to compile. The
candidates of a row are still interleaved in one process on one GPU.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.queues import Queue

from benchmarks.harness.cases import Plan, Row, run

Plans = Callable[[], list[Plan]]
_known: dict[str, Plan] = {}  # the plans of this process


def _start(gpus: Queue[str], plans: Plans) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.get()
    _known.update({plan.key: plan for plan in plans()})


def _measure(key: str) -> Row:
    return run(_known[key])


def visible(count: int) -> list[str]:
    """The first `count` GPUs that this process may use, in the notation of CUDA_VISIBLE_DEVICES."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    return named.split(",")[:count]


def measure(keys: list[str], plans: Plans, gpus: list[str]) -> Iterator[Row]:
    """Yields the rows of these keys, in order of completion. `plans` is pickled and called in each
    process."""
    context = multiprocessing.get_context("spawn")
    names: Queue[str] = context.Queue()
    for gpu in gpus:
        names.put(gpu)
    with ProcessPoolExecutor(len(gpus), context, _start, (names, plans)) as pool:
        for done in as_completed([pool.submit(_measure, key) for key in keys]):
            yield done.result()
