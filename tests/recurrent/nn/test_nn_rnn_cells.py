"""Compares treadle.nn.LSTMCell, GRUCell and RNNCell with torch.nn's: values, gradients, dtypes,
errors, parameters, copies and files."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal import common_modules

import treadle
from tests.support.compare import attempt
from tests.support.inputs import DEVICES, FLOATING, HALVES
from tests.support.rule import within_rule

B, I, H = 4, 5, 7  # noqa: E741
KINDS: dict[str, tuple[type[nn.RNNCellBase], type[nn.RNNCellBase]]] = {
    "LSTMCell": (treadle.nn.LSTMCell, nn.LSTMCell),
    "GRUCell": (treadle.nn.GRUCell, nn.GRUCell),
    "RNNCell": (treadle.nn.RNNCell, nn.RNNCell),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """treadle's cell and torch's, with the same parameters."""
    ours, theirs = (each(*arguments, **options) for each in KINDS[kind])
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def flat(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def states(cell: nn.RNNCellBase, *batch: int, **options: Any) -> Any:
    like = {"dtype": cell.weight_ih.dtype, "device": cell.weight_ih.device, **options}
    h, c = torch.randn(2, *batch, cell.hidden_size, **like).unbind()
    return (h, c) if isinstance(cell, nn.LSTMCell) else h


def as_dtype(hx: Any, dtype: torch.dtype) -> Any:
    return tuple(t.to(dtype) for t in hx) if isinstance(hx, tuple) else hx.to(dtype)


def results(cell: Any, x: Tensor, hx: Any, steps: int = 1) -> list[Tensor]:
    """Results, and gradients of parameters, input and states."""
    given = [] if hx is None else [t.detach().requires_grad_() for t in flat(hx)]
    x = x.detach().requires_grad_()
    found = hx if hx is None else tuple(given) if isinstance(hx, tuple) else given[0]
    for _ in range(steps):
        found = cell(x, found)
    out = flat(found)
    loss = sum((t.double() * (t.detach().double().cos() + 0.5)).sum() for t in out)
    wanted = [x, *given, *cell.parameters()]
    return [*(t.detach() for t in out), *torch.autograd.grad(loss, wanted)]


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


# ---- values


@EACH
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_every_form_of_input(kind: str, bias: bool, device: str) -> None:
    ours, theirs = pair(kind, I, H, bias, device=device, dtype=torch.float64)
    for batch in ((), (0,), (1,), (B,)):
        x = torch.randn(*batch, I, device=device, dtype=torch.float64)
        for hx, steps in itertools.product((None, states(ours, *batch)), (1, 3)):
            close(results(ours, x, hx, steps), results(theirs, x, hx, steps))


@EACH
@pytest.mark.parametrize("sizes", [(1, 1, 1), (17, 33, 65), (3, 128, 96), (1, 40, 256)], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("device", DEVICES)
def test_as_exact_as_torchs(
    kind: str, sizes: tuple[int, int, int], dtype: torch.dtype, device: str
) -> None:
    """The tolerance (tests/support/rule.py) comes from the error of torch's own cell."""
    rows, features, hidden = sizes
    ours, theirs = pair(kind, features, hidden, device=device, dtype=dtype)
    truth = copy.deepcopy(theirs).double()
    x, hx = torch.randn(rows, features, device=device, dtype=dtype), states(ours, rows)
    runs = (
        results(ours, x, hx, 3),
        results(truth, x.double(), as_dtype(hx, torch.float64), 3),
        results(theirs, x, hx, 3),
    )
    for n, each in enumerate(zip(*runs, strict=True)):
        within_rule(*each, gradient=n >= len(flat(hx)), what=f"result {n}")


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_the_same_as_a_layer(kind: str, device: str) -> None:
    cell = KINDS[kind][0](I, H, device=device, dtype=torch.float64)
    layer = getattr(treadle.nn, kind[:-4])(I, H, device=device, dtype=torch.float64)
    layer.load_state_dict({f"{name}_l0": p for name, p in cell.state_dict().items()})
    rows, hx = torch.randn(6, B, I, device=device, dtype=torch.float64), None
    for row in rows:
        hx = cell(row, hx)
    close(flat(hx), [t.squeeze(0) for t in flat(layer(rows)[1])])


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_layouts_of_arguments(kind: str, device: str) -> None:
    """Tests transposed, expanded and offset memory, and weights that are views."""
    ours, theirs = pair(kind, I, H, device=device, dtype=torch.float64)
    make = {"device": device, "dtype": torch.float64}
    for x in (
        torch.randn(I, B, **make).t(),
        torch.randn(I, **make).expand(B, I),
        torch.randn(B, 2 * I, **make)[:, ::2],
        torch.randn(B * I + 1, **make)[1:].view(B, I),
    ):
        states_of = [torch.randn(H, B, **make).t() for _ in range(2)]
        hx = tuple(states_of) if kind == "LSTMCell" else states_of[0]
        close(results(ours, x, hx), results(theirs, x, hx))
    for name in ("weight_ih", "weight_hh"):
        moved = nn.Parameter(getattr(theirs, name).detach().t().clone().t())
        for cell in (ours, theirs):
            setattr(cell, name, moved)
    close(results(ours, x, hx), results(theirs, x, hx))


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_arguments_are_not_written(kind: str, device: str) -> None:
    ours = KINDS[kind][0](I, H, device=device)
    x, hx = torch.randn(B, I, device=device), states(ours, B)
    before = [t.clone() for t in (x, *flat(hx))]
    with torch.no_grad():
        out = flat(ours(x, hx))
    assert all(map(torch.equal, (x, *flat(hx)), before))
    assert len({t.data_ptr() for t in (x, *flat(hx), *out)}) == 2 * len(out) + 1


