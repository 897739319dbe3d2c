"""Tests of nested tensors of layout torch.jagged. Elementwise ops (except snake), the sine layer
and Siren accept them. Results and gradients must equal those of torch's functions or of a dense
batch. All other ops raise an error, which may name an alternative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import linear

import treadle
from tests.support.inputs import DEVICES, Make

OFFSETS = (0, 2, 2, 3, 7)  # one row is empty
Function = Callable[..., Tensor]


def jagged(values: Tensor, offsets: tuple[int, ...] = OFFSETS) -> Tensor:
    return nested_tensor_from_jagged(values, torch.tensor(offsets, device=values.device))


def gradients(function: Function, make: Make, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Calls the function with a jagged input [4, j, 3] and dense parameters. Returns the values of
    the result, and the gradients of all inputs."""
    parameters = [make(7, 3).requires_grad_(), *(make(*s).requires_grad_() for s in shapes)]
    nested = jagged(parameters[0])
    result = function(nested, *parameters[1:])
    assert result.layout == torch.jagged and result.shape[:2] == nested.shape[:2]
    values = result.values()
    grads = torch.autograd.grad((values * make(*values.shape)).sum(), parameters)
    return [values.detach(), *grads]


def in_place(function: Function) -> Function:
    return lambda x, *rest, **options: function(x.clone(), *rest, **options)


# Our function, torch's function, and the shapes of dense parameters.
PAIRS: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "sine": (treadle.sine, torch.sin, ()),
    "sine_": (in_place(treadle.sine_), torch.sin, ()),
    "cosine": (treadle.cosine, torch.cos, ()),
    "cosine_": (in_place(treadle.cosine_), torch.cos, ()),
    "scale": (lambda x: treadle.scale(x, 2.5), lambda x: x * 2.5, ()),
    "scale_": (lambda x: in_place(treadle.scale_)(x, 2.5), lambda x: x * 2.5, ()),
    "scale, 0-dim": (treadle.scale, torch.mul, ((),)),
    "add": (lambda x: treadle.vector_add(x, x, alpha=2), lambda x: x + 2 * x, ()),
    "add number": (lambda x: treadle.vector_add(x, 2), lambda x: x + 2, ()),
    "add number_": (lambda x: in_place(treadle.vector_add_)(x, 2), lambda x: x + 2, ()),
    "add row": (treadle.vector_add, torch.add, ((3,),)),
    "add row_": (in_place(treadle.vector_add_), torch.add, ((3,),)),
    "add to row": (lambda x, b: treadle.vector_add(b, x), torch.add, ((3,),)),
    "add one a sequence": (treadle.vector_add, torch.add, ((4, 1, 3),)),
    "add ones": (treadle.vector_add, torch.add, ((1, 1, 3),)),
    "sine_linear": (
        lambda x, w, b: treadle.sine_linear(x, w, b, 3.0),
        lambda x, w, b: torch.sin(3.0 * linear(x, w, b)),
        ((5, 3), (5,)),
    ),
    "sine_linear, no bias": (
        lambda x, w: treadle.sine_linear(x, w, None, 3.0),
        lambda x, w: torch.sin(3.0 * linear(x, w)),
        ((5, 3),),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PAIRS)
def test_like_torch(name: str, device: str) -> None:
    ours, theirs, shapes = PAIRS[name]
    found = gradients(ours, Make("jagged", device, torch.float64), *shapes)
    wanted = gradients(theirs, Make("jagged", device, torch.float64), *shapes)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["none", "aot_eager"])
