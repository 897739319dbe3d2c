"""Times a chain of small launches, in which each launch reads the previous launch's result.

On sm_90 and newer GPUs, a kernel may start before the previous one has ended. The suite times a
CUDA graph of such launches, and the same graph changed so that each launch waits for the end of the
previous one. Both graphs use the same library, so the suite also works with an installed wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import treadle
from benchmarks.harness.cases import OURS, Case, Plan, Settings, Target
from benchmarks.harness.verify import Refused
from tests.support import graphs

LINKS = 200
SIZES = (10_000, 100_000, 1_000_000)
APART = "launches kept apart"


def plans(settings: Settings) -> Iterator[Plan]:
    """Yields plans only on CUDA, because a CPU has no launches."""
    for size in SIZES if settings.device == "cuda" else ():
        yield Plan(f"cuda/chain/vector_add/{size}", partial(chain_case, settings, size))


def chain_case(settings: Settings, size: int) -> Case:
    x, one = torch.zeros(size, device="cuda"), torch.ones(size, device="cuda")
    chain, apart = (graphs.captured(partial(treadle.vector_add_, x, one), LINKS) for _ in range(2))
    overlapping = sum(graphs.overlaps(chain))
    graphs.keep_apart(apart)
    torchs = graphs.captured(partial(x.add_, one), LINKS)

    def check(replay: Callable[[], Any], poison: bool = False) -> float:
        x.zero_()
        replay()
        wrong = int(x.ne(LINKS).sum())
        if wrong:
            raise Refused(f"{wrong} of {size} elements are not the sum of {LINKS} ones")
        return 0.0

    # On GPUs before sm_90, launches never overlap.
    target = (
        Target(f"less than with {APART}", lambda medians: medians[APART]) if overlapping else None
    )
    return Case(
        op="vector_add",
        functions={OURS: chain.replay, APART: apart.replay, "torch.add_": torchs.replay},
        inputs=[()],
        timer=settings.device_time(),
        target=target,
        check=check,
        facts={
            "group": f"{LINKS} launches in a CUDA graph",
            "label": f"vector_add_, {size} elements",
            "shape": [size],
            "steps": LINKS,
            "gates": {},
        },
        notes=[f"{overlapping} of {LINKS - 1} launches may overlap the one before"],
    )
