"""Put each mutant into a copy of the source tree and check that tests kill it: `make mutants`.

A mutant is a deliberate error in the source. The tables tests/mutants/**/*.toml define the mutants,
one per entry; `tables.py` describes the fields. NAMES are names of mutants, patterns of names
("cuda_grid_*"), or tables (tests/mutants/recurrent/grid.toml, or recurrent/grid).

There is one unchanged copy of the tree, and one copy per job. They keep their object files in
build/mutants, so that only files that a mutant changes are compiled. The run fails if a mutant
survives, no longer fits the sources or does not compile, or if a test that should kill it fails on
the unchanged copy.

A machine without a GPU can compile for another machine: `--build FOLDER` stores each mutant's
libraries in FOLDER and runs no tests; `--built FOLDER` tests them.

With `--record FILE`, the result, date and machine of each mutant are written to a JSON file, and
entries of mutants that no longer exist are removed from it. `--unrecorded` skips mutants that this
file lists as killed. The file in the repository is tests/mutants/record.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from fnmatch import fnmatch
from itertools import cycle, repeat
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.tables import Mutant, MutantError, read, read_all  # noqa: E402
from tests.mutants.tree_copy import TIMED_OUT, Copy, Libraries  # noqa: E402

FAILED = 1  # pytest's exit code: tests ran, and some failed
LONGEST = 180.0  # time limit in seconds for a mutant's tests; only a kernel that hangs needs more


def judge(copy: Copy, mutant: Mutant, libraries: Libraries, unchanged: Copy) -> str:
    """Tests one mutant, or only builds it. Returns `killed by ...`, `built`, or an error."""
    try:
        copy.plant(mutant)
    except MutantError as error:
        print(error)
        return "DOES NOT FIT"
    try:
        # Even if only Python changed, the copy may still contain the previous mutant's library.
        if not libraries.put(copy, mutant.name):
            return "DOES NOT COMPILE"
        if libraries.keep is not None:
            return "built"
        done = copy.test(mutant.killers, LONGEST)
    finally:
        copy.restore(mutant, unchanged)
    if done.returncode == TIMED_OUT:
        return f"killed by its time, over {LONGEST:.0f} s"
    if done.returncode == 0:
        return "SURVIVED"
    if done.returncode < 0:
        return f"killed by a crash, {signal.Signals(-done.returncode).name}"
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.M)
    if done.returncode != FAILED or failed is None:
        print(done.stdout[-3000:] + done.stderr[-3000:])
        return "BROKE THE TESTS"
    return f"killed by {failed.group(1)}"


def visible_gpus() -> list[str]:
    """The GPUs to use. The list is empty if there is no nvcc."""
    import torch

    if shutil.which("nvcc") is None:
        return []
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
    return names.split(",")[:count]


def build_name(cuda: bool, full: bool) -> str:
    """The name of a build without a mutant: "cpu", "cuda", or "cuda-full", which is fully
    optimised."""
    return ("cuda-full" if full else "cuda") if cuda else "cpu"


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def changed_since(commit: str) -> set[str]:
    done = git("diff", "--name-only", commit, "--")
    if done.returncode:
        raise SystemExit(f"mutants: --since must be a known commit: {done.stderr.strip()}")
    return set(done.stdout.splitlines())


def same_at(commit: str, table: str) -> set[Mutant]:
    """The mutants that a table had in an earlier commit: none if the table did not exist."""
    done = git("show", f"{commit}:tests/mutants/{table}.toml")
    return set(read(done.stdout, table)) if done.returncode == 0 else set()


def chosen(names: list[str], since: str | None = None) -> list[Mutant]:
    """The named mutants, or all. With `since`, only mutants that changed after that commit, or
    whose file changed."""
    every = read_all()
    found = []
    for name in names or ["*"]:
        table = name.removeprefix("tests/mutants/").removesuffix(".toml")
        fits = [m for m in every if fnmatch(m.name, name) or m.table == table]
        if not fits:
            raise SystemExit(f"mutants: no such mutant: {name}")
        found += [mutant for mutant in fits if mutant not in found]
    if since is None:
        return found
    changed = changed_since(since)
    before = {m.table: same_at(since, m.table) for m in found}
    return [m for m in found if m.file in changed or m not in before[m.table]]


class Sound:
    """Tells whether tests pass on the unchanged tree. Each set of tests runs only once."""

    def __init__(self, tree: Copy) -> None:
        self.tree = tree
        self.lock = Lock()
        self.found: dict[tuple[str, ...], Future[bool]] = {}

    def __call__(self, killers: tuple[str, ...]) -> bool:
        with self.lock:
            first = killers not in self.found
            result = self.found.setdefault(killers, Future())
        if first:
            done = self.tree.test(killers, LONGEST)
            if done.returncode:
                print(done.stdout[-3000:] + done.stderr[-3000:])
            result.set_result(done.returncode == 0)
        return result.result()


class Record:
    """A JSON file that records when, where and how each mutant was killed. It is written after each
    mutant. Entries of mutants that no longer exist are removed."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lock = Lock()
        found = json.loads(path.read_text()) if path is not None and path.exists() else {}
        names = {mutant.name for mutant in read_all()}
        self.found = {name: entry for name, entry in found.items() if name in names}
        if self.found != found:
            self.write()

    def has_killed(self, mutant: Mutant) -> bool:
        return bool(self.found.get(mutant.name, {}).get("verdict", "").startswith("killed"))

    def add(self, mutant: Mutant, verdict: str, machine: str) -> None:
        if self.path is None or verdict == "built":
            return
        with self.lock:
            day = date.today().isoformat()
            self.found[mutant.name] = {"date": day, "machine": machine, "verdict": verdict}
            self.write()

    def write(self) -> None:
        assert self.path is not None
        self.path.write_text(json.dumps(dict(sorted(self.found.items())), indent=1) + "\n")


