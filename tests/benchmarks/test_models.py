"""The rows for stacks of layers like those in public models, and baselines with wrong results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.harness import cases, report
from benchmarks.harness.cases import Plan, Row, Settings
from benchmarks.harness.verify import Refused, verify_baseline
from benchmarks.pages import sweep_page
from benchmarks.recurrent import layer, models, sweep, sweep_cells
from benchmarks.recurrent.layer_calls import Shape
from benchmarks.recurrent.models import Model, Stack
from benchmarks.recurrent.sweep import FP16, FP32, Sweep

QUICK = Settings("cpu", quick=True)
SMALL = Shape(3, 20, 6, 6, "16,512,512")
FORMS = {stack.form: stack for stack in models.STACKS}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with cases.threads(1):
        yield


def of(stack: Stack, dtype: torch.dtype = FP16, backward: bool = True) -> Model:
    shape = Shape.of((stack.b, stack.t, stack.i, stack.h), True)
    return Model(shape, dtype, backward, cell=stack.cell, stack=stack)


def measured(kind: Model) -> Row:
    return cases.run(Plan("key", lambda: models.case(QUICK, kind)))


def test_each_stack_has_rows_of_every_dtype_and_mode() -> None:
    keys = [plan.key for plan in models.plans(Settings("cuda"))]
    assert len(set(keys)) == len(keys) == 6 * len(models.STACKS)
    assert "cuda/models/DeepAR/float32, tf32/training" in keys
    assert "cuda/models/EnCodec/bfloat16/inference" in keys
    assert not list(models.plans(Settings("cpu")))
    assert set(FORMS) == {
        *("", "2 layers", "3 layers", "bidirectional"),
        *("bidirectional, packed", "3 layers, bidirectional, packed"),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backward", [False, True])
def test_stacks_are_right_and_timed(form: str, backward: bool) -> None:
    row = measured(of(FORMS[form], backward=backward))
    baseline = f"nn.{row['op'].upper()}"
    assert row["error_over_limit"] <= 1 and set(row["times"]) == {"treadle", baseline}
    assert row["fastest_baseline"] == baseline and "baseline_wrong" not in row
    assert row["target"]["limit_us"] == row["times"][baseline]["median_us"]
    assert row["form"] == form and row["project"]


def test_tf32_may_round_and_float32_itself_may_not() -> None:
    """A plain layer with rounded operands is accepted with TF32 and refused without it."""
    kind = replace(of(FORMS["2 layers"], FP32), tf32=True)
    made = models.case(QUICK, kind)
    x, sizes, *params = made.inputs[0]
    assert made.check is not None and made.check(made.functions["treadle"]) <= 1
    rounded = models.plain_stack(kind, rounds=True)
    assert made.check(rounded) <= 1
    assert not torch.equal(
        rounded(x, sizes, *params)[0], models.plain_stack(kind)(*made.inputs[0])[0]
    )
    exact = models.case(QUICK, replace(kind, tf32=False))
    with pytest.raises(Refused, match="is wrong by"):
        assert exact.check is not None and exact.check(rounded)


@pytest.mark.parametrize("form", ["2 layers", "bidirectional, packed"])
def test_wrong_stacks_are_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check refuses a stack that is wrong in its first steps, or only in later ones."""
    called = models.called
    for steps, message in ((slice(0, 4), "result 0 is wrong by"), (slice(-3, None), "is off by")):

        def wrong(net: Any, steps: slice = steps) -> Callable[..., Any]:
            call = called(net)

            def changed(*args: Any) -> Any:
                output, *last = call(*args)
                shift = torch.zeros_like(output)
                shift[steps] = 1 if len(output) > models.STEPS * 4 or steps.start == 0 else 0
                return output + shift, *last

            return changed if type(net).__module__.startswith("treadle") else call

        monkeypatch.setattr(models, "called", wrong)
        stack = replace(FORMS[form], b=4)
        shape = Shape(4, 40, 6, 6, stack.name)
        kind = Model(shape, FP32, False, cell=stack.cell, stack=stack)
        assert message in measured(kind)["refused"]


def far_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the function return a wrong float16 output without an error, as cuDNN does for some
    sizes."""

    def call(x: Tensor, *rest: Any) -> Any:
        output, *last = function(x, *rest)
        return (output.flip(-1) if x.dtype == FP16 else output), *last

    return call


def assert_wrong(row: Row, name: str) -> None:
    assert list(row["baseline_wrong"]) == [name]
    assert "off by" in row["baseline_wrong"][name]
    assert set(row["times"]) == {"treadle"} and row["error_over_limit"] <= 1
    assert (
        not {"target", "ratio", "fastest_baseline"} & row.keys() and name not in row["yardsticks"]
    )
    assert sweep_page.cell(row, "treadle", name).endswith(" / wrong")
    assert any("BASELINE WRONG" in line and name in line for line in report.summary([row]))


def test_a_wrong_stack_of_torchs_is_no_time_to_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    called = models.called

    def wrong(net: Any) -> Callable[..., Any]:
        call = called(net)
        return call if type(net).__module__.startswith("treadle") else far_off(call)

    monkeypatch.setattr(models, "called", wrong)
    assert_wrong(measured(of(FORMS["3 layers"])), "nn.LSTM")


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_wrong_layer_of_torchs_is_no_time_to_beat(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If torch's layer returns wrong results, torch's layer without cuDNN becomes the reference."""
    own = layer.torch_layer
    monkeypatch.setattr(layer, "torch_layer", lambda *kind: far_off(own(*kind)))
    for dtype, wrong in ((FP16, True), (FP32, False)):
        kind = Sweep(SMALL, dtype, True, cell=cell)
        row = cases.run(Plan("key", lambda kind=kind: sweep_cells.cells_case(QUICK, kind)))
        if wrong:
            assert_wrong(row, f"nn.{cell.upper()}")
        else:
            assert "baseline_wrong" not in row and row["target"]["limit_us"] > 0


@pytest.mark.parametrize("form", (sweep.DENSE, *sweep.FORMS), ids=lambda form: form.name or "dense")
def test_a_wrong_lstm_beside_an_lltm_is_no_time_to_beat(
    form: sweep.Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Sweep(SMALL, FP16, True, form=form)
    right = cases.run(Plan("key", lambda: sweep.shape_case(QUICK, kind)))
    assert "baseline_wrong" not in right and "nn.LSTM" in right["times"]
    monkeypatch.setattr(sweep, "torch", SimpleNamespace(lstm=far_off(torch.lstm)))
    row = cases.run(Plan("key", lambda: sweep.shape_case(QUICK, kind)))
    assert_wrong(row, "nn.LSTM")


def test_a_baseline_may_round_as_it_likes() -> None:
    x = torch.linspace(-1, 1, 9, requires_grad=True)
    assert verify_baseline(lambda x: torch.sin(x) * 1.05, "sine", (x,)) == pytest.approx(0.05, 1e-4)
    with pytest.raises(Refused, match=r"^sine: result 0 is off by 0\.20 of its largest value"):
        verify_baseline(lambda x: torch.sin(x) * 1.2, "sine", (x.detach(),))
    with pytest.raises(Refused, match="gradient 0 is off by"):
        verify_baseline(lambda x: torch.sin(x.detach()) + 0 * x, "sine", (x,))
    with pytest.raises(Refused, match="off by nan"):
        verify_baseline(lambda x: torch.sin(x) * torch.nan, "sine", (x.detach(),))
