"""The bits of sine, cosine and their backward ops do not depend on neighbouring elements. Except in
float64, they are also the same on CUDA and on the CPU, with every instruction set.

Both devices use different code for small and large magnitudes. The CPU chooses the code for 512
numbers at a time, and CUDA for the vectors of a warp, which have at most 256 numbers. The bits of
an element must not depend on the code that its neighbours need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import treadle
from tests.elementwise.waves import (
    EACH_WAVE,
    OPS_OF,
    WAVES,
    Function,
    both_signs,
    doubles,
    every_half,
    float_pieces,
    floats,
    hard_floats,
)
from tests.support import installed
from tests.support.compare import differing
from tests.support.inputs import DEVICES, FLOATING, GPU, HALVES, Make

INF, NAN, LARGEST = float("inf"), float("nan"), 3e38
# Each number is tested next to each of these groups of neighbours. Their code path differs from
# that of all, some or none of the numbers. At 3, bfloat16 may use either path.
COMPANIES = ([LARGEST], [-LARGEST, 0.5], [0.5], [3.0], [NAN], [INF, 0.0], [LARGEST, 3.0])
SAME_BITS = (torch.float32, *HALVES)  # dtypes with one formula on all devices
BACKWARD = {name: getattr(torch.ops.treadle, f"{name}_backward") for name in WAVES}


def by_magnitude(dtype: torch.dtype) -> Tensor:
    """Numbers sorted by magnitude, so that a whole warp uses the same path."""
    if dtype in HALVES:
        return every_half(dtype)
    if dtype == torch.float32:
        return floats(0, 2**14, 2**18)
    return both_signs(doubles(2**13).abs().sort().values)


def placed(x: Tensor, company: Tensor, columns: int) -> Tensor:
    """Returns one row for each number of x, which is surrounded by `company` and is at a different
    position in each row."""
    rows = company.repeat(len(x), columns // len(company))
    place = torch.arange(len(x), device=x.device) * 37 % columns
    return rows.scatter_(1, place.unsqueeze(1), x.unsqueeze(1))


def depends_on_company(function: Function, x: Tensor) -> list[list[float]]:
    columns = 256 if x.is_cuda else 64
    most = torch.finfo(x.dtype).max
    found = []
    for company in COMPANIES:
        able = [max(-most, min(v, most)) if -INF < v < INF else v for v in company]
        beside = torch.tensor(able, dtype=x.dtype, device=x.device)
        among_equals = torch.cat([function(number.repeat(512))[:1] for number in beside])
        expected = placed(function(x), among_equals, columns)
        if bool(differing(function(placed(x, beside, columns)), expected).any()):
            found.append(company)
    return found


@EACH_WAVE
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_any_company(name: str, dtype: torch.dtype, device: str) -> None:
    x = by_magnitude(dtype).to(device)
    for function in OPS_OF[name]:
        assert depends_on_company(function, x) == []


def test_a_result_that_depends_on_company_is_noticed() -> None:
    def spoilt(x: Tensor) -> Tensor:
        """A wrong sine: in rows that contain a large number, results of numbers from 2 to 9 are one
        bit off."""
        large = x.abs().amax(-1, keepdim=True) > 1e30
        y = treadle.sine(x)
        return torch.where(large & (x > 2) & (x < 9), torch.nextafter(y, y + 1), y)

    x = torch.linspace(0.0, 8.0, 512)
    assert depends_on_company(treadle.sine, x) == []
    assert depends_on_company(spoilt, x)


def same_on_cuda(function: Function, *cuda: Tensor) -> None:
    expected = function(*(t.cpu() for t in cuda)).cuda()
    different = differing(function(*cuda), expected)
    if bool(different.any()):
        at = int(different.nonzero()[0])
        values = [t[at].item() for t in cuda]
        raise AssertionError(f"{int(different.sum())} differ, the first for {values}")


def grads(x: Tensor) -> Iterator[Tensor]:
    make = Make("grads", "cpu", x.dtype)
    yield torch.ones_like(x)
    yield make(x.numel()).to(x.device)
    yield make(x.numel(), by=1e-20).to(x.device)


@GPU
@EACH_WAVE
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_the_same_on_cuda(name: str, dtype: torch.dtype) -> None:
    x = every_half(dtype, "cuda")
    mixed = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).cuda()]
    for numbers in (x, mixed):
        same_on_cuda(WAVES[name][0], numbers)
        for grad in grads(numbers):
            same_on_cuda(BACKWARD[name], grad, numbers)


@GPU
@EACH_WAVE
def test_floats_are_the_same_on_cuda(name: str) -> None:
    for x in float_pieces(2**28, 2**24, "cuda"):
        same_on_cuda(WAVES[name][0], x)
    for x in (*float_pieces(2**23, 2**20, "cuda"), hard_floats().cuda()):
        mixed = x[torch.randperm(len(x), device="cuda")]
        same_on_cuda(WAVES[name][0], mixed)
        for grad in grads(mixed):
            same_on_cuda(BACKWARD[name], grad, mixed)


PROGRAM = """
import json
from tests.elementwise.test_sine_bits import hashes
print(json.dumps(hashes()))
"""


def hashes() -> dict[str, str]:
    """Hashes of the bits of every result, in which all NaNs are equal. Small instruction sets need
    30 ns per number, so only some of the floats are tested."""
    found = {}
    for dtype in SAME_BITS:
        x = every_half(dtype)
        if dtype == torch.float32:
            x = torch.cat(
                [floats(0, 2**18, 2**14), hard_floats(), Make("isa", "cpu", dtype)(2**16, by=30)]
            )
        for name in WAVES:
            results = [WAVES[name][0](x), *(BACKWARD[name](grad, x) for grad in grads(x))]
            bytes_ = torch.stack([t.masked_fill(t.isnan(), NAN) for t in results])
            digest = hashlib.sha256(bytes_.view(torch.uint8).numpy().tobytes())
            found[f"{name} of {dtype}"] = digest.hexdigest()
    return found


@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_any_instruction_set(isa: str) -> None:
    done = installed.held_to(isa, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == hashes()
