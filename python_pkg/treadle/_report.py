"""Collects the report of ``python -m treadle``: versions, GPUs, ops, the self-test, problems."""

from __future__ import annotations

import dataclasses
from typing import Any

from treadle import _build

KEYS = ("CPU", "CUDA", "Meta", "Autograd", "FuncTorchBatched", "AutocastCPU", "AutocastCUDA")


def collect(problem: str | None = None) -> dict[str, Any]:
    """The whole report. If treadle could not be imported, `problem` is the error."""
    report: dict[str, Any] = {
        "ok": True,
        "problems": [problem] if problem else [],
        "notes": [],
        "built": None,
        "running": None,
        "gpus": [],
        "ops": [],
        "self_test": [],
    }
    for key, ask in (("built", _build.facts), ("running", _build.running)):
        try:
            report[key] = dict(ask())
        except ImportError as error:
            if str(error) not in report["problems"]:
                report["problems"].append(str(error))
    if report["running"] is not None:
        report["gpus"] = _gpus(report)
    if report["built"] and report["built"].get("for_checking"):
        report["notes"].append(
            "compiled for checking: the CUDA kernels compute the same results, but slowly. To run "
            f"at full speed, rebuild without TREADLE_CHECK_BUILD: {_build.rebuild_command()}"
        )
    if not report["problems"]:
        _add_ops(report)
    report["ok"] = not report["problems"]
    return report


def covers(archs: list[str], capability: tuple[int, int]) -> bool:
    """Whether code built for `archs` ("9.0", "12.0+PTX") runs on a GPU of this capability."""
    for arch in archs:
        number = arch.removesuffix("+PTX")
        major, minor = (int(part) for part in number.rstrip("af").split("."))
        if number[-1] in "af":
            # Code for one architecture (a) or a family (f) may not run elsewhere, so only an
            # exact match is safe.
            if (major, minor) == capability:
                return True
            continue
        if major == capability[0] and minor <= capability[1]:
            return True
        if arch.endswith("+PTX") and (major, minor) <= capability:
            return True
    return False


def _gpus(report: dict[str, Any]) -> list[dict[str, Any]]:
    import torch

    built = report["built"] or {}
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count() if torch.version.cuda else 0):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        arch = f"{capability[0]}.{capability[1]}"
        served = bool(built.get("cuda")) and covers(built["archs"], capability)
        memory = properties.total_memory >> 20
        found.append(
            {"index": index, "name": properties.name, "arch": arch, "memory_mib": memory}
            | {"served": served}
        )
        if built.get("cuda") and not served:
            report["problems"].append(
                f"GPU {index} ({properties.name}) has architecture {arch}, and this build has "
                f"{', '.join(built['archs'])}. Rebuild it with: "
                f"TORCH_CUDA_ARCH_LIST={arch} {_build.rebuild_command()}"
            )
    missing = built.get("cuda_missing")
    if missing:
        report["notes"].append(
            f"built without CUDA, because {missing['reason']}. For CUDA, {missing['remedy']}: "
            f"{_build.rebuild_command()}"
        )
    return found


def _add_ops(report: dict[str, Any]) -> None:
    import torch

    from treadle import _selftest

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in _selftest.op_names():
        backends = [key for key in KEYS if has(f"treadle::{name}", key)]
        if not report["built"]["cuda"] and "CUDA" in backends:
            # A CPU-only build registers CUDA functions that only raise and say how to rebuild.
            backends.remove("CUDA")
        report["ops"].append({"name": name, "backends": backends})
    report["running"]["isa"] = _build.kernels_info()["isa"]
    devices = ["cpu", *(f"cuda:{gpu['index']}" for gpu in report["gpus"] if gpu["served"])]
    for result in _selftest.run(devices):
        report["self_test"].append(dataclasses.asdict(result) | {"ok": result.ok})
    failed = [entry for entry in report["self_test"] if not entry["ok"]]
    for entry in failed:
        what = entry["message"] or f"error {entry['error']:.3g}, at most {entry['limit']:.3g}"
        report["problems"].append(
            f"self-test of {entry['op']} on {entry['device']} in {entry['dtype']}: {what}"
        )
    if failed:
        report["notes"].append(
            "if a self-test fails after an update, the build is often out of date. Rebuild with: "
            f"{_build.rebuild_command()}; if the test fails again, open an issue with this report"
        )
