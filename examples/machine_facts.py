"""Facts about the machine for an example's JSON, in the format of the benchmarks."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import machine  # noqa: E402


def facts(device: str, *packages: str) -> dict[str, Any]:
    """Facts about this machine, including its current load, and the versions of ``packages``."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    return machine.facts(device) | versions
