"""Timers that compare functions, called candidates, round by round.

A machine's clock frequency and load drift. So every round times all candidates, and the times of
all rounds are kept. Times are always microseconds per call.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch

# The calls of one candidate: the same computation on different inputs, which alternate.
Calls = Sequence[Callable[[], object]]

# No GPU's clock is faster, so a kernel that waits for this many cycles waits at least a second.
CYCLES_PER_SECOND = 2.6e9


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    sample: float = 2e-3  # minimum seconds for a sample of a candidate
    seconds: float = 0.5  # approximate seconds for all samples of a candidate
    rounds: tuple[int, int] = (11, 101)  # minimum and maximum
    warmup: float = 0.05


class Wall:
    """The host's time for many calls, including launches and the wait for the last result."""

    name = "wall"

    def __init__(self, device: str, effort: Effort) -> None:
        self.effort = effort
        self.wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def sampler(self, calls: Calls) -> Callable[[], float]:
        turns = cycle(calls)
        once = self._seconds(turns, 1)
        # A call that takes far longer than the warm-up time needs no warm-up.
        count, spent = 1, once if once > 10 * self.effort.warmup else 0.0
        while spent < self.effort.warmup:
            spent += (took := self._seconds(turns, count))
            once = took / count
            count = min(2 * count, max(1, round(self.effort.sample / once)))
        count = max(1, round(self.effort.sample / once))
        return lambda: 1e6 * self._seconds(turns, count) / count

    def _seconds(self, turns: cycle[Callable[[], object]], count: int) -> float:
        self.wait()
        start = time.perf_counter()
        for call in islice(turns, count):
            call()
        self.wait()
        return time.perf_counter() - start


class Host(Wall):
    """The host's time to issue calls.

    The host waits for the device between samples. A sample has few calls, because the queue holds
    only about a thousand launches, and the host would have to wait if it were full.
    """

    name = "host"
    calls = 4  # per sample

    def sampler(self, calls: Calls) -> Callable[[], float]:
        turns = cycle(calls)
        end = time.perf_counter() + self.effort.warmup
        while time.perf_counter() < end:
            self._seconds(turns, self.calls)
        return lambda: 1e6 * self._seconds(turns, self.calls) / self.calls

    def _seconds(self, turns: cycle[Callable[[], object]], count: int) -> float:
        self.wait()
        start = time.perf_counter()
        for call in islice(turns, count):
            call()
        return time.perf_counter() - start


class Events:
    """CUDA events around queued calls: the device's time without the host's.

    A kernel that only waits is launched first. While it runs, the host enqueues all calls. So the
    device is never idle between two calls, as in a program that keeps the device busy.
    """

    name = "device"

    def __init__(self, effort: Effort, most: int = 32) -> None:
        self.effort = effort
        self.most = most  # calls per sample; the queue has a capacity of about a thousand launches

    def sampler(self, calls: Calls) -> Callable[[], float]:
        turns = cycle(calls)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def seconds(count: int, head_start: float) -> tuple[float, float]:
            """The device's time for `count` calls, and the host's time to enqueue them."""
            torch.cuda.synchronize()
            torch.cuda._sleep(int(CYCLES_PER_SECOND * head_start))
            began = time.perf_counter()
            start.record()
            for call in islice(turns, count):
                call()
            end.record()
            enqueued = time.perf_counter() - began
            end.synchronize()
            return 1e-3 * start.elapsed_time(end), enqueued

        seconds(len(calls), 0.0)
        trial = min(self.most, 4)
        once = max(1e-7, min(seconds(trial, 0.01)[0] for _ in range(3)) / trial)
        count = max(1, min(self.most, round(self.effort.sample / once)))
        head_start = 0.0
        warm = time.perf_counter() + self.effort.warmup
        while head_start == 0.0 or time.perf_counter() < warm:
            head_start = 1.5 * seconds(count, 0.0)[1] + 2e-5
        return lambda: 1e6 * seconds(count, head_start)[0] / count


def measure(timer: Wall | Events, candidates: dict[str, Calls]) -> dict[str, list[float]]:
    """Microseconds per call, for each candidate and round. All candidates list the rounds in the
    same order."""
    effort = timer.effort
    samplers = {name: timer.sampler(calls) for name, calls in candidates.items()}
    order = list(samplers)
    shuffle = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in order}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        least, most = effort.rounds
        end = time.perf_counter() + effort.seconds * len(order)
        for turn in range(most):
            if turn >= least and time.perf_counter() > end:
                break
            # The position in a round affects which cache contents and clocks a candidate finds.
            shuffle.shuffle(order)
            for name in order:
                found[name].append(samplers[name]())
    finally:
        if collecting:
            gc.enable()
    return found


def summary(samples: list[float]) -> dict[str, float]:
    """The median and, as the spread, the quartiles."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {
        "median_us": middle,
        "q25_us": low,
        "q75_us": high,
        "min_us": min(samples),
        "samples": len(samples),
    }
