"""Turns cases (an op, one kind of input, baselines and a target) into rows of results."""

from __future__ import annotations

import math
import resource
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from benchmarks.harness.timing import Calls, Effort, Events, Host, Wall, measure, summary
from benchmarks.harness.verify import Refused, as_tuple, leaves, verify

OURS = "treadle"
# A row with more preemptions per second is marked `busy`; an idle machine has fewer than 10. In
# a busy row, times of several threads are useless: a thread that waits for a preempted thread waits
# for a whole time slice of the scheduler.
MOST_PREEMPTIONS = 30
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    device: str = "cpu"
    quick: bool = False
    threads: tuple[int, ...] = (1, 2)

    def effort(self, **chosen: Any) -> Effort:
        if self.quick:
            return Effort(sample=1e-4, seconds=0.01, rounds=(5, 11), warmup=1e-3)
        return Effort(**chosen)

    def wall(self, sample: float = 2e-3, **chosen: Any) -> Wall:
        return Wall(self.device, self.effort(sample=sample, **chosen))

    def host(self, **chosen: Any) -> Host:
        return Host(self.device, self.effort(**chosen))

    def device_time(self, **chosen: Any) -> Events:
        return Events(self.effort(sample=5e-4, **chosen))

    def brief(self) -> Wall | Events:
        """A timer for suites of hundreds of rows. It spends less time on each row, above all on
        slow rows."""
        if self.device == "cuda":
            return self.device_time(seconds=0.07, warmup=0.02)
        return self.wall(1e-3, seconds=0.05, warmup=0.02, rounds=(3, 101))


@dataclass(frozen=True)
class Target:
    """A target for treadle's median time. `limit` computes the longest time allowed, in µs, from
    the medians of all candidates."""

    text: str
    limit: Callable[[dict[str, float]], float]


def both(one: Target, other: Target) -> Target:
    """Combines two targets. The limit is the lower of the two, and the text contains both texts."""
    text = f"{one.text}, and {other.text}"
    return Target(text, lambda medians: min(one.limit(medians), other.limit(medians)))


def at_least(share: float, name: str) -> Target:
    """A target of at least `share` times the speed of `name`, which moves as many bytes."""
    return Target(f"at least {share:g} × {name}'s speed", lambda medians: medians[name] / share)


@dataclass
class Case:
    op: str  # its name in treadle.reference
    functions: dict[str, Callable[..., Any]]  # "treadle" and baselines that compute the same
    # Sets of arguments that alternate. Gradients are also timed if an argument requires grad.
    inputs: list[tuple[Any, ...]]
    timer: Wall | Events
    # Functions that compute something else, timed for comparison.
    yardsticks: Mapping[str, Calls] = field(default_factory=dict)
    target: Target | None = None
    bits: bool = False  # whether results must be bitwise equal to torch's
    # Called instead of `verify`, if given, to check a function on the first inputs. The argument is
    # the function. For treadle's function there is a second argument, poison=True.
    check: Callable[..., float] | None = None
    # Called instead of `check`, if given, for the baselines in `functions`.
    check_baseline: Callable[..., float] | None = None
    # Checks of yardsticks by name. They raise Refused if the yardstick's results are wrong.
    check_yardsticks: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    threads: int | None = None  # torch's threads on the CPU
    facts: dict[str, Any] = field(default_factory=dict)  # the row's shape, dtype, bytes, ...
    notes: list[str] = field(default_factory=list)

    def row(self, key: str) -> Row:
        """Verify and time. A wrong op is not timed; its row has "refused", with the reason."""
        row: Row = {"key": key, "op": self.op, **self.facts, "notes": list(self.notes)}
        row["timer"] = self.timer.name
        if self.threads is not None:
            row["threads"] = self.threads
        with threads(self.threads):
            try:
                checked = _verified(self, row)
                yardsticks = _right_yardsticks(self, row)
            except Refused as reason:
                return row | {"refused": str(reason)}
            candidates = {name: calls(function, self.inputs) for name, function in checked.items()}
            with watched(row):
                samples = measure(self.timer, {**candidates, **yardsticks})
        return row | _figures(self, samples, [name for name in checked if name != OURS])


class Measured(Protocol):
    """What a plan builds: a Case, or another object that measures something, such as memory."""

    def row(self, key: str) -> Row: ...


@dataclass(frozen=True)
class Plan:
    """A case that is built only when it runs, because its inputs may take gigabytes of memory."""

    key: str  # such as "cuda/elementwise/scale/float32"; identifies a row across runs
    build: Callable[[], Measured]
    on_any_gpu: bool = False  # whether it may run while the host runs rows on other GPUs


def ours(op: str) -> Callable[..., Any]:
    """The dispatcher op that `treadle.<op>` calls."""
    found: Callable[..., Any] = getattr(torch.ops.treadle, op).default
    return found


