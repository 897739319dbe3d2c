"""What a sine layer may keep for its backward pass, in NumPy: each format packs and unpacks cos(u).

u is the phase in float32, y = sin(u) and c = cos(u) what the kernel computed of it in float32. A
format of the phase needs nothing else; the others are read beside y, which a float32 layer returns
and therefore keeps anyway. docs/sine_layer.md says which are used, docs/sine_layer_phase.py why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
TURN = 2 * np.pi


def fma(a: Floats | float, b: Floats | float, c: Floats | float) -> Floats:
    """Rounded once but for about one in 2^29: the product is exact in float64."""
    exact = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    return (exact + np.asarray(c, np.float64)).astype(np.float32)


def polynomial(q: Floats, *coefficients: str) -> Floats:
    *lower, highest = map(float.fromhex, coefficients)
    total = np.full_like(q, highest)
    for c in reversed(lower):
        total = fma(total, q, c)
    return total


def waves(u: Floats) -> tuple[Floats, Floats]:
    """Sine and cosine as the kernel computes them of |u| <= 2^17 (waves_of in sine_linear.h)."""
    rounding = float.fromhex("0x1.8p+23")
    shifted = fma(u, float.fromhex("0x1.45f306p-1"), rounding)
    k = shifted - np.float32(rounding)
    r = u
    for part in ("0x1.921fb4p+0", "0x1.4442d0p-24", "0x1.84698ap-48"):
        r = fma(k, -float.fromhex(part), r)
    q = r * r
    s = fma(polynomial(q, "-0x1.555546p-3", "0x1.110738p-7", "-0x1.99432ep-13"), fma(q, r, 0), r)
    c = polynomial(q, "0x1p0", "-0x1p-1", "0x1.55554ap-5", "-0x1.6c0c8ap-10", "0x1.9a01bap-16")
    quarter = shifted.view(np.int32)
    turned = quarter % 2 == 1
    sine, cosine = np.where(turned, c, s), np.where(turned, s, c)
    return (
        np.where(quarter & 2, -sine, sine),
        np.where((quarter + 1) & 2, -cosine, cosine),
    )


class Format(Protocol):
    bits: int

    def pack(self, u: Floats, y: Floats, c: Floats) -> Codes: ...

    def unpack(self, code: Codes, y: Floats) -> tuple[Floats, Floats]:
        """The sine and the cosine."""


@dataclass(frozen=True)
class Turn:
    """The phase as a fixed-point fraction of a turn."""

    bits: int

    def pack(self, u: Floats, y: Floats, c: Floats) -> Codes:
        # float64 stands for the reduction in parts, which is exact enough for any of these widths.
        turns = u.astype(np.float64) / TURN
        fraction = turns - np.floor(turns)
        return np.rint(np.ldexp(fraction, self.bits)).astype(np.int64) & ((1 << self.bits) - 1)

    def unpack(self, code: Codes, y: Floats) -> tuple[Floats, Floats]:
        phase = np.ldexp(code.astype(np.float64), -self.bits) * TURN
        return np.sin(phase).astype(np.float32), np.cos(phase).astype(np.float32)


def cosine_of(y: Floats) -> Floats:
    """|cos|, as near as y tells it: off by up to sqrt(2 error of y) where y is near 1."""
    return np.sqrt((np.float32(1) - y) * (np.float32(1) + y))


@dataclass(frozen=True)
class SignOrCosine:
    """cos by its sign and y where that says it well, and in fixed point where |cos| < tau."""

    tau: float
    bits: int = 16

    def pack(self, u: Floats, y: Floats, c: Floats) -> Codes:
        half = 1 << (self.bits - 1)
        fixed = np.clip(np.rint(c.astype(np.float64) / self.tau * half), -half, half - 1)
        code = np.where(cosine_of(y) >= self.tau, np.signbit(c) * -1, fixed)
        return code.astype(np.int64)

    def unpack(self, code: Codes, y: Floats) -> tuple[Floats, Floats]:
        near = cosine_of(y)
        fixed = np.ldexp(code.astype(np.float32), 1 - self.bits) * np.float32(self.tau)
        return y, np.where(near >= self.tau, np.where(code < 0, -near, near), fixed)


@dataclass(frozen=True)
class LowBits:
    """The sign of cos, and the low bits of |cos| in steps of 2^-scale. y knows the high bits.

    Bit 15 is the sign, bits 0 to 14 are rint(|cos| 2^scale) modulo 2^15. Of all numbers with these
    low bits, which are 2^(15 - scale) apart, the nearest to sqrt((1 - y)(1 + y)) is |cos|.
    """

    scale: int = 24
    bits: int = 16

    def pack(self, u: Floats, y: Floats, c: Floats) -> Codes:
        low = self.bits - 1
        steps = np.rint(np.ldexp(np.abs(c), self.scale)).astype(np.int64)
        return (steps & ((1 << low) - 1)) | (np.signbit(c).astype(np.int64) << low)

    def unpack(self, code: Codes, y: Floats) -> tuple[Floats, Floats]:
        low = self.bits - 1
        rest = np.ldexp((code & ((1 << low) - 1)).astype(np.float32), -self.scale)
        apart = np.float32(2.0 ** (low - self.scale))
        magnitude = rest + apart * np.rint((cosine_of(y) - rest) / apart)
        return y, np.where(code >> low, -magnitude, magnitude)


@dataclass(frozen=True)
class RootAndRest:
    """The sign of cos, and what sqrt((1 - y)(1 + y)) lacks of |cos|; where that is small, cos.

    Below 0.95 of 2^-9 all bits are cos in steps of 2^-24. Else bit 0 is the sign, and the others
    are what is lacking, in steps of 2^-28. The op does this: kernels/math/sine_linear.h.
    """

    bits: int = 16
    small: float = 0.95 * 2.0**-9

    def pack(self, u: Floats, y: Floats, c: Floats) -> Codes:
        near = cosine_of(y)
        itself = np.rint(np.ldexp(c, 24))
        rest = np.rint(np.ldexp(np.abs(c) - near, 28))
        code = np.where(near < self.small, itself, 2 * rest + np.signbit(c)).astype(np.int64)
        half = 1 << (self.bits - 1)
        return (code + half) % (2 * half) - half

    def unpack(self, code: Codes, y: Floats) -> tuple[Floats, Floats]:
        near = cosine_of(y)
        magnitude = near + np.ldexp((code >> 1).astype(np.float32), -28)
        signed = np.where(code & 1, -magnitude, magnitude)
        itself = np.ldexp(code.astype(np.float32), -24)
        return y, np.where(near < self.small, itself, signed)
