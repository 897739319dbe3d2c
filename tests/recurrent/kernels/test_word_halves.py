"""Single-block kernels copy half-type numbers as 4-byte words. word_halves.cpp compiles the header
of these kernels for the host, and tests in which half of a word each number is found."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.installed import ROOT
from tools.native import host


def test_each_number_is_found_in_its_word(tmp_path: Path) -> None:
    """Tests odd and even numbers of rows, odd addresses, dense and packed batches, and both
    directions."""
    program = tmp_path / "word_halves"
    command = [*host.cxx().split(), "-std=c++17", "-O1", "-Wall", "-Werror", "-I."]
    source = "tests/recurrent/kernels/word_halves.cpp"
    built = subprocess.run(
        [*command, source, "-o", str(program)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
