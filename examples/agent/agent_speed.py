"""Measures frames per second of the loop, and how long host and device wait for each other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from agent_loop import Captured, Loop, player
from agent_nets import Eye, Mind
from agent_world import Sheet, World
from torch import Tensor

Row = dict[str, Any]
ON_CPU = "world on the CPU"
TOGETHER = 32  # steps of the longest graph
# AHEAD steps are issued while the device sleeps: their kernels must fit into its queue. Times are
# medians of ROUNDS measurements.
AHEAD, ROUNDS = 6, 15
SLEEP = 1 << 26  # cycles, a few hundredths of a second


class HostWorld:
    """A world on the CPU, where most environments run, for nets on a GPU. Every step copies frames
    to the GPU and actions back."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device, self.rows = world, device, world.rows

    @property
    def begins(self) -> Tensor:
        return self.world.begins.to(self.device)

    def frame(self) -> Tensor:
        return self.world.frame().to(self.device)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        reward, ends = self.world.step(action.cpu())
        return reward.to(self.device), ends.to(self.device)


def ways(eye: Eye, mind: Mind, sheet: Sheet, rows: int) -> Iterator[tuple[str, Callable, int]]:
    """The ways to run the loop. Each has a name, a call, and the number of steps per call."""

    def loop(**options: bool) -> Loop:
        return Loop(World(sheet, rows), eye, mind, **options)

    device = sheet.kinds.device
    if device.type == "cuda":
        cpu = HostWorld(World(sheet.to(torch.device("cpu")), rows), device)
        before = torch.get_num_threads()
        for threads in (1, len(os.sched_getaffinity(0))):
            torch.set_num_threads(threads)
            yield f"{ON_CPU}, threads: {threads}", Loop(cpu, eye, mind).step, 1
        torch.set_num_threads(before)
    yield "op by op", loop().step, 1
    yield "op by op, make_step", loop(make_step=True).step, 1
    if device.type == "cuda":
        yield "a graph a step", Captured(loop().step), 1
        yield f"a graph of {TOGETHER} steps", player(loop(), TOGETHER), TOGETHER


def measure(eye: Eye, mind: Mind, sheet: Sheet, sizes: list[int], seconds: float) -> list[Row]:
    """For each number of rows: frames per second, and the fractions of a step in which the host
    and the device wait."""
    found = []
    for rows in sizes:
        for way, call, steps in ways(eye, mind, sheet, rows):
            row: Row = {"rows": rows, "way": way}
            took = 1e6 * wall(call, sheet.kinds.device, seconds) / steps
            row |= {"frames_per_s": round(1e6 * rows / took), "us": round(took, 2)}
            if sheet.kinds.device.type == "cuda" and not way.startswith(ON_CPU):
                host, device = (1e6 * each / steps for each in alone(call, steps))
                row |= {"host_us": round(host, 2), "device_us": round(device, 2)}
                row["host_waits"] = round(max(0.0, 1 - host / took), 4)
                row["device_waits"] = round(max(0.0, 1 - device / took), 4)
            found.append(row)
            print(describe(row))
    return found


def wall(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds per call over many calls; the host waits for the device only after the last one."""

    def many(count: int) -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait(device)
        return time.perf_counter() - start

    many(3)
    once = many(5) / 5
    count = max(5, int(seconds / 3 / once))
    return statistics.median(many(count) / count for _ in range(3))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def alone(call: Callable[[], object], steps: int) -> tuple[float, float]:
    """The seconds per call that the host takes, and those that the device takes, if neither waits
    for the other. To ensure this, a sleeping kernel runs first, and all calls are issued before it
    ends."""
    calls, cycles = max(1, AHEAD // steps), SLEEP
    host: list[float] = []
    device: list[float] = []
    while len(host) < ROUNDS:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        begin.record()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = time.perf_counter() - start
        end.record()
        asleep = not begin.query()
        torch.cuda.synchronize()
        if not asleep:
            cycles *= 2
            if cycles > 1 << 34:
                raise RuntimeError(
                    "agent_speed: a call waits for the device, so it cannot be timed"
                )
            continue
        host.append(took / calls)
        device.append(begin.elapsed_time(end) / 1e3 / calls)
    return statistics.median(host), statistics.median(device)


def describe(row: Row) -> str:
    text = f"{row['rows']:6} rows, {row['way']}: {row['frames_per_s']:,} frames/s"
    if "host_us" in row:
        text += (
            f"; a step takes {row['us']:.0f} µs, the host alone {row['host_us']:.0f}, the device "
            f"alone {row['device_us']:.0f}"
        )
    return text
