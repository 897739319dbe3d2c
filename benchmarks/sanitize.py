"""Runs every op, or the named ones, on the GPU under compute-sanitizer; see gpu.sh.

Four other names are accepted: `c_api` runs every function of kernels.h; `algorithms` runs
recurrent_layer with each algorithm, on wider layers than those of the tests; `cell_step` runs steps
of torch's cells with few rows; `jax` runs treadle.jax, if JAX is installed. Without names, all ops
and `c_api` run. A last argument K/N, such as 0/4, runs only every Nth case, beginning with case K,
so that N processes share the cases.

The inputs are those of the tests: many dtypes, odd sizes, and strided, misaligned, broadcast and
empty tensors. Ops run forward, backward, in place and into `out`. The tests check values; this
script only checks memory accesses. recurrent_layer runs only short sequences, because each step
repeats the same kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import treadle  # noqa: E402
from tests.support.cases import OPS, Case, Op, outputs, requiring_grad  # noqa: E402
from tests.support.inputs import on_hopper  # noqa: E402

# Only a few integer dtypes are here, because sanitizers are slow, and because kernels access memory
# in the same way for dtypes of equal size.
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int16, torch.uint8),
)
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Every case whose index is ``first`` plus a multiple of ``of``."""

    first: int = 0
    of: int = 1

    @classmethod
    def read(cls, text: str) -> Part:
        first, slash, of = text.partition("/")
        if not (slash and first.isdecimal() and of.isdecimal() and int(first) < int(of)):
            raise SystemExit(f"sanitize: a part must be K/N with K from 0 to N - 1, got {text}")
        return cls(int(first), int(of))

    def of_all(self, cases: Iterator[T]) -> Iterator[T]:
        return islice(cases, self.first, None, self.of)


def backward(op: Op, case: Case, dtype: torch.dtype) -> None:
    """Runs forward and backward, with dense and then with expanded gradients of the results."""
    if not dtype.is_floating_point:
        return
    for expand in (False, True):
        call = requiring_grad(op, case.call("cuda", dtype))
        leaves = [a for a in call.args if isinstance(a, Tensor) and a.requires_grad]
        results = outputs(call.run(op.function))
        ones = [r.new_ones(()).expand_as(r) if expand else torch.randn_like(r) for r in results]
        torch.autograd.grad(results, leaves, ones)


def into_arguments(op: Op, case: Case, dtype: torch.dtype) -> None:
    """Runs the op in place, and into an `out` that is not dense, if the case allows it."""
    call = case.call("cuda", dtype)
    fresh = call.run(op.function)
    if op.has_out:
        room = torch.zeros(*fresh.shape, 2, dtype=fresh.dtype, device="cuda")[..., 0]
        op.function(*call.args, **call.kwargs, out=room)
    if op.inplace is not None and same_place(call.args[0], fresh):
        call.run(op.inplace)


def same_place(x: Any, result: Tensor) -> bool:
    """Whether `result` may be written into `x`: dtype and shape are equal, and no elements of `x`
    share memory."""
    expanded = any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True))
    return x.dtype == result.dtype and x.shape == result.shape and not expanded


def steps(case: Case) -> int:
    """The number of steps in a case of recurrent_layer."""
    input, lengths, *_ = case.call().args
    return len(input) if lengths is None else max(lengths, default=0)


def word(op: Op) -> str:
    """The op's name without a variant: recurrent_layer for "recurrent_layer lstm resets"."""
    return op.name.split()[0]


def pieces(names: list[str]) -> Iterator[tuple[Op, Case, torch.dtype]]:
    for op in OPS.values():
        if names and word(op) not in names:
            continue
        for case in op.cases:
            if op.is_layer and steps(case) > 3:
                continue
            for dtype in case.dtypes:
                if dtype in DTYPES:
                    yield op, case, dtype


def run_ops(names: list[str], part: Part) -> int:
    count = 0
    for op, case, dtype in part.of_all(pieces(names)):
        call = case.call("cuda", dtype)
        call.run(op.function)
        backward(op, case, dtype)
        into_arguments(op, case, dtype)
        count += 1
    torch.cuda.synchronize()
    return count


