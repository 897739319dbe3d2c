"""The cases of test_dtensor.py. Two processes run all of them, each with its part of every tensor.

``python -m tests.interop.dtensor_cases FOLDER RANK`` writes the error of each case, if any, to a
JSON file in FOLDER.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_module
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import treadle
from tests.interop import dtensor_jet_cases, dtensor_snake_cases  # noqa: F401  # add cases
from tests.interop.with_processes import (
    PROCESSES,
    SUM,
    Given,
    R,
    add_equal,
    case,
    check,
    equal,
    placed,
    run_all,
    s,
    tensors,
)
from treadle.distributed import ColwiseParallel

# ---- elementwise: of the 5 rows, one process has 3 and the other process has 2

X = (5, 3)
for part in (s(0), s(1), R):
    add_equal(f"sine {part}", treadle.sine, [(X, part)], [part], [part])
    add_equal(f"scale {part}", lambda x: treadle.scale(x, 2.5), [(X, part)], [part], [part])
add_equal("sine of one row", treadle.sine, [((1, 3), s(0))], [s(0)], [s(0)])
add_equal("add", treadle.vector_add, [(X, s(0)), (X, s(0))], [s(0)], [s(0), s(0)])
add_equal("add a row", treadle.vector_add, [(X, s(0)), ((3,), R)], [s(0)], [s(0), SUM])
add_equal("add a column", treadle.vector_add, [(X, s(0)), ((5, 1), s(0))], [s(0)], [s(0), s(0)])
add_equal("add what is whole", treadle.vector_add, [(X, s(1)), (X, R)], [s(1)], [s(1), s(1)])
add_equal("add number", lambda x: treadle.vector_add(x, 2), [(X, s(0))], [s(0)], [s(0)])
add_equal(
    "add on a grid",
    treadle.vector_add,
    [(X, (s(0), s(1))), ((3,), (R, s(0)))],
    [(s(0), s(1))],
    [(s(0), s(1)), (SUM, s(0))],
    grid=(1, 2),
)


@case("parts of a sum")
def parts_of_a_sum() -> None:
    """Partial sums stay partial if the op is linear; otherwise they are reduced first."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    part = DTensor.from_local(torch.ones(3) * (1 + dist.get_rank()), mesh, [SUM])
    for found, placement, value in (
        (treadle.scale(part, 2), SUM, 6.0),
        (treadle.vector_add(part, part, alpha=2), SUM, 9.0),
        (treadle.vector_add(part, 1), s(0), 4.0),
        (treadle.sine(part), s(0), torch.tensor(3.0).sin().item()),
    ):
        assert found.placements == (placement,)
        torch.testing.assert_close(found.full_tensor(), torch.full((3,), value))


@case("in place")
def in_place() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    (x,) = tensors([X])
    cut = placed(x, s(0), mesh)
    assert treadle.scale_(cut, 3.0) is cut
    treadle.vector_add_(treadle.sine_(cut), placed(x, s(1), mesh))
    assert cut.placements == (s(0),)
    torch.testing.assert_close(cut.full_tensor(), torch.sin(x * 3) + x)


@case("what is refused")
def refused() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    cut = placed(torch.ones(4, 3), s(0), mesh)
    part = DTensor.from_local(torch.ones(4, 3), mesh, [SUM])
    for call, words in (
        (lambda: treadle.vector_add(cut, torch.ones(3)), "b must be a DTensor, because other"),
        (lambda: treadle.sine_(part), "sine_: x must have the placements of the result, got P"),
        (lambda: treadle.sine(cut, out=cut), "sine: out must not be given, got a DTensor"),
    ):
        try:
            call()
        except RuntimeError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no error: {words}")


# ---- sine layers


def sine_linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return treadle.sine_linear(x, w, b, 3.0)