def calls(function: Callable[..., Any], inputs: list[tuple[Any, ...]]) -> list[Callable[[], Any]]:
    """Returns a function for each set of inputs. Each function runs forward and, if an argument
    requires grad, backward."""
    return [_call(function, args) for args in inputs]


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    wanted = leaves(args)
    if not wanted:
        return partial(function, *args)
    grads = [torch.randn_like(r) for r in as_tuple(function(*args))]

    def forward_backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(function(*args), wanted, grads)

    return forward_backward


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def watched(row: Row) -> Iterator[None]:
    """Records in the row whether other programs used the processor at the same time."""
    switches, began = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, time.perf_counter()
    yield
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
    row["preemptions_per_s"] = round(switches / (time.perf_counter() - began), 1)
    row["busy"] = row["preemptions_per_s"] > MOST_PREEMPTIONS


def run(plan: Plan) -> Row:
    """Build, verify and measure one case. If this fails, the row reports the failure, and the run
    continues."""
    try:
        return plan.build().row(plan.key)
    except RuntimeError as problem:
        traceback.print_exc()
        row: Row = {"key": plan.key, "group": "failed", "label": plan.key, "notes": []}
        return row | {"refused": first_line(problem)}


def _verified(case: Case, row: Row) -> dict[str, Callable[..., Any]]:
    """The functions to time. A baseline that fails is left out with a note in the row; if its
    result is wrong, `baseline_wrong` lists it as well."""
    check = case.check or partial(verify, op=case.op, args=case.inputs[0])
    bits = {"bits": True} if case.bits else {}
    try:
        row["error_over_limit"] = check(case.functions[OURS], poison=True, **bits)
    except RuntimeError as problem:  # this row is refused, but the run continues
        raise Refused(first_line(problem)) from problem
    kept = {OURS: case.functions[OURS]}
    for name, function in case.functions.items():
        if name == OURS:
            continue
        try:
            (case.check_baseline or check)(function)
            kept[name] = function
        except Refused as problem:
            _leave_out(row, name, problem)
        except Exception as problem:  # if a baseline raises any error, ours can still be timed
            row["notes"].append(f"{name} left out: {first_line(problem)}")
    return kept


def _right_yardsticks(case: Case, row: Row) -> dict[str, Calls]:
    kept = dict(case.yardsticks)
    for name, check in case.check_yardsticks.items():
        try:
            check()
        except Refused as problem:
            _leave_out(row, name, problem)
            del kept[name]
    return kept


def _leave_out(row: Row, name: str, problem: Refused) -> None:
    row["notes"].append(f"{name} left out: {first_line(problem)}")
    row.setdefault("baseline_wrong", {})[name] = first_line(problem)


def first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:200]


def _figures(case: Case, samples: dict[str, list[float]], baselines: list[str]) -> Row:
    times = {name: summary(values) for name, values in samples.items()}
    medians = {name: values["median_us"] for name, values in times.items()}
    if "bytes" in case.facts:
        for values in times.values():
            values["tb_per_s"] = case.facts["bytes"] / values["median_us"] * 1e-6
        if "copy" in times and "copy_bytes" in case.facts:
            times["copy"]["tb_per_s"] = case.facts["copy_bytes"] / medians["copy"] * 1e-6
    if "steps" in case.facts:
        for name, values in times.items():
            values["us_per_step"] = values["median_us"] / case.facts["steps"]
            if name in case.facts["gates"]:
                gates = case.facts["gates"][name]
                values["us_per_step_and_gate"] = values["us_per_step"] / gates
    for name, values in times.items():
        if name != OURS:
            values["ratio"] = medians[OURS] / medians[name]
    found: Row = {"times": times, "yardsticks": [name for name in case.yardsticks if name in times]}
    if baselines:
        fastest = min(baselines, key=lambda name: medians[name])
        pairs = zip(samples[OURS], samples[fastest], strict=True)
        ratios = statistics.quantiles([a / b for a, b in pairs], n=4, method="inclusive")
        found |= {
            "fastest_baseline": fastest,
            "ratio": medians[OURS] / medians[fastest],
            "ratio_q25": ratios[0],
            "ratio_q75": ratios[2],
        }
    # If a target's baseline was left out, the row has no target, and its notes give the reason.
    with suppress(KeyError):
        found |= _judged(case.target, medians)
    return found


def _judged(target: Target | None, medians: dict[str, float]) -> Row:
    if target is None:
        return {}
    limit = target.limit(medians)
    return {"target": {"text": target.text, "limit_us": limit, "reached": medians[OURS] <= limit}}


def fastest_of(*names: str) -> Callable[[dict[str, float]], float]:
    """The shortest of the times with these names; infinite if none was timed, as in a quick run."""
    return lambda medians: min(
        (medians[name] for name in names if name in medians), default=math.inf
    )
