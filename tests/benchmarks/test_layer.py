"""The benchmarks of whole layers: rows, comparisons, and bytes kept for backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import cases, means, plot, report
from benchmarks.harness.cases import Case, Plan, Row, Settings, Target
from benchmarks.harness.verify import Refused
from benchmarks.pages import targets_page
from benchmarks.recurrent import layer, layer_calls, layer_memory
from benchmarks.recurrent.layer_calls import Shape, arguments, check
from benchmarks.recurrent.layer_memory import Weighing
from tests.support.inputs import GPU
from treadle import reference

SMALL = Shape(3, 20, 5, 7, "small")
QUICK = Settings("cpu", quick=True, threads=(1,))


def measured(key: str, made: Case | Weighing) -> Row:
    return cases.run(Plan(key, lambda: made))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [cases.run(plan) for plan in layer.plans(QUICK)]


def test_a_trial_measures_every_row(rows: list[Row], tmp_path: Path) -> None:
    assert [row["key"] for row in rows] == [plan.key for plan in layer.plans(QUICK)]
    for row in rows:
        assert row["error_over_limit"] <= 1, row["key"]
        if row["timer"] == "memory":
            assert row["memory"]["treadle"]["kept"] >= 0 and "times" not in row
            continue
        ours = row["times"]["treadle"]
        assert ours["us_per_step"] == pytest.approx(ours["median_us"] / row["steps"])
        for name in row["yardsticks"]:
            other = row["times"][name]
            assert other["ratio"] == pytest.approx(ours["median_us"] / other["median_us"])
            assert other["us_per_step_and_gate"] == other["us_per_step"] / row["gates"][name]
    by_key = {row["key"]: row for row in rows}
    for cell, gates in (("lstm", 4), ("gru", 3)):
        row = by_key[f"cpu/layer/{cell}/8,200,16,64/float32/training/1 threads"]
        baseline = f"nn.{cell.upper()}"
        assert row["op"] == cell and row["gates"] == {"treadle": gates, baseline: gates}
        assert row["target"]["limit_us"] == pytest.approx(
            1.05 * row["times"][baseline]["median_us"]
        )
    row = by_key["cpu/layer/8,200,16,64/float32/training/1 threads"]
    loop, lstm = (row["times"][name]["median_us"] for name in ("loop of lltm_cell", "nn.LSTM"))
    assert row["target"]["limit_us"] == pytest.approx(min(0.5 * loop, lstm))
    assert row["target"]["text"] == "at most 0.5 × loop of lltm_cell, and at most nn.LSTM"
    packed = by_key["cpu/layer/32,50,128,256, packed/float32/inference/1 threads"]
    padded = packed["times"]["padded"]["median_us"]
    assert packed["target"]["limit_us"] == pytest.approx(0.65 * padded)
    facts = {"cpu": "a", "cores": 2, "torch": "", "treadle_commit": ""}
    plot.draw({"machine": facts, "rows": rows}, tmp_path / "layer.png")
    with Image.open(tmp_path / "layer.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 300


def test_the_readme_has_a_line_of_them(rows: list[Row]) -> None:
    line = next(line for line in targets_page.lines(rows) if "lltm layer" in line)
    assert line.startswith(f"| lltm layer | {sum(row['op'] == 'lltm' for row in rows)} | ")
    below = "\n".join(targets_page.beside(rows))
    assert "of the lltm layer divided by other times, median (best to worst): nn.LSTM " in below
    assert "lltm layer with recompute=True / without it " in below
    assert list(targets_page.beside([])) == []


def test_the_targets() -> None:
    cuda, medians = Settings("cuda"), {"loop of lltm_cell": 100.0, "nn.LSTM": 36.0}
    assert layer.target_of(Settings("cpu"), torch.float32).limit(medians) == 36
    assert layer.target_of(cuda, torch.bfloat16).limit(medians) == pytest.approx(40)
    assert layer.target_of(cuda, torch.bfloat16).limit(medians | {"nn.LSTM": 99}) == 50
    assert layer.target_of(cuda, torch.float32).limit(medians) == 50
    text = layer.target_of(cuda, torch.bfloat16).text
    assert text == "at most 0.5 × loop of lltm_cell, and at least 0.9 × nn.LSTM's speed"


def test_a_target_over_a_baseline_that_is_left_out_is_none() -> None:
    case = Case(
        op="sine",
        functions={"treadle": torch.sin, "cosine": torch.cos},
        inputs=[(torch.randn(8),)],
        timer=QUICK.wall(),
        target=Target("as fast as cosine", lambda medians: medians["cosine"]),
        facts={"group": "", "label": ""},
    )
    row = measured("key", case)
    assert "target" not in row and row["notes"][0].startswith("cosine left out")


def test_lengths_of_a_packed_batch() -> None:
    shape = Shape(64, 512, 1, 1, "")
    sizes = layer_calls.batch_sizes(shape)
    assert len(sizes) == shape.t and int(sizes[0]) == shape.b and int(sizes[-1]) >= 1
    assert bool((sizes.diff() <= 0).all())
    assert 0.4 < int(sizes.sum()) / (shape.b * shape.t) < 0.6
    assert torch.equal(sizes, layer_calls.batch_sizes(shape))


Change = Callable[[Tensor], Tensor]


def changed(change: Change, packed: bool = False) -> Callable[..., Any]:
    """The reference with `change` applied to its output."""
    plain = (layer_calls.packed_layer if packed else layer_calls.layer)(reference.lltm)

    def call(*args: Any) -> Any:
        output, *last = plain(*args)
        return change(output), *last

    return call


def late_nan(output: Tensor) -> Tensor:
    late = torch.arange(len(output)) >= 12
    return output.masked_fill(late.reshape(-1, *[1] * (output.dim() - 1)), torch.nan)


def stale(output: Tensor) -> Tensor:
    return torch.cat([output[:3], output[2:3], output[4:]])


def no_gradient(output: Tensor) -> Tensor:
    return torch.cat([output[:3], output[3:4].detach(), output[4:]])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [(stale, "result 0 is wrong"), (late_nan, "not all"), (no_gradient, "gradient 0 is wrong")],
)
def test_a_whole_call_is_checked(packed: bool, change: Change, message: str) -> None:
    args = arguments(SMALL, "cpu", torch.float32, backward=True)
    if packed:
        sizes = layer_calls.batch_sizes(SMALL)
        data = torch.randn(int(sizes.sum()), SMALL.i, requires_grad=True)
        args = (data, (sizes,), *args[1:])
    assert check(changed(lambda output: output, packed), args, 4) <= 1
    assert check(changed(lambda output: output, packed), args, 100, poison=True) <= 1
    with pytest.raises(Refused, match=message):
        check(changed(change, packed), args, 4)


def test_a_wrong_last_state_is_refused() -> None:
    args = arguments(SMALL, "cpu", torch.float32, backward=False)

    def swapped(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        output, h, c = layer_calls.layer(reference.lltm)(*args)
        return output, c, h

    with pytest.raises(Refused, match="result 1 is wrong"):
        check(swapped, args, 4)


def test_bytes_that_the_graph_keeps() -> None:
    x = torch.randn(100, requires_grad=True)
    # exp saves its result and sin saves its argument, and the caller owns both.
    assert layer_memory.kept_by_graph(torch.exp, (x,)) == 0
    assert layer_memory.kept_by_graph(torch.sin, (x,)) == 0
    assert layer_memory.kept_by_graph(lambda x: torch.sin(2 * x), (x,)) == 400
    # A tensor that is saved twice counts once. Memory that the result shares does not count.
    assert layer_memory.kept_by_graph(lambda x: (y := 2 * x).sin() + y.cos(), (x,)) == 400
    assert layer_memory.kept_by_graph(lambda x: torch.exp(x)[:25], (x,)) == 300
    y = torch.zeros(10)
    assert layer_memory.own_bytes([y, y[2:], y[:1]]) == {y.data_ptr(): 40}


def weighed(factor: int, most: float | None) -> Row:
    """A row in which our function keeps 400 bytes, and the baseline `factor` times as many."""
    x = (torch.randn(100, requires_grad=True),)

    def other(x: Tensor) -> Tensor:
        return torch.stack([torch.sin(2 * x) for _ in range(factor)]).sum(0)

    made = Weighing(
        functions={"treadle": (lambda x: torch.sin(2 * x), x), "other": (other, x)},
        check=partial(lambda function, poison: 0.5),
        against="other",
        part=0.75,
        text="the other's bytes a gate",
        most=most,
        facts={"group": "lltm layer, bytes kept for backward, CPU", "label": "a label"},
    )
    return measured("a key", made)


def test_targets_of_bytes() -> None:
    row = weighed(4, 0.5)
    assert row["memory"] == {"treadle": {"kept": 400}, "other": {"kept": 1600}}
    assert row["against"]["bytes"] == 1200 and row["against"]["ratio"] == pytest.approx(1 / 3)
    assert row["target"]["limit_bytes"] == 600 and row["target"]["reached"]
    assert report.cells(row)[-1] == "reached" and len(report.cells(row)) == len(report.COLUMNS)
    assert "target" not in weighed(1, None) and report.cells(weighed(1, None))[-1] == ""
    missed = weighed(1, 1.0)
    assert not missed["target"]["reached"] and means.excess(missed) == pytest.approx(1 / 3)
    assert "NOT REACHED: a key: 33.3% over the limit" in report.summary([missed])
    below = "\n".join(targets_page.losses([missed]))
    assert "| a key | 33.3% | at most 1 × the other's bytes a gate |" in below


def test_what_is_wrong_is_not_weighed() -> None:
    def refuse(function: Any, poison: bool) -> float:
        raise Refused("lltm: wrong")

    made = layer_memory.weighing(QUICK, SMALL, torch.float32, recompute=True)
    made.check = refuse
    row = measured("key", made)
    assert row["refused"] == "lltm: wrong" and "memory" not in row
    assert report.cells(row)[1] == "REFUSED"


def test_a_case_that_cannot_be_built_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> Case:
        raise RuntimeError("out of memory\nand more lines")

    row = cases.run(Plan("a key", build))
    assert row["refused"] == "out of memory" and report.cells(row)[1] == "REFUSED"
    assert report.summary([row])[0] == "REFUSED: a key: out of memory"
    assert 'raise RuntimeError("out of memory' in capsys.readouterr().err


def test_sizes_are_said_in_units() -> None:
    sizes = {12: "12 B", 2048: "2.00 KiB", 3 << 20: "3.00 MiB", 5 << 30: "5.00 GiB"}
    assert {count: report.size(count) for count in sizes} == sizes


@GPU
def test_the_allocator_says_what_is_kept_on_cuda() -> None:
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    found = layer_memory.weigh(lambda x: torch.sin(2 * x), (x,))
    assert found["kept"] == x.nbytes
    # The peak includes at least the argument of sin, its result and the gradient of the result.
    assert 3 * x.nbytes <= found["peak"] <= 6 * x.nbytes


def test_two_products_are_the_layer() -> None:
    x, *rest = (t.double() for t in arguments(SMALL, "cpu", torch.float32, backward=False))
    found = layer_calls.layer(layer_calls.in_two_products)(x, *rest)
    for ours, plain in zip(found, layer_calls.layer(reference.lltm)(x, *rest), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_two_products_round_to_tf32_where_it_is_allowed(
    allow_tf32: Callable[[bool], None],
) -> None:
    """The output is rounded to TF32 only if that is allowed. Gradients flow in both cases."""
    x, *rest = arguments(SMALL, "cpu", torch.float32, backward=True)
    plain = layer_calls.layer(layer_calls.in_two_products)
    truth = plain(x.double(), *(t.double() for t in rest))[0]
    errors = []
    for allowed in (False, True):
        allow_tf32(allowed)
        output = plain(x, *rest)[0]
        errors.append(float((output.detach() - truth.detach()).abs().max()))
        (grad,) = torch.autograd.grad(output.sum(), x)
        assert bool(grad.isfinite().all()) and bool(grad.any())
    assert errors[0] < 1e-6 < 1e-5 < errors[1] < 1e-2