W, B = (4, 3), (4,)
add_equal("sine_linear rows", sine_linear, [(X, s(0)), (W, R), (B, R)], [s(0)], [s(0), SUM, SUM])
add_equal("sine_linear no bias", sine_linear, [(X, s(0)), (W, R)], [s(0)], [s(0), SUM])
add_equal(
    "sine_linear columns", sine_linear, [(X, R), (W, s(0)), (B, s(0))], [s(1)], [SUM, s(0), s(0)]
)
add_equal(
    "sine_linear many",
    sine_linear,
    [((3, 5, 3), s(0)), ((3, 4, 3), s(0)), ((3, 4), s(0))],
    [s(0)],
    [s(0), s(0), s(0)],
)
add_equal(
    "sine_linear rows of many",
    sine_linear,
    [((3, 5, 3), s(1)), ((3, 4, 3), R), ((3, 4), R)],
    [s(1)],
    [s(1), SUM, SUM],
)
add_equal(
    "sine_linear on a grid",
    sine_linear,
    [(X, (s(0), R)), (W, (R, s(0))), (B, (R, s(0)))],
    [(s(0), s(1))],
    [(s(0), SUM), (SUM, s(0)), (SUM, s(0))],
    grid=(2, 1),
)


@case("one gradient after another")
def one_gradient() -> None:
    """Each call gives the requested gradients, whatever gradients the previous call requested."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    x, w = tensors([X, W])
    for wanted in ((0,), (1,), (0, 1)):
        whole = [x.clone(), w.clone()]
        cut = [placed(x, s(0), mesh), placed(w, R, mesh)]
        for leaves, options in ((whole, {}), (cut, {})):
            for i in wanted:
                leaves[i].requires_grad_(**options)
            sine_linear(*leaves).sum().backward()
        for i in wanted:
            torch.testing.assert_close(cut[i].grad.full_tensor(), whole[i].grad)


@case("a loss of a gradient")
def loss_of_gradient() -> None:
    def grads(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, w)]
        y = sine_linear(*leaves).sum()
        (slope,) = torch.autograd.grad(y, leaves[0], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), leaves)

    mesh = init_device_mesh("cpu", (PROCESSES,))
    x, w = tensors([X, W])
    for parts in ((s(0), R), (R, s(0))):
        found = grads(*(placed(t, part, mesh) for t, part in zip((x, w), parts, strict=True)))
        for ours, theirs in zip(found, grads(x, w), strict=True):
            torch.testing.assert_close(ours.full_tensor(), theirs)


@case("column-wise module")
def columns() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    sizes = (3, 6), (6, 4)
    torch.manual_seed(0)
    net, whole = (
        nn.Sequential(*(treadle.nn.SineLinear(*size) for size in sizes), nn.Linear(4, 2)).double()
        for _ in range(2)
    )
    whole.load_state_dict(net.state_dict())
    plan = {"0": ColwiseParallel(), "1": ColwiseParallel(input_layouts=s(-1))}
    parallelize_module(net, mesh, {**plan, "2": RowwiseParallel()})
    (x,) = tensors([X])
    values = [module(x) for module in (net, whole)]
    torch.testing.assert_close(values[0] + 0, values[1])
    for y in values:
        y.square().sum().backward()
    for ours, theirs in zip(net.parameters(), whole.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor) and theirs.grad is not None
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
    assert net[0].weight.placements == (s(0),)
    kept = ColwiseParallel(use_local_output=False, output_layouts=R)
    layer = parallelize_module(treadle.nn.SineLinear(3, 5).double(), mesh, kept)
    assert layer(placed(x, s(0), mesh)).placements == (R,)


@case("compile")
def compiled() -> None:
    run = torch.compile(sine_linear, fullgraph=True, backend="aot_eager")
    equal(run, [(X, s(0)), (W, R)], [s(0)], [s(0), SUM])


# ---- recurrent layers over the batch

STEPS, BATCH, INPUTS, HIDDEN = 3, 5, 2, 4


def layers(cell: str, count: int, directions: int, **options: Any) -> Callable[..., Any]:
    op, states = getattr(treadle, cell), 1 if cell == "gru" else 2

    def run(x: Tensor, *rest: Tensor) -> Any:
        hx = rest[0] if states == 1 else rest[:states]
        flags = (count, 0.0, False, directions == 2, False)
        return op(x, hx, rest[states:], True, *flags, **options)

    return run


def layers_given(cell: str, count: int, directions: int) -> Given:
    gates, biases = {"lstm": (4, 2), "gru": (3, 2), "lltm": (3, 1)}[cell]
    rows = gates * HIDDEN
    given: Given = [((STEPS, BATCH, INPUTS), s(1))]
    given += [((count * directions, BATCH, HIDDEN), s(1))] * (1 if cell == "gru" else 2)
    for layer in range(count):
        width = directions * HIDDEN if layer else INPUTS
        given += [((rows, width), R), ((rows, HIDDEN), R), *[((rows,), R)] * biases] * directions
    return given


for cell, count, directions, recompute in (
    ("lstm", 1, 1, False),
    ("lstm", 2, 2, True),
    ("gru", 1, 2, False),
    ("lltm", 2, 1, True),
):
    given = layers_given(cell, count, directions)
    batch = [part for _, part in given if part == s(1)]
    add_equal(
        f"{cell} {count} {directions}",
        layers(cell, count, directions, recompute=recompute),
        given,
        batch,
        [*batch, *[SUM] * (len(given) - len(batch))],
    )


@case("whole states and cut time")
def moved() -> None:
    """DTensors with placements that the layer does not support are redistributed first."""
    _, *rest = layers_given("lstm", 1, 1)
    given = [((STEPS, BATCH, INPUTS), s(0)), *((shape, R) for shape, _ in rest)]
    run = layers("lstm", 1, 1)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    whole = tensors([shape for shape, _ in given])
    cut = [placed(t, part, mesh) for t, (_, part) in zip(whole, given, strict=True)]
    for ours, theirs in zip(run(*cut), run(*whole), strict=True):
        torch.testing.assert_close(ours.full_tensor(), theirs)


@case("resets")
def resets() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    marks = torch.rand(STEPS, BATCH, generator=torch.Generator().manual_seed(1)) < 0.4
    given = layers_given("gru", 1, 2)
    whole = tensors([shape for shape, _ in given])
    cut = [placed(t, part, mesh) for t, (_, part) in zip(whole, given, strict=True)]
    theirs = layers("gru", 1, 2, reset=marks)(*whole)
    for part in (s(1), R):
        ours = layers("gru", 1, 2, reset=placed(marks, part, mesh))(*cut)
        check(ours, theirs, [s(1), s(1)])


@case("modules")
def modules() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    projected = functools.partial(treadle.nn.LSTM, proj_size=2)
    for make in (treadle.nn.LSTM, treadle.nn.GRU, treadle.nn.LLTM, projected):
        torch.manual_seed(0)
        module, whole = make(INPUTS, HIDDEN).double(), make(INPUTS, HIDDEN).double()
        whole.load_state_dict(module.state_dict())
        distribute_module(module, mesh)
        (x,) = tensors([(STEPS, BATCH, INPUTS)])
        hx = tensors([(1, BATCH, 2), (1, BATCH, HIDDEN)]) if make is projected else None
        cut = hx and tuple(placed(t, s(1), mesh) for t in hx)
        output, wanted = module(placed(x, s(1), mesh), cut)[0], whole(x, hx)[0]
        check([output], [wanted], [s(1)])
        output.square().sum().backward()
        wanted.square().sum().backward()
        for ours, theirs in zip(module.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


ROWS = ((BATCH, HIDDEN), s(0))
CELL: Given = [((BATCH, INPUTS), s(0)), ((3 * HIDDEN, HIDDEN + INPUTS), R), ((3 * HIDDEN,), R)]
CELL += [ROWS, ROWS]
add_equal("lltm_cell", treadle.lltm_cell, CELL, [s(0), s(0)], [s(0), SUM, SUM, s(0), s(0)])


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), int(sys.argv[2]))
