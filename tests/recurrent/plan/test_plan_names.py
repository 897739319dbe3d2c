"""A plan contains the names of the kernels that run; TREADLE_PRINT_PLANS prints the plan."""

from __future__ import annotations

import itertools

import pytest

from tests.recurrent.plan.test_plan import BINDINGS, plan
from tests.support import installed

# The kernels of each algorithm, as listed in plan.h.
KERNELS = {
    "rows": {"rows"},
    "step": {"step"},
    "tiles": {"tiles"},
    "warp": {"warp"},
    "cluster": {"block", "cluster_general", "cluster_dense", "cluster_fp16x2", "cluster_fma"},
    "grid": {"grid_half", "grid_h2048", "grid_fp16x2"},
}


@BINDINGS
def test_each_kernel_is_one_of_its_algorithms_and_is_planned() -> None:
    found: dict[str, set[str]] = {"rows": {plan((8, 8, 8, 4), cuda=False).kernel}}
    for steps, batch, hidden, element, backward, ragged in itertools.product(
        (1, 512), (1, 64, 70_000), (32, 512, 1024, 2048), (2, 4), (False, True), (False, True)
    ):
        one = plan((steps, batch, hidden, element), backward=backward, ragged=ragged)
        found.setdefault(one.algorithm, set()).add(one.kernel)
    assert found == KERNELS


@BINDINGS
@pytest.mark.parametrize(
    ("hidden", "element", "options", "kernel"),
    [
        (32, 2, {}, "block"),
        (32, 4, {"ragged": True}, "block"),
        (256, 2, {}, "cluster_dense"),
        (256, 2, {"ragged": True}, "cluster_general"),
        (250, 2, {}, "cluster_general"),
        (256, 4, {}, "cluster_fp16x2"),
        (256, 4, {"ragged": True}, "cluster_fp16x2"),
        (256, 4, {"backward": True}, "cluster_fma"),
        (1024, 2, {"forced": "grid"}, "grid_half"),
        (1025, 2, {"forced": "grid"}, "grid_h2048"),
        (1024, 4, {"forced": "grid"}, "grid_fp16x2"),
    ],
)
def test_the_kernel_follows_from_what_it_takes(
    hidden: int, element: int, options: dict[str, object], kernel: str
) -> None:
    forced = options | {"forced": options.get("forced", "cluster")}
    assert plan((512, 16, hidden, element), **forced).kernel == kernel


def test_plans_are_printed_where_the_environment_asks() -> None:
    program = """
import torch, treadle
layer = treadle.nn.GRU(3, 5, bidirectional=True)
layer(torch.zeros(7, 2, 3))[0].sum().backward()
"""
    forward = (
        "treadle: gru forward, float32, T 7, B 2, H 5, D 2: rows "
        "(threads divide the rows, and the units if there are few rows)\n"
    )
    done = installed.python("-c", program, TREADLE_PRINT_PLANS="1")
    assert (done.returncode, done.stderr) == (0, forward + forward.replace("forward", "backward"))
    assert installed.python("-c", program, TREADLE_PRINT_PLANS="0").stderr == ""