@pytest.mark.usefixtures("fresh_compile")
def test_siren(backend: str) -> None:
    """Values and gradients equal those of one dense batch with all rows, compiled or not."""
    torch.manual_seed(0)
    siren = treadle.nn.Siren(3, 8, 1, 2, outermost_linear=True)
    run = siren if backend == "none" else torch.compile(siren, fullgraph=True, backend=backend)
    x = torch.rand(7, 3, requires_grad=True)
    leaves = [x, *siren.parameters()]
    dense, nested = siren(x), run(jagged(x))
    assert torch.equal(nested.values(), dense)
    wanted = torch.autograd.grad(dense.square().sum(), leaves)
    assert all(
        map(torch.equal, torch.autograd.grad(nested.values().square().sum(), leaves), wanted)
    )
    nested = jagged(x.detach())
    with torch.no_grad():
        assert torch.equal(run(nested).values(), dense)
    with torch.inference_mode():
        assert siren(nested).shape == (*nested.shape[:2], 2)


FLAGS: dict[str, dict[str, bool]] = {
    "all": {"hessian_diagonal": True},
    "gradient": {"laplacian": False},
    "values": {"gradient": False, "laplacian": False},
}


@pytest.mark.parametrize("backend", ["none", "aot_eager"])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.usefixtures("fresh_compile")
def test_jets_of_a_siren(flags: dict[str, bool], backend: str) -> None:
    """Every part of the jet has the points' offsets and equals the same part for a dense batch."""
    torch.manual_seed(0)
    siren = treadle.nn.Siren(3, 8, 1, 1, outermost_linear=True)
    x = torch.rand(7, 3, requires_grad=True)

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for part in siren.jet(x, **flags) if part is not None)

    run = parts
    if backend != "none":
        run = torch.compile(parts, fullgraph=True, backend=backend)
    nested, dense = jagged(x), parts(x)
    found = run(nested)
    for one, other in zip(found, dense, strict=True):
        assert one.shape == (*nested.shape[:2], *other.shape[1:])
        torch.testing.assert_close(one.values(), other)
        assert (one.offsets() == nested.offsets()).all()  # type: ignore[attr-defined]
    leaves = [x, *siren.parameters()]
    grads = [
        torch.autograd.grad(
            sum((k + t.square()).sum() for k, t in enumerate(each)), leaves, allow_unused=True
        )
        for each in ([t.values() for t in found], dense)
    ]
    torch.testing.assert_close(*grads)


def test_more_dimensions_and_holes() -> None:
    x = torch.rand(7, 2, 3)
    nested = treadle.sine_linear(jagged(x), torch.ones(4, 3), None, 2.0)
    assert torch.equal(nested.values(), treadle.sine_linear(x, torch.ones(4, 3), None, 2.0))
    holes = nested_tensor_from_jagged(x, torch.tensor([0, 3, 5, 7]), torch.tensor([2, 1, 2]))
    sines = treadle.sine(holes)
    assert torch.equal(sines.lengths(), holes.lengths())  # type: ignore[attr-defined]
    turned = jagged(torch.rand(7, 3)).transpose(1, 2)
    assert treadle.cosine(turned).shape == turned.shape


