"""A call changes no global state: float modes, device, stream, generators, environment."""

from __future__ import annotations

import ctypes
import gc
import locale
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.float_modes import GROUPS
from tests.support.cases import DEVICES, GPU, OPS, outputs, requiring_grad
from tests.support.inputs import Op


@pytest.mark.parametrize("group", GROUPS)
def test_subnormal_numbers_stay_in_every_thread(group: str) -> None:
    """Each group runs in a process in which torch has not computed anything before."""
    if group == "jax_handlers":
        pytest.importorskip("treadle.jax", exc_type=ImportError)
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.float_modes", group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def float_environment() -> tuple[int, int]:
    """This thread's control words of x87 and SSE, without the flags that any result sets."""
    state = (ctypes.c_uint16 * 16)()
    ctypes.CDLL(None).fegetenv(state)
    return state[0], (state[14] | state[15] << 16) & 0xFFC0


def of_cublas() -> tuple[int, ...]:
    """Modes, target number of SMs and stream of torch's cuBLAS handle."""
    library = ctypes.CDLL("libcublas.so." + str(torch.version.cuda).split(".")[0])
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    found = []
    for name in ("MathMode", "PointerMode_v2", "AtomicsMode", "SmCountTarget"):
        value = ctypes.c_int()
        assert getattr(library, f"cublasGet{name}")(handle, ctypes.byref(value)) == 0
        found.append(value.value)
    stream = ctypes.c_void_p()
    assert library.cublasGetStream_v2(handle, ctypes.byref(stream)) == 0
    return (*found, stream.value or 0)


def of_torch() -> dict[str, Any]:
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "OpenMP": ctypes.CDLL("libgomp.so.1").omp_get_max_threads(),
        "MKL": mkl_limit(),
        "precision": torch.get_float32_matmul_precision(),
        "cuDNN": (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled),
        "cuDNN's choices": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "half sums": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": [torch.is_autocast_enabled(kind) for kind in DEVICES],
        "cache of autocast": torch.is_autocast_cache_enabled(),
        "dispatch": (
            torch._C._dispatch_tls_local_include_set().raw_repr(),
            torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        ),
        "generator": torch.get_rng_state().tolist(),
    }


def mkl_limit() -> int:
    """MKL's limit on the number of threads for this thread; 0 means no limit."""
    library = ctypes.CDLL("libtorch_cpu.so")
    if not hasattr(library, "MKL_Set_Num_Threads_Local"):
        return 0
    limit = library.MKL_Set_Num_Threads_Local(0)
    library.MKL_Set_Num_Threads_Local(limit)
    return int(limit)


def of_cuda() -> dict[str, Any]:
    return {
        "current device": torch.cuda.current_device(),
        "stream": torch.cuda.current_stream().cuda_stream,
        "cuBLAS": of_cublas(),
        "cuda generator": torch.cuda.get_rng_state().tolist(),
        "synchronizes": torch.cuda.get_sync_debug_mode(),
    }


def state(device: str) -> dict[str, Any]:
    """The state of this process and thread that a call on `device` could change."""
    return {
        **of_torch(),
        **(of_cuda() if device == "cuda" else {}),
        "float environment": float_environment(),
        "rounding": ctypes.CDLL(None).fegetround(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "Python's generator": random.getstate(),
        "NumPy's generator": np.random.get_state()[1].tolist(),  # type: ignore[index]
        "NumPy's errors": np.geterr(),
        "filters of warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "threads of Python": threading.active_count(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "hooks": (sys.excepthook, sys.getrecursionlimit(), gc.isenabled()),
    }


def both_passes(op: Op, device: str) -> None:
    """Runs forward and backward in float32, whose products depend on switches and modes."""
    case = next(case for case in op.cases if torch.float32 in case.dtypes)
    call = requiring_grad(op, case.call(device, torch.float32))
    results = [y for y in outputs(call.run(op.function)) if y.requires_grad]
    if results:
        torch.autograd.backward(results, [torch.ones_like(y) for y in results])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
def test_the_state_is_as_before(name: str, device: str) -> None:
    """A call changes no global state and gives no warning."""
    both_passes(OPS[name], device)  # torch creates pools, handles and workspaces once
    before = state(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both_passes(OPS[name], device)
    after = state(device)
    assert {key for key in before if before[key] != after[key]} == set()


def on_another_stream(call: Callable[[], None]) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
    torch.cuda.synchronize()


@GPU
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("tf32", [False, True])
def test_switches_that_the_user_set_stay(
    name: str, tf32: bool, allow_tf32: Callable[..., None]
) -> None:
    """Checks the TF32 mode of the cuBLAS handle and the caller's stream."""
    allow_tf32(tf32)
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    before = state("cuda")
    on_another_stream(lambda: both_passes(OPS[name], "cuda"))
    assert {key for key, value in state("cuda").items() if before[key] != value} <= {"cuBLAS"}
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    assert of_cublas() == before["cuBLAS"]


def test_the_snapshot_sees_a_change() -> None:
    """The snapshot detects changes of each kind of state that this test can safely change."""
    before = state("cpu")
    libm = ctypes.CDLL(None)
    libm.fesetround(0x400)
    os.environ["TREADLE_LEFT_BEHIND"] = "1"
    torch.set_flush_denormal(True)
    torch.rand(1)
    try:
        after = state("cpu")
    finally:
        libm.fesetround(0)
        del os.environ["TREADLE_LEFT_BEHIND"]
        torch.set_flush_denormal(False)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"float environment", "rounding", "environment", "generator"}
