"""tools/check_kernels.py and tools/check_sizes.py report each broken rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_kernels, check_sizes

GOOD_CALL = "cudaError_t f(cudaStream_t stream) { return launch_x(1, stream); }"
LAUNCHERS = {"launch", "launch_x"}


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("kernels/a.cuh", "#include <ATen/ATen.h>", "must not include ATen"),
        ("kernels/a.cu", '#include "torch/library.h"', "must not include torch"),
        (
            "kernels/elementwise/a.cu",
            '#include "kernels/recurrent/step/step.cuh"',
            'kernels/elementwise must not include "kernels/recurrent/step/step.cuh"',
        ),
        ("kernels/elementwise/a.cu", '#include "common/check.h"', '"common/check.h", only kernels'),
        ("kernels/math/a.h", '#include "kernels/elementwise/trig.cuh"', "kernels/math must not"),
        ("kernels/common/a.h", '#include "kernels/math/exp.h"', "kernels/common must not include"),
        ("kernels/c_api/a.cpp", '#include "treadle/ops.h"', "kernels/c_api must not include"),
        ("kernels/jax/a.cpp", '#include "kernels/common/dtype.h"', "kernels/jax must not include"),
        ("kernels/jax/a.cpp", '#include "xla/service/a.h"', "kernels/jax must not include"),
        ("kernels/c_api/a.cpp", "#include <xla/ffi/api/ffi.h>", "only kernels/jax includes XLA"),
        (
            "csrc/elementwise/a.cpp",
            '#include "kernels/recurrent/plan/plan.h"',
            "csrc/elementwise must",
        ),
        (
            "csrc/recurrent/cuda/a.cpp",
            "#include <kernels/sine_linear/args.h>",
            'csrc/recurrent must not include "kernels/sine_linear/args.h"',
        ),
        ("csrc/common/a.h", '#  include "elementwise/loop.h"', "csrc/common must not include"),
        ("csrc/sine_linear/a.cpp", '#include "elementwise/trig.h"', "sine_linear must not"),
        ("csrc/sine_linear/a.cpp", '#include "schemas.h"', "csrc/sine_linear must not include"),
        ("kernels/a.cu", "void f() { k<<<1, 2>>>(x); }", "launched through"),
        ("kernels/common/launch.cuh", "void f() { k<<<1, 2>>>(x); }", "must pass a stream"),
        (
            "kernels/common/launch.cuh",
            "void f() { cudaLaunchKernelEx(&c, k); }",
            "must be returned",
        ),
        ("kernels/a.cu", "__global__ void k(int x) { f(x); begin_kernel(); }", "must begin"),
        ("kernels/a.cu", "int f() { return launch(k, shape, x); }", "must pass a stream"),
        ("kernels/a.cu", "int f() { launch<float>(k, shape, stream); }", "must be returned or"),
        ("csrc/cuda/a.cpp", "void f() { launch_x(a, stream); }", "must be returned or checked"),
        ("csrc/cuda/a.cpp", "__global__ void k() {}", "no device code"),
    ],
)
def test_check_kernels_finds(path: str, text: str, rule: str) -> None:
    problems = check_kernels.check_file(
        Path(path), f"{GOOD_CALL}\n// launch(a);\n{text}\n", LAUNCHERS
    )
    assert problems and all(problem.startswith(f"{path}:3: ") for problem in problems)
    assert rule in " ".join(problems)


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("kernels/elementwise/a.cu", "kernels/math/scale.h"),
        ("csrc/recurrent/lltm_cell/cuda/a.cpp", "kernels/recurrent/lltm_cell/args.h"),
        ("kernels/sine_linear/cpu/sine_linear.cpp", "kernels/elementwise/cpu/sine.h"),
        ("csrc/bindings.cpp", "kernels/recurrent/plan/plan.h"),
        ("csrc/include/treadle/a.h", "treadle/ops.h"),
        ("kernels/c_api/a.cpp", "kernels/recurrent/plan/plan.h"),
        ("kernels/jax/a.cpp", "treadle/kernels.h"),
        ("kernels/jax/a.cpp", "xla/ffi/api/ffi.h"),
    ],
)
def test_check_kernels_accepts_an_include(path: str, header: str) -> None:
    text = f'#include <cstdint>\n#include <cuda_runtime.h>\n#include "{header}"\n'
    assert check_kernels.check_file(Path(path), text, LAUNCHERS) == []


def test_check_kernels_accepts_what_is_right() -> None:
    text = f"{GOOD_CALL}\nvoid g() {{ check_launch(op, launch_x(launch_shape(a), stream)); }}\n"
    assert check_kernels.check_file(Path("csrc/cuda/a.cpp"), text, LAUNCHERS) == []
    text = "__global__ void __launch_bounds__(8)\n k(F f, A<2 * B> a = {}) {\n begin_kernel(); }"
    assert check_kernels.check_file(Path("kernels/a.cu"), text, LAUNCHERS) == []


def function(lines: int, head: str = "int f()") -> str:
    return f"{head} {{\n" + "  g();\n" * (lines - 2) + "}\n"


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("csrc/a.cpp", function(61), "csrc/a.cpp:1: f must have at most 60 lines, got 61"),
        ("kernels/a.cuh", "\n" + function(61), "kernels/a.cuh:2: f must have"),
        ("kernels/a.cu", "template <class T>\n" + function(61, "__device__ void k()"), "k must"),
        ("tools/a.py", "def f():\n" + "    g()\n" * 60, "f must have at most 60 lines, got 61"),
        ("csrc/a.h", "int x;\n" * 451, "csrc/a.h:451: a file must have at most 450 lines"),
        ("tests/a.py", "x = 1\n" * 451, "at most 450 lines"),
    ],
)
def test_check_sizes_finds(path: str, text: str, rule: str) -> None:
    (problem,) = check_sizes.check_file(Path(path), text)
    assert rule in problem


def test_check_sizes_accepts_what_is_right() -> None:
    kernel = function(200, "__global__ void __launch_bounds__(8)\n    k(int x)")
    for path, text in [
        ("csrc/a.cpp", function(60) * 5),
        ("kernels/a.cuh", f"namespace n {{\n{kernel}}}\n"),
        ("tests/a.py", "def f():\n" + "    g()\n" * 100),
    ]:
        assert check_sizes.check_file(Path(path), text) == []
