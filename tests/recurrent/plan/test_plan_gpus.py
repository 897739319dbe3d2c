"""The planner's choices for GPUs other than sm_90; no such GPU is needed."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.recurrent.plan.test_plan import BINDINGS, MEGABYTE, Sizes, plan
from tests.support import gpus
from tests.support.installed import ROOT

KILOBYTE = 1024
GPUS = gpus.IMPOSED | {
    "RTX5090": {
        "architecture": 120,
        "multiprocessors": 170,
        "shared_bytes": 99 * KILOBYTE,
        "l2_bytes": 96 * MEGABYTE,
        "clock_mhz": 2407,
    }
}
TURING = {"architecture": 75, "multiprocessors": 40, "shared_bytes": 64 * KILOBYTE}
CELLS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
PASSES = (False, True)


def test_the_library_knows_the_same_gpus() -> None:
    """The tests describe each GPU to the planner as the library does under TREADLE_IMPOSED_GPU."""
    text = (ROOT / "kernels" / "recurrent" / "plan" / "device.cu").read_text()
    rows = re.findall(r'\{"(\w+)", (\d+), (\d+), (\d+), (\d+), (\d+)\}', text)
    found = {
        name: (int(arch), int(count), int(shared) << 10, int(l2) << 20, int(clock))
        for name, arch, count, shared, l2, clock in rows
    }
    assert found == {name: tuple(facts.values()) for name, facts in gpus.IMPOSED.items()}


def chosen(gpu: str, cell: str, sizes: Sizes, **options: Any) -> str:
    found: str = plan(sizes, cell=cell, **GPUS[gpu], **options).algorithm
    return found


@BINDINGS
@pytest.mark.parametrize("gpu", GPUS)
def test_layers_up_to_h256_run_in_one_launch_on_every_gpu(gpu: str) -> None:
    for cell, hidden, batch, element, backward, tf32 in itertools.product(
        CELLS, (1, 32, 64, 96, 128, 200, 256), (1, 8, 64), (2, 4), PASSES, PASSES
    ):
        sizes = 128, batch, hidden, element
        assert chosen(gpu, cell, sizes, backward=backward, tf32=tf32) in ("cluster", "grid"), sizes


@BINDINGS
@pytest.mark.parametrize("gpu", ["A100", "RTX3090", "RTX4090", "L4", "RTX5090"])
def test_layers_up_to_h512_run_in_one_launch(gpu: str) -> None:
    """A GPU with 32 multiprocessors is enough."""
    for cell, element, backward, tf32 in itertools.product(CELLS, (2, 4), PASSES, PASSES):
        assert chosen(gpu, cell, (512, 16, 512, element), backward=backward, tf32=tf32) == "grid"


@BINDINGS
def test_half_types_up_to_h1024_where_64_multiprocessors_are() -> None:
    for cell, backward in itertools.product(CELLS, PASSES):
        for gpu in ("A100", "RTX3090", "RTX4090", "RTX5090"):
            assert chosen(gpu, cell, (512, 8, 1024, 2), backward=backward) == "grid", gpu
        for gpu in ("L4", "RTX3060"):
            assert chosen(gpu, cell, (512, 8, 1024, 2), backward=backward) == "step", gpu


# For LSTM, by dtype, H and whether the pass is backward: the number of blocks of a RowGroup, which
# together keep one copy of W_hh, and the largest number of its rows on an A100 and on a GeForce,
# whose blocks have less shared memory. None: there is too little shared memory.
LSTM_GRIDS = {
    ("half", 128, False): (8, 120, 64),
    ("half", 128, True): (4, 64, 40),
    ("half", 256, False): (16, 104, 48),
    ("half", 256, True): (8, 64, 32),
    ("half", 512, False): (32, 104, 48),
    ("half", 512, True): (16, 48, 24),
    ("half", 1024, False): (64, 128, 56),
    ("half", 1024, True): (64, 64, 16),
    ("float", 128, False): (8, 128, 72),
    ("float", 128, True): (8, 64, 56),
    ("float", 256, False): (16, 120, 56),
    ("float", 256, True): (16, 64, 56),
    ("float", 512, False): (32, 120, 56),
    ("float", 512, True): (32, 56, 16),
    ("float", 1024, False): (64, None, None),
    ("tf32", 128, False): (8, 128, 72),
    ("tf32", 256, False): (16, 120, 56),
    ("tf32", 512, False): (32, 120, 56),
    ("tf32", 512, True): (32, 64, 56),
    ("tf32", 1024, False): (64, 120, 56),
    ("tf32", 1024, True): (64, 56, 16),
}


@BINDINGS
@pytest.mark.parametrize(("layer", "takes"), LSTM_GRIDS.items(), ids=str)
def test_rows_follow_shared_memory(
    layer: tuple[str, int, bool], takes: tuple[int, int | None, int | None]
) -> None:
    dtype, hidden, backward = layer
    blocks, *rows = takes
    sizes = (512, 100_000, hidden, 2 if dtype == "half" else 4)
    for shared, most in zip((163, 99), rows, strict=True):
        device = {
            **GPUS["A100"],
            "multiprocessors": blocks,
            "shared_bytes": shared * KILOBYTE,
            "tf32": dtype == "tf32",
            "backward": backward,
            "forced": "grid",
            "cell": "lstm",
        }
        if most is None:
            words = (
                f"algorithm grid needs [0-9]+ bytes of shared memory per block, got {shared * 1024}"
            )
            with pytest.raises(RuntimeError, match=words):
                plan(sizes, **device)
            continue
        assert plan(sizes, **device).grid_rows == most
        fewer = f"grid needs {blocks} multiprocessors, got {blocks - 1}"
        with pytest.raises(RuntimeError, match=fewer):
            plan(sizes, **device | {"multiprocessors": blocks - 1})


@BINDINGS
def test_one_block_is_all_of_cluster_before_sm_90() -> None:
    for gpu, cell, element in itertools.product(("A100", "RTX5090"), CELLS, (2, 4)):
        widest = 96 if cell == "lstm" else 128
        found = plan((512, 16, widest, element), cell=cell, forced="cluster", **GPUS[gpu])
        assert found.clusters[:2] == (widest, 1)
        assert "one block" in plan((512, 16, 64, element), cell=cell, **GPUS[gpu]).reason
        with pytest.raises(RuntimeError, match="algorithm cluster needs"):
            plan((512, 16, widest + 1, element), cell=cell, forced="cluster", **GPUS[gpu])


@BINDINGS
def test_a_slow_clock_makes_one_launch_worth_less() -> None:
    """At a low clock rate, one launch for all steps is predicted to be no faster than a cuBLAS
    product in each step."""
    sizes, gpu = (256, 256, 1024, 2), GPUS["A100"]
    assert plan(sizes, cell="gru", **gpu | {"clock_mhz": 2500}).algorithm == "grid"
    assert plan(sizes, cell="gru", **gpu | {"clock_mhz": 700}).algorithm == "step"


@BINDINGS
def test_turing_keeps_step() -> None:
    for cell, hidden, element in itertools.product(CELLS, (32, 256, 512), (2, 4)):
        assert plan((512, 16, hidden, element), cell=cell, **TURING).algorithm == "step"
