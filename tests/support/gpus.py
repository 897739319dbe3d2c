"""The GPU that recurrent layers are planned for: the one at hand, or the one that
TREADLE_IMPOSED_GPU names (docs/other_gpus.md)."""

from __future__ import annotations

import os

import torch

# kernels/recurrent/device.cu has the same: the architecture and the multiprocessors.
IMPOSED = {
    "A100": (80, 108),
    "RTX3090": (86, 82),
    "RTX3060": (86, 28),
    "RTX4090": (89, 128),
    "L4": (89, 58),
}


def architecture() -> int:
    """90 for sm_90; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    imposed = os.environ.get("TREADLE_IMPOSED_GPU")
    if imposed:
        return IMPOSED[imposed][0]
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def multiprocessors() -> int:
    imposed = os.environ.get("TREADLE_IMPOSED_GPU")
    if imposed:
        return IMPOSED[imposed][1]
    return torch.cuda.get_device_properties(0).multi_processor_count


def any_clusters() -> bool:
    """Whether the planner names clusters of several blocks; without a GPU, as an H200's does."""
    return not torch.cuda.is_available() or 90 <= architecture() < 110
