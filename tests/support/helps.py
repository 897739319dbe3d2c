"""Prints the `--help` output of each script as JSON.

    python -m tests.support.helps examples/digits.py "-m treadle" ...

Each script runs in a fork of this process, which has already imported torch. The JSON maps each
script to its exit status and output.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import treadle  # noqa: F401


def run(script: str) -> int:
    """Runs a script and returns its exit status, which argparse raises as an exception."""
    sys.argv = [script, "--help"]
    try:
        if script.startswith("-m "):
            runpy.run_module(script.removeprefix("-m "), run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def help_of(script: str) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            for stream in (1, 2):
                os.dup2(said.fileno(), stream)
            status = run(script)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return status, said.read()


if __name__ == "__main__":
    print(json.dumps({script: help_of(script) for script in sys.argv[1:]}))
