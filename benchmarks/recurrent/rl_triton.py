"""TorchRL's Triton kernels for the rows of rl.py; torchrl or a GPU may be missing.

Triton autotunes them at the first call with a new size. This takes minutes, mostly in Triton's
compiler. To fill Triton's cache from several processes in parallel, run this file before the suite:

    python benchmarks/recurrent/rl_triton.py --jobs 12
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.recurrent.layer_calls import Shape, cell_arguments  # noqa: E402
from benchmarks.recurrent.rl_calls import STATES, Call, marks_of  # noqa: E402

try:
    import torchrl
    from torchrl.modules.tensordict_module import _rnn_triton as theirs

    if not (theirs._has_triton and torch.cuda.is_available()):
        raise RuntimeError("Triton needs a GPU")
except Exception as problem:  # a torchrl for another version of torch may raise any error
    theirs, VERSION, WHY_NOT = None, None, str(problem)
else:
    VERSION, WHY_NOT = torchrl.__version__, ""

# Only this size is tuned, in one dtype: the size that TorchRL's authors time, in the dtype in which
# their kernels are fastest.
TUNED = Shape.of((128, 128, 256), False)
DTYPE = torch.bfloat16


def triton(cell: str, marks: Tensor) -> Call:
    """TorchRL's layer with resets, called as in its module: in float32 with bfloat16 products.

    TorchRL's function expects an input [B, T, I], and a state for every step at which an episode
    may begin. Calls with fewer steps are padded, so that only one number of steps is tuned.
    """
    run, count = getattr(theirs, f"{cell}_triton"), STATES[cell]
    begins = marks.t().contiguous()

    def call(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        steps = len(x)
        whole = F.pad(x, (0, 0, 0, 0, 0, len(marks) - steps)) if steps < len(marks) else x
        starts = []
        for state in rest[:count]:
            start = torch.zeros(*begins.shape, state.shape[-1], device=x.device)
            start[:, 0] = torch.where(begins[:, :1], 0, state[0].float())
            starts.append(start)
        params = [p.float() for p in rest[count:]]
        batch_first = whole.transpose(0, 1).float().contiguous()
        found = run(batch_first, *starts, *params, begins, compute_dtype=DTYPE)
        every = [y[:, :steps].to(x.dtype) for y in (found[:count] if count > 1 else found[:1])]
        return every[0].transpose(0, 1), *(y[:, -1].unsqueeze(0) for y in every)

    return call


def warm(part: int, parts: int) -> None:
    """Compiles one part of the configurations, by calling the kernels with only that part."""
    for kernel in vars(theirs).values():
        if hasattr(kernel, "configs"):
            kernel.configs = kernel.configs[part::parts] or kernel.configs[:1]
    for cell in STATES:
        for backward in (False, True):
            args = cell_arguments(cell, TUNED, "cuda", DTYPE, backward)
            call = triton(cell, marks_of(TUNED, 0.5, "cuda"))
            try:
                output = call(*args)[0]
                if backward:
                    output.sum().backward()
            except Exception as problem:  # a part may have no configuration that the GPU can run
                print(f"{cell}: {type(problem).__name__}: {str(problem)[:200]}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--part", type=int, help="compile only this part of the configurations")
    chosen = parser.parse_args(arguments)
    if theirs is None:
        print(f"TorchRL's kernels cannot be used: {WHY_NOT}", file=sys.stderr)
        return 1
    if chosen.part is not None:
        warm(chosen.part, chosen.jobs)
        return 0
    command: list[Any] = [sys.executable, __file__, "--jobs", str(chosen.jobs), "--part"]
    jobs = [subprocess.Popen([*command, str(part)]) for part in range(chosen.jobs)]
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    raise SystemExit(main())
