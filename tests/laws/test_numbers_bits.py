"""vector_add and scale have torch's bits, in every pair of dtypes and for special values.

On the CPU torch adds half types in two ways. In whole vectors it rounds a + alpha b once from
float32. In the tail it also rounds the product. Our bits must equal those of whole vectors.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.compare import differing, same_bits
from tests.support.inputs import DEVICES, FLOATING, HALVES, INTEGERS, Make
from tests.support.layouts import LAYOUTS

DTYPES = (*FLOATING, *INTEGERS, torch.bool)
PAIRS = [pair for pair in itertools.product(DTYPES, DTYPES) if pair != (torch.bool, torch.bool)]
VECTORS = 8 * 64  # elements, a multiple of every vector width
FMA = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has no fma"
)


def special(dtype: torch.dtype) -> Tensor:
    """Values where rounding, overflow, sign and NaN can go wrong."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, info.max, info.max - 1, 0, 1, 2, 3, 77], dtype=dtype)
    info = torch.finfo(dtype)
    inf, nan = float("inf"), float("nan")
    values = [inf, nan, 0.0, 1.0, 1 + info.eps, 1 / 3, 2049.0, info.max, info.smallest_normal]
    values += [info.smallest_normal * info.eps, info.smallest_normal * (1 - info.eps), 1e-3]
    positive = torch.tensor(values, dtype=torch.float64).to(dtype)
    return torch.cat([positive, -positive])


def pairs_of(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns all pairs of a value of a and a value of b, padded to whole vectors."""
    x, y = (t.reshape(-1) for t in torch.meshgrid(a, b, indexing="ij"))
    repeat = -(-VECTORS // x.numel())
    size = x.numel() * repeat // 64 * 64
    return x.repeat(repeat)[:size], y.repeat(repeat)[:size]


def fma_in_float32(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Computes a + alpha b, rounded once to float32. The float64 product has no error. The float64
    sum is rounded to odd, so that rounding it to float32 gives the same result as rounding once."""
    a, product = a.double(), b.double() * float(torch.tensor(alpha, dtype=torch.float32))
    total = a + product
    part = total - a
    error = (a - (total - part)) + (product - part)
    away = torch.where(error > 0, torch.inf, -torch.inf).double()
    even = total.view(torch.int64) % 2 == 0
    inexact = (error != 0) & total.isfinite()
    return torch.where(inexact & even, torch.nextafter(total, away), total).float()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("a_dtype", "b_dtype"), PAIRS, ids=lambda d: str(d)[6:])
def test_add(a_dtype: torch.dtype, b_dtype: torch.dtype, device: str) -> None:
    make = Make("add", device, a_dtype)
    result = torch.promote_types(a_dtype, b_dtype)
    alphas = [1, 3, -2] + ([0.37, 1e-3, -1.0] if result.is_floating_point else [])
    for alpha in alphas:
        if result == torch.uint8 and alpha < 0:
            continue
        a, b = make(VECTORS), make(VECTORS, dtype=b_dtype)
        same_bits(treadle.vector_add(a, b, alpha=alpha), torch.add(a, b, alpha=alpha), alpha)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING + INTEGERS)
def test_add_of_special_values(dtype: torch.dtype, device: str) -> None:
    a, b = (t.to(device) for t in pairs_of(special(dtype), special(dtype)))
    for alpha in (1, 2, -0.5) if dtype.is_floating_point else (1, 2):
        same_bits(treadle.vector_add(a, b, alpha=alpha), torch.add(a, b, alpha=alpha), alpha)
        same_bits(
            treadle.vector_add_(a.clone(), b, alpha=alpha), a.clone().add_(b, alpha=alpha), alpha
        )
    for number in (0, 1, -1, 3, 2**63, float("inf"), float("nan"), 1 / 3):
        same_bits(treadle.vector_add(a, number), torch.add(a, number), number)


@FMA
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_add_is_one_fma(dtype: torch.dtype) -> None:
    """The bits are the same in every layout and length, unlike torch's for half types."""
    make = Make("fma", "cpu", dtype)
    for alpha, (name, layout) in itertools.product((1, 0.37, -3), LAYOUTS.items()):
        rounded = float(torch.tensor(alpha, dtype=dtype))
        for a, b in (
            (make(5, 33, to=layout), make(5, 33, to=layout, by=1e-2)),
            tuple(layout(t[:31].clone()) for t in pairs_of(special(dtype), special(dtype))),
        ):
            expected = fma_in_float32(a, b, rounded).to(dtype)
            ours = treadle.vector_add(a, b, alpha=alpha)
            assert not differing(ours, expected).any(), (name, alpha)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *INTEGERS])
