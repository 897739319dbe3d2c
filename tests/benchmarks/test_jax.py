"""The benchmarks of treadle.jax: their rows, what is compared, and the table in docs/interop.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import benchmarks.recurrent
from benchmarks import run
from benchmarks.harness import cases
from benchmarks.harness.cases import Plan, Row, Settings
from benchmarks.pages import jax_page
from benchmarks.recurrent import jax_layer
from benchmarks.recurrent.layer import Kind
from benchmarks.recurrent.layer_calls import Shape

QUICK = Settings("cpu", quick=True)
SMALL = Kind(Shape(3, 12, 8, 8, "3,12,8,8"), torch.float32, True, cell="gru")


@pytest.fixture
def jax_calls() -> Any:
    from tests.interop import with_jax

    assert with_jax.jax
    from benchmarks.recurrent import jax_calls

    return jax_calls


def test_the_keys_need_no_jax() -> None:
    keys = [plan.key for plan in run.SUITES["jax"](Settings("cuda"))]
    assert len(keys) == len(set(keys)) == 2 * 3 * 2 * 2
    assert "cuda/jax/gru/16,512,512/bfloat16/training" in keys
    assert "jax" not in run.SEVERAL["all"] and "layer" in run.SEVERAL["all"]


def test_the_targets() -> None:
    medians = {"treadle": 1.0, "lax.scan": 40.0, "flax": 30.0}
    headlines = []
    for plan in jax_layer.plans(Settings("cuda")):
        _, kind = plan.build.args  # type: ignore[attr-defined]
        limit = jax_layer.target_of(kind).limit(medians)
        assert limit in (30, 6)
        headlines += [plan.key] * (limit == 6)
    assert headlines == ["cuda/jax/gru/16,512,512/bfloat16/training"]
    with pytest.raises(KeyError):
        jax_layer.target_of(SMALL).limit({"treadle": 1.0})


def test_a_trial_measures_rows_of_each_kind(jax_calls: Any) -> None:
    plans = [plan for plan in jax_layer.plans(QUICK) if "1,100,64,128" in plan.key]
    assert len(plans) == 4
    baselines = {"lax.scan", "lax.scan, unroll=8"}
    has_flax = jax_calls.jax_flax.linen is not None
    for plan in plans[::3]:  # one cell without gradients, the other with them
        row = cases.run(plan)
        assert row["key"] == plan.key and row["error_over_limit"] <= 1
        assert set(row["times"]) - {"treadle"} == baselines | ({"flax"} if has_flax else set())
        fastest = min(t["median_us"] for n, t in row["times"].items() if n != "treadle")
        assert row["target"]["limit_us"] == fastest
        assert [note[:14] for note in row["notes"]] == ([] if has_flax else ["flax left out:"])
        assert row["jax"] == jax_calls.jax.__version__ and row["algorithm"] == "kernels"
        ours = row["times"]["treadle"]
        assert ours["us_per_step"] == pytest.approx(ours["median_us"] / row["steps"])


@pytest.mark.parametrize(
    ("cell", "backward"), list(zip(jax_layer.CELLS, (False, True), strict=True))
)
def test_half_types_are_checked_alike(jax_calls: Any, cell: str, backward: bool) -> None:
    kind = replace(SMALL, dtype=torch.bfloat16, cell=cell, backward=backward)
    row = cases.run(Plan("key", partial(jax_layer.case, QUICK, kind)))
    assert row["error_over_limit"] <= 1 and row["algorithm"] == "lax.scan"
    assert not [note for note in row["notes"] if "wrong" in note]


def spoilt(jax_calls: Any, name: str, change: Callable[[Any], Any]) -> Row:
    """A row where the candidate `name` returns wrong results."""
    made = jax_layer.case(QUICK, SMALL)
    honest = made.functions[name]
    made.functions = {n: f for n, f in made.functions.items() if n in ("treadle", "lax.scan", name)}

    def run(*arguments: Any) -> Any:
        return change(honest.run(*arguments))

    made.functions[name] = replace(honest, run=jax_calls.jax.jit(run))
    return cases.run(Plan("key", lambda: made))


def late_nan(found: Any) -> Any:
    (output, *ends), grads = found
    return (output.at[-2].set(float("nan")), *ends), grads


def other_end(found: Any) -> Any:
    (output, h_n), grads = found
    return (output, h_n + 1), grads


def swapped_biases(found: Any) -> Any:
    results, (of_x, (weight_ih, weight_hh, bias_ih, bias_hh)) = found
    return results, (of_x, (weight_ih, weight_hh, bias_hh, bias_ih))


def stale(found: Any) -> Any:
    (output, *ends), grads = found
    return (output.at[3].set(output[2]), *ends), grads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (late_nan, "not all results are finite"),
        (other_end, "the last state is not the last output"),
        (swapped_biases, "gradient 3 is wrong"),
        (stale, "result 0 is wrong"),
    ],
)
def test_what_is_wrong_is_not_timed(
    jax_calls: Any, change: Callable[[Any], Any], message: str
) -> None:
    row = spoilt(jax_calls, "treadle", change)
    assert message in row["refused"] and "times" not in row


def test_a_baseline_that_is_wrong_is_left_out(jax_calls: Any) -> None:
    row = spoilt(jax_calls, "lax.scan, unroll=8", late_nan)
    assert "lax.scan, unroll=8" not in row["times"] and "lax.scan" in row["times"]
    assert any(note.startswith("lax.scan, unroll=8 left out: ") for note in row["notes"])


def test_ours_is_held_to_the_rule(jax_calls: Any) -> None:
    """An error of a few roundings is refused in our results, but accepted in a baseline's."""
    eps = torch.finfo(torch.float32).eps

    def change(found: Any) -> Any:
        (output, h_n), grads = found
        by = 1 + 12 * eps
        return (output * by, h_n * by), grads

    assert "result 0 is wrong" in spoilt(jax_calls, "treadle", change)["refused"]
    assert "lax.scan, unroll=8" in spoilt(jax_calls, "lax.scan, unroll=8", change)["times"]


