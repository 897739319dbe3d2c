"""Our ops follow torch's rules for inference mode, version counters, symbolic numbers and huge
tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.compare import attempt, same_bits
from tests.support.forms import INPLACE, NEW, OUT
from tests.support.inputs import DEVICES, FLOATING, GPU, INTEGERS

Function = Callable[..., Any]

Pair = tuple[Function, Function]

# For each name: our function and torch's, which write into their first argument.
WRITES: dict[str, Pair] = {
    **{
        name: (
            lambda x, form=form: form.inplace(x, torch.ones_like(x)),
            lambda x, form=form: form.torch_inplace(x, torch.ones_like(x)),
        )
        for name, form in INPLACE.items()
    },
    **{
        f"{name} out=": (
            lambda x, form=form: form.out(torch.ones_like(x), torch.ones_like(x), x),
            lambda x, form=form: form.torch_out(torch.ones_like(x), torch.ones_like(x), x),
        )
        for name, form in OUT.items()
    },
}
RESULTS: dict[str, Pair] = {
    name: (lambda x, form=form: form.new(x, x), lambda x, form=form: form.torch_new(x, x))
    for name, form in NEW.items()
}


def cell(device: str, **options: Any) -> list[Tensor]:
    """Returns input, weights, bias, old_h and old_cell."""
    torch.manual_seed(0)
    shapes = [(2, 3), (12, 7), (12,), (2, 4), (2, 4)]
    return [torch.randn(shape, device=device, **options) for shape in shapes]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_versions_count_writes(mode: Function, name: str, device: str) -> None:
    for function in WRITES[name]:
        x = torch.zeros(3, device=device)
        view = x[1:]
        with mode():
            function(x)
            assert (x._version, view._version) == (1, 1)
            function(view)
        assert (x._version, view._version) == (2, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_what_backward_needs_is_noticed(name: str, device: str) -> None:
    for function, user in zip(WRITES[name], (treadle.sine, torch.sin), strict=True):
        leaf = torch.ones(3, device=device, requires_grad=True)
        saved = leaf * 1
        y = user(saved)
        with torch.no_grad():
            function(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("position", range(6))
def test_a_write_to_what_the_cell_saved_is_noticed(position: int, device: str) -> None:
    """The cell saves its five arguments, and new_cell because backward needs its tanh."""
    arguments = [t * 1 for t in cell(device, requires_grad=True)]
    new_h, new_cell = treadle.lltm_cell(*arguments)
    with torch.no_grad():
        [*arguments, new_cell][position].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward([new_h, new_cell], [torch.ones_like(new_h)] * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_new_h_may_be_overwritten(device: str) -> None:
    """No derivative reads new_h, so it may be updated in place."""
    arguments = cell(device, requires_grad=True)
    new_h, new_cell = treadle.lltm_cell(*arguments)
    torch.autograd.backward([new_h.mul_(2), new_cell], [torch.ones_like(new_h)] * 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
def test_writes_and_leaves(name: str, device: str) -> None:
    """Our ops raise like torch's for a leaf that requires grad, its views, and a view from
    unbind."""

    def leaf() -> Tensor:
        return torch.zeros(2, 3, device=device, requires_grad=True)

    makers: list[Callable[[], Tensor]] = [
        leaf,
        lambda: leaf()[0],
        lambda: leaf().clone().unbind()[0],
        lambda: leaf().clone()[0],
        lambda: leaf().detach(),
    ]
    for make in makers:
        outcomes = [attempt(lambda: f(make()))[1] for f in WRITES[name]]  # noqa: B023
        assert [type(e) for e in outcomes[:1]] == [type(e) for e in outcomes[1:]], outcomes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RESULTS)
def test_inference_mode(name: str, device: str) -> None:
    """Inside inference mode the result is an inference tensor. Outside, our ops raise where
    torch raises."""
    ours, theirs = RESULTS[name]
    normal = torch.randn(3, device=device, requires_grad=True)
    with torch.inference_mode():
        inside = torch.randn(3, device=device)
        for x in (normal, inside):
            y, expected = ours(x), theirs(x)
            assert (y.is_inference(), y.requires_grad) == (True, False)
            torch.testing.assert_close(y, expected)
    assert not ours(normal.detach()).is_inference()
    for x in (inside, normal):
        found = [attempt(lambda: f(x)) for f in (ours, theirs)]  # noqa: B023
        assert type(found[0][1]) is type(found[1][1])
        if found[1][1] is None:
            flags = [(y.is_inference(), y.requires_grad) for y, _ in found]
            assert flags[0] == flags[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WRITES)
def test_writes_into_inference_tensors(name: str, device: str) -> None:
    for inside in (True, False):
        found = []
        for function in WRITES[name]:
            with torch.inference_mode():
                x = torch.zeros(3, device=device)
            with torch.inference_mode(inside):
                found.append((attempt(lambda: function(x) is None), x.clone()))  # noqa: B023
        (ours, mine), (theirs, yours) = found
        assert type(ours[1]) is type(theirs[1])
        torch.testing.assert_close(mine, yours)


@pytest.mark.parametrize("device", DEVICES)
def test_inference_tensors_in_the_cell(device: str) -> None:
    arguments = cell(device)
    expected = treadle.lltm_cell(*arguments)
    with torch.inference_mode():
        inside = [t.clone() for t in arguments]
        for ours, plain in zip(treadle.lltm_cell(*inside), expected, strict=True):
            assert ours.is_inference()
            same_bits(ours, plain)
    arguments[1].requires_grad_()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        treadle.lltm_cell(inside[0], *arguments[1:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("fresh_compile")
def test_numbers_that_are_symbols(device: str) -> None:
    """Numbers that are computed from sizes are symbolic integers and floats in a compiled graph."""

    def step(x: Tensor, b: Tensor) -> Tensor:
        n = x.shape[0]
        y = treadle.vector_add(x, b, alpha=n)
        y = treadle.vector_add(treadle.scale(y, 1 / n), n + 0.5, alpha=2)
        treadle.scale_(y, n)
        return treadle.vector_add_(y, b, alpha=1 / n)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (3, 5, 8):
        x = torch.randn(n, 4, device=device, requires_grad=True)
        b = torch.randn(4, device=device, requires_grad=True)
        ours, plain = compiled(x, b), step(x, b)
        same_bits(ours, plain)
        weight = torch.randn_like(plain)
        for mine, yours in zip(
            torch.autograd.grad(ours, (x, b), weight),
            torch.autograd.grad(plain, (x, b), weight),
            strict=True,
        ):
            torch.testing.assert_close(mine, yours)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING + INTEGERS)
def test_nothing_around_a_result_is_written(dtype: torch.dtype, device: str) -> None:
    """Writes results inside a larger buffer, of every length up to a few vectors and of lengths
    near a block's."""
    integers = not dtype.is_floating_point
    forms = [form for form in OUT.values() if form.op.keeps_integers or not integers]
    for size in (*range(70), *range(505, 520)):
        for begin in (16, 17):
            x = torch.arange(size, device=device).to(dtype)
            for form in forms:
                memory = torch.full((size + 64,), 77, dtype=dtype, device=device)
                form.out(x, x, memory[begin : begin + size])
                around = torch.cat([memory[:begin], memory[begin + size :]])
                assert bool((around == 77).all()), (size, begin)


