"""Selects the tests of a run and orders them.

All cases of an entry of SLOW (slow.py) together take 10 seconds or more on one worker.
`--slow=none`, which `make test` uses, leaves these entries out. `--slow=some`, which .ci/run uses,
runs entries that together take at most `--slow-limit` seconds: a part of all entries, a different
part for each commit, and then entries whose sources changed since the last commit that ran all
tests (.ci/full_run).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TypeVar

from pytest import Mark

from tests.support.slow import SLOW

ROOT = Path(__file__).resolve().parents[2]
FULL_RUN = ROOT / ".ci" / "full_run"
PARTS = 4
FAMILIES = ("elementwise", "recurrent", "sine_linear")
T = TypeVar("T")

# The first pattern that matches a file gives its subjects, which are parts of the tests. A file
# that matches no pattern affects all tests.
FILES = (
    (r"docs/|[A-Z]+\.md|benchmarks/results/|tests/mutants/|LICENSE|\.github/", ()),
    (r"tests/(elementwise|recurrent|sine_linear)", (r"\1",)),
    (r"tests/(benchmarks|interop|c_api|laws|package)/", (r"\1",)),
    (r"(benchmarks|examples)/", (r"\1",)),
    (r"tools/new_op", ("new_op",)),
    (r"tools/native/|setup.py", ("package",)),
    (r"kernels/(c_api|jax)/|kernels/include/", ("c_api", "interop")),
    (r"(?:kernels|csrc)/(elementwise|recurrent|sine_linear)/", (r"\1",)),
    (r"kernels/math/cells/", ("recurrent",)),
    (r"python_pkg/.*(?:jax|onnx|torchrl|distributed|jagged|shard|flax)", ("interop",)),
    (r"python_pkg/.*(?:jet|sine_linear|siren)", ("sine_linear",)),
    (r"python_pkg/.*(?:snake|elementwise)", ("elementwise",)),
    (r"python_pkg/.*(?:lltm|lstm|gru|rnn|recurrent|cell|sequence|step|layer)", ("recurrent",)),
)


def concerned(path: str) -> set[str]:
    """The subjects of a changed file; {"all"} if it affects all tests."""
    for pattern, names in FILES:
        if found := re.match(pattern, path):
            return {found.expand(name) for name in names}
    return {"all"}


def subjects(key: str) -> set[str]:
    """The subjects of the tests of an entry of SLOW."""
    folder = key.split("/")[1]
    if folder == "package":
        if "test_new_op" in key:
            return {"package", "new_op", "elementwise"}
        return {"package", "examples"} if "test_examples" in key else {"package"}
    if folder in ("laws", "c_api", "interop"):
        return {folder, *FAMILIES}
    return {folder.removesuffix("_jet")}


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def changed() -> set[str]:
    """The subjects that changed since the last run of all tests; {"all"} if unknown."""
    base = FULL_RUN.read_text().strip() if FULL_RUN.exists() else ""
    names = git("diff", "--name-only", base, "--") if base else None
    if names is None:
        return {"all"}
    return set().union(*(concerned(name) for name in names.splitlines()))


def turn() -> int:
    """The index of the part of the slow tests that runs first, from the number of commits."""
    return int(git("rev-list", "--count", "HEAD") or 0) % PARTS


def needs_gpu(test: str, skips: Iterable[Mark]) -> bool:
    """Whether a test runs only on a GPU. ``skips`` are its marks `skipif`."""
    reasons = (str(mark.kwargs.get("reason", "")) for mark in skips)
    return "cuda" in test or any(re.search(r"needs .*\bGPUs?\b", reason) for reason in reasons)


def slow_key(test: str) -> str | None:
    """The entry of SLOW that a test belongs to: its function or its file."""
    function = test.partition("[")[0]
    file = function.partition("::")[0]
    return next((key for key in (function, file) if key in SLOW), None)


def left_out(keys: Iterable[str], which: str, limit: float) -> set[str]:
    """The entries of SLOW that a run leaves out. ``limit`` is in seconds, like SLOW. The first part
    is not limited, so every entry runs at least once in PARTS commits."""
    if which == "all":
        return set()
    if which == "none":
        return set(keys)
    touched, first = changed(), turn()
    # Entries that take about as long are in different parts.
    by_length = sorted(keys, key=lambda key: (-SLOW[key], key))
    parts = [by_length[(first + n) % PARTS :: PARTS] for n in range(PARTS)]
    others = [key for part in parts[1:] for key in part]
    # A stable sort: the parts stay in their order.
    others.sort(key=lambda key: not touched & {"all", *subjects(key)})
    taken = sum(SLOW[key] for key in parts[0])
    seconds = accumulate((SLOW[key] for key in others), initial=taken)
    return {
        key for key, until in zip(others, islice(seconds, 1, None), strict=True) if until > limit
    }


def spread(tests: Sequence[T], keys: Sequence[str | None], workers: int) -> list[T]:
    """Puts long tests first. xdist gives every worker the same number of consecutive tests. A
    worker runs them in order, and idle workers steal from the end. Tests of one entry stay
    together, so that they share the fixtures of their file."""
    groups: dict[str, list[T]] = {}
    short = []
    for test, key in zip(tests, keys, strict=True):
        groups.setdefault(key, []).append(test) if key else short.append(test)
    shares: list[list[T]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    for key in sorted(groups, key=lambda key: -SLOW[key]):
        least = loads.index(min(loads))
        loads[least] += SLOW[key]
        shares[least] += groups[key]
    rest, left, found = iter(short), len(tests), list[T]()
    for n, share in enumerate(shares):
        room = left // (workers - n)
        left -= room
        found += [*share, *islice(rest, max(0, room - len(share)))]
    return [*found, *rest]