@EACH
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_without_hx(kind: str, dtype: torch.dtype, device: str) -> None:
    ours, theirs = pair(kind, I, H, device=device, dtype=dtype)
    x = torch.randn(B, I, device=device, dtype=dtype)
    assert [t.dtype for t in flat(ours(x))] == [t.dtype for t in flat(theirs(x))]


@pytest.mark.parametrize("hidden", [H, 96])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_float32_c_stays(dtype: torch.dtype, device: str, hidden: int) -> None:
    cell = treadle.nn.LSTMCell(I, hidden, device=device, dtype=dtype)
    x, (h, c) = torch.randn(B, I, device=device, dtype=dtype), states(cell, B)
    for _ in range(2):
        h, c = cell(x, (h, c.float()))
        assert (h.dtype, c.dtype) == (dtype, torch.float32)


@EACH
@pytest.mark.parametrize("sizes", [(0, H), (I, 0), (0, 0)])
@pytest.mark.parametrize("device", DEVICES)
def test_sizes_of_zero(kind: str, sizes: tuple[int, int], device: str) -> None:
    for out in flat(KINDS[kind][0](*sizes, device=device)(torch.randn(B, sizes[0], device=device))):
        assert out.shape == (B, sizes[1])


@EACH
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tf32_on_cuda_as_matrix_products(kind: str, allow_tf32: Callable[..., None]) -> None:
    """A cell follows torch's TF32 switch for matrix products, not that for cuDNN's layers.

    For up to 32 rows, a cell's kernel does not use tensor cores, so this test uses more rows.
    """
    cell = KINDS[kind][0](64, 256, device="cuda")
    x, hx, found = torch.randn(64, 64, device="cuda"), states(cell, 64), {}
    for of_products, in_layers in itertools.product((False, True), repeat=2):
        allow_tf32(of_products, in_layers)
        found[of_products, in_layers] = results(cell, x, hx)
    exact = results(copy.deepcopy(cell).double(), x.double(), as_dtype(hx, torch.float64))
    for n, truth in enumerate(exact):
        largest = float(truth.abs().max())
        for in_layers in (False, True):
            error = float((found[False, in_layers][n] - truth).abs().max())
            assert error < 1e-5 * largest, (n, in_layers, error)
    rounded = (found[True, False][0] - exact[0]).abs().max()
    assert float(rounded) > 1e-5 * float(exact[0].abs().max())


# ---- autocast


def lowered(cell: Any, device: str, lower: torch.dtype) -> Any:
    """A module for ``results`` that runs only the cell's forward pass under autocast."""

    class Lowered(nn.Module):
        parameters = cell.parameters

        def forward(self, *given: Any) -> Any:
            with torch.autocast(device, lower):
                return cell(*given)

    return Lowered()


