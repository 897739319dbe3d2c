"""Values that the sine layer saves and returns: bytes, slopes, NaN and inf, chunks of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.sine_linear.cases import sine_arguments
from tests.support.cases import DEVICES, FLOATING, HALVES
from tests.support.inputs import GPU, Make
from treadle import reference

INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.pi, -math.pi, 2e3, -900.0, INF, -INF, NAN, 0.1, 7.0)
forward = torch.ops.treadle.sine_linear_forward


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("omega", [1.0, 30.0, -2.0, 0.0, NAN, INF])
@pytest.mark.parametrize("repeat", [1, 40_000])
@pytest.mark.parametrize("dtype", FLOATING)
def test_nan_and_inf_as_in_the_composition(
    dtype: torch.dtype, repeat: int, omega: float, device: str
) -> None:
    """Tests first and second derivatives, of few numbers and of enough for vectorised loops."""
    if repeat > 1 and device == "cpu":
        repeat = 500
    found, columns = [], 1 if repeat == 1 else 8
    for function in (treadle.sine_linear, reference.sine_linear):
        u = torch.tensor(SPECIAL * repeat, dtype=dtype, device=device)[:, None].requires_grad_()
        y = function(u, torch.ones(columns, 1, dtype=dtype, device=device), None, omega)
        (first,) = torch.autograd.grad(y, u, torch.ones_like(y), create_graph=True)
        (second,) = torch.autograd.grad(first, u, torch.ones_like(first))
        found.append([y.detach(), first.detach(), second])
    for n, (ours, theirs) in enumerate(zip(*found, strict=True)):
        same = ours.isnan() == theirs.isnan()
        assert bool(same.all()), f"result {n}: {torch.tensor(SPECIAL)[~same[: len(SPECIAL), 0]]}"
    # The sign of a zero product depends on BLAS, dtype and size; a NaN may have either sign.
    if device == "cpu" and columns == 1 and math.isfinite(omega):
        zeros = [y[:2].signbit() for y, *_ in found]
        assert torch.equal(*zeros)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [INF, -INF, NAN])
@pytest.mark.parametrize("dtype", FLOATING)
def test_gradients_that_are_not_finite(dtype: torch.dtype, grad: float, device: str) -> None:
    u = torch.tensor([0.3, 2.0, -1.0], dtype=dtype, device=device)
    for omega in (0.0, 2.0):
        found = []
        for function in (treadle.sine_linear, reference.sine_linear):
            column = u[:, None].clone().requires_grad_()
            y = function(column, torch.ones(1, 1, dtype=dtype, device=device), None, omega)
            found.append(torch.autograd.grad(y, column, torch.full_like(y, grad))[0])
        assert torch.equal(found[0].isnan(), found[1].isnan())
        assert torch.equal(found[0].isinf(), found[1].isinf())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [3, 64])
@pytest.mark.parametrize("dtype", FLOATING)
def test_saved_bytes(dtype: torch.dtype, inputs: int, device: str) -> None:
    """The layer saves its arguments and its result, and 2 more bytes per element (8 in float64)."""
    call = sine_arguments(Make("saved", device, dtype), (4, 50), (inputs, 32))
    leaves = [t.requires_grad_() for t in call.args[:3]]
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = treadle.sine_linear(*call.args)
    for t in (*leaves, y):
        kept.pop(t.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) == y.numel() * (8 if dtype == torch.float64 else 2)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_kept_without_gradients(device: str) -> None:
    call = sine_arguments(Make("saved", device, torch.float32), (4,), (5, 3))
    ops = []

    class Ops(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.extend([str(f)] if f.namespace == "treadle" else [])
            return f(*args, **(kwargs or {}))

    with Ops():
        call.run(treadle.sine_linear)
        with torch.no_grad():
            call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
        call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
    assert ops == ["treadle.sine_linear.default"] * 2 + ["treadle.sine_linear_forward.default"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_with_and_without_gradients_alike(dtype: torch.dtype, device: str) -> None:
    for sizes in ((3, 64), (64, 33)):
        call = sine_arguments(Make("alike", device, dtype), (4100,), sizes)
        plain = call.run(treadle.sine_linear)
        kept = call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
        assert torch.equal(plain, kept)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [1, 2, 3, 4])
@pytest.mark.parametrize("outputs", [1, 3, 8, 64, 256, 257])
def test_coordinates_and_products_agree(inputs: int, outputs: int, device: str) -> None:
    """A layer with additional inputs of 0, whose product ATen computes, gives the same results."""
    make = Make(f"widths {inputs} {outputs}", device, torch.float64)
    call = sine_arguments(make, (600,), (inputs, outputs))
    input, weight, bias, omega = call.args
    wide = [torch.nn.functional.pad(t, (0, 8)) for t in (input, weight)]
    torch.testing.assert_close(
        treadle.sine_linear(input, weight, bias, omega),
        treadle.sine_linear(*wide, bias, omega),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_more_rows_than_one_product_takes(dtype: torch.dtype, device: str) -> None:
    """The op computes products for chunks of rows; results and phases of all chunks are right."""
    args = sine_arguments(Make("rows", device, dtype), (9001,), (8, 1024)).args
    y, phase = forward(*args)
    # Rows in the first chunk, rows after its end (in every dtype), and the last rows.
    for part in (slice(0, 100), slice(4000, 4900), slice(-100, None)):
        alone, alone_phase = forward(args[0][part], *args[1:])
        torch.testing.assert_close(alone, y[part])
        one = torch.ones_like(alone)
        rest = (args[0][part], *args[1:3])
        slopes = [
            torch.ops.treadle.sine_linear_slope(one, None, *rest, kept, turns, args[3], 1)
            for kept, turns in ((alone, alone_phase), (y[part], phase[part]))
        ]
        torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-2 if dtype in HALVES else 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(37,), (2049, 65)], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_slopes_one_by_one_and_together(
    dtype: torch.dtype, shape: tuple[int, ...], order: int, device: str
) -> None:
    """Tests grad times factor times the order-th derivative, and all gradients of this product."""
    ops, omega = torch.ops.treadle, 1.5
    make = Make(f"slopes {shape}", device, dtype)
    args = (make(*shape), torch.eye(shape[-1], dtype=dtype, device=device), None)
    y, phase = forward(*args, omega)
    kept = (*args, y, phase, omega)
    v, grad, factor = make(*shape), make(*shape), make(*shape)
    u = omega * args[0].double()

    def derivative(k: int) -> Tensor:
        return omega**k * torch.sin(u + k * math.pi / 2)

    def near(actual: Tensor, exact: Tensor) -> None:
        # Allows for rounding of the result, and for the precision of a 16-bit phase.
        kept_digits = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 2e-4 * omega**order)
        room = 4 * torch.finfo(dtype).eps * exact.abs() + 60 * kept_digits
        assert bool(((actual.double() - exact).abs() <= room).all())

    exact_v, exact_grad, exact_factor = (t.double() for t in (v, grad, factor))
    near(ops.sine_linear_slope(grad, None, *kept, order), exact_grad * derivative(order))
    product = exact_grad * exact_factor
    near(ops.sine_linear_slope(grad, factor, *kept, order), product * derivative(order))
    for with_factor in (False, True):
        f = exact_factor if with_factor else torch.ones_like(exact_grad)
        by_grad, by_factor, by_sum = ops.sine_linear_slope_backward(
            v, grad, factor if with_factor else None, *kept, order, [True, with_factor, True]
        )
        near(by_grad, exact_v * f * derivative(order))
        near(by_sum, exact_v * exact_grad * f * derivative(order + 1))
        assert (by_factor is not None) == with_factor
        if with_factor:
            near(by_factor, exact_v * exact_grad * derivative(order))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_write_to_what_was_saved_is_noticed(
    dtype: torch.dtype, position: int, device: str
) -> None:
    """Writes to the three arguments raise. test_written_over.py tests writes to the result."""
    call = sine_arguments(Make("saved", device, dtype), (4,), (5, 3))
    tensors = [t.requires_grad_() * 1 for t in call.args[:3]]
    y = treadle.sine_linear(*tensors, 2.0)
    with torch.no_grad():
        tensors[position].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@GPU
def test_more_inputs_than_cublas_counts() -> None:
    if torch.cuda.mem_get_info()[0] < 6 << 30:
        pytest.skip("needs 6 GB of memory")
    row = torch.empty(1, 2**31, dtype=torch.bfloat16, device="cuda")
    sizes = r"treadle: sizes of a matrix product must be less than 2\^31, got 2147483648"
    with pytest.raises(RuntimeError, match=sizes):
        treadle.sine_linear(row, row, None, 30.0)
