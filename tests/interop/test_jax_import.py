"""treadle.jax is imported only on request; a failed import says what to do."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import installed

LIBRARY = installed.PACKAGE / "lib" / "libtreadle_jax.so"


def test_treadle_does_not_import_jax() -> None:
    done = installed.python("-c", "import treadle, sys; assert 'jax' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_without_jax() -> None:
    code = "import sys; sys.modules['jax'] = None; import treadle.jax"
    done = installed.python("-c", code)
    assert done.returncode == 1
    assert "ImportError: treadle.jax needs jax: pip install jax" in done.stderr


def test_without_the_library(tmp_path: Path) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    done = installed.python("-c", "import treadle.jax", path=installed.copy(tmp_path))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert re.match("ImportError: treadle was built without JAX: .*jax.so", said)
    assert "-m pip install --no-build-isolation" in said


def test_the_library_exports_its_handlers_alone() -> None:
    if not LIBRARY.exists():
        pytest.skip("treadle was built without JAX")
    command = ["nm", "-D", "--defined-only", LIBRARY]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in said.splitlines()}
    assert all(name.startswith("treadle_jax_") for name in names)
    assert len(names) == 16 and {name.rpartition("_")[2] for name in names} == {"cpu", "cuda"}
    strings = LIBRARY.read_bytes()
    assert b"site-packages" not in strings and b"home" not in strings
