"""Training in two processes gives the same losses, norms, gradients, parameters and checkpoints as
training in one. The cases are DDP, FSDP2, accelerate and Lightning, each with gloo and, on two
GPUs, with NCCL.

For each backend, the processes are started once per run of the tests, and run all cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.interop.many_gpus import CASES, SAVED_AFTER, missing, work
from tests.interop.nets import (
    MOST_NORM,
    NETS,
    Results,
    batches,
    gradients,
    loss_of,
    named,
    net,
    train_alone,
    train_alone_in_bfloat16,
)
from tests.support.once import made_once

PAGE = Path(__file__).resolve().parents[2] / "docs" / "many_gpus.md"
GPUS = torch.cuda.device_count()


def backend(name: str, world: int, gpus: int, *, label: str) -> Any:
    reason = f"needs {'two GPUs' if gpus == 2 else 'a GPU'}"
    return pytest.param(
        (name, world), id=label, marks=pytest.mark.skipif(GPUS < gpus, reason=reason)
    )


# `nccl-one-cuda` runs the same code in one process, so that NCCL has nothing to communicate.
BACKENDS = pytest.mark.parametrize(
    "backend",
    [
        backend("gloo", 2, 0, label="gloo"),
        backend("nccl", 2, 2, label="nccl-cuda"),
        backend("nccl", 1, 1, label="nccl-one-cuda"),
    ],
)
Backend = tuple[str, int]
Run = Callable[[Backend], Path]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The folder of a backend's results. The first pytest process that needs the folder makes
    it."""

    @cache
    def started(backend: Backend) -> Path:
        name, world = backend

        def make(folder: Path) -> None:
            torch.multiprocessing.spawn(work, (world, name, str(folder)), nprocs=world)

        return made_once(tmp_path_factory, f"many_gpus_{name}_{world}", make)

    return started


def results(folder: Path, world: int) -> Results:
    of_all = [torch.load(folder / f"rank{rank}.pt") for rank in range(world)]
    errors = [found["error"] for found in of_all if "error" in found]
    assert not errors, "\n".join(errors)
    return of_all[0]  # type: ignore[no-any-return]


def differ(ours: Results, alone: Results) -> dict[str, float]:
    """The largest difference in each tensor, relative to the largest value of that tensor."""
    found = {}
    for name, expected in alone.items():
        pairs = {"": (ours[name], expected)}
        if isinstance(expected, dict):
            assert ours[name].keys() == expected.keys()
            pairs = {each: (ours[name][each], expected[each]) for each in expected}
        for each, (a, b) in pairs.items():
            assert a.shape == b.shape and a.dtype == b.dtype, (name, each)
            found[f"{name} {each}"] = float((a - b).abs().max() / b.abs().max())
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("case", CASES)
@BACKENDS
def test_several_processes_learn_what_one_does(
    backend: Backend, case: str, name: str, run: Run, allow_tf32: Callable[..., None]
) -> None:
    package = missing(case)
    if package is not None:
        pytest.skip(f"{package} is not installed")
    allow_tf32(False)
    device = "cuda" if backend[0] == "nccl" else "cpu"
    half = "bfloat16" in case
    alone = train_alone_in_bfloat16(name, device, backend[1]) if half else train_alone(name, device)
    assert float(alone["norms"].min()) > 2 * MOST_NORM  # so that clipping matters
    found = differ(results(run(backend), backend[1])[f"{case}/{name}"], alone)
    # On a GPU, smaller batches may use other kernels. A norm that is summed in another order
    # changes the clipping factor slightly. Then a weight may round to a different bfloat16.
    limit = 1e-5 if device == "cpu" else 2e-3 if half else 5e-5
    assert max(found.values()) < limit, found


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", NETS)
@BACKENDS
def test_a_sharded_checkpoint_is_read_by_one_process(
    backend: Backend, name: str, run: Run, allow_tf32: Callable[..., None]
) -> None:
    allow_tf32(False)
    folder = run(backend) / f"fsdp {name}"
    device = "cuda" if backend[0] == "nccl" else "cpu"
    model = net(name, device, seed=2)
    weights = model.state_dict()
    dcp.load({"model": weights}, checkpoint_id=folder, no_dist=True)
    model.load_state_dict(weights)
    alone = train_alone(name, device, SAVED_AFTER)["parameters"]
    found = differ({"parameters": named(model.named_parameters())}, {"parameters": alone})
    assert max(found.values()) < (1e-5 if device == "cpu" else 5e-5), found


@pytest.mark.parametrize("name", NETS)
def test_a_part_of_the_batch_would_not_do(name: str) -> None:
    """The cases above would fail without synchronisation: half of the batch has different
    gradients."""
    x = batches("cpu")[0]
    found = []
    for rows in (x, *x.chunk(2)):
        model = net(name, "cpu")
        loss_of(model, rows).backward()
        found.append({"gradients": gradients(model)})
    for part in found[1:]:
        assert min(differ(part, found[0]).values()) > 1e-3


def test_the_page_has_every_case() -> None:
    table = PAGE.read_text().partition("## Older and newer")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.M)
    assert [row for row in rows if row in CASES] == list(CASES)
