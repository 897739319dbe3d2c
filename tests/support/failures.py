"""Writes each failure to ``$OUTDIR/failures.log`` at once: ``pytest -p tests.support.failures``.

pytest prints tracebacks at the end, so a run that is stopped by its time limit would print none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["OUTDIR"], "failures.log").open("a") as log:
            log.write(f"==== {report.nodeid} ({report.when})\n{report.longreprtext}\n\n")