def wrong(message: str, call: Callable[[Tensor], Any]) -> Any:
    return pytest.param(call, message, id=message.partition(",")[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        wrong(
            "vector_add: jagged tensors must have the same offsets, got shape",
            lambda x: treadle.vector_add(x, jagged(x.values(), (0, 1, 2, 3, 7))),
        ),
        wrong(
            "vector_add_: a must be jagged if b is, got a dense tensor",
            lambda x: treadle.vector_add_(torch.ones(3), x),
        ),
        wrong(
            "sine_linear: input must be contiguous and have shape [N, j, ..., I] if jagged, got",
            lambda x: treadle.sine_linear(x.transpose(1, 2), torch.ones(4, 3), None, 3.0),
        ),
        wrong(
            "sine: out must not be given, got a nested tensor of layout torch.jagged",
            lambda x: treadle.sine(x, out=torch.empty_like(x)),
        ),
        wrong(
            "snake: tensors must be dense, got a nested tensor of layout torch.jagged",
            lambda x: treadle.snake(x, torch.ones(3)),
        ),
        wrong(
            "sine_linear_jet: tensors must be dense, got a nested tensor of layout torch.jagged",
            lambda x: treadle.sine_linear_jet(x, torch.ones(4, 3), None, 3.0, 2),
        ),
        wrong(
            "Jet.of: x must be dense, got a nested tensor of layout torch.jagged; for a jagged "
            "tensor, pass x.values()",
            treadle.Jet.of,
        ),
        wrong(
            "Siren.jet: x must be contiguous and have shape [N, j, ..., I] if jagged, got shape",
            lambda x: treadle.nn.Siren(7, 4, 1, 1).jet(
                nested_tensor_from_jagged(torch.rand(7, 7), x.offsets(), torch.ones(4))
            ),
        ),
        wrong(
            "lltm_cell: tensors must be dense, got a nested tensor of layout torch.jagged",
            lambda x: treadle.lltm_cell(
                x, torch.ones(6, 5), None, torch.ones(4, 2), torch.ones(4, 2)
            ),
        ),
        wrong(
            "lstm: input must be dense, got a nested tensor of layout torch.jagged; pad it and",
            lambda x: treadle.lstm(x, (), (), True, 1, 0.0, True, False, True),
        ),
        wrong(
            "GRU: input must be dense, got a nested tensor of layout torch.jagged; pass "
            "torch.nested.to_padded_tensor(input, 0.0) and lengths=, which is "
            "input.offsets().diff() for a jagged tensor",
            lambda x: treadle.nn.GRU(3, 4)(x),
        ),
        wrong(
            "LLTMCell: input must be dense, got a nested tensor of layout torch.jagged",
            lambda x: treadle.nn.LLTMCell(3, 4)(x),
        ),
    ],
)
def test_what_is_refused(call: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        call(jagged(torch.rand(7, 3)))
    assert str(raised.value).startswith(message)


# The keys are the functions' names in error texts.
STRIDED: dict[str, Callable[[Tensor], Any]] = {
    "sine": treadle.sine,
    "cosine_": treadle.cosine_,
    "scale": lambda x: treadle.scale(x, 2),
    "scale_": lambda x: treadle.scale_(x, np.float32(2)),
    "vector_add": lambda x: treadle.vector_add(x, x),
    "vector_add_": lambda x: treadle.vector_add_(x, 2),
    "sine_linear": lambda x: treadle.sine_linear(x, torch.ones(4, 3), None, 2.0),
    "SineLinear": treadle.nn.SineLinear(3, 4),
    "Siren": treadle.nn.Siren(3, 4, 1, 2),
}
DENSE: dict[str, Callable[[Tensor], Any]] = {
    "lltm_cell": lambda x: treadle.lltm_cell(
        x, torch.ones(6, 5), None, torch.ones(4, 2), torch.ones(4, 2)
    ),
    "lstm": lambda x: treadle.lstm(x, (), (), True, 1, 0.0, True, False, True),
    "LLTMCell": treadle.nn.LLTMCell(3, 4),
    "LSTM": treadle.nn.LSTM(3, 4),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_other_layout_is_named(device: str) -> None:
    """The default layout of torch.nested.nested_tensor is refused. Without this check torch would
    raise internal errors."""
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], device=device)
    got = "got a nested tensor of layout torch.strided"
    for name, call in (STRIDED | DENSE).items():
        rule = " or of layout torch.jagged" if name in STRIDED else ""
        argument = "tensors" if name.islower() and name != "lstm" else "input"
        with pytest.raises(NotImplementedError) as raised:
            call(nested.to("cpu") if isinstance(call, torch.nn.Module) else nested)
        assert str(raised.value).startswith(f"{name}: {argument} must be dense{rule}, {got}")


def test_padded_as_the_message_says() -> None:
    x = torch.rand(7, 3, requires_grad=True)
    layer = treadle.nn.GRU(3, 4, batch_first=True)
    nested = jagged(x)
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    output, h = layer(padded, lengths=nested.offsets().diff())
    alone = layer(x[3:])
    torch.testing.assert_close((output[3, :4], h[:, 3]), (alone[0], alone[1]))
    output.sum().backward()
    assert x.grad is not None and x.grad.abs().sum(1).gt(0).all()
