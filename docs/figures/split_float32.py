"""Computes the errors of float32 products h W^T with 512 units, by fp16x2 and by fma.

    python docs/figures/split_float32.py      # writes split_float32.json

In fp16x2, each float32 is scaled and becomes a sum of two float16 terms. The order of additions is
that of cluster/fp16x2_forward.cuh: K, the length of the dot products, has four parts. When a tensor
core adds products, it keeps a fixed number of bits, counted from the first bit of the largest
product, and truncates the rest. This number is a parameter of the simulation. A float32 has 24
bits; GPUs keep a few more.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
K, PARTS, UNITS, ROWS = 512, 4, 96, 8
TOP, STATE = 14, 12  # exponents of the scales of W and h, as in cluster/fp16x2.h


def halves(x: Array) -> tuple[Array, Array]:
    """The float16 terms high and low of x = high + 2^-11 low."""
    high = x.astype(np.float16).astype(np.float64)
    return high, ((x - high) * 2048).astype(np.float16).astype(np.float64)


def cut(x: Array, exponent: Array) -> Array:
    """Rounds towards zero to a multiple of 2^exponent."""
    return np.ldexp(np.trunc(np.ldexp(x, -exponent)), exponent)


def add_products(total: Array, a: Array, b: Array, bits: int) -> Array:
    """total [UNITS, ROWS] + a [UNITS, 16] b [ROWS, 16], rounded as by one mma instruction."""
    terms = np.concatenate([a[:, None] * b, total[..., None]], -1)
    exponent = np.frexp(np.abs(terms).max(-1))[1]
    found = cut(terms, (exponent - bits)[..., None]).sum(-1)
    return cut(found, np.frexp(np.abs(found))[1] - 24)


def split(w: Array, h: Array, bits: int, chunks: int) -> Array:
    """The product by fp16x2. After every `chunks` chunks of 16 elements of K, the sum of high terms
    is added to a float32 total and starts again at 0."""
    exponent = np.frexp(np.abs(w).max(-1))[1] - 1
    w_high, w_low = halves(np.ldexp(w, (TOP - exponent)[:, None]))
    h_high, h_low = halves(np.ldexp(h, STATE))
    parts = []
    for first in range(0, K, K // PARTS):
        total, high, low = np.zeros((3, UNITS, ROWS))
        for c in range(K // PARTS // 16):
            k = slice(first + 16 * c, first + 16 * c + 16)
            high = add_products(high, w_high[:, k], h_high[:, k], bits)
            low = add_products(low, w_high[:, k], h_low[:, k], bits)
            low = add_products(low, w_low[:, k], h_high[:, k], bits)
            if c % chunks == chunks - 1:
                total, high = (total + high).astype(np.float32).astype(np.float64), high * 0
        parts.append((total + low / 2048).astype(np.float32))
    found = (parts[0] + parts[1]) + (parts[2] + parts[3])
    return np.ldexp(found.astype(np.float64), (exponent - TOP - STATE)[:, None]).T


def by_fma(w: Array, h: Array) -> Array:
    """The product by fma, in the order of cluster_fp32_forward: each thread adds 32 elements of K,
    and then the threads' sums are added in pairs."""
    sums = np.zeros((K // 32, ROWS, UNITS), np.float32)
    for k in range(K):
        sums[k // 32] = sums[k // 32].astype(np.float64) + h[:, k, None] * w[:, k]
    while len(sums) > 1:
        sums = sums[::2] + sums[1::2]
    return sums[0].astype(np.float64)


def cases() -> dict[str, tuple[Array, Array]]:
    draw = np.random.default_rng(0)
    w = draw.standard_normal((UNITS, K)) * K**-0.5
    h = np.tanh(draw.standard_normal((ROWS, K))) / (1 + np.exp(-draw.standard_normal((ROWS, K))))
    outlier, hidden, mixed = w * 2.0**-20, h.copy(), w * np.where(w > 0, 2.0**20, 2.0**-20)
    outlier[:, 5], hidden[:, 5] = 2.0**15, 0
    found = {
        "normal": (w, h),
        "all positive": (np.abs(w), np.abs(h)),
        "h near 1": (w, np.sign(h) * (1 - np.abs(h) * 1e-3)),
        "h of 1e-6": (w, h * 1e-6),
        "weights of e^N(0, 64)": (
            np.minimum(w * np.exp(8 * draw.standard_normal(w.shape)), 3e4),
            h,
        ),
        "2^20 beside 2^-20": (mixed * 2.0**-5, h),
        "a weight of 2^15 beside 2^-20": (outlier, h),
        "the same, h there 0": (outlier, hidden),
        "weights of 2^-50": (w * 2.0**-50, h),
    }
    return {
        name: (a.astype(np.float32).astype(np.float64), b.astype(np.float32).astype(np.float64))
        for name, (a, b) in found.items()
    }


def errors() -> dict[str, dict[str, float]]:
    """The root mean square of the errors, divided by that of |h| |W|^T, in units of 2^-24."""
    found: dict[str, dict[str, float]] = {}
    for name, (w, h) in cases().items():
        exact = h @ w.T
        size = np.abs(h) @ np.abs(w).T
        ways = {
            "fma": by_fma(w, h),
            "fp16x2, 24 bits": split(w, h, 24, 2),
            "fp16x2, 26 bits": split(w, h, 26, 2),
            "fp16x2, 26 bits, rounded once": split(w, h, 26, 8),
        }
        found[name] = {
            way: float(f"{2**24 * np.sqrt(((x - exact) ** 2).mean() / (size**2).mean()):.3g}")
            for way, x in ways.items()
        }
    return found


def main() -> None:
    facts = {"what": (errors.__doc__ or "").strip(), "numpy": np.__version__, "errors": errors()}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(facts, indent=1) + "\n")
    for name, row in facts["errors"].items():  # type: ignore[attr-defined]
        print(f"{name:32s}", row)


if __name__ == "__main__":
    main()
