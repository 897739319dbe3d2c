"""Results and gradients match the reference; real and meta results have the same layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import ARGUMENTS, EACH_CELL, layer_arguments
from tests.support.cases import DEVICES, ELEMENTWISE, FLOATING, INTEGERS, OPS, each_case
from tests.support.compare import same_layout
from tests.support.inputs import Call, Case, Make, Op, outputs
from tests.support.rule import obeys, within_rule


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "case", "dtype"), each_case())
def test_forward_and_gradients(op: Op, case: Case, dtype: torch.dtype, device: str) -> None:
    obeys(op, case.call(device, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "case", "dtype"), each_case(dtypes=FLOATING + INTEGERS))
def test_layout(op: Op, case: Case, dtype: torch.dtype, device: str) -> None:
    """Real and meta results have the same layout, that of torch's op if there is one."""
    call = case.call(device, dtype)
    real = outputs(call.run(op.function))
    meta = outputs(call.map(lambda t: t.to("meta")).run(op.function))
    for ours, traced in zip(real, meta, strict=True):
        same_layout(traced, ours.to("meta"), "meta")
    if op.name in ELEMENTWISE:
        same_layout(real[0], call.run(op.reference), "torch")
    else:
        assert all(t.is_contiguous() for t in real)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_cell_of_large_values(dtype: torch.dtype, device: str) -> None:
    """The gates are so large that exp overflows, and the cell state is large."""
    op = OPS["lltm_cell"]
    make = Make("large", device, dtype)
    arguments = (make(17, 9, by=30), make(24, 17, by=2), make(24, by=9), make(17, 8, by=9))
    obeys(op, Call((*arguments, make(17, 8, by=40))))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
@EACH_CELL
def test_layer_of_large_values(cell: str, dtype: torch.dtype, recompute: bool, device: str) -> None:
    """Gates and the cell state are large. So h saturates, and rounding errors do not accumulate.

    The largest error comes from rounding a gate of a few hundred, which changes its slope. Whether
    this error is smaller than the composition's is a matter of chance. Of 100 draws in float32 on
    an H200, treadle's LSTM exceeded the bound of `obeys` in 16, and torch.nn.LSTM in 95
    (docs/dev/gpu-runs.md).
    """
    make, by = Make("large", device, dtype), (30, 9, 40, 2, 2, 9, 9)
    call = layer_arguments(make, (3, 17, 9, 8), cell=cell, directions=2)
    call = call.with_args(
        {
            i: make(*call.args[i].shape, by=factor)
            for i, factor in zip(ARGUMENTS[cell], by, strict=False)
        }
    )
    slack = 2 if cell in ("lstm", "rnn_tanh") and dtype == torch.float32 else 1
    obeys(OPS[f"recurrent_layer {cell}"], call.with_options(recompute=recompute), slack=slack)


def test_arguments_are_left_alone() -> None:
    for op in OPS.values():
        for case in op.cases:
            call = case.call()
            before = [a.clone() if isinstance(a, Tensor) else a for a in call.args]
            call.run(op.function)
            for a, b in zip(call.args, before, strict=True):
                assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, case.id


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("gradient", [False, True])
def test_the_rule_finds_wrong_results(dtype: torch.dtype, gradient: bool) -> None:
    truth = Make("rule", "cpu", torch.float64)(1000)
    composition = truth.to(dtype)
    within_rule(composition, truth, composition, gradient=gradient)
    step = 1e-10 if dtype == torch.float64 else 12 * torch.finfo(dtype).eps
    largest = truth.abs().max()
    for wrong in (composition.double() + step * largest, composition.double() * (1 + step)):
        with pytest.raises(AssertionError, match="is allowed"):
            within_rule(wrong.to(dtype), truth, composition, gradient=gradient)
    one_nan = composition.clone()
    one_nan[7] = torch.nan
    with pytest.raises(AssertionError, match="not finite"):
        within_rule(one_nan, truth, composition, gradient=gradient)