def machine_name(cuda: bool) -> str:
    import torch

    return torch.cuda.get_device_name() if cuda and torch.cuda.is_available() else "CPU"


def judge_all(
    copy: Copy,
    tree: Copy,
    sound: Sound | None,
    libraries: Libraries,
    record: Record,
    mutants: Iterator[Mutant],
) -> int:
    """Judges mutants until none is left, and prints a line for each. Returns the number of
    failures: mutants that were not killed or, with `--build`, not built."""
    copy.refresh()
    if not libraries.put(copy, build_name(copy.cuda, not copy.for_checking)):
        raise SystemExit("mutants: a copy of the tree without a mutant does not compile")
    bad = 0
    machine = machine_name(copy.cuda)
    for mutant in mutants:
        started = time.monotonic()
        passes = sound is None or sound(mutant.killers)
        verdict = judge(copy, mutant, libraries, tree) if passes else "ITS TESTS FAIL WITHOUT IT"
        bad += not verdict.startswith(("killed", "built"))
        record.add(mutant, verdict, machine)
        took = time.monotonic() - started
        print(f"{mutant.name:52}{verdict} ({took:.0f} s)\n", end="", flush=True)
    return bad


def compiles_much(mutant: Mutant) -> tuple[bool, bool]:
    """A sort key: the larger it is, the longer the mutant takes to compile."""
    return mutant.needs_cuda, mutant.file.endswith((".h", ".cuh"))


class Queue:
    """An iterator over mutants that several threads share."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self.left = iter(mutants)
        self.lock = Lock()

    def __iter__(self) -> Iterator[Mutant]:
        return self

    def __next__(self) -> Mutant:
        with self.lock:
            return next(self.left)


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants, tables or patterns (default: all)")
    parser.add_argument("--since", metavar="COMMIT", help="only what changed after COMMIT")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    parser.add_argument("--jobs", type=int, default=1, help="parallel copies (3 GB memory each)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON file to add verdicts to")
    parser.add_argument("--unrecorded", action="store_true", help="skip mutants killed in FILE")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--build", type=Path, metavar="FOLDER", help="compile into FOLDER, no tests")
    kept.add_argument("--built", type=Path, metavar="FOLDER", help="test what --build compiled")
    return parser.parse_args()


def run(
    mutants: list[Mutant], jobs: int, libraries: Libraries, gpus: list[str], record: Record
) -> int:
    """Runs the mutants of one kind of build. Returns the number of failures, as judge_all does."""
    with_gpu = any(mutant.needs_cuda for mutant in mutants)
    full = any("full" in mutant.needs for mutant in mutants)
    jobs = max(1, min(jobs, len(mutants)))
    folder = ROOT / "build" / "mutants" / build_name(with_gpu, full)
    turns = cycle(gpus or [""])
    kind = {"cuda": with_gpu, "for_checking": not full}
    tree = Copy(folder / "sound", gpu=next(turns), **kind)
    copies = [Copy(folder / str(job), gpu=next(turns), **kind) for job in range(jobs)]
    print(f"building {tree.folder}", flush=True)
    tree.refresh()
    if not libraries.put(tree, folder.name):
        return len(mutants)
    for copy in copies:
        copy.take(tree)
    if jobs > 1:
        # A changed header makes a job compile many files. Jobs spend half of their time on tests,
        # so each may compile with twice its share of the processors.
        os.environ["MAX_JOBS"] = str(max(1, 2 * (os.cpu_count() or 1) // jobs))
    sound = None if libraries.keep else Sound(tree)
    queue = Queue(sorted(mutants, key=compiles_much, reverse=True))
    with ThreadPoolExecutor(jobs) as pool:
        same = (repeat(it) for it in (tree, sound, libraries, record, queue))
        return sum(pool.map(judge_all, copies, *same))


def main() -> int:
    options = asked()
    mutants = chosen(options.names, options.since)
    if options.list:
        for mutant in mutants:
            needs = f" ({', '.join(sorted(mutant.needs))})" if mutant.needs else ""
            print(f"{mutant.name:52}{mutant.what}{needs}")
        return 0
    record = Record(options.record)
    if options.unrecorded:
        mutants = [mutant for mutant in mutants if not record.has_killed(mutant)]
    libraries = Libraries(options.build, options.built)
    if options.built:
        mutants = [mutant for mutant in mutants if (options.built / mutant.name).is_dir()]
    gpus = visible_gpus() or [""] * (options.build is not None)
    skipped = [mutant.name for mutant in mutants if mutant.needs_cuda and not gpus]
    mutants = [mutant for mutant in mutants if gpus or not mutant.needs_cuda]
    bad = 0
    # CPU mutants get a build without CUDA. A build with CUDA would also compile the CUDA files that
    # include a changed header.
    for cuda, full in ((False, False), (True, False), (True, True)):
        share = [m for m in mutants if (m.needs_cuda, "full" in m.needs) == (cuda, full)]
        used = gpus if cuda else []
        bad += run(share, options.jobs, libraries, used, record) if share else 0
    for name in skipped:
        print(f"{name:52}skipped: needs a GPU and nvcc")
    how = "built" if options.build else "killed"
    print(f"{len(mutants) - bad} of {len(mutants)} {how}, {len(skipped)} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
