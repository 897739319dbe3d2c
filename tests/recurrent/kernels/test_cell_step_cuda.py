"""treadle's kernels for cell_step, which run on a GPU for few rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.recurrent.kernels.persistent_calls import launches
from tests.recurrent.layer import test_cell_step
from tests.recurrent.layer.test_cell_step import (
    EACH,
    TORCHS,
    Arguments,
    Sizes,
    as_exact_as_torchs,
    gradients,
    leaves_of,
    results,
    step,
    with_grad,
)
from tests.support.inputs import FLOATING, GPU

# The first sizes are multiples of 4, so the kernels read vectors. The other sizes have
# parts of a block of rows, units or columns.
SIZES = (
    (1, 12, 64),
    (9, 8, 36),
    (32, 64, 128),
    (16, 132, 260),
    (16, 5, 7),
    (3, 1, 4),
    (11, 33, 6),
)


def made(cell: str, sizes: Sizes, dtype: torch.dtype, bias: bool = True) -> Arguments:
    """Arguments of a step, with weights as large as in a trained net."""
    torch.manual_seed(0)
    scale = (sizes[1] + sizes[2]) ** -0.5
    return test_cell_step.made(cell, "cuda", dtype, bias, sizes=sizes, scale=scale)


def ran(given: Arguments, cell: str, which: tuple[int, ...] = tuple(range(7))) -> list[Tensor]:
    return results(step, cell, given, which)


def same(found: list[Tensor], expected: list[Tensor], what: object = "") -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), what


@GPU
@EACH
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_by_the_rule(cell: str, sizes: Sizes, dtype: torch.dtype, bias: bool) -> None:
    given = made(cell, sizes, dtype, bias)
    found = as_exact_as_torchs(cell, given)
    with torch.no_grad():
        alone = step(cell, given)
    same(alone, found[: len(alone)])


@GPU
@EACH
def test_launches(cell: str) -> None:
    """A step is one launch, its backward pass two. With more rows, torch's kernels run."""
    for rows, forward, both in ((32, 1, 3), (33, 0, 0)):
        given = made(cell, (rows, 8, 12), torch.float32)
        with torch.no_grad():
            assert len(launches(lambda given=given: step(cell, given))) == forward
        assert len(launches(lambda given=given: ran(given, cell))) == both


@GPU
@EACH
@pytest.mark.parametrize("sizes", [(9, 8, 36), (11, 33, 6)], ids=str)
def test_layouts_do_not_change_the_bits(cell: str, sizes: Sizes) -> None:
    """Arguments that are not aligned, or whose rows or columns are strided."""
    given = made(cell, sizes, torch.float32)
    expected = ran(given, cell)

    def misaligned(t: Tensor) -> Tensor:
        wide = t.new_empty(t.numel() + 1)[1:].view(t.shape)
        return wide.copy_(t)

    def apart(t: Tensor) -> Tensor:
        return t.new_empty(*t.shape[:-1], t.shape[-1] + 3)[..., : t.shape[-1]].copy_(t)

    def transposed(t: Tensor) -> Tensor:
        return t.t().contiguous().t()

    for layout in (misaligned, apart, transposed):
        found = ran([None if t is None else layout(t) for t in given], cell)
        same(found, expected, layout)


@GPU
@EACH
@pytest.mark.parametrize("sizes", [(9, 8, 36), (11, 33, 6)], ids=str)
def test_each_gradient_alone(cell: str, sizes: Sizes) -> None:
    given = made(cell, sizes, torch.float64)
    every = ran(given, cell)
    states = 2 if cell == "lstm" else 1
    places = [n for n, t in enumerate(given) if t is not None]
    # The weights always require grad: otherwise torch's op runs.
    for n in places:
        which = tuple(sorted({n, 3, 4}))
        found = ran(given, cell, which)[states:]
        for at, grad in zip(which, found, strict=True):
            assert torch.equal(grad, every[states + places.index(at)]), (n, at)


@GPU
@EACH
def test_memory_full_of_nan(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels write every element of their results."""
    given = made(cell, (9, 8, 36), torch.bfloat16)
    expected = ran(given, cell)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        assert bool(torch.empty(8, device="cuda").isnan().all())
        found = ran(given, cell)
    finally:
        torch.use_deterministic_algorithms(False)
    same(found, expected)


@GPU
@EACH
def test_a_step_in_a_graph(cell: str) -> None:
    given = made(cell, (16, 8, 36), torch.float32)
    arguments = with_grad(given)
    ran(given, cell)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(cell, arguments)
        found = [*out, *gradients(out, leaves_of(arguments))]
    x = arguments[0]
    assert x is not None
    with torch.no_grad():
        x.add_(1)
    graph.replay()
    given[0] = x.detach()
    same(found, ran(given, cell))


@GPU
@EACH
def test_a_mode_sees_the_backward_pass(cell: str) -> None:
    """A step that ran in treadle's kernels has a backward pass of ATen ops under a mode."""
    given = made(cell, (9, 8, 36), torch.float64)
    expected = ran(given, cell)
    arguments = with_grad(given)
    out = step(cell, arguments)
    with FlopCounterMode(display=False) as counter:
        grads = gradients(out, leaves_of(arguments))
    assert counter.get_total_flops() > 0
    torch.testing.assert_close([*out, *grads], expected, rtol=1e-11, atol=1e-11)


@GPU
@EACH
def test_modules_use_them(cell: str) -> None:
    import treadle

    assert cell in TORCHS
    modules = {"lstm": treadle.nn.LSTMCell, "gru": treadle.nn.GRUCell}
    if cell in modules:
        module = modules[cell](8, 12, device="cuda")
    else:
        module = treadle.nn.RNNCell(8, 12, nonlinearity=cell[4:], device="cuda")
    x = torch.randn(5, 8, device="cuda")
    names = [launch.kernel for launch in launches(lambda: module(x))]
    assert len(names) == 1 and "cell_step_forward" in names[0], names
