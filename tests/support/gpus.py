"""The GPU for which recurrent layers are planned: the one in this machine, or the one that
TREADLE_IMPOSED_GPU selects."""

from __future__ import annotations

import os

import torch

# The planner's arguments, from the data sheets.
IMPOSED: dict[str, dict[str, int]] = {
    name: {
        "architecture": architecture,
        "multiprocessors": multiprocessors,
        "shared_bytes": shared_kb << 10,
        "l2_bytes": l2_mb << 20,
        "clock_mhz": clock_mhz,
    }
    for name, architecture, multiprocessors, shared_kb, l2_mb, clock_mhz in (
        ("A100", 80, 108, 163, 40, 1410),
        ("RTX3090", 86, 82, 99, 6, 1695),
        ("RTX3060", 86, 28, 99, 3, 1777),
        ("RTX4090", 89, 128, 99, 72, 2520),
        ("L4", 89, 58, 99, 48, 2040),
    )
}


def imposed() -> dict[str, int] | None:
    name = os.environ.get("TREADLE_IMPOSED_GPU")
    return IMPOSED[name] if name else None


def architecture() -> int:
    """90 for sm_90; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    if facts := imposed():
        return facts["architecture"]
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def multiprocessors() -> int:
    if facts := imposed():
        return facts["multiprocessors"]
    return torch.cuda.get_device_properties(0).multi_processor_count


def any_clusters() -> bool:
    """Whether the planner uses clusters of several blocks; without a GPU, it plans for an H200."""
    return not torch.cuda.is_available() or 90 <= architecture() < 110