def test_add_in_every_layout(dtype: torch.dtype, device: str) -> None:
    make = Make("layouts", device, dtype)
    for first, second in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
        a, b = make(13, 37, to=first), make(13, 37, to=second)
        same_bits(treadle.vector_add(a, b, alpha=3), torch.add(a, b, alpha=3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(37, 70), (70, 37), (3, 18, 33), (2, 3, 40)])
def test_add_of_two_dtypes_in_every_layout(shape: tuple[int, ...], device: str) -> None:
    """Covers rows that end within a vector, partial tiles, and repeated rows and columns."""
    pairs = [
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.int32),
        (torch.float64, torch.uint8),
        (torch.bfloat16, torch.bfloat16),
        (torch.int64, torch.bool),
        (torch.int16, torch.int16),
    ]
    for a_dtype, b_dtype in pairs:
        make = Make("two dtypes", device, a_dtype)
        for first, second in itertools.product(LAYOUTS.values(), LAYOUTS.values()):
            a, b = make(*shape, to=first), make(*shape, dtype=b_dtype, to=second)
            what = (a_dtype, b_dtype, first.__name__, second.__name__)
            same_bits(treadle.vector_add(a, b), torch.add(a, b), what)
            for part in (b[..., :1], b[..., :1, :], b[..., :1, :1]):
                same_bits(treadle.vector_add(a, part), torch.add(a, part), what)
            out = torch.empty_like(treadle.vector_add(a, b)).mT.contiguous().mT
            treadle.vector_add(a, b, out=out)
            same_bits(out.contiguous(), torch.add(a, b).contiguous(), what)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale(dtype: torch.dtype, device: str) -> None:
    make = Make("scale", device, dtype)
    values = [make(5, 67, to=layout) for layout in LAYOUTS.values()]
    if dtype != torch.bool:
        values.append(special(dtype).repeat(8).to(device))
    factors = [0, 1, -1, 3, 255, 2**31, 2**62, 2**63, 0.37, -1e-3, 1e30, 1 / 3, -0.0]
    factors += [float("inf"), float("nan"), 5e-324]
    for x, factor in itertools.product(values, factors):
        if dtype == torch.bool and factor == 2**63:
            continue  # torch has no such promotion
        expected = torch.mul(x, factor)
        same_bits(treadle.scale(x, factor), expected, factor)
        same_bits(treadle.scale(x, factor, out=torch.empty_like(expected)), expected, factor)
        if dtype == expected.dtype:
            same_bits(treadle.scale_(x.clone(), factor), x.clone().mul_(factor), factor)


def test_scale_of_bool_by_bool_is_refused_and_by_a_number_not() -> None:
    x = torch.tensor([True, False])
    same_bits(treadle.scale(x, 3), x * 3)
    same_bits(treadle.scale(x, 0.5), x * 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_product_that_is_rounded_too_is_noticed(dtype: torch.dtype) -> None:
    make = Make("planted", "cpu", dtype)
    a, b = make(4096), make(4096)
    rounded = float(torch.tensor(0.37, dtype=dtype))
    once = fma_in_float32(a, b, rounded).to(dtype)
    twice = (a.float() + (b.float() * rounded).to(dtype).float()).to(dtype)
    assert differing(twice, once).any()
    with pytest.raises(AssertionError, match="differ"):
        same_bits(twice, once)


def test_the_emulated_fma_rounds_once() -> None:
    """Compares with integer arithmetic, for sums that only the product's last bit keeps from being
    ties."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(1, 2**24, (2000,), generator=generator) for _ in range(2))
    alpha = 2**-13 + 2**-36
    for x, y, ours in zip(
        a.tolist(),
        b.tolist(),
        fma_in_float32(a.float() * 2**24, b.float(), alpha).tolist(),
        strict=True,
    ):
        # alpha is (2^23 + 1) 2^-36, which is a float32.
        exact = (x << 60) + y * (2**23 + 1)  # in units of 2^-36
        shift = exact.bit_length() - 24
        low, half = exact & ((1 << shift) - 1), 1 << (shift - 1)
        mantissa = exact >> shift
        mantissa += low > half or (low == half and mantissa % 2)
        assert ours == float(mantissa) * 2.0 ** (shift - 36)


@pytest.mark.parametrize("b", [2, -300, 2.7, 0.1, True])
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_into_out(dtype: torch.dtype, b: float, device: str) -> None:
    """A number keeps its precision and does not change the result's dtype, even if `out` is
    given."""
    a = (torch.randn(64, generator=torch.Generator().manual_seed(0)) * 20).to(device, dtype)
    expected = torch.add(a, b, alpha=2)
    out = torch.empty_like(expected)
    same_bits(treadle.vector_add(a, b, alpha=2, out=out), expected)
