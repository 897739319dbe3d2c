"""Hooks and fixtures that all tests share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# `-n` runs several processes, each with OpenMP threads, which must not spin while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Cells that tests compile are kept between runs, but not among the user's own compiled cells.
os.environ.setdefault("TREADLE_CELLS", f"{tempfile.gettempdir()}/treadle-cells-{os.getuid()}")

import pytest  # noqa: E402
import torch  # noqa: E402

from tests.support import tiers  # noqa: E402

LEFT_OUT = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=("all", "some", "none"),
        default="all",
        help="which slow tests to run; 'some' runs a quarter of them, a different one for each "
        "commit, and then those that changed files affect",
    )
    parser.addoption(
        "--slow-limit",
        type=float,
        default=1000,
        help="with --slow=some: the time for all slow tests of the run, in seconds on one worker",
    )


def pytest_configure(config: pytest.Config) -> None:
    slow = "slow: all cases of the function or file together take 10 seconds or more"
    config.addinivalue_line("markers", slow)
    config.addinivalue_line("markers", "cuda: the test runs on a GPU")
    config.stash[LEFT_OUT] = set()
    # Most tests use the first visible GPU, so each worker puts a different GPU first.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = torch.cuda.device_count()
    if count > 1:
        every = ",".join(map(str, range(count)))
        names = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
        first = worker % len(names)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first:] + names[:first])
        if "PYTEST_XDIST_WORKER" in os.environ:
            # Without this, the CUDA runtime chose the second GPU in 8 of 28 workers, which began at
            # the same time.
            torch.cuda.set_device(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests, deselects slow ones according to `--slow`, and sorts the rest."""
    keys = [tiers.slow_key(item.nodeid) for item in items]
    for item, key in zip(items, keys, strict=True):
        if key:
            item.add_marker("slow")
        if tiers.needs_gpu(item.nodeid, item.iter_markers("skipif")):
            item.add_marker("cuda")
    left_out = tiers.left_out(
        {key for key in keys if key},
        config.getoption("slow"),
        config.getoption("slow_limit"),
    )
    config.stash[LEFT_OUT] |= left_out
    kept = [n for n, key in enumerate(keys) if key not in left_out]
    config.hook.pytest_deselected(
        items=[i for i, k in zip(items, keys, strict=True) if k in left_out]
    )
    workers = int(getattr(config, "workerinput", {"workercount": 0})["workercount"])
    tests = [items[n] for n in kept]
    # Without xdist, tests keep their order.
    items[:] = tiers.spread(tests, [keys[n] for n in kept], workers) if workers > 1 else tests


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends the slow tests that a worker left out to the main process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] |= set(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = sorted(config.stash[LEFT_OUT])
    if left_out:
        seconds = sum(map(tiers.SLOW.get, left_out))
        terminalreporter.write_sep("-", f"slow tests left out, about {seconds} s of a worker")
        for key in left_out:
            terminalreporter.write_line(f"{tiers.SLOW[key]:5d} s  {key}")
        terminalreporter.write_line("all of them: make test-all, or pytest without --slow")


def pytest_runtest_setup() -> None:
    """Seeds each test, so that its numbers do not depend on other tests or their order."""
    torch.manual_seed(0)


def pytest_xdist_auto_num_workers() -> int:
    """The number of processes for `-n auto`, at most 8. Each needs about 1 GB of memory."""
    return min(len(os.sched_getaffinity(0)), 8)


def pytest_report_header() -> str | None:
    if torch.cuda.is_available():
        return None
    return "no GPU: most tests run on the CPU only; those that need a GPU are skipped"


@pytest.fixture
def no_slow_vmap() -> Iterator[None]:
    """Under vmap, an op without a batching rule raises instead of running in a loop."""
    functorch = torch._C._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    yield
    functorch._set_vmap_fallback_enabled(before)


@pytest.fixture
def allow_tf32() -> Iterator[Callable[..., None]]:
    """Allows or forbids TF32 on a GPU, in matrix products and in LSTM and GRU, which follow cuDNN's
    switch. Restores both settings after the test."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def allow(on: bool, in_layers: bool | None = None) -> None:
        torch.backends.cuda.matmul.allow_tf32 = on
        # torch.testing makes the flags of torch.backends.cudnn read-only.
        torch._C._set_cudnn_allow_tf32(on if in_layers is None else in_layers)

    yield allow
    allow(*before)


@pytest.fixture
def fresh_compile() -> Iterator[None]:
    """Clears torch.compile's cache before and after a test."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def much_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A lock for tests that need many gigabytes of memory. One process holds it at a time."""
    # Each worker's base folder lies inside that of the run.
    with (tmp_path_factory.getbasetemp().parent / "much_memory.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
