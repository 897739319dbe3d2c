"""kernels/math/sine_tables.h equals the output of tools/sine_tables.py, and tools/hard_arguments.py
finds the hardest arguments."""

from __future__ import annotations

import re

from tools import sine_tables
from tools.hard_arguments import DIGITS, FLOAT32, FLOAT64, LARGEST, hardest, nearest, two_over_pi


def differing_lines(text: str) -> list[int]:
    """Line numbers, from 1, at which kernels/math/sine_tables.h differs from `text`."""
    ours, theirs = sine_tables.HEADER.read_text().splitlines(), text.splitlines()
    assert len(ours) == len(theirs)
    return [n for n, pair in enumerate(zip(ours, theirs, strict=True), 1) if pair[0] != pair[1]]


def test_the_header_is_what_the_tool_writes() -> None:
    assert differing_lines(sine_tables.text()) == []


def test_one_wrong_digit_is_noticed() -> None:
    lines = sine_tables.text().splitlines()
    row = next(n for n, line in enumerate(lines) if re.search(r"\{0x1\.\w+p", line))
    lines[row] = re.sub(r"(0x1\.\w{5})\w", lambda m: m[1] + "e", lines[row], count=1)
    assert differing_lines("\n".join(lines)) == [row + 1]


def test_how_near_a_number_comes_to_a_multiple_of_half_pi() -> None:
    """The tables have enough digits for the smallest distance, in units of pi / 2."""
    m, distance, e = hardest(FLOAT32)
    assert (m, e) == (16367173, 72)
    assert distance / 2 > 2**-31
    m, distance, e = hardest(FLOAT64)
    assert (m, e) == (6381956970095103, 797)
    assert distance / 4 > 2**-64


def test_hard_arguments_are_the_hardest() -> None:
    """Compares the search with a trial of all numbers, in formats with few bits."""
    one = 1 << DIGITS
    for bits in (6, 9):
        for e in range(1 - bits, LARGEST, 7):
            a = (two_over_pi() >> (LARGEST - e)) % one
            distance = {
                m: min(m * a % one, -m * a % one) for m in range(1 << (bits - 1), 1 << bits)
            }
            hardest_of_all = sorted(distance, key=distance.__getitem__)[:3]
            assert [m for m, _ in nearest(bits, e, 3)] == hardest_of_all, (bits, e)
