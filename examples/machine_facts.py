"""On what an example's numbers were taken, for the JSON that it writes."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

import treadle
from treadle import _build

Facts = dict[str, object]


def facts(device: str, *packages: str) -> Facts:
    """Date, machine, load (before the run, if asked then) and versions, of ``packages`` too."""
    found: Facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "treadle": treadle.__version__,
        "treadle_commit": _build.facts()["commit"],
    }
    found |= {package: importlib.metadata.version(package) for package in packages}
    if device == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(), "driver": _driver()}
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split()[0]
    except (OSError, IndexError):
        return "unknown"
