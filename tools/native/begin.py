"""Compiles the sources that need no torch, while pip is still downloading torch.

    TORCH_CUDA_ARCH_LIST=9.0 python -m tools.native.begin 13.0

The argument is the CUDA version of that torch. The script writes the objects of
libtreadle_kernels.so to the folder in which a build for that torch looks for them. Any Python with
ninja can run the script. It must finish, or be stopped, before that build starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import cuda, host
from .build import ROOT, build_folder, run_ninja
from .graph import Graph


def main() -> int:
    os.chdir(ROOT)
    # Only CUDA's major version matters here: the other facts affect only files of csrc/.
    torch = host.Torch("0.0.0", sys.argv[1], True, Path("no-torch"), ())
    try:
        graph = Graph(torch, cuda.find(torch), build_folder(), "", [])
        ninja_file = graph.write_kernels()
    except host.BuildError as error:
        print(f"treadle: {error}", file=sys.stderr)
        return 1
    return run_ninja(ninja_file, host.jobs())


if __name__ == "__main__":
    raise SystemExit(main())
