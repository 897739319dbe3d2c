"""All implementations in the suite `jets` compute the same derivatives, and each loss computes what
its name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import run
from benchmarks.harness.cases import OURS, Settings, ours
from benchmarks.harness.verify import Refused
from benchmarks.pages import jets_page
from benchmarks.sine_linear import jet_ways, jets
from benchmarks.sine_linear.jet_ways import Wanted
from treadle import reference

QUICK = Settings("cpu", quick=True, threads=(1,))
WAYS = {
    "jets": jet_ways.by_jets,
    "autograd": jet_ways.by_autograd(reference.sine_linear),
    "own": jet_ways.by_autograd(ours("sine_linear")),
    "func": jet_ways.by_func,
}


def task(what: str, digits: str = "float32") -> jets.Task:
    return jets.Task("small", 7, 2, digits, what, 5)


def in_float64(one: jets.Task) -> tuple[Tensor, ...]:
    return tuple(t.detach().double().requires_grad_(t.requires_grad) for t in one.arguments("cpu"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", jets.COORDINATES)
def test_every_way_has_the_derivatives(what: str, way: str) -> None:
    one = task(what)
    x, _, *params = in_float64(one)

    def value(point: Tensor) -> Tensor:
        return jet_ways.values(reference.sine_linear, point[None], tuple(params)).sum()

    hessian = torch.func.vmap(torch.func.hessian(value))(x)
    expected = (
        torch.func.vmap(value)(x)[:, None],
        torch.func.vmap(torch.func.grad(value))(x),
        hessian.diagonal(dim1=1, dim2=2).sum(1, keepdim=True),
    )
    found = WAYS[way](one.wanted, x, tuple(params))
    wanted = one.wanted
    asked = (True, wanted.gradient, wanted.laplacian)
    for found_part, part, needed in zip(found, expected, asked, strict=True):
        assert found_part is not None or not needed
        if needed:
            torch.testing.assert_close(found_part, part)


def test_losses() -> None:
    one = task(jets.LAPLACIAN)
    x, target, *params = in_float64(one)
    derive = WAYS["autograd"]
    laplacian = derive(one.wanted, x, tuple(params))[2]
    assert laplacian is not None
    expected = (laplacian - 1e3 * target).square().mean()
    torch.testing.assert_close(one.of(derive)(x, target, *params), expected)
    two = task(jets.EIKONAL)
    x, target, *params = in_float64(two)
    gradient = derive(two.wanted, x, tuple(params))[1]
    assert gradient is not None
    expected = (gradient.square().sum(1).sqrt() - 1).square().mean()
    torch.testing.assert_close(two.of(derive)(x, target, *params), expected)


@pytest.mark.parametrize("what", jets.COORDINATES)
def test_wrong_derivatives_are_refused(what: str) -> None:
    one = task(what)
    args = one.arguments("cpu")

    def wrong(wanted: Wanted, x: Tensor, params: Any) -> Any:
        found = jet_ways.by_jets(wanted, x, params)
        return (found[0], *(p if p is None else 1.01 * p for p in found[1:]))

    assert jets.check(one, args)(one.of(jet_ways.by_jets)) <= 1
    with pytest.raises(Refused):
        jets.check(one, args)(one.of(wrong))


def test_rows_have_their_baselines_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    for plan in jets.plans(QUICK):
        if not plan.key.endswith("memory"):
            made = plan.build()
            assert {OURS, jets.EAGER, jets.OWN, jets.FUNC} <= set(made.functions)  # type: ignore[attr-defined]
    run.main(["--device", "cpu", "--suite", "jets", "--list"])
    assert len(capsys.readouterr().out.splitlines()) == 10
    on_gpu = Settings("cuda")
    keys = [plan.key for plan in jets.plans(on_gpu)]
    assert len(keys) == 17 and "cuda/jets/512×5/bfloat16/Laplacian/memory" in keys
    medians = {jets.EAGER: 20_000.0}
    targets = {t.name: jets.target(t, "cuda") for t in jets.tasks(on_gpu)}
    limits = {name: target and target.limit(medians) for name, target in targets.items()}
    assert limits["256×3/bfloat16/Laplacian"] == 5_000 and limits["256×3/bfloat16/eikonal"] == 8_000
    assert limits["256×3/float32, tf32/Laplacian"] == 12_000
    assert (
        limits["512×5/bfloat16/no training"] == 4_000
        and targets["256×3/float32/no training"] is None
    )
    quarter = {jets.EAGER: 1e6}
    assert targets["512×5/float32/Laplacian"].limit(quarter) == 165_000  # type: ignore[union-attr]


def test_the_most_bytes_of_a_step_on_a_cpu() -> None:
    x = torch.ones(1000, requires_grad=True)

    def two(x: Tensor) -> Tensor:
        y = x * 2
        del x
        z = y.exp()
        return z.sum()

    most = jet_ways.cpu_peak(two, (x,))
    assert 8000 <= most < 16_000 + 2000, most


@pytest.mark.parametrize("d", [2, 3])
def test_products_are_as_many_as_the_page_says(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks docs/jets.md's number of products per point and hidden layer. The first and the last
    layer are small, so they add less than half a product."""
    for what, own, theirs in (
        (jets.LAPLACIAN, 3 * (d + 2), 6 * (d + 1)),
        (jets.NO_TRAINING, d + 2, 2 * (d + 1)),
        (jets.EIKONAL, 6, 6),
    ):
        monkeypatch.setitem(jets.COORDINATES, what, d)
        one = jets.Task("wide", 64, 3, "float32", what, 16)
        args = one.arguments("cpu")
        wanted = [t for t in args if t.requires_grad]
        for way, products in (("jets", own), ("autograd", theirs)):
            with FlopCounterMode(display=False) as counter:
                found = one.of(WAYS[way])(*args)
                if wanted:
                    torch.autograd.grad(found, wanted)
            count = counter.get_total_flops() / (2 * 16 * 64 * 64 * 3)
            assert products <= count < products + 0.5, (what, way, count)


def test_the_page_has_times_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the page from made-up rows of a busy machine, without one of the baselines."""
    times = {"treadle": 2000.0, "autograd": 5000.0, "torch.func": 3000.0}
    rows = [
        {
            "key": "cpu/jets/a/Laplacian",
            "label": "a Laplacian",
            "times": {name: {"median_us": us} for name, us in times.items()},
            "target": {"reached": False},
        },
        {
            "key": "cpu/jets/a/Laplacian/memory",
            "label": "a Laplacian",
            "memory": {
                name: {"kept": mib * 2**20}
                for name, mib in (("treadle", 3), ("autograd", 10), ("treadle by autograd", 6))
            },
            "target": {"reached": True},
        },
    ]
    facts = {"cpu": "a CPU", "cores": 2, "torch": "2", "load_before": 7.5}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"machine": facts, "rows": rows}))
    made = list(jets_page.speeds([([path], facts, rows)]))
    assert made[0].startswith("a CPU, 2 cores, while other programs ran (load 7.5), torch 2, ")
    assert "| a Laplacian | 2 | 2.50 | 1.50 | 3 | 30% |" in made
    assert not any("torch-jet" in row for row in made)
    short = list(jets_page.summary([([path], facts, rows)]))
    assert short[0].startswith("| a CPU, 2 cores | ms ") and short[2:] == [
        "| a Laplacian | 2 | 2.50 | 30% |"
    ]
    assert list(jets_page.speeds([])) == list(jets_page.summary([])) == [jets_page.NO_SPEEDS]
