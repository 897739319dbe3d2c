"""The numbers nearest to multiples of pi / 2, for which reducing the argument of a sine is hardest.

    python tools/hard_arguments.py        prints the nearest float32 and float64

A number of p bits is m 2^e with an integer m. Let a = 2^e 2 / pi. Then m a is the number's angle in
quarter turns, and the number is near a multiple of pi / 2 if m a is near an integer k. The pairs
(m, m a - k) form a lattice in the plane. We scale the lattice so that m = 2^p and m a - k = 2^-p
have equal lengths, and reduce its basis. Then the best pairs for an exponent e are combinations of
the two basis vectors with small coefficients. This is fast, so nothing is stored: tests recompute
the numbers.
"""

from __future__ import annotations

from functools import cache

import mpmath

DIGITS = 256  # binary digits of a: m a is accurate to 2^-200, and no distance is below 2^-64
LARGEST = 971  # e of the largest float64
LINES = range(-4, 5)  # coefficients to try for the longer vector of the basis
Vector = tuple[int, int]

# The bits of the significand, and the exponents e of all finite numbers that are at least 1.
FLOAT32 = (24, range(-23, 105))
FLOAT64 = (53, range(-52, LARGEST + 1))


@cache
def two_over_pi() -> int:
    """2 / pi in units of 2^-(DIGITS + LARGEST)."""
    with mpmath.workprec(DIGITS + LARGEST + 64):
        return int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, DIGITS + LARGEST)))


def reduced(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """A reduced basis of the same lattice, by Lagrange's method, with the shorter vector first."""
    while True:
        if a[0] ** 2 + a[1] ** 2 > b[0] ** 2 + b[1] ** 2:
            a, b = b, a
        square = a[0] ** 2 + a[1] ** 2
        times = (2 * (a[0] * b[0] + a[1] * b[1]) + square) // (2 * square)
        if times == 0:
            return a, b
        b = (b[0] - times * a[0], b[1] - times * a[1])


def nearest(bits: int, e: int, count: int = 1) -> list[tuple[int, float]]:
    """The `count` integers m of `bits` bits for which m 2^e is nearest to a multiple of pi / 2.

    Each comes with its distance from the multiple, in quarter turns.
    """
    one = 1 << DIGITS
    a = (two_over_pi() >> (LARGEST - e)) % one
    scale = 1 << (DIGITS - 2 * bits)
    first, second = reduced((scale, a), (0, one))
    found: dict[int, int] = {}
    low, high = 1 << (bits - 1), (1 << bits) - 1
    for line in LINES:
        step, start = first[0] // scale, line * second[0] // scale
        if step == 0:
            continue
        ends = sorted(-(-(bound - start) // step) for bound in (low, high))
        root = -line * second[1] // first[1] if first[1] else ends[0]
        middle = min(max(root, ends[0]), ends[1])
        for times in range(middle - count - 1, middle + count + 2):
            m = abs(start + times * step)
            if low <= m <= high:
                distance = abs(line * second[1] + times * first[1])
                found[m] = min(found.get(m, one), distance)
    best = sorted(found, key=found.__getitem__)[:count]
    return [(m, found[m] / one) for m in best]


def hard(kind: tuple[int, range], count: int) -> list[float]:
    """For every exponent, the `count` positive numbers that are nearest to a multiple of pi / 2."""
    bits, exponents = kind
    return [float(m) * 2.0**e for e in exponents for m, _ in nearest(bits, e, count)]


def hardest(kind: tuple[int, range]) -> tuple[int, float, int]:
    """m, the distance in quarter turns, and e, for the number nearest to a multiple of pi / 2."""
    bits, exponents = kind
    return min(((*nearest(bits, e)[0], e) for e in exponents), key=lambda found: found[1])


def main() -> None:
    for name, kind in (("float32", FLOAT32), ("float64", FLOAT64)):
        m, distance, e = hardest(kind)
        print(f"{name}: {m} * 2^{e} is {distance:.3g} of a quarter turn from a multiple of pi / 2")


if __name__ == "__main__":
    main()
