"""treadle.nn.LSTM, GRU and RNN in programs: derivatives of all kinds, vmap, autocast,
parametrizations, training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.nn.utils.rnn import PackedSequence

from tests.recurrent.nn.test_nn_rnn import EACH, KINDS, B, H, I, T, close, flat, pair, states
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, HALVES
from treadle.nn import replace as nn_replace

FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
    {"num_layers": 2, "recompute": True},
]


def made(kind: str, **options: Any) -> Any:
    return KINDS[kind][0](I, H, **{"dtype": torch.float64, **options})


def call(layer: nn.RNNBase) -> Any:
    """The layer as a function of a dict of its parameters and the input."""
    return lambda p, x: tuple(flat(functional_call(layer, p, (x,))))


def total(results: tuple[Tensor, ...]) -> Tensor:
    return sum((r.sin() * (n + 2)).sum() for n, r in enumerate(results))  # type: ignore[return-value]


# ---- derivatives


@EACH
def test_gradients_in_eval_mode(kind: str) -> None:
    """The layers compute gradients in eval mode, which cuDNN does not support."""
    ours, theirs = pair(kind, I, H, 2, dropout=0.5, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64)
    found = [
        torch.autograd.grad(total(tuple(flat(m.eval()(x)))), list(m.parameters()))
        for m in (ours, theirs)
    ]
    close(*found)


@EACH
@pytest.mark.parametrize("is_packed", [False, True])
def test_second_derivatives(kind: str, is_packed: bool) -> None:
    layer = KINDS[kind][0](2, 2, bidirectional=True, dtype=torch.float64)
    names, params = zip(*layer.named_parameters(), strict=True)
    shape = (3, 2) if is_packed else (2, 2, 2)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, *params: Tensor) -> tuple[Tensor, ...]:
        rows = PackedSequence(x, torch.tensor([2, 1])) if is_packed else x
        return tuple(flat(functional_call(layer, dict(zip(names, params, strict=True)), (rows,))))

    checks = {"atol": 1e-7, "rtol": 1e-5, "fast_mode": True}
    assert gradcheck(function, (x, *params), check_forward_ad=True, **checks)
    assert gradgradcheck(function, (x, *params), check_fwd_over_rev=True, **checks)


@EACH
def test_forward_mode_and_hessians_are_torchs(kind: str) -> None:
    ours, theirs = pair(kind, 2, 3, dtype=torch.float64)
    params = {name: p.detach() for name, p in ours.named_parameters()}
    x = torch.randn(2, 2, 2, dtype=torch.float64)
    moved = ({n: p.cos() for n, p in params.items()}, x.sin())
    found, expected = (jvp(call(m), (params, x), moved) for m in (ours, theirs))
    close(found, expected)
    close(*(hessian(lambda x, m=m: total(call(m)(params, x)))(x) for m in (ours, theirs)))


@EACH
@pytest.mark.usefixtures("no_slow_vmap")
def test_an_ensemble_and_gradients_of_each_sample(kind: str) -> None:
    layers = [made(kind, num_layers=2, bidirectional=True) for _ in range(3)]
    params, _ = stack_module_state(layers)  # type: ignore[arg-type]
    params = {name: p.detach() for name, p in params.items()}
    x = torch.randn(T, B, I, dtype=torch.float64)

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return total(call(layers[0])(p, x))

    outs = vmap(call(layers[0]), (0, None))(params, x)
    grads = vmap(grad(loss), (0, None))(params, x)
    for n, layer in enumerate(layers):
        results = tuple(flat(layer(x)))
        close(tuple(out[n] for out in outs), results)
        expected = torch.autograd.grad(total(results), list(layer.parameters()))
        close([grads[name][n] for name, _ in layer.named_parameters()], list(expected))
    own = {name: p.detach() for name, p in layers[0].named_parameters()}
    samples = vmap(grad(loss), (None, 1))(own, x)
    for b in range(B):
        alone = grad(loss)(own, x[:, b])
        close([samples[name][b] for name in own], [alone[name] for name in own])


class First(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


@EACH
def test_gradients_of_each_sample(kind: str) -> None:
    """ExpandedWeights support only torch's layers; vmap(grad) gives the same gradients."""
    model = First(KINDS[kind][1](I, H, batch_first=True, dtype=torch.float64))
    x = torch.randn(B, T, I, dtype=torch.float64, requires_grad=True)
    call_for_per_sample_grads(model)(x).sum().backward()
    expected = {name: p.grad_sample for name, p in model.named_parameters()}
    for p in model.parameters():
        del p.grad_sample
    assert nn_replace(model).replaced == ["layer"]
    with pytest.raises(RuntimeError, match="Expanded Weights encountered but cannot handle"):
        call_for_per_sample_grads(model)(x)
    own = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, p, (row[None],)).sum()  # type: ignore[no-any-return]

    close(vmap(grad(loss), (None, 0))(own, x.detach()), expected)


