"""The C++ example is configured, built and run as a user would do it. The program contains no
Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from tests.support import installed
from treadle import _build

ROOT = Path(__file__).resolve().parents[2]
# Prefer the environment's cmake (requirements-dev.txt) to the system's.
SEARCH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
CMAKE = shutil.which("cmake", path=SEARCH) or "cmake"


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        env={**os.environ, **env},
    )


def configure(build: Path, prefix: str, **env: str) -> subprocess.CompletedProcess[str]:
    source = ROOT / "examples" / "cpp"
    return run(CMAKE, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", **env)


def without_toolkit() -> dict[str, str]:
    """Returns an environment in which no CUDA toolkit can be found."""
    folders = os.environ["PATH"].split(os.pathsep)
    kept = [folder for folder in folders if not (Path(folder) / "nvcc").exists()]
    return {"PATH": os.pathsep.join(kept), "CUDA_HOME": "", "CUDA_PATH": "", "LIBRARY_PATH": ""}


@pytest.mark.timeout(600)
def test_example_builds_and_trains_without_python_and_toolkit(tmp_path: Path) -> None:
    env = without_toolkit()
    assert shutil.which("nvcc", path=env["PATH"]) is None
    done = configure(tmp_path, _build.cmake_prefix(), **env)
    assert done.returncode == 0, done.stderr
    done = run(CMAKE, "--build", tmp_path, "--verbose", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/usr/local/cuda" not in done.stdout
    program = tmp_path / "train_cell"
    done = run(program, LD_LIBRARY_PATH="", PYTHONPATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"cpu: every op is right; loss .* after 100 steps", done.stdout)
    assert "scale: x must" in done.stdout
    linked = run("ldd", program).stdout
    assert "libtreadle.so" in linked and "libpython" not in linked and "not found" not in linked


KERNELS_PROJECT = """
cmake_minimum_required(VERSION 3.19)
project(kernels LANGUAGES C)
find_package(treadle REQUIRED COMPONENTS kernels)
if(TARGET treadle::torch)
  message(FATAL_ERROR "torch was looked for")
endif()
add_executable(version version.c)
target_link_libraries(version treadle::kernels)
"""
KERNELS_PROGRAM = """
#include <stdio.h>
#include <treadle/kernels.h>
int main(void) { return puts(treadle_kernels_info()) < 0; }
"""


def test_the_kernels_alone_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(KERNELS_PROJECT)
    (tmp_path / "version.c").write_text(KERNELS_PROGRAM)
    prefix = f"-DCMAKE_PREFIX_PATH={_build.PACKAGE}"
    done = run(CMAKE, "-S", tmp_path, "-B", tmp_path / "build", prefix)
    assert done.returncode == 0, done.stderr
    done = run(CMAKE, "--build", tmp_path / "build")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path / "build" / "version", LD_LIBRARY_PATH="")
    assert json.loads(done.stdout) == _build.kernels_info()


VERSIONS_PROJECT = """
cmake_minimum_required(VERSION 3.19)
project(versions LANGUAGES C)
foreach(asked IN LISTS ASKED)
  string(REPLACE " " ";" words "${asked}")
  find_package(treadle ${words} QUIET COMPONENTS kernels)
  message(STATUS "asked for ${asked}: ${treadle_FOUND} ${treadle_VERSION}")
endforeach()
"""


def asked(minor: int, patch: int) -> dict[str, bool]:
    """Maps each version that a program may request from find_package to whether version
    0.MINOR.PATCH fits."""
    own, next_minor = f"0.{minor}.{patch}", f"0.{minor + 1}"
    fits = {"0": True, f"0.{minor}": True, own: True, f"{own} EXACT": True}
    fits |= {f"0.{minor} EXACT": patch == 0, f"0.{minor}...<{next_minor}": True}
    fits |= {f"0.0...{own}": True, f"0.0...<{own}": False, f"{next_minor}...2": False}
    return fits | {f"0.{minor}.{patch + 1}": False, next_minor: False, "0.0": False, "1": False}


def test_find_package_takes_a_version(tmp_path: Path) -> None:
    _, minor, patch = (int(part) for part in treadle.__version__.split("."))
    expected = asked(minor, patch)
    (tmp_path / "CMakeLists.txt").write_text(VERSIONS_PROJECT)
    prefix = f"-DCMAKE_PREFIX_PATH={_build.PACKAGE}"
    done = run(CMAKE, "-S", tmp_path, "-B", tmp_path / "b", prefix, f"-DASKED={';'.join(expected)}")
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"asked for (.+): ([01]) ", done.stdout))
    assert found == {version: str(int(fits)) for version, fits in expected.items()}


def test_a_version_that_is_too_new_is_named_beside_this_one(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        VERSIONS_PROJECT.replace("QUIET COMPONENTS kernels", "REQUIRED")
    )
    prefix = f"-DCMAKE_PREFIX_PATH={_build.PACKAGE}"
    done = run(CMAKE, "-S", tmp_path, "-B", tmp_path / "b", prefix, "-DASKED=99.1")
    assert done.returncode != 0
    assert f"treadleConfig.cmake, version: {treadle.__version__}" in done.stderr


def test_a_torch_of_another_minor_is_refused(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path / "copy")
    of_torch = folder / "treadle" / installed.OF_TORCH
    of_torch.rename(of_torch.with_name("torch-2.3"))
    _, torch_dir = _build.cmake_prefix().split(";")
    done = configure(tmp_path / "build", f"{folder / 'treadle'};{torch_dir}")
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "holds builds for torch-2.3, and" in said and "rebuild treadle" in said


def test_an_unbuilt_treadle_is_not_found(tmp_path: Path) -> None:
    folder = installed.copy(tmp_path / "copy")
    (folder / "treadle" / "lib" / "libtreadle_kernels.so").unlink()
    done = configure(tmp_path / "build", str(folder / "treadle"))
    assert done.returncode != 0
    assert "treadle has not been built" in " ".join(done.stderr.split())
