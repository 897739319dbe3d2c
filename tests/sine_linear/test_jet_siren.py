"""Siren.jet: its parts are the derivatives of the network, for all options of Siren."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import treadle
from tests.sine_linear.jets import by_autograd, points, same, siren
from tests.support.inputs import DEVICES, HALVES

FLAGS = ("gradient", "laplacian", "hessian_diagonal")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a sine at the end": {"outermost_linear": False},
    "no bias": {"bias": False},
    "one layer": {"hidden_layers": 0, "out_features": 1},
    "a final activation": {"final_activation": nn.Tanh()},
    "one that mixes values": {"final_activation": nn.Softmax(dim=-1)},
    "no activation": {"final_activation": nn.Identity()},
    "dropout": {"dropout": 0.4},
}


@pytest.mark.parametrize("inputs", [1, 2, 3, 9])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_parts_are_the_networks_derivatives(options: dict[str, Any], inputs: int) -> None:
    if inputs > 2 and options:
        pytest.skip("options are tested only with 1 and 2 inputs")
    net, x = siren(inputs, **options).eval(), points(inputs=inputs)
    jet = net.jet(x, hessian_diagonal=True)
    same(jet, by_autograd(net, x))
    assert all(float(part.detach().abs().max()) > 1e-3 for part in jet)
    same(net.jet(x), by_autograd(net, x))


@pytest.mark.parametrize("flags", range(8))
def test_what_is_not_asked_for_is_none(flags: int) -> None:
    asked = {name: bool(flags >> k & 1) for k, name in enumerate(FLAGS)}
    net, x = siren(), points()
    jet = net.jet(x, **asked)
    assert [part is not None for part in jet] == [True, *asked.values()]
    same(jet, by_autograd(net, x))
    value, gradient, laplacian, diagonal = jet
    assert (value is jet.value) and (diagonal is jet.hessian_diagonal)
    shapes = [(7, 3), (7, 3, 2), (7, 3), (7, 3, 2)]
    assert [p.shape for p in jet if p is not None] == [
        s for s, p in zip(shapes, jet, strict=True) if p is not None
    ]
    assert (gradient is None, laplacian is None) == (not asked["gradient"], not asked["laplacian"])


@pytest.mark.parametrize("shape", [(2,), (0, 2), (2, 1, 3, 2)])
def test_any_leading_dimensions(shape: tuple[int, ...]) -> None:
    net, x = siren(), torch.rand(shape, dtype=torch.float64)
    jet = net.jet(x, hessian_diagonal=True)
    tails = (3,), (3, 2), (3,), (3, 2)
    assert [p.shape for p in jet] == [(*shape[:-1], *tail) for tail in tails]
    if x.numel():
        same(jet, by_autograd(net, x))


def test_no_products_and_no_sines_beyond_what_was_asked() -> None:
    """Counts the parts of each layer's jet, for gradients, the Laplacian and the Hessian's
    diagonal."""
    net, x, rows = siren(), points(), []
    real = treadle.nn._siren_jet.sine_linear_jet

    def spied(jet: Tensor, *args: Any) -> Tensor:
        rows.append(len(jet))
        return real(jet, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(treadle.nn._siren_jet, "sine_linear_jet", spied)
        for flags in ((False, False), (True, False), (False, True), (True, True, True)):
            net.jet(x, *flags)
    assert rows == [3] * 3 + [4] * 3 + [5] * 3


@pytest.mark.parametrize("outputs", [1, 2])
def test_fewer_outputs_than_coordinates(outputs: int) -> None:
    """Without second derivatives the gradient is computed in reverse mode, with the same
    results."""
    net, x = siren(3, out_features=outputs, final_activation=nn.Tanh()), points(inputs=3)
    x.requires_grad_()
    expected, jet = by_autograd(net, x), net.jet(x, laplacian=False)
    same(jet, expected)
    found = []
    for each in (jet, treadle.Jet(*expected[:2])):
        loss = each.value.sin().sum() + each.gradient.cos().sum()
        found.append(torch.autograd.grad(loss, [x, *net.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        same(net.jet(x, laplacian=False), expected)
    assert not x.grad_fn and not net.jet(x.detach()[0], laplacian=False).gradient.isnan().any()


def losses(jet: treadle.Jet) -> Tensor:
    """A loss that depends on all parts."""
    parts = [part for part in jet if part is not None]
    return sum(((k + 1) * part.sin().sum() for k, part in enumerate(parts)), torch.zeros(()))


def test_gradients_of_a_loss_are_those_by_autograd() -> None:
    net = siren()
    x = points().requires_grad_()
    found = []
    for jet in (net.jet(x, hessian_diagonal=True), by_autograd(net, x)):
        found.append(torch.autograd.grad(losses(jet), [x, *net.parameters()]))
    assert all(float(g.abs().max()) > 1e-3 for g in found[0])
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


def test_coordinates_that_require_grad_agree_with_the_parts() -> None:
    """Derivatives of a jet's value by autograd equal the jet's gradient and Laplacian."""
    net, x = siren(out_features=1), points().requires_grad_()
    jet = net.jet(x)
    (slope,) = torch.autograd.grad(jet.value.sum(), x, create_graph=True)
    torch.testing.assert_close(slope, jet.gradient[:, 0])
    bends = [torch.autograd.grad(slope[:, k].sum(), x, retain_graph=True)[0][:, k] for k in (0, 1)]
    torch.testing.assert_close(sum(bends), jet.laplacian[:, 0])
    (of_laplacian,) = torch.autograd.grad(jet.laplacian.sum(), x)
    third = torch.func.vmap(torch.func.grad(lambda p: by_autograd(net, p).laplacian.sum()))(
        x.detach()
    )
    torch.testing.assert_close(of_laplacian, third, rtol=1e-7, atol=1e-7)


def test_dropout_draws_one_mask_for_all_parts() -> None:
    net, x = siren(dropout=0.4).train(), points(40)
    torch.manual_seed(3)
    value = net(x)
    torch.manual_seed(3)
    jet = net.jet(x)
    torch.testing.assert_close(jet.value, value)
    step = 1e-5
    moved = []
    for sign in (1, -1):
        torch.manual_seed(3)
        moved.append(net(x + sign * step * torch.tensor([1.0, 0.0], dtype=x.dtype)))
    torch.testing.assert_close(
        (moved[0] - moved[1]) / (2 * step), jet.gradient[..., 0], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_lowers_the_precision(device: str, dtype: torch.dtype) -> None:
    net, x = siren(dtype=torch.float32).to(device), points(dtype=torch.float32).to(device)
    with torch.autocast(device, dtype):
        jet = net.jet(x, hessian_diagonal=True)
    assert all(part.dtype == dtype for part in jet)
    same(treadle.Jet(*(p.float() for p in jet)), net.jet(x, hessian_diagonal=True), 0.05)
    losses(jet).backward()
    # Only the value depends on the last bias.
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())


def test_state_dicts_know_nothing_of_jets() -> None:
    net = siren()
    before = {key: t.clone() for key, t in net.state_dict().items()}
    net.jet(points())
    assert list(net.state_dict()) == list(before)
    other = siren(hidden_layers=2).requires_grad_(False)
    other.load_state_dict(before)
    same(other.jet(points()), net.jet(points()), 0)
    assert not other.jet(points()).value.requires_grad


def test_layers_that_were_replaced_or_parametrized_count_as_what_they_are() -> None:
    class Clipped(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).sigmoid()

    net, x = siren(), points()
    torch.nn.utils.parametrizations.weight_norm(net.net[1])
    torch.nn.utils.parametrizations.weight_norm(net.net[3])
    with torch.no_grad():
        net.net[1].parametrizations.weight.original0 *= 1.5
    same(net.jet(x, hessian_diagonal=True), by_autograd(net, x))
    net.net[3] = Clipped(12, 2, dtype=torch.float64)
    same(net.jet(x, hessian_diagonal=True), by_autograd(net, x))


@pytest.mark.parametrize("options", [{"out_features": 1}, {"final_activation": nn.Tanh()}])
def test_hooks_do_not_run_and_products_are_counted(options: dict[str, Any]) -> None:
    net, x, seen = siren(**options), points(), []
    for module in net.net.modules():
        module.register_forward_hook(lambda *_: seen.append(0))
    for flags in ({"laplacian": False}, {}):
        with FlopCounterMode(display=False) as counter:
            losses(net.jet(x, **flags)).backward()
        # Seven points pass through two layers of 12 by 12 at least six times.
        assert counter.get_total_flops() >= 6 * 2 * (2 * 7 * 12 * 12)
    assert not seen


NARROW: dict[str, dict[str, Any]] = {
    "linear": {},
    "sines": {"outermost_linear": False},
    "activation": {"final_activation": torch.nn.Tanh()},
    "another width": {"out_features": 4, "final_activation": torch.nn.GLU()},
    "dropout": {"dropout": 0.5},
}


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("name", NARROW)
def test_derivatives_within_inference_mode(name: str, second: bool) -> None:
    net = siren(5, **NARROW[name])
    with torch.no_grad():
        torch.manual_seed(3)
        expected = net.jet(points(inputs=5), laplacian=second)
    with torch.inference_mode():
        torch.manual_seed(3)
        same(net.jet(points(inputs=5), laplacian=second), expected)
    assert float(expected.gradient.abs().max()) > 0  # type: ignore[union-attr]


def test_an_activation_may_change_the_width() -> None:
    net = siren(5, **NARROW["another width"])
    x = points(inputs=5)
    for second in (False, True):
        same(net.jet(x, laplacian=second), by_autograd(net, x))


@pytest.mark.parametrize("name", ["linear", "sines", "activation"])
def test_all_parts_have_autocasts_dtype(name: str) -> None:
    net = siren(5, dtype=torch.float32, **NARROW[name])
    with torch.autocast("cpu", torch.bfloat16):
        for second in (False, True):
            jet = net.jet(points(inputs=5, dtype=torch.float32), laplacian=second)
            dtypes = {part.dtype for part in jet if part is not None}
            assert dtypes == {torch.bfloat16} and (jet * jet).value.dtype == torch.bfloat16


def test_averaged_weights_load() -> None:
    net = siren()
    shares = [1 / 7] * 7
    mean = {key: sum(s * value for s in shares) for key, value in net.state_dict().items()}
    net.load_state_dict(mean)
    other = siren(first_omega_0=4.01)
    with pytest.raises(RuntimeError, match="omega_0 must be 4.0"):
        other.load_state_dict(net.state_dict())
