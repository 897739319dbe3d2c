"""Custom networks of jets: layers, sums, products, concatenation, scaled coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import treadle
from tests.sine_linear.jets import by_autograd, layer, points, same
from treadle import Jet, jet_linear

A, B, C = layer(2, 6, is_first=True), layer(6, 6), layer(6, 6, bias=False)
WIDE = layer(9, 4)
WEIGHT = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
SCALE = torch.linspace(0.5, 2, 6, dtype=torch.float64)
CODE = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64)
PLACE = torch.tensor([0.5, 3.0], dtype=torch.float64)
Net = Callable[[Any], Any]


def squashed(y: Tensor) -> Tensor:
    return y / (1 + y.square().sum(-1, keepdim=True)).sqrt()


# Each network as a function of a jet, and its values as a function of one point.
NETS: dict[str, tuple[Net, Callable[[Tensor], Tensor]]] = {
    "layers": (lambda j: C.jet(B.jet(A.jet(j))), lambda x: C(B(A(x)))),
    "linear": (lambda j: jet_linear(A.jet(j), WEIGHT), lambda x: F.linear(A(x), WEIGHT)),
    "linear, bias": (
        lambda j: jet_linear(A.jet(j), WEIGHT, CODE),
        lambda x: F.linear(A(x), WEIGHT, CODE),
    ),
    "residual": (lambda j: A.jet(j) + B.jet(A.jet(j)), lambda x: A(x) + B(A(x))),
    "FiLM": (lambda j: B.jet(A.jet(j) * SCALE + SCALE), lambda x: B(A(x) * SCALE + SCALE)),
    "FiLM, turned round": (
        lambda j: B.jet(SCALE + SCALE * A.jet(j)),
        lambda x: B(A(x) * SCALE + SCALE),
    ),
    "numbers": (
        lambda j: 1 - np.float64(2) * A.jet(j) / 3 - 0.5,
        lambda x: 1 - 2 * A(x) / 3 - 0.5,
    ),
    "minus a jet": (lambda j: -A.jet(j) - B.jet(A.jet(j)), lambda x: -A(x) - B(A(x))),
    "a tensor minus": (lambda j: SCALE - A.jet(j), lambda x: SCALE - A(x)),
    "product": (lambda j: A.jet(j) * B.jet(A.jet(j)), lambda x: A(x) * B(A(x))),
    "square": (lambda j: A.jet(j) * A.jet(j), lambda x: A(x) ** 2),
    "broadcast product": (
        lambda j: A.jet(j) * jet_linear(A.jet(j), WEIGHT[:1]),
        lambda x: A(x) * F.linear(A(x), WEIGHT[:1]),
    ),
    "quotient": (
        lambda j: A.jet(j) / (B.jet(A.jet(j)) + 3),
        lambda x: A(x) / (B(A(x)) + 3),
    ),
    "over a jet": (lambda j: SCALE / (A.jet(j) + 3), lambda x: SCALE / (A(x) + 3)),
    "concatenation": (
        lambda j: WIDE.jet(Jet.cat([A.jet(j), CODE])),
        lambda x: WIDE(torch.cat([A(x), CODE])),
    ),
    "skip to the coordinates": (
        lambda j: Jet.cat([j, A.jet(j)]),
        lambda x: torch.cat([x, A(x)]),
    ),
    "columns": (
        lambda j: B.jet(A.jet(j)).split([2, 3, 1])[1] * A.jet(j).split([3, 3])[0],
        lambda x: B(A(x))[2:5] * A(x)[:3],
    ),
    "map": (lambda j: A.jet(j).map(torch.tanh), lambda x: torch.tanh(A(x))),
    "map of all values": (
        lambda j: B.jet(A.jet(j)).map(squashed),
        lambda x: squashed(B(A(x))),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_network(name: str) -> None:
    jets, values = NETS[name]
    x = points(5)
    expected = by_autograd(values, x)
    for flags in ({}, {"laplacian": False}, {"laplacian": False, "hessian_diagonal": True}):
        jet = jets(Jet.of(x, **flags))
        assert [p is not None for p in jet] == [
            True,
            True,
            flags.get("laplacian", True),
            flags.get("hessian_diagonal", False),
        ]
        same(jet, expected)
    both = jets(Jet.of(x, hessian_diagonal=True))
    assert all(part is not None for part in both)
    same(both, expected)


@pytest.mark.parametrize("name", NETS)
def test_gradients_by_points_and_parameters(name: str) -> None:
    jets, values = NETS[name]
    x, weights = points(5).requires_grad_(), [A.weight, A.bias]
    found = []
    for jet in (jets(Jet.of(x)), by_autograd(values, x)):
        loss = jet.value.sin().sum() + jet.gradient.cos().sum() + jet.laplacian.sin().sum()
        found.append(torch.autograd.grad(loss, [x, *weights]))
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-7)


def test_coordinates_and_their_affine_maps() -> None:
    x = points(5)
    same(Jet.of(x, hessian_diagonal=True), by_autograd(lambda p: p, x), 0)
    scale = torch.tensor([2.0, -3.0], dtype=torch.float64)
    maps: tuple[tuple[Any, Any], ...] = ((scale, PLACE), (4.0, 1), (scale, 0.5), (2, PLACE))
    for by, shift in maps:
        expected = by_autograd(lambda p, s=by, t=shift: p * s + t, x)
        same(Jet.affine(x, by, shift, hessian_diagonal=True), expected, 1e-15)
        same(Jet.of(x, hessian_diagonal=True) * by + shift, expected, 1e-15)
    expected = by_autograd(lambda p: B(A(p * scale + PLACE)), x)
    same(B.jet(A.jet(Jet.affine(x, scale, PLACE))), expected)


def test_coordinates_and_factors_keep_the_dtype() -> None:
    x = points(5).half()
    for jet in (
        Jet.of(x),
        Jet.affine(x, 2.0, 1.0),
        Jet.affine(x, CODE[:2], CODE[:2]),
        2 * Jet.of(x),
    ):
        assert {part.dtype for part in jet if part is not None} == {torch.float16}
    # Type promotion applies to all parts, as it does to tensors.
    for jet in (Jet.of(x) * CODE[:2], Jet.of(x) + CODE[:2]):
        assert {part.dtype for part in jet if part is not None} == {torch.float64}


def test_factors_that_add_points() -> None:
    """With several codes at the same points, the factor has more dimensions than the jet."""
    x, codes = points(5), torch.rand(3, 1, 6, dtype=torch.float64)
    for jets, values in (
        (lambda j, c: j * c, lambda y, c: y * c),
        (lambda j, c: j + c, lambda y, c: y + c),
        (lambda j, c: j / c, lambda y, c: y / c),
    ):
        found = B.jet(jets(A.jet(Jet.of(x, hessian_diagonal=True)), codes))
        assert found.gradient.shape == (3, 5, 6, 2)
        for k, code in enumerate(codes[:, 0]):
            expected = by_autograd(lambda p, c=code, v=values: B(v(A(p), c)), x)
            same(Jet(*(part[k] for part in found)), expected)


def test_results_without_a_gradient_scale_and_add() -> None:
    net, x = treadle.nn.Siren(2, 8, 1, 3, True, 3.0, 2.0, dtype=torch.float64), points(5)
    jet = net.jet(x, gradient=False, hessian_diagonal=True)
    found = 2 * jet * CODE + jet + 1
    assert found.gradient is None
    same(found, by_autograd(lambda p: 2 * net(p) * CODE + net(p) + 1, x))


def copies(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> int:
    """Counts calls of torch.cat, which joins parts that are stored in separate tensors."""
    calls, cat = [], torch.cat
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", lambda *args, **more: calls.append(0) or cat(*args, **more))
        function()
    return len(calls)


def test_layers_pass_parts_on_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's jet is passed on without a copy. Only parts in separate tensors are copied."""
    h = A.jet(Jet.of(points(5)))
    for name, call, count in (
        ("a layer", lambda: C.jet(B.jet(h)), 0),
        ("a factor", lambda: C.jet(B.jet(h) * SCALE), 0),
        ("a sum", lambda: C.jet(B.jet(h) + h), 0),
        ("linear", lambda: jet_linear(B.jet(h), WEIGHT), 0),
        ("a constant", lambda: B.jet(h + SCALE), 1),
    ):
        found = copies(monkeypatch, call)
        assert found == count, (name, found)


