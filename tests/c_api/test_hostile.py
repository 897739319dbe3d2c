"""Calls that break one rule return an error that names the argument, and write nothing.

If a call could crash when a check is missing, it runs in a separate process.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.c_api import native
from tests.c_api.calls import OPTIONAL, good
from tests.c_api.hostile import complaint, spoilers, storm

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = [*native.FUNCTIONS]
ARRAYS = [
    (function, name)
    for function, parameters in native.FUNCTIONS.items()
    for name, kind in parameters.items()
    if kind is ctypes.POINTER(native.Array)
]
HAS_CUDA = json.loads(native.library().treadle_kernels_info())["cuda"] is not None


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "treadle_get_launch"])
def test_the_good_call_is_good(function: str) -> None:
    call = good(function)
    assert call.run() == native.OK, native.error_text()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_argument_spoilt(function: str) -> None:
    found = spoilers(function)
    assert len(found) > 3
    for spoiler in found:
        call = good(function)
        spoiler.spoil(call)
        said = complaint(call, spoiler.names)
        assert not said, f"{spoiler}: {said}"


@pytest.mark.parametrize(("function", "name"), sorted(OPTIONAL))
def test_what_is_optional_may_be_null(function: str, name: str) -> None:
    call = good(function)
    argument, _, field = name.partition(".")
    if field:
        setattr(call.arguments[argument], field, None)
    else:
        call.arguments[argument] = None
    assert call.run() == native.OK, native.error_text()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_hostile_calls(seed: int) -> None:
    command = [sys.executable, "-m", "tests.c_api.hostile", str(seed), "1500", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_calls_in_this_process() -> None:
    assert storm(4, 200) == ""


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f != "treadle_get_launch"])
@pytest.mark.skipif(HAS_CUDA, reason="needs a library without CUDA")
def test_cuda_asked_of_a_library_without_it(function: str) -> None:
    for index in (0, 3, -1):
        call = good(function)
        call.arguments["device"].type = native.CUDA_TYPE
        call.arguments["device"].index = index
        assert complaint(call, "device.type") == ""
        assert call.run() == native.UNSUPPORTED


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_wrong_sizes_of_each_array(function: str, name: str) -> None:
    """Shapes that do not broadcast or do not fit the other arguments."""
    # An elementwise input with one element broadcasts.
    single = "lltm" not in function and "linear" not in function and name != "out"
    for sizes in ([7, 11], [1, 1, 1, 2], [2], [])[: 3 if single else 4]:
        call = good(function)
        call.arguments[name] = native.array(call.tensor(*sizes))
        assert complaint(call) == "", (name, sizes)
    call = good(function)
    call.arguments[name] = native.array(call.tensor(0, 13))
    assert complaint(call) == ""


@pytest.mark.parametrize(("function", "name"), ARRAYS)
def test_wrong_dtype_of_each_array(function: str, name: str) -> None:
    """Elementwise functions convert inputs of other dtypes, but refuse an integer or bool output
    for a floating-point result. Cells and layers refuse any other dtype."""
    elementwise = "lltm" not in function and "linear" not in function
    for dtype in (torch.float64, torch.float16, torch.int64, torch.bool):
        call = good(function)
        sizes = [call.arguments[name].sizes[d] for d in range(call.arguments[name].ndim)]
        call.arguments[name] = native.array(call.tensor(*sizes, dtype=dtype))
        if elementwise and (name != "out" or dtype.is_floating_point):
            assert call.run() == native.OK, (name, dtype, native.error_text())
        else:
            assert complaint(call) == "", (name, dtype)


@pytest.mark.parametrize("function", [f for f, name in ARRAYS if name == "out"])
def test_inputs_of_a_higher_kind(function: str) -> None:
    names = [name for f, name in ARRAYS if f == function and name != "out"]
    for name in names:
        call = good(function)
        call.arguments[name] = native.array(call.tensor(4, 6, dtype=torch.float32))
        call.arguments["out"] = native.array(call.tensor(4, 6, dtype=torch.int32))
        assert complaint(call) == ""


@pytest.mark.parametrize(
    ("function", "number"), [("treadle_vector_add", "alpha"), ("treadle_scale", "factor")]
)
def test_a_number_that_is_no_integer_for_an_integer_output(function: str, number: str) -> None:
    call = good(function)
    for f, name in ARRAYS:
        if f == function:
            call.arguments[name] = native.array(call.tensor(4, 6, dtype=torch.int16))
    assert call.run() == native.OK
    call.arguments[number] = native.number(2.0)
    assert complaint(call, number) == ""


CONTIGUOUS = [
    (f, name)
    for f, name in ARRAYS
    if "linear" in f or ("lltm" in f and name in ("new_h", "grad_gates", "grad_old_cell"))
]


@pytest.mark.parametrize(("function", "name"), CONTIGUOUS)
def test_arrays_that_must_be_contiguous(function: str, name: str) -> None:
    call = good(function)
    array = call.arguments[name]
    sizes = [array.sizes[d] for d in range(array.ndim)]
    dtype = next(d for d, number in native.DTYPES.items() if number == array.dtype)
    wide = call.tensor(*sizes[:-1], 2 * sizes[-1], dtype=dtype)
    call.arguments[name] = native.array(wide[..., ::2])
    assert complaint(call, name) == ""
    if array.ndim == 2:
        turned = call.tensor(*sizes[::-1], dtype=dtype).T
        call.arguments[name] = native.array(turned)
        assert complaint(call, name) == ""


def test_lltm_has_one_bias() -> None:
    call = good("treadle_recurrent_forward")
    call.arguments["layer"].cell = native.LLTM
    assert complaint(call, "inputs.bias_hh") == ""
    call.arguments["inputs"].bias_hh = None
    assert call.run() == native.OK, native.error_text()


def test_no_launches_on_the_cpu() -> None:
    library = native.library()
    library.treadle_record_launches(1)
    assert good("treadle_sine").run() == native.OK
    library.treadle_record_launches(0)
    assert library.treadle_launch_count() == 0
    for index in (0, 1, -1, 2**63 - 1):
        call = good("treadle_get_launch")
        call.arguments["index"] = index
        assert complaint(call, "index") == ""
    library.treadle_clear_launches()
