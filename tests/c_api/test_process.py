"""A call changes nothing in its thread or its process except the error text."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.c_api import native
from tests.c_api.calls import good
from tests.c_api.layers import Layer, Sizes, forward
from tests.support.compare import same_bits
from treadle import _build

ROOT = Path(__file__).resolve().parents[2]
CALLS = [name for name in native.FUNCTIONS if name != "treadle_get_launch"]
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64's float mode")
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


def fails(name: str) -> str:
    call = good(name)
    call.arguments["device"].type = 77
    assert call.run() == native.INVALID
    return native.error_text()


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_process(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


# ---- error text


def test_each_thread_has_a_text_of_its_own() -> None:
    call = good("treadle_sine")
    call.arguments["x"] = None
    assert call.run() == native.INVALID
    own = native.error_text()
    assert own.startswith("x must")
    assert in_thread(native.error_text) == ""
    other = in_thread(lambda: fails("treadle_scale"))
    assert other.startswith("device.type must") and native.error_text() == own


def test_a_call_that_succeeds_leaves_the_text() -> None:
    said = fails("treadle_sine")
    assert good("treadle_sine").run() == native.OK
    assert native.error_text() == said


def test_many_threads_read_their_own_texts() -> None:
    barrier = threading.Barrier(8)

    def worker(number: int) -> list[str]:
        barrier.wait()
        found = []
        for _ in range(200):
            call = good("treadle_sine")
            call.arguments["device"].type = 100 + number
            call.run()
            found.append(native.error_text())
        return found

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(worker, range(8))):
            assert {text.rpartition(" ")[2] for text in found} == {str(100 + number)}


# ---- concurrent calls


@pytest.mark.parametrize("threads", [1, 3])
def test_concurrent_calls_have_the_same_bits(threads: int) -> None:
    x = torch.randn(150_000)
    layer = Layer.random("gru", Sizes(6, 40, 33, directions=2), torch.float32)

    def work(_: int) -> list[torch.Tensor]:
        out = torch.zeros_like(x)
        native.call("treadle_sine", native.cpu(threads), native.array(x), native.array(out))
        return [out, *forward(layer, threads=threads)]

    expected = work(0)
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(work, range(24)):
            for a, b in zip(found, expected, strict=True):
                same_bits(a, b)


# ---- the float mode


def float_mode() -> tuple[int, int]:
    """The x87 control word and MXCSR of this thread, without the exception flags."""
    state = (ctypes.c_uint8 * 64)()
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    assert library.fegetenv(state) == 0
    mode = bytes(state)
    return int.from_bytes(mode[:2], "little"), int.from_bytes(mode[28:32], "little") & ~0x3F


@X86
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("threads", [1, 2, 0])
def test_the_float_mode_stays(name: str, threads: int) -> None:
    def modes(flush: bool) -> tuple[Any, Any, Any]:
        torch.set_flush_denormal(flush)
        call = good(name)
        call.arguments["device"].threads = threads
        before = float_mode()
        assert call.run() == native.OK
        good_one = float_mode()
        call.arguments["device"].index = 5
        assert call.run() == native.INVALID
        return before, good_one, float_mode()

    for flush in (False, True):
        before, after, failed = in_thread(lambda flush=flush: modes(flush))
        assert before == after == failed
        assert bool(before[1] & 0x8000) == flush


# ---- the process

OF_PROCESS = """
import ctypes, os, sys
def state():
    lines = open("/proc/self/status").read().splitlines()
    wanted = ("SigBlk", "SigIgn", "SigCgt", "Threads", "Umask")
    return os.getcwd(), [line for line in lines if line.startswith(wanted)], dict(os.environ)
before = state()
library = ctypes.CDLL(sys.argv[1])
library.treadle_kernels_info.restype = ctypes.c_char_p
assert library.treadle_kernels_info().startswith(b"{")
assert library.treadle_sine(None, None, None) == 1
assert state() == before, (before, state())
assert not {"torch", "numpy"} & {*sys.modules}
print("same")
"""


@LINUX
def test_the_library_leaves_the_process_alone() -> None:
    assert in_process(OF_PROCESS, _build.kernels_path()) == "same"


@LINUX
@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_signals_folder_and_threads(name: str) -> None:
    def state() -> list[str]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return [os.getcwd(), *(x for x in lines if x.startswith(("Sig", "Shd")))]

    call = good(name)
    call.arguments["device"].threads = 4
    before = state()
    assert call.run() == native.OK
    assert state() == before


@LINUX
def test_threads_end_with_the_call() -> None:
    x, out = torch.randn(300_000), torch.zeros(300_000)
    arrays = [native.array(x), native.array(out)]
    before = {*os.listdir("/proc/self/task")}
    for _ in range(5):
        native.call("treadle_sine", native.cpu(8), *arrays)
    assert not {*os.listdir("/proc/self/task")} - before


# Uses NumPy, because torch's thread pool does not survive a fork.
AFTER_FORK = """
import os
import numpy as np
from tests.c_api import native
x = np.arange(300_000, dtype=np.float32)
def sine():
    out = np.zeros_like(x)
    native.call("treadle_sine", native.cpu(4), native.array(x), native.array(out))
    return out
expected = sine()
child = os.fork()
if child == 0:
    right = (sine() == expected).all() and native.error_text() == ""
    os._exit(7 if right else 1)
_, status = os.waitpid(child, 0)
assert (sine() == expected).all()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_goes_on() -> None:
    assert in_process(AFTER_FORK) == "7"


# ---- little memory

LIMITED = """
import resource, sys, threading
import torch
from tests.c_api import native
columns = 1 << 24
x, out = torch.ones(1, columns), torch.zeros(1, columns)
bias = torch.ones(columns)
arrays = [native.array(t) for t in (x, bias, out)]
native.call("treadle_sine", native.cpu(1), arrays[0], arrays[2])
expected = out[0, :1].clone()
out.zero_()
threads, room = int(sys.argv[1]), int(sys.argv[2]) << 20
pages = int(open("/proc/self/statm").read().split()[0])
size = pages * resource.getpagesize() + room
resource.setrlimit(resource.RLIMIT_AS, (size, size))
"""
NO_ROOM = """
name = "treadle_sine_linear"
status = native.status_of(name, native.cpu(threads), *arrays[:2], 1.0, arrays[2], None)
print(status, native.error_text())
"""
NO_THREADS = """
try:
    threading.Thread(target=print).start()
    print("a thread started")
except RuntimeError:
    native.call("treadle_sine", native.cpu(threads), arrays[0], arrays[2])
    print(int(out.sub_(expected).count_nonzero()))
"""


@LINUX
@pytest.mark.parametrize("threads", [1, 3])
def test_too_little_memory_is_a_status(threads: int) -> None:
    """If a thread of the call runs out of memory, its exception must not end the process."""
    said = in_process(LIMITED + NO_ROOM, str(threads), "40")
    assert said == f"{native.NO_MEMORY} the call must find enough memory, got std::bad_alloc"


@LINUX
def test_without_threads_to_be_had_the_caller_does_it_all() -> None:
    assert in_process(LIMITED + NO_THREADS, "8", "2") == "0"