def test_parts_that_were_changed_are_not_mistaken_for_those_of_the_layer() -> None:
    x = points(5)
    h = A.jet(Jet.of(x))
    other = A.jet(Jet.of(x + 0.1))
    for changed in (
        h._replace(value=h.value * 2),
        h._replace(value=h.value.detach()),
        h._replace(gradient=h.gradient.flip(-1)),
        h._replace(laplacian=h.value),
        h._replace(value=other.value),
        h._replace(value=h.laplacian, laplacian=h.value),
    ):
        fresh = Jet(*(None if p is None else p.clone() for p in changed))
        found = []
        for jet in (B.jet(changed), B.jet(fresh)):
            loss = jet.laplacian.sum()
            grads = torch.autograd.grad(loss, [A.weight, A.bias], retain_graph=True)
            found.append((*jet[:3], *grads))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_a_part_that_requires_grad_by_itself_gets_it() -> None:
    with torch.no_grad():
        h = A.jet(Jet.of(points(5)))
    h.value.requires_grad_()
    (found,) = torch.autograd.grad(B.jet(h).laplacian.sum(), h.value)
    fresh = Jet(*(None if p is None else p.detach().clone() for p in h))
    fresh.value.requires_grad_()
    (expected,) = torch.autograd.grad(B.jet(fresh).laplacian.sum(), fresh.value)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "constant",
    [
        torch.tensor([0, 3, 255, 7, 1, 2], dtype=torch.uint8),
        torch.tensor(-128, dtype=torch.int8),
        np.uint8(3),
        np.uint64(3),
        np.bool_(True),
    ],
    ids=repr,
)
def test_a_constant_without_a_negative_of_its_own_is_taken_away(constant: Any) -> None:
    jet = A.jet(Jet.of(points()))
    plain = float(constant) if isinstance(constant, np.generic) else constant
    found = jet - constant
    torch.testing.assert_close(found.value, jet.value - plain)
    assert found.gradient is jet.gradient


