"""Compares treadle.nn.LSTM, GRU and RNN under autocast on a CPU with torch.nn's: the dtypes of
results and gradients, and their values by the rule (tests/support/rule.py)."""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from tests.recurrent.nn.test_nn_rnn import EACH, B, H, I, T, flat, pair, results, states
from tests.support.compare import same_bits
from tests.support.inputs import HALVES
from tests.support.rule import within_rule

F32 = torch.float32
GIVEN: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False},
]


class Case(NamedTuple):
    lower: torch.dtype  # the dtype of autocast
    inputs: torch.dtype
    parameters: torch.dtype
    states: torch.dtype | None  # None: not given
    grad: bool


CASES = [
    Case(*given)
    for lower in HALVES
    for given in itertools.product(
        [lower], [F32, *HALVES], [F32, lower], [None, F32, *HALVES], [True, False]
    )
]


def inputs_of(form: str, options: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """The input in float32, and the batch dimension of its states: (B,), or () without a batch."""
    batch = () if form == "unbatched" else (B,)
    first = bool(options.get("batch_first")) and form != "unbatched"
    x = torch.randn((*batch, T, I) if first else (T, *batch, I))
    if form == "packed":
        return pack_padded_sequence(x, torch.tensor([3, 3, 2, 1]), first), batch
    return x, batch


def run(layer: nn.RNNBase, case: Case, x: Any, hx: Any) -> list[Tensor]:
    """Results and, if requested, gradients."""

    class Lowered(nn.Module):
        """A module for ``results`` that runs only the layer's forward pass under autocast."""

        parameters = layer.parameters

        def forward(self, *given: Any) -> Any:
            with torch.autocast("cpu", case.lower):
                return layer(*given)

    if case.grad:
        return results(Lowered(), x, hx)
    with torch.no_grad():
        return flat(Lowered()(x, hx))


def as_dtype(hx: Any, dtype: torch.dtype) -> Any:
    return tuple(t.to(dtype) for t in hx) if isinstance(hx, tuple) else hx.to(dtype)


def truth_of(theirs: nn.RNNBase, case: Case, x: Any, hx: Any) -> list[Tensor]:
    double = copy.deepcopy(theirs).double()
    wide = None if hx is None else as_dtype(hx, torch.float64)
    if not case.grad:
        return [t.detach() for t in flat(double(x.to(torch.float64), wide))]
    return results(double, x.to(torch.float64), wide)


def torchs_accident(kind: str, case: Case, fused: bool) -> bool:
    """Whether oneDNN lacks a kernel for torch's LSTM, which then raises or returns other dtypes.

    This happens for float16 in grad mode, and for half types on older processors. treadle's LSTM
    uses the lower precision in these cases as well.
    """
    runs = {
        torch.float16: not case.grad and torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    }
    return kind == "LSTM" and fused and not all(runs.get(d, True) for d in case[:2])


@EACH
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("options", GIVEN, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("form", ["dense", "unbatched", "packed"])
def test_dtypes_and_values_are_torchs(
    kind: str, form: str, onednn: bool, options: dict[str, Any]
) -> None:
    fused = onednn and form != "packed"
    # This test runs all cases for plain layers with oneDNN, and otherwise every fifth case. These
    # cases still include every value of each field of Case.
    for case in CASES if onednn and not options else CASES[::5]:
        torch.manual_seed(0)
        ours, theirs = pair(kind, I, H, **options, dtype=case.parameters)
        x, batch = inputs_of(form, options)
        x = x.to(case.inputs)
        hx = None if case.states is None else as_dtype(states(ours, *batch), case.states)
        count = 3 if kind == "LSTM" else 2
        accident = torchs_accident(kind, case, fused)
        with torch.backends.mkldnn.flags(enabled=onednn):
            found = run(ours, case, x, hx)
        with torch.backends.mkldnn.flags(enabled=onednn and not accident):
            try:
                expected = run(theirs, case, x, hx)
            except RuntimeError as error:
                # Under autocast torch cannot join the directions of a packed batch in float64.
                assert kind == "RNN" and "autocast::prioritize" in str(error), case
                continue
        if accident:
            assert {t.dtype for t in found[:count]} == {case.lower}, case
            expected = [e.to(a.dtype) for a, e in zip(found, expected, strict=True)]
        truth = truth_of(theirs, case, x, hx)
        for n, (a, t, e) in enumerate(zip(found, truth, expected, strict=True)):
            assert a.dtype == e.dtype, (case, n, a.dtype, e.dtype)
            if found[0].dtype == case.lower:
                # Errors are those of the lower precision, whatever the dtype of the result.
                a, e = a.to(case.lower), e.to(case.lower)
            within_rule(a, t, e, gradient=n >= count, what=f"{case} {n}")


@EACH
@pytest.mark.parametrize("lower", HALVES)
def test_transforms_have_the_same_dtype(kind: str, lower: torch.dtype) -> None:
    ours = pair(kind, I, H, 2)[0]
    x, parameters, dtypes = torch.randn(T, B, I), dict(ours.named_parameters()), []

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output = functional_call(ours, parameters, (x,))[0]
        dtypes.append(output.dtype)
        return output.double().square().sum()

    with torch.autocast("cpu", lower), torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)(x)[0]
        mapped = vmap(lambda x: ours(x)[0])(torch.stack([x, 2 * x]))
        same_bits(compiled, ours(x)[0])
        vmap(grad(loss), in_dims=(None, 0))(parameters, torch.stack([x, x]))
        grad(lambda x: grad(loss, argnums=1)(parameters, x).sum())(x)
    assert {F32 if kind == "GRU" else lower} == {compiled.dtype, mapped.dtype, *dtypes}
    torch.testing.assert_close(mapped[0], compiled)


@pytest.mark.parametrize("packed", [False, True])
def test_the_state_that_promotes_is_c_of_an_lstm(packed: bool) -> None:
    """If h0 and c0 have different dtypes, oneDNN converts both to the lower precision."""
    if not packed and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's LSTM raises: oneDNN has no bfloat16 LSTM for this processor")
    ours, theirs = pair("LSTM", I, H)
    x = inputs_of("packed" if packed else "dense", {})[0]
    h0, c0 = states(ours, B)
    for hx in ((h0.bfloat16(), c0), (h0, c0.bfloat16())):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = flat(ours(x, hx)), flat(theirs(x, hx))
        assert [t.dtype for t in found] == [t.dtype for t in expected]