def test_without_jax_a_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(benchmarks.recurrent, "jax_calls", raising=False)
    monkeypatch.setitem(sys.modules, "benchmarks.recurrent.jax_calls", None)
    row = cases.run(next(iter(jax_layer.plans(QUICK))))
    assert "jax_calls" in row["refused"]


def made(kind: str, ours: float, baseline: float, reached: bool) -> Row:
    cell, shape, digits, mode = kind.split("/")
    return {
        **{"key": f"cuda/jax/{kind}", "op": cell, "what": shape, "digits": digits, "mode": mode},
        **{"steps": 10, "fastest_baseline": "flax", "notes": [], "algorithm": "kernels"},
        "times": {"treadle": {"median_us": ours}, "flax": {"median_us": baseline}},
        "target": {"text": "", "limit_us": baseline, "reached": reached},
    }


@pytest.fixture
def page() -> Iterator[str]:
    rows = [
        made("gru/16,512,512/bfloat16/inference", 40, 100, True),
        made("gru/16,512,512/bfloat16/training", 80, 60, False),
        {"key": "cuda/jax/lstm/16,512,512/float32/training", "refused": "wrong"},
    ]
    yield "\n".join(jax_page.table_of(rows))


def test_the_page_has_a_line_of_each_row(page: str) -> None:
    assert "| gru 16,512,512 bfloat16 inference | 4.00 | 10.0 (flax) | 2.50 | kernels |" in page
    assert "| gru 16,512,512 bfloat16 training | 8.00 | 6.00 (flax) | 0.75 | kernels |" in page
    assert "| lstm 16,512,512 float32 training | wrong |" in page
    assert list(jax_page.figures([])) == [jax_page.NONE_YET]