def test_jets_of_any_iterable_side_by_side() -> None:
    jets = [A.jet(Jet.of(points())), C.jet(A.jet(Jet.of(points())))]
    same(Jet.cat(jet for jet in jets), Jet.cat(jets))  # type: ignore[arg-type]
    assert Jet.cat(map(lambda jet: jet, jets)).value.shape == (7, 12)  # type: ignore[arg-type]


@pytest.mark.parametrize("hooked", ["value", "gradient", "laplacian"])
def test_a_part_whose_gradient_is_waited_for_gets_it(hooked: str) -> None:
    found = []
    for packed in (True, False):
        jet = A.jet(Jet.of(points()))
        if not packed:  # the parts are separate tensors
            jet = Jet._make(part if part is None else part + 0 for part in jet)
        part, seen = getattr(jet, hooked), []
        part.retain_grad()
        part.register_hook(seen.append)
        sum(p.sum() for p in B.jet(jet) if p is not None).backward()
        assert len(seen) == 1
        found.append(part.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "net",
    [
        lambda j: A.jet(j).map(torch.tanh),
        lambda j: 1 / (A.jet(j) + 3),
        lambda j: A.jet(j) / (B.jet(A.jet(j)) + 3),
    ],
    ids=["map", "reciprocal", "quotient"],
)
def test_derivatives_within_inference_mode(net: Net) -> None:
    expected = net(Jet.of(points()))
    with torch.inference_mode():
        same(net(Jet.of(points())), expected)
