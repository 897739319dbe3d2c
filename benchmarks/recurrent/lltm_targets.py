"""Targets of `lltm` in µs per step on an H200. They were set before any measurement."""

from __future__ import annotations

Sizes = tuple[int, int, int]
# For each dtype and B, T, H (I is H): the targets of inference and training, or of inference only.
# The target of a float16 shape that is missing here is relative to our time in bfloat16.
LLTM_TARGETS: dict[str, dict[Sizes, tuple[float, ...]]] = {
    "bfloat16": {
        (16, 512, 512): (0.75, 1.9),
        (1, 512, 512): (0.64, 1.5),
        (64, 512, 512): (1.05, 3.1),
        (128, 512, 512): (1.5, 5.4),
        (16, 256, 1024): (1.4, 4.0),
        (64, 256, 1024): (2.2, 6.4),
        (128, 256, 1024): (4.0, 11.5),
        (256, 256, 1024): (7.8, 22.0),
        (64, 1024, 768): (1.9, 5.0),
        (64, 100, 640): (1.9, 5.2),
        (64, 256, 2048): (7.5, 22.0),
        (256, 365, 256): (1.6, 5.2),
        (16, 512, 256): (0.60, 1.6),
        (16, 512, 128): (0.50, 1.3),
    },
    "float16": {(3, 200, 31): (0.34,), (1, 1000, 64): (0.32,)},
    "float32": {
        (16, 512, 512): (1.6, 4.5),
        (64, 512, 512): (4.0, 13.0),
        (64, 256, 1024): (14.0, 45.0),
    },
    "float32, tf32": {
        (64, 512, 512): (2.6, 8.0),
        (64, 256, 1024): (6.0, 17.0),
        (256, 256, 1024): (14.0, 45.0),
    },
}


def lltm_target(what: str, digits: str, backward: bool) -> float | None:
    """The target of the shape `what` ("B,T,H"), or None if this shape has no target."""
    b, t, h = map(int, what.split(","))
    times = LLTM_TARGETS[digits].get((b, t, h), ())
    return times[backward] if backward < len(times) else None