def free_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def windows(size: int) -> list[slice]:
    """Slices around the limits of 32-bit indices."""
    marks = [0, 2**31, 2**32, size]
    return [slice(max(m - 300, 0), min(m + 300, size)) for m in marks if m <= size]


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("much_memory")
@pytest.mark.parametrize("device", DEVICES)
def test_more_elements_than_32_bits_count(device: str) -> None:
    """Runs in-place ops on more than 2^31 elements of one byte."""
    if free_memory(device) < 4 << 30:
        pytest.skip("needs 4 GiB of free memory")
    size = 2**31 + 1000
    x = torch.full((1,), 3, dtype=torch.int8, device=device).repeat(size)
    b = torch.tensor([2], dtype=torch.int8, device=device).expand(size)
    treadle.vector_add_(treadle.scale_(x, 5), b, alpha=4)
    for where in windows(size):
        assert bool((x[where] == 23).all()), where


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("much_memory")
@GPU
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("layout", ["dense", "gaps", "rows"])
@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 1, 2**32 + 2_000_000])
def test_more_elements_than_32_bits_count_in_floats(size: int, layout: str, device: str) -> None:
    if free_memory(device) < 8 * size:
        pytest.skip("needs 34 GB of free GPU memory")
    row = torch.arange(1000, dtype=torch.float16, device=device)
    x = row.repeat(size // 1000 + 1)[:size]
    if layout == "gaps":
        x = x[: size // 2 * 2].view(-1, 2)[:, 0]
    if layout == "rows":
        x = x[: size // 1003 * 1003].view(-1, 1003)[:, :1001]
    for form in NEW.values():
        if form.reads_y:
            continue  # needs three tensors of this size
        y = form.new(x, x)
        assert y.shape == x.shape
        step = 1 if x.dim() == 1 else 1001
        for where in windows(x.numel()):
            part = slice(where.start // step, -(-where.stop // step))
            expected = form.torch_new(x[part], x[part])
            torch.testing.assert_close(y[part], expected, rtol=1e-3, atol=1e-3)
        del y