def run_c_api(part: Part) -> int:
    from tests.c_api import everything

    count = 0
    for run in part.of_all(everything.runs("cuda", layers=on_hopper())):
        run()
        count += 1
    torch.cuda.synchronize()
    return count


def run_jax(part: Part) -> int:
    """Runs treadle.jax without JAX's memory pool, which a sanitizer sees as one allocation."""
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    from benchmarks import sanitize_jax

    return sanitize_jax.run("gpu", part.of_all)


def layers() -> Iterator[tuple[str, str, torch.dtype, int, int]]:
    """The algorithm, cell, dtype, H and number of blocks of W_hh of wide layers. The values of H
    make each algorithm run all of its kernels."""
    from tests.recurrent.kernels import persistent_calls as calls
    from tests.recurrent.support.layer_cases import CELLS, FORMULAS

    widths = {
        "cluster": ((31, 1), (257, 1), (256, 4)),
        "grid": ((257, 1), (1000, 1), (2048, 1), (1040, 2)),
        "tiles": ((64, 1),),
        "warp": ((33, 1),),
    }
    for (algorithm, sizes), cell in product(widths.items(), (*CELLS, *FORMULAS)):
        for (hidden, blocks), dtype in product(sizes, calls.DTYPES.values()):
            if calls.fits(algorithm, dtype, hidden // blocks, cell):
                yield algorithm, cell, dtype, hidden, blocks


def run_algorithms(part: Part) -> int:
    """Runs layers of a few steps with each algorithm: all cells, rows of equal and of different
    lengths, resets, and a block-diagonal W_hh. float32 also runs with TF32."""
    from tests.recurrent.kernels import persistent_calls as calls
    from tests.recurrent.kernels.persistent_resets import layer_of
    from tests.recurrent.support.reset_cases import marks_of

    count = 0
    for algorithm, cell, dtype, hidden, blocks in part.of_all(layers()):
        d = 1 if blocks > 1 else 2
        options: dict[str, Any] = {"cell": cell, "directions": d, "features": 8}
        for lengths in (None, (3, 3, 2, 1, 1, 1, 1, 1, 1)):
            one = calls.given("watched", dtype, (3, 9, hidden), lengths=lengths, **options)
            block = one.weight_hh[..., : hidden // blocks].contiguous()
            one = replace(one, weight_hh=block)
            saved = calls.forward(one, algorithm)
            for tf32 in (False, True) if dtype == torch.float32 else (False,):
                with calls.rounding(tf32):
                    calls.backward(one, saved, algorithm)
            layer_of(one, algorithm, marks_of("some", one.input, lengths))
            count += 2
    torch.cuda.synchronize()
    return count


def run_cell_step(part: Part) -> int:
    from tests.recurrent.kernels import test_cell_step_cuda as steps
    from tests.recurrent.layer.test_cell_step import TORCHS

    count, floats = 0, [dtype for dtype in DTYPES if dtype.is_floating_point]
    for cell, sizes, dtype in part.of_all(product(TORCHS, steps.SIZES, floats)):
        steps.ran(steps.made(cell, sizes, dtype), cell)
        count += 1
    torch.cuda.synchronize()
    return count


OTHERS = {
    "c_api": run_c_api,
    "jax": run_jax,
    "algorithms": run_algorithms,
    "cell_step": run_cell_step,
}


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("sanitize: there is no GPU here")
    names, part = sys.argv[1:], Part()
    if names and "/" in names[-1]:
        part = Part.read(names.pop())
    unknown = {*names} - {*OTHERS} - {word(op) for op in OPS.values()}
    if unknown:
        raise SystemExit(f"sanitize: nothing is called {', '.join(sorted(unknown))}")
    ops = [name for name in names if name not in OTHERS]
    count = run_ops(ops, part) if ops or not names else 0
    for name in [name for name in names if name in OTHERS] if names else ["c_api"]:
        count += OTHERS[name](part)
    # gpu.sh looks for this line, because a run that ended earlier proves nothing.
    print(f"sanitize: done, {count} cases of {len(OPS)} ops of treadle {treadle.__version__}")


if __name__ == "__main__":
    main()
