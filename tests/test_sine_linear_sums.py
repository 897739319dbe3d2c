"""The first slope of the sine layer with its sums over the rows, which the bias's gradient is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import treadle

from .cases import DEVICES, FLOATING
from .compare import same_bits
from .inputs import HALVES, Make
from .layouts import Layout, dense, misaligned, padded_rows, strided, transposed
from .sine_linear_cases import OMEGA, sine_arguments

ops = torch.ops.treadle
ROWS = (0, 1, 3, 1000, 5000)
WIDTHS = (1, 3, 31, 128, 130, 256, 1030)
# More rows than a block takes, and more than a thread is to add up: none of them full.
LARGE = ((300_001, 3), (70_001, 64), (5_000, 4_104))


def slope_arguments(
    make: Make,
    lead: tuple[int, ...],
    outputs: int,
    to: Layout = dense,
    layers: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """What sine_linear_slope_sums takes: one input, so that most of the work is its own."""
    *tensors, omega = sine_arguments(make, lead, (1, outputs), layers=layers).args
    output, phase = ops.sine_linear_forward(*tensors, omega)
    grad = make(*output.shape)
    return (to(grad), *tensors, to(output), to(phase), omega)


def slope_alone(args: tuple[Any, ...]) -> Tensor:
    grad, *rest = args
    return ops.sine_linear_slope(grad, None, *rest, 1)  # type: ignore[no-any-return]


def sums_are_of(slope: Tensor, sums: Tensor) -> None:
    """Each sum is that of its column, up to its rounding, that of adding, and what roundings of the
    summands come to: of half types, sums may be of numbers that have not been rounded."""
    rows = slope.reshape(*sums.shape[:-1], -1, slope.shape[-1]).double()
    exact = rows.sum(-2)
    eps = torch.finfo(slope.dtype).eps
    added = 1e-6 if slope.dtype != torch.float64 else 1e-14
    room = eps * exact.abs() + added * rows.abs().sum(-2)
    if slope.dtype in HALVES:
        room += 2 * eps * rows.norm(dim=-2)
    wrong = ~((sums.double() - exact).abs() <= room)
    assert not bool(wrong.any()), f"columns {wrong.nonzero()[:4].tolist()}: {sums[wrong][:4]}"


def as_slope_and_sum(args: tuple[Any, ...]) -> None:
    slope, sums = ops.sine_linear_slope_sums(*args)
    same_bits(slope, slope_alone(args))
    assert sums.dtype == slope.dtype and sums.shape == args[2].shape[:-1]
    if slope.numel() == 0:
        assert sums.tolist() == torch.zeros_like(sums).tolist()
        return
    sums_are_of(slope, sums)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_as_a_slope_and_its_sum(dtype: torch.dtype, rows: int, outputs: int, device: str) -> None:
    as_slope_and_sum(slope_arguments(Make("sums", device, dtype), (rows,), outputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", LARGE, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_many_rows(dtype: torch.dtype, sizes: tuple[int, int], device: str) -> None:
    if device == "cpu":
        sizes = (sizes[0] // 20 + 1, sizes[1])
    as_slope_and_sum(slope_arguments(Make("sums", device, dtype), sizes[:1], sizes[1]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lead", [(), (0, 3), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
def test_of_any_leading_dimensions(
    layers: tuple[int, ...], lead: tuple[int, ...], device: str
) -> None:
    """For N layers, each has sums of its own."""
    for outputs in (0, 4):
        make = Make(f"sums {lead}", device, torch.float64)
        as_slope_and_sum(slope_arguments(make, lead, outputs, layers=layers))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [misaligned, padded_rows, strided, transposed])
@pytest.mark.parametrize("outputs", [3, 128])
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_any_layout(dtype: torch.dtype, outputs: int, layout: Layout, device: str) -> None:
    """Of few elements, and of as many as vectors are used for."""
    for rows in (9, 2000):
        make = Make("sums", device, dtype)
        as_slope_and_sum(slope_arguments(make, (rows,), outputs, layout))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outputs", [31, 128])
@pytest.mark.parametrize("dtype", FLOATING)
def test_nan_and_inf_stay_in_their_columns(dtype: torch.dtype, outputs: int, device: str) -> None:
    args = slope_arguments(Make("sums", device, dtype), (3000,), outputs)
    expected = ops.sine_linear_slope_sums(*args)[1]
    args[0][1234, 5] = torch.nan
    args[0][2999, 9] = torch.inf
    sums = ops.sine_linear_slope_sums(*args)[1]
    assert sums.isnan().nonzero().tolist() == [[5]]
    assert sums.isinf().nonzero().tolist() == [[9]]
    same_bits(sums[sums.isfinite()], expected[sums.isfinite()])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [(3, 5), (5000, 33), *LARGE[:2]], ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_same_bits_twice(dtype: torch.dtype, sizes: tuple[int, int], device: str) -> None:
    """Also beside other work, in memory that held other numbers."""
    args = slope_arguments(Make("sums", device, dtype), sizes[:1], sizes[1])
    first = ops.sine_linear_slope_sums(*args)
    for _ in range(3):
        torch.full((1 << 18,), torch.nan, device=device)
        for again, before in zip(ops.sine_linear_slope_sums(*args), first, strict=True):
            same_bits(again, before)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_in_float32_are_at_least_those_of_aten(device: str) -> None:
    """Against float64, by norm; with a common sign, where sums grow and so do their roundings."""
    grad, *rest = slope_arguments(Make("sums", device, torch.float32), (200_000,), 8)
    ones = torch.where(slope_alone((torch.ones_like(grad), *rest)) < 0, -1.0, 1.0)
    for args in ((grad, *rest), (ones, *rest)):
        slope, sums = ops.sine_linear_slope_sums(*args)
        exact = slope.double().sum(0)
        ours, theirs = ((t.double() - exact).norm() for t in (sums, slope.sum(0)))
        assert ours <= 2 * theirs + 1e-7 * exact.norm()


@pytest.mark.usefixtures("no_slow_vmap")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batched", [(0,), (0, 4, 5), (2,), (0, 1, 2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
def test_vmap(layers: tuple[int, ...], batched: tuple[int, ...], device: str) -> None:
    """A batch of rows has sums of its own, too."""
    args = list(slope_arguments(Make("sums", device, torch.float64), (7,), 4, layers=layers))
    dims = [0 if i in batched else None for i in range(6)]
    for i in batched:
        scales = (1, 1, 1) if i == 5 else (1.0, -0.5, 0.25)
        args[i] = torch.stack([args[i] * k for k in scales])
    omega = args.pop()

    def run(*tensors: Tensor) -> Any:
        return ops.sine_linear_slope_sums(*tensors, omega)

    slope, sums = vmap(run, tuple(dims))(*args)
    for n in range(3):
        alone = run(*(t if d is None else t[n] for t, d in zip(args, dims, strict=True)))
        torch.testing.assert_close((slope[n], sums[n]), alone, rtol=1e-13, atol=1e-13)


# ---- the layer's gradient


def called(run: Callable[[], Any]) -> list[str]:
    """Names of treadle's ops and of ATen's sums, in order."""
    names: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = f.name().split("::")[1].split(".")[0]
            names.extend([name] if f.namespace == "treadle" or name == "sum" else [])
            return f(*args, **(kwargs or {}))

    with Names():
        run()
    return names


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
@pytest.mark.parametrize("needs", [(0, 1, 2), (2,), (0, 1)], ids=str)
def test_the_gradient_of_the_bias_comes_with_the_slope(
    needs: tuple[int, ...], layers: tuple[int, ...], device: str
) -> None:
    """Where the bias has one, of one layer; nothing else adds up the rows again."""
    *tensors, omega = sine_arguments(
        Make("sums", device, torch.float64), (7,), (3, 4), layers=layers
    ).args
    leaves = [tensors[i].requires_grad_() for i in needs]
    y = treadle.sine_linear(*tensors, omega)
    grad = torch.ones_like(y)
    names = called(lambda: torch.autograd.grad(y, leaves, grad))
    if 2 not in needs:
        assert names == ["sine_linear_slope"]
    elif layers:
        assert names == ["sine_linear_slope", "sum"]
    else:
        assert names == ["sine_linear_slope_sums"]


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives_of_derivatives_are_made_of_slopes(device: str) -> None:
    """Whose gradients by x W^T + b join before anything is multiplied or added up."""
    *tensors, omega = sine_arguments(Make("sums", device, torch.float64), (7,), (3, 4)).args
    leaves = [t.requires_grad_() for t in tensors]
    y = treadle.sine_linear(*tensors, omega)
    grad = torch.ones_like(y).requires_grad_()
    first: list[Tensor] = []
    names = called(lambda: first.extend(torch.autograd.grad(y, leaves, grad, create_graph=True)))
    assert names == ["sine_linear_slope", "sum"]
    value = sum(t.sin().sum() for t in first)
    names = called(lambda: torch.autograd.grad(value, [*leaves, grad]))
    assert "sine_linear_slope_sums" not in names and "sine_linear_slope_backward" in names


@pytest.mark.parametrize("device", DEVICES)
def test_gradgradcheck_and_forward_ad(device: str) -> None:
    grad, *tensors, output, phase, omega = slope_arguments(
        Make("sums", device, torch.float64), (5,), 3
    )
    leaves = [t.requires_grad_() for t in (grad, *tensors)]

    def run(grad: Tensor, *tensors: Tensor) -> Any:
        # What is kept has no gradients of its own: it is made anew of what moves.
        with torch.no_grad():
            kept = ops.sine_linear_forward(*(t.detach() for t in tensors), omega)
        return ops.sine_linear_slope_sums(grad, *tensors, *kept, omega)

    assert torch.autograd.gradcheck(run, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_bias_has_the_sums(dtype: torch.dtype, device: str) -> None:
    for rows, outputs in ((3, 5), (3000, 128)):
        *tensors, omega = sine_arguments(Make("sums", device, dtype), (rows,), (2, outputs)).args
        leaves = [t.requires_grad_() for t in tensors]
        y = treadle.sine_linear(*leaves, omega)
        grad = Make("grad", device, dtype)(*y.shape)
        by_bias = torch.autograd.grad(y, leaves, grad)[2]
        with torch.no_grad():
            kept = ops.sine_linear_forward(*leaves, OMEGA)
            same_bits(by_bias, ops.sine_linear_slope_sums(grad, *leaves, *kept, OMEGA)[1])


def test_a_missing_row_and_a_shifted_column_are_noticed() -> None:
    slope, sums = ops.sine_linear_slope_sums(
        *slope_arguments(Make("sums", "cpu", torch.float32), (1000,), 31)
    )
    for wrong in (slope[:-1].sum(0), sums.roll(1)):
        with pytest.raises(AssertionError, match="columns"):
            sums_are_of(slope, wrong)
