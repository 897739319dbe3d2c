"""Runs tests of persistent kernels in a separate process, which a test can kill if a kernel hangs:

    python -m tests.recurrent.kernels.persistent_worker GROUP ARGUMENTS

Runs the cases of a group and prints each name before its case begins. ARGUMENTS is a JSON list. The
exit status is 1 if a case failed, and NONE_RUNS if this GPU supports none of the cases' layers.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from tests.recurrent.kernels import (
    persistent_bits,
    persistent_fp16x2,
    persistent_fp16x2_backward,
    persistent_resets,
    persistent_rows,
    persistent_rule,
    persistent_steps,
)
from tests.recurrent.kernels.persistent_calls import Cases
from tests.support.inputs import on_hopper


def hangs() -> Cases:
    yield "forever", lambda: time.sleep(600)


def leaves_a_thread() -> Cases:
    def add_for_ever() -> None:
        a = torch.randn(100)
        while True:
            a.add(a)

    yield "starts it", threading.Thread(target=add_for_ever, daemon=True).start


GROUPS: dict[str, Callable[..., Cases]] = {
    "hangs": hangs,
    "leaves a thread": leaves_a_thread,
    **persistent_steps.GROUPS,
    **persistent_rule.GROUPS,
    **persistent_bits.GROUPS,
    **persistent_rows.GROUPS,
    **persistent_resets.GROUPS,
    **persistent_fp16x2.GROUPS,
    **persistent_fp16x2_backward.GROUPS,
}
SECONDS = 60  # the test kills this process after this time
TOLD = 5  # the number of failures that are printed in full
NONE_RUNS = 5  # Python itself never exits with this status


class NoneRunsError(Exception):
    """This GPU supports none of the cases' layers."""


def is_refusal(error: Exception) -> bool:
    """Whether the planner refused a layer that an sm_90 GPU supports and this GPU does not."""
    words = r"recurrent_layer: algorithm \w+ needs "
    return not on_hopper() and re.match(words, str(error)) is not None


def run(cases: Cases) -> list[str]:
    """Runs the cases. Returns the names of those that failed."""
    failed, refused, count, begun = [], 0, 0, time.monotonic()
    tracebacks: list[str] = []
    for name, check in cases:
        print(f"{time.monotonic() - begun:5.1f} s: case {name}", flush=True)
        count += 1
        try:
            check()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        except Exception as error:
            if is_refusal(error):
                refused += 1
                continue
            failed.append(name)
            tracebacks.append(traceback.format_exc())
    assert count or not on_hopper(), "no case"
    if refused == count:
        raise NoneRunsError
    # The test prints only the end of this output.
    print(*tracebacks[:TOLD], file=sys.stderr, flush=True)
    print(f"{count} cases, {len(failed)} failed:", *failed[:TOLD], sep="\n  ", flush=True)
    return failed


def main(group: str, arguments: list[Any]) -> int:
    # If the process hangs, this prints a traceback before the test kills it.
    faulthandler.dump_traceback_later(SECONDS - 20)
    try:
        return 1 if run(GROUPS[group](*arguments)) else 0
    except NoneRunsError:
        return NONE_RUNS


if __name__ == "__main__":
    status = main(sys.argv[1], json.loads(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Skips Python's shutdown. If a thread takes the GIL in torch during shutdown, for example when
    # autograd's thread releases tensors of a backward pass, the process ends with "terminate called
    # without an active exception" (torch 2.11 and 2.15).
    os._exit(status)