# ---- autocast


@EACH
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast(kind: str, dtype: torch.dtype, device: str) -> None:
    """Results are bitwise equal to those of a layer in autocast's dtype. If a GRU on a CPU has a
    float32 input or state, they equal those of a float32 layer. Gradients are float32."""
    layer = made(kind, num_layers=2, device=device, dtype=torch.float32)
    half = copy.deepcopy(layer).to(dtype)
    for inputs in (torch.float32, dtype):
        x = torch.randn(T, B, I, device=device).to(dtype)
        hx = states(half, B)
        wide = tuple(t.float() for t in hx) if kind == "LSTM" else hx.float()
        for given, lower in ((None, None), (wide, hx)):
            with torch.autocast(device, dtype):
                found = flat(layer(x.to(inputs), given))
            promotes = kind == "GRU" and device == "cpu" and not (given is None and inputs == dtype)
            same = layer(x.float(), given) if promotes else half(x, lower)
            for ours, expected in zip(found, flat(same), strict=True):
                same_bits(ours.detach(), expected.detach())
        grads = torch.autograd.grad(total(tuple(found)), list(layer.parameters()))
        assert all(g.dtype == torch.float32 and bool(g.any()) for g in grads)


# ---- parameters


@EACH
@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l1_reverse", "bias_hh_l0_reverse"])
def test_parametrizations(kind: str, name: str) -> None:
    """The layer uses a parametrized tensor, and the original parameter gets a gradient."""

    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 2 * value

    layer = made(kind, num_layers=2, bidirectional=True)
    x = torch.randn(T, B, I, dtype=torch.float64)
    doubled = copy.deepcopy(layer)
    getattr(doubled, name).data.mul_(2)
    expected = flat(doubled(x))
    parametrize.register_parametrization(layer, name, Twice())
    for each in (layer, copy.deepcopy(layer)):
        close(flat(each(x)), expected)
    total(tuple(flat(layer(x)))).backward()
    total(tuple(expected)).backward()
    original = getattr(layer.parametrizations, name).original
    close(original.grad, 2 * getattr(doubled, name).grad)
    parametrize.remove_parametrizations(layer, name)
    close(flat(layer(x)), expected)


@EACH
def test_weight_norm_and_pruning(kind: str) -> None:
    layer, x = made(kind), torch.randn(T, B, I, dtype=torch.float64)
    before = flat(layer(x))
    parametrizations.weight_norm(layer, "weight_hh_l0")
    close(flat(layer(x)), before)
    pruned = prune.l1_unstructured(made(kind), "weight_ih_l0", amount=0.5)
    zeroed = made(kind)
    zeroed.load_state_dict(
        {name: p.detach() for name, p in ((n, getattr(pruned, n)) for n in zeroed.state_dict())}
    )
    assert int((pruned.weight_ih_l0 == 0).sum()) == round(pruned.weight_ih_l0.numel() / 2)
    pruned(x)  # pruning's forward pre-hook sets the masked tensor
    close(flat(pruned(x)), flat(zeroed(x)))


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_learns_where_the_marked_number_stood(kind: str, device: str) -> None:
    """Two bidirectional layers learn to output, at every step, the number at the marked step."""
    torch.manual_seed(0)
    layer = KINDS[kind][0](2, 16, 2, bidirectional=True, device=device)
    head = nn.Linear(32, 1, device=device)
    values = torch.randn(8, 64, device=device)
    marks = torch.zeros_like(values)
    marks[torch.arange(64) % 8, torch.arange(64)] = 1
    target = (values * marks).sum(0).expand(8, -1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(120):
        output, _ = layer(torch.stack([values, marks], dim=-1))
        loss = (head(output).squeeze(-1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0], losses[::20]


@EACH
def test_a_parametrized_weight_is_computed_once_a_call(kind: str) -> None:
    """Each access may change the weight: spectral_norm runs a power iteration each time."""

    class Counts(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            seen.append(1)
            return weight

    seen: list[int] = []
    layer = made(kind)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight_ih_l0", Counts())
    del seen[:]
    layer(torch.randn(T, B, I, dtype=torch.float64))
    assert len(seen) == 1