@EACH
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lower", HALVES)
@pytest.mark.parametrize("parameters", [torch.float32, None], ids=["float32", "lower"])
def test_autocast_is_torchs(
    kind: str, device: str, lower: torch.dtype, parameters: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(kind, I, H, device=device, dtype=parameters or lower)
    truth = copy.deepcopy(theirs).double()
    dtypes = (torch.float32, *HALVES)
    for inputs, given in itertools.product(dtypes, (None, *dtypes)):
        batch = () if inputs is given else (B,)
        x = torch.randn(*batch, I, device=device).to(inputs)
        hx = None if given is None else as_dtype(states(ours, *batch, dtype=torch.float32), given)
        found, expected = (
            results(lowered(cell, device, lower), x, hx, 2) for cell in (ours, theirs)
        )
        wide = None if hx is None else as_dtype(hx, torch.float64)
        exact = results(truth, x.double(), wide, 2)
        count = 2 if kind == "LSTMCell" else 1
        for n, (a, t, e) in enumerate(zip(found, exact, expected, strict=True)):
            assert a.dtype == e.dtype, (inputs, given, n)
            if found[0].dtype == lower:
                # Errors are those of the lower precision, whatever the dtype of the result.
                a, e = a.to(lower), e.to(lower)
            within_rule(a, t, e, gradient=n >= count, what=f"{inputs} {given} {n}")


@EACH
def test_float64_is_not_cast(kind: str) -> None:
    ours, theirs = pair(kind, I, H, dtype=torch.float64)
    x, hx = torch.randn(B, I, dtype=torch.float64), states(ours, B)
    with torch.autocast("cpu", torch.bfloat16):
        close(flat(ours(x, hx)), flat(theirs(x, hx)))


# ---- parameters, copies, files


@EACH
@pytest.mark.parametrize("bias", [True, False])
def test_is_torchs_module(kind: str, bias: bool) -> None:
    made = []
    for cls in KINDS[kind]:
        torch.manual_seed(2)
        made.append(cls(I, H, bias))
    ours, theirs = made
    assert isinstance(ours, KINDS[kind][1]) and repr(ours) == repr(theirs)
    both = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, p), (other, q) in both:
        assert name == other and torch.equal(p, q)
    theirs.load_state_dict(KINDS[kind][0](I, H, bias).state_dict())
    ours.load_state_dict(theirs.state_dict())
    before = ours.weight_hh.clone()
    ours.reset_parameters()
    assert not torch.equal(ours.weight_hh, before)
    assert list(ours.state_dict()) == list(theirs.state_dict())


@EACH
@pytest.mark.parametrize("bias", [True, False])
def test_copies_and_files_keep_everything(kind: str, bias: bool) -> None:
    cell, file = KINDS[kind][0](I, H, bias), io.BytesIO()
    torch.save(cell.state_dict(), file)
    file.seek(0)
    loaded = KINDS[kind][0](I, H, bias)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(B, I)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), loaded):
        assert type(other) is type(cell) and repr(other) == repr(cell)
        assert other.weight_hh is not cell.weight_hh
        assert all(map(torch.equal, flat(other(x)), flat(cell(x))))


@EACH
def test_meta_device(kind: str) -> None:
    cell = KINDS[kind][0](I, H, device="meta", dtype=torch.bfloat16)
    for out in flat(cell(torch.empty(B, I, device="meta", dtype=torch.bfloat16))):
        assert out.is_meta and out.shape == (B, H)
    cell.to_empty(device="cpu").reset_parameters()
    assert all(out.isfinite().all() for out in flat(cell(torch.randn(B, I).bfloat16())))


