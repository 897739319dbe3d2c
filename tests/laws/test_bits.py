"""Results have the same bits in a second call, on any stream, at any alignment, with any number of
threads and in memory filled with NaN. Those of add and scale also have the same bits with any
instruction set."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import CELLS, layer_arguments
from tests.support import layouts
from tests.support.cases import DEVICES, ELEMENTWISE, FLOATING, GPU, INTEGERS, OPS, each_case
from tests.support.forms import FORMS
from tests.support.inputs import Call, Case, Make, Op, outputs
from tests.support.rule import gradients

EVERY = FLOATING + INTEGERS
BIG = 70_003  # elements, more than the grain size of the thread pool


def everything(op: Op, call: Call) -> list[Tensor]:
    """Returns all results and gradients of a call."""
    leaves = op.leaves(call)
    if not leaves:
        return list(outputs(call.run(op.function)))
    forward, backward = gradients(op.function, call, leaves, None)
    return [*forward, *backward]


def same(actual: list[Tensor], expected: list[Tensor], what: object) -> None:
    for n, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        x, y = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))
        others = (x != y).nonzero().view(-1)
        where = f"{len(others)} of {len(x)} bytes: {others[:4].tolist()}, {others[-4:].tolist()}"
        assert not len(others), f"{what}: result {n} has other bits, {where}"


def quarters(t: Tensor) -> Tensor:
    """Rounds to quarters, so that sums of products are exact in any order."""
    return (t * 4).round() / 4


def big_calls(device: str, dtype: torch.dtype) -> dict[str, tuple[Op, Call]]:
    make = Make("big", device, dtype)
    found = {
        name: (form.op, Call((make(BIG, by=9), *(rest := form.rest(make(BIG))).args), rest.kwargs))
        for name, form in FORMS.items()
        if form.variant != "row"  # ATen computes the gradient of a row, which is a sum
    }
    for sizes in ((129, 33, 131), (9001, 2, 3)):
        call = cell_arguments(make, sizes)
        found[f"lltm_cell {sizes}"] = OPS["lltm_cell"], call.map(quarters)
    # These sizes are so large that the CPU uses three threads.
    for cell, lengths in itertools.product(CELLS, (None, (15, *[9] * 40, *[6] * 23))):
        call = layer_arguments(make, (9, 64, 33, 65), cell=cell, directions=2, lengths=lengths)
        name = f"recurrent_layer {cell}"
        found[f"{name}, {lengths}"] = OPS[name], call.map(quarters)
    return found


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets torch's deterministic mode; `fill` sets whether that mode fills new memory."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    fill(before)


def fill(on: bool) -> None:
    """Sets whether torch fills new memory with NaN or the largest integer."""
    torch.utils.deterministic.fill_uninitialized_memory = on


def test_the_fill_is_on(deterministic: None) -> None:
    fill(True)
    assert torch.empty(1000).isnan().all()
    assert torch.empty(10, dtype=torch.int32).eq(2**31 - 1).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "case", "dtype"), each_case(dtypes=EVERY))
def test_twice_and_in_memory_full_of_nan(
    op: Op, case: Case, dtype: torch.dtype, device: str, deterministic: None
) -> None:
    call = case.call(device, dtype)
    fill(False)
    expected = everything(op, call)
    same(everything(op, call), expected, "twice")
    fill(True)
    same(everything(op, call), expected, "filled with NaN")


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.has_out])
def test_out_in_memory_full_of_nan(name: str, deterministic: None) -> None:
    op = OPS[name]
    fill(True)
    for case in op.cases:
        for dtype in case.dtypes:
            call = case.call("cpu", dtype)
            expected = call.run(op.function)
            if any(not isinstance(a, Tensor) for a in call.args[1:2]) and name == "vector_add":
                continue
            out = torch.empty(expected.shape, dtype=expected.dtype)
            call.run(lambda *a, out=out, **k: op.function(*a, out=out, **k))
            same([out], [expected.contiguous()], case.id)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_any_alignment(name: str, dtype: torch.dtype, device: str) -> None:
    """The bits do not depend on the offsets of arguments from an aligned address."""
    op = OPS[name]
    if dtype not in op.cases[0].dtypes:
        return
    call = op.like_first_case(Make("alignment", device, dtype), 519)
    expected = call.run(op.function)
    for first in range(9):
        for length in (1, 17, 255, 500):
            moved = call.map(
                lambda t, n=length, i=first: shifted(t[3 : 3 + n] if len(t) == 519 else t, i)
            )
            same([moved.run(op.function)], [expected[3 : 3 + length]], (first, length))
            apart = moved.with_args({0: shifted(call.args[0][3 : 3 + length], 8 - first)})
            same([apart.run(op.function)], [expected[3 : 3 + length]], (first, length, "apart"))


def shifted(t: Tensor, by: int) -> Tensor:
    """A copy that begins `by` elements after an aligned address."""
    buffer = t.new_zeros(t.numel() + by)
    buffer[by:].copy_(t)
    return buffer[by:]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", EVERY)
def test_any_layout(dtype: torch.dtype, device: str) -> None:
    make = Make("strides", device, dtype)
    x, y = make(37, 41), make(37, 41)
    for layout in layouts.LAYOUTS.values():
        for ours in (
            lambda a, b: treadle.vector_add(a, b, alpha=3),
            lambda a, b: treadle.scale(a, 3),
            lambda a, b: treadle.sine(a),
            lambda a, b: treadle.cosine(a),
        ):
            same([ours(layout(x), y)], [ours(x, y)], layout.__name__)


@pytest.mark.parametrize("dtype", FLOATING)
def test_any_number_of_threads(dtype: torch.dtype) -> None:
    before = torch.get_num_threads()
    try:
        for name, (op, call) in big_calls("cpu", dtype).items():
            found = []
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                new = everything(op, call)
                # Drops gradients that ATen sums, whose bits may depend on the number of threads.
                if op.name == "lltm_cell":
                    new = [*new[:2], new[-1]]
                elif op.is_layer:
                    new = [*new[:3], *new[4:6]]
                found.append(new)
            for other in found[1:]:
                same(other, found[0], name)
    finally:
        torch.set_num_threads(before)


@GPU
@pytest.mark.parametrize("dtype", FLOATING)
def test_any_stream(dtype: torch.dtype) -> None:
    for name, (op, call) in big_calls("cuda", dtype).items():
        expected = everything(op, call)
        torch.cuda.synchronize()
        for _ in range(3):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                # Delays the inputs, so that an op on the wrong stream would read them too early.
                late = call.map(lambda t: delayed(t))
                found = everything(op, late)
            stream.synchronize()
            same(found, expected, name)


def delayed(t: Tensor) -> Tensor:
    copy = torch.full_like(t, 7)
    torch.cuda._sleep(2_000_000)
    return copy.copy_(t)


PROGRAM = """
from tests.laws.test_bits import hash_of_everything
print(hash_of_everything())
"""


def hash_of_everything() -> str:
    """A hash of the results of add and scale in every dtype and layout."""
    digest = hashlib.sha256()
    for dtype in EVERY:
        make = Make("isa", "cpu", dtype)
        for layout in layouts.LAYOUTS.values():
            x, y = make(33, 65, to=layout), make(33, 65)
            results = [treadle.scale(x, 3), treadle.vector_add(x, y, alpha=2)]
            if dtype.is_floating_point:
                results += [treadle.scale(x, 0.37), treadle.vector_add(x, y, alpha=0.37)]
            for result in results:
                digest.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs AVX2"
)
def test_any_instruction_set_with_fma() -> None:
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(Path(treadle.__file__).parents[1]), str(root)])
    found = {
        capability: subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "TREADLE_CPU_CAPABILITY": capability, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for capability in ("avx2", "avx512")
    }
    assert found["avx2"] == found["avx512"] == hash_of_everything()


def test_another_bit_is_noticed() -> None:
    x = torch.ones(100)
    for planted in (torch.nextafter(x, 2 * x), -x * 0 + x * 0):
        with pytest.raises(AssertionError, match="other bits"):
            same([planted], [x], "planted")
    zero: Any = torch.zeros(3)
    with pytest.raises(AssertionError, match="other bits"):
        same([-zero], [zero], "sign of zero")
