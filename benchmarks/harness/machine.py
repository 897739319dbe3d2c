"""Facts about the machine: processor, GPU, driver, versions, commit, load."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import treadle
from treadle import _build


def facts(device: str) -> dict[str, Any]:
    built = _build.facts()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "treadle": treadle.__version__,
        "treadle_commit": built["commit"],
        "treadle_archs": built["archs"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            # the GPU for which layers are planned instead (docs/other_gpus.md)
            "imposed_gpu": os.environ.get("TREADLE_IMPOSED_GPU"),
            "gpu_memory_gib": round(properties.total_memory / (1 << 30), 1),
            "gpu_l2_mib": round(properties.L2_cache_size / (1 << 20)),
            "driver": driver(),
            "cuda": torch.version.cuda,
            "built_with_cuda": built["cuda"],
        }
    return found


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split()[0]
    except (OSError, IndexError):
        return "unknown"


def name(facts: dict[str, Any]) -> str:
    """The machine in one line, for the title of a table or a plot."""
    what = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
    if facts.get("imposed_gpu"):
        what += f" with layers planned for {facts['imposed_gpu']}"
    return f"{what}; torch {facts['torch']}; treadle {commit(facts)}"


def commit(facts: dict[str, Any]) -> str:
    """The short hash of the commit, and whether the tree had uncommitted changes."""
    found: str = facts["treadle_commit"]
    if not found:
        return "without a recorded commit"
    return found[:10] + ("-modified" if found.endswith("-modified") else "")