@EACH
def test_in_the_place_of_torchs_class(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = KINDS[kind][0]
    monkeypatch.setattr(nn, kind, ours)
    cell = getattr(nn, kind)(I, H)
    assert type(cell) is ours and flat(cell(torch.zeros(2, I)))[0].shape == (2, H)
    with pytest.raises(RuntimeError, match="input has inconsistent input_size: got 6 expected 5"):
        cell(torch.zeros(2, I + 1))


@EACH
def test_dtypes_that_parameters_cannot_have(kind: str) -> None:
    for dtype in (torch.complex64, torch.int64):
        with pytest.raises(RuntimeError, match=f"^{kind}: dtype must be float64, float32, "):
            KINDS[kind][0](I, H, dtype=dtype)


# ---- torch's own samples, and errors


def module_info(kind: str) -> Any:
    cls = KINDS[kind][1]
    return next(info for info in common_modules.module_db if info.module_cls is cls)


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_module_samples(kind: str, device: str) -> None:
    info, count = module_info(kind), 0
    for sample in info.module_inputs_func(info, device, torch.float64, False, training=True):
        made = sample.constructor_input
        options = {**made.kwargs, "device": device, "dtype": torch.float64}
        ours, theirs = pair(kind, *made.args, **options)
        x, *hx = sample.forward_input.args
        close(results(ours, x, *(hx or [None])), results(theirs, x, *(hx or [None])))
        if sample.reference_fn is not None:
            found = sample.reference_fn(ours, *sample.forward_input.args)
            close(flat(found), flat(ours(*sample.forward_input.args)))
        count += 1
    assert count == (3 if kind == "RNNCell" else 2)  # an RNNCell has two nonlinearities


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_module_error_samples(kind: str, device: str) -> None:
    info, count = module_info(kind), 0
    for error in info.module_error_inputs_func(info, device, torch.float32, False, training=True):
        made, called = (
            error.module_error_input.constructor_input,
            error.module_error_input.forward_input,
        )
        cell = KINDS[kind][0](*made.args, **made.kwargs, device=device)
        with pytest.raises(error.error_type, match=error.error_regex):
            cell(*called.args, **called.kwargs)
        count += 1
    assert count >= 4


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


X = zeros(B, I)
MISTAKES: dict[str, tuple[Any, Any]] = {
    "features": (zeros(B, I + 1), None),
    "0-D": (zeros(), None),
    "3-D": (zeros(2, B, I), None),
    "no tensor": ([1.0], None),
    "None": (None, None),
    "rows of h": (X, zeros(B + 1, H)),
    "one row of h": (X, zeros(1, H)),
    "width of h": (X, zeros(B, H + 1)),
    "a layer's h": (X, zeros(1, B, H)),
    "no batch in h": (X, zeros(H)),
    "no batch but in h": (zeros(I), zeros(1, H)),
    "float64 h": (X, zeros(B, H).double()),
    "h is no tensor": (X, 1.0),
    "strings": (X, "hx"),
}
OF_LSTM = {
    "c": (X, (zeros(B, H), zeros(B, H + 1))),
    "rows of c": (X, (zeros(B, H), zeros(1, H))),
    "three": (X, (zeros(B, H),) * 3),
    "one": (X, (zeros(B, H),)),
    "a tensor": (X, zeros(2, B, H)),
    "c is None": (X, (zeros(B, H), None)),
}


@EACH
@pytest.mark.parametrize("case", [*MISTAKES, *OF_LSTM])
def test_errors_are_torchs(kind: str, case: str) -> None:
    x, hx = {**MISTAKES, **OF_LSTM}[case]
    if kind != "LSTMCell" and case in OF_LSTM:
        hx = hx if isinstance(hx, tuple) else (hx, hx)
    elif kind == "LSTMCell" and case in MISTAKES and isinstance(hx, Tensor):
        hx = (hx, hx)
    ours, theirs = pair(kind, I, H)
    (_, found), (_, expected) = attempt(lambda: ours(x, hx)), attempt(lambda: theirs(x, hx))
    assert expected is not None and type(found) is type(expected), (found, expected)
    assert str(found) == str(expected)


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_another_dtype_says_what_to_call(kind: str, device: str) -> None:
    cell = KINDS[kind][0](I, H, device=device)
    for dtype, fact in ((torch.float64, "float64"), (torch.int64, "int64")):
        words = f"^{kind}: input must have the dtype of the parameters, float32, got {fact}: call "
        with pytest.raises(RuntimeError, match=words + r"input.float\(\)$"):
            cell(torch.zeros(B, I, device=device, dtype=dtype))


@EACH
def test_sizes_are_checked_before_dtypes(kind: str) -> None:
    """torch's cell checks in the same order."""
    cell = KINDS[kind][0](I, H)
    with pytest.raises(RuntimeError, match=f"inconsistent input_size: got {I + 1} expected {I}"):
        cell(torch.zeros(B, I + 1, dtype=torch.float64))


@EACH
def test_complex_numbers_are_torchs(kind: str) -> None:
    ours, theirs = (cell.to(torch.complex128) for cell in pair(kind, I, H))
    x = torch.randn(B, I, dtype=torch.complex128)
    assert all(map(torch.equal, flat(ours(x)), flat(theirs(x))))
