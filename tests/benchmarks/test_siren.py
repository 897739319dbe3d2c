"""The suites sine_linear and siren time SIRENs, and each loss computes what its name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import run
from benchmarks.harness.cases import OURS, Settings
from benchmarks.harness.verify import Refused
from benchmarks.pages import sine_linear_page
from benchmarks.recurrent.cell import PLAIN
from benchmarks.sine_linear import layer as sine_linear
from benchmarks.sine_linear import siren
from treadle import reference

QUICK = Settings("cpu", quick=True, threads=(1,))


def net(loss: str, dtype: torch.dtype = torch.float64) -> siren.Net:
    return siren.Net("small", 7, 2, dtype, loss, 5)


def test_the_loss_of_values() -> None:
    x, target, *params = net("values").arguments("cpu")
    y = x
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        y = torch.sin(30 * F.linear(y, weight, bias))
    expected = (F.linear(y, *params[-2:]) - target).square().mean()
    torch.testing.assert_close(
        net("values").of(reference.sine_linear)(x, target, *params), expected
    )


def test_the_loss_of_the_laplacian() -> None:
    one = net("Laplacian")
    x, target, *params = one.arguments("cpu")
    inner = siren.Net("small", 7, 2, torch.float64, "values", 1).of(reference.sine_linear)

    def value(point: Tensor) -> Tensor:
        # With a target of 0, the loss is the square of the value, which is not 0 here.
        return inner(point[None], torch.zeros(1, 1, dtype=torch.float64), *params)

    def laplacian(point: Tensor) -> Tensor:
        square, slope = value(point), torch.func.grad(value)(point)
        curve = torch.func.hessian(value)(point).trace()
        # v = sqrt(s): v'' = s'' / 2v - s'^2 / 4v^3, up to the sign of v.
        v = square.sqrt()
        return curve / (2 * v) - slope.square().sum() / (4 * v**3)

    expected = torch.stack([laplacian(point) for point in x])
    zero = torch.zeros_like(target)
    loss = one.of(reference.sine_linear)(x, zero, *params)
    torch.testing.assert_close(loss, expected.square().mean())
    # The loss depends on the target.
    assert one.of(reference.sine_linear)(x, target, *params) != loss


@pytest.mark.parametrize("loss", siren.LOSSES)
def test_a_wrong_layer_is_refused(loss: str) -> None:
    # In float64 the composition would equal the reference values, so the tolerance would not allow
    # for rounding.
    one = net(loss, torch.float32)
    args = one.arguments("cpu")

    def wrong(*layer: Any) -> Tensor:
        return 1.01 * reference.sine_linear(*layer)

    assert siren.check(one, args)(one.of(torch.ops.treadle.sine_linear.default)) <= 1
    with pytest.raises(Refused):
        siren.check(one, args)(one.of(wrong))


def test_weights_and_inputs_are_a_sirens() -> None:
    x, weight, bias, omega = sine_linear.arguments(500, 64, "cpu", torch.float64, backward=True)
    assert x.requires_grad and weight.requires_grad and bias.requires_grad and omega == 30
    assert 0.9 < float(x.detach().abs().max()) <= 1
    # The first layer's phases have a standard deviation of about 1.
    assert 0.5 < float((omega * F.linear(x, weight).detach()).std()) < 1.5


def test_rows_have_their_baselines_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    for plan in (*sine_linear.plans(QUICK), *siren.plans(QUICK)):
        made = plan.build()
        assert {OURS, PLAIN} <= set(made.functions) and made.target is not None  # type: ignore[attr-defined]
    run.main(["--device", "cpu", "--suite", "siren", "--list"])
    assert len(capsys.readouterr().out.splitlines()) == 8


def timed(key: str, reached: bool, treadle: float, **compilers: float) -> dict[str, Any]:
    baselines = {f"torch.compile{mode}": us for mode, us in compilers.items()}
    times = {"treadle": treadle, "composition": 3 * treadle, **baselines}
    return {
        "key": key,
        "label": "a net",
        "dtype": "bfloat16",
        "times": {name: {"median_us": us} for name, us in times.items()},
        "target": {"reached": reached},
    }


def test_the_pages_tables_tell_missing_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        timed("cuda/sine_linear/2^18,64/bfloat16/forward", True, 10, default=30, tuned=20),
        timed("cuda/sine_linear/2^18,64/bfloat16/forward + backward", False, 1234.5),
        timed("cuda/siren/64/values", True, 5000, default=4000),
        {
            "key": "cuda/siren/64/values/memory",
            "against": {"ratio": 1.25},
            "target": {"reached": False},
        },
    ]
    facts = {"gpu": "a GPU", "torch": "2"}
    files = tmp_path / "mine.json", tmp_path / "other.json"
    files[0].write_text(json.dumps({"machine": facts, "rows": rows}))
    files[1].write_text(json.dumps({"machine": facts, "rows": [{"key": "cuda/scale"}]}))
    monkeypatch.setattr(sine_linear_page, "ROOT", tmp_path)
    page = list(sine_linear_page.speeds([(list(files), facts, rows)]))
    assert page[0] == "a GPU, torch 2, [mine.json](../mine.json):"
    assert "| 64, bfloat16 | 10 | 2.00 | 3.00 | 1,234 | – | 3.00 |" in page
    mean = "The geometric mean of *× compiler* is 2.00 over all rows"
    assert f"{mean}, and 2.00 over rows in half types." in page
    assert "| a net | 5 | 0.80 | 3.00 | 1.25 |" in page
    assert list(sine_linear_page.speeds([])) == [sine_linear_page.NO_SPEEDS]
