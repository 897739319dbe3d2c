"""nn.Snake replaces the modules of DAC and BigVGAN, which are written here in plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.support import pages
from tests.support.inputs import DEVICES, Make

C = 5


class Dac(nn.Module):
    """DAC's Snake1d, whose alpha is [1, C, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, C, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


class BigVgan(nn.Module):
    """BigVGAN's Snake, or SnakeBeta if `beta`. alpha and beta are [C], and logarithms if
    `logscale`."""

    def __init__(self, beta: bool, logscale: bool) -> None:
        super().__init__()
        begin = torch.zeros(C) if logscale else torch.ones(C)
        self.logscale = logscale
        self.alpha = nn.Parameter(begin.clone())
        self.beta = nn.Parameter(begin.clone()) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[None, :, None]
        beta = alpha if self.beta is None else self.beta[None, :, None]
        if self.logscale:
            alpha, beta = alpha.exp(), beta.exp()
        return x + (1.0 / (beta + 1e-9)) * torch.sin(x * alpha).pow(2)


# The eps of DAC and BigVGAN.
EXACT: dict[str, Any] = {"eps": 1e-9}
MODULES: dict[str, Any] = {
    "DAC": (Dac, EXACT),
    **{
        f"BigVGAN beta={beta} logscale={log}": (
            lambda beta=beta, log=log: BigVgan(beta, log),
            {"beta": beta, "logscale": log, **EXACT},
        )
        for beta in (False, True)
        for log in (False, True)
    },
}


def trained(make: Any) -> nn.Module:
    """Makes a module with different parameters per channel: one alpha is 0, and one is negative."""
    module: nn.Module = make()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.linspace(-0.5, 1.5, C).view_as(p) + 0.1 * i)
    return module


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODULES)
def test_replaces_modules_of_audio_decoders(name: str, device: str) -> None:
    make, options = MODULES[name]
    assert all(
        torch.equal(ours, theirs.flatten())
        for ours, theirs in zip(
            treadle.nn.Snake(C, **options).parameters(), make().parameters(), strict=True
        )
    )
    theirs = trained(make).to(device)
    # The module is inside another one, as in a decoder.
    ours = nn.Sequential(treadle.nn.Snake(C, **options)).to(device)
    ours.load_state_dict(nn.Sequential(theirs).state_dict())
    x = Make("audio", device, torch.float32)(2, C, 40)
    results = []
    for module in (ours, theirs, copy.deepcopy(theirs).double()):
        dtype = next(module.parameters()).dtype
        own = x.to(dtype).requires_grad_()
        y = module(own)
        found = torch.autograd.grad(y.square().sum(), (own, *module.parameters()))
        results.append([y.detach(), found[0], *(g.flatten() for g in found[1:])])
    for mine, plain, truth in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain, rtol=2e-5, atol=2e-5)
        worst = (plain - truth).abs().max()
        assert (mine - truth).abs().max() <= 2 * worst + 8e-7 * truth.abs().max()


class Launches(TorchDispatchMode):
    """Counts all ops except views, and separately those whose result is as large as the signal."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.signal, self.all, self.large = signal, 0, 0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = f(*args, **(kwargs or {}))
        if not f.is_view:
            self.all += 1
            self.large += result.numel() == self.signal
        return result


def test_the_launches_that_the_page_names() -> None:
    """docs/snake.md states how many launches and passes over the signal plain PyTorch needs."""
    page = (pages.DOCS / "snake.md").read_text()
    x = torch.randn(2, C, 4)
    for name, module in (
        ("DAC", Dac()),
        ("BigVGAN", BigVgan(beta=True, logscale=False)),
        ("BigVGAN with logarithms of alpha and beta; Qwen3-TTS", BigVgan(beta=True, logscale=True)),
    ):
        with torch.no_grad(), Launches(x.numel()) as found:
            module(x)
        assert f"| {name} | {found.all} | {found.large} |" in page


@pytest.mark.parametrize("name", MODULES)
def test_round_trip(name: str) -> None:
    """Converts a module of DAC or BigVGAN to ours, saves and loads it, and converts it back."""
    make, options = MODULES[name]
    theirs, ours = trained(make), treadle.nn.Snake(C, **options)
    ours.load_state_dict(theirs.state_dict())
    again = treadle.nn.Snake(C, **options)
    again.load_state_dict(ours.state_dict())
    back = make()
    back.load_state_dict(
        {key: t.view_as(getattr(back, key)) for key, t in again.state_dict().items()}
    )
    for key, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta", [False, True])
def test_default_eps_gives_their_results(beta: bool, device: str) -> None:
    """Where alpha is not negative, results are within 1e-9 x² of those of DAC and BigVGAN. With
    beta, they are bitwise equal to those with eps=1e-9."""
    x = Make("audio", device, torch.float64)(2, C, 40)
    theirs = (BigVgan(beta=True, logscale=False) if beta else Dac()).to(device).double()
    ours = treadle.nn.Snake(C, beta=beta, device=device, dtype=torch.float64)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.tensor([0.0, 1e-12, 1e-9, 1e-4, 2.0]).view_as(p))
    ours.load_state_dict(theirs.state_dict())
    off = (ours(x) - theirs(x)).abs()
    if beta:
        exact = treadle.nn.Snake(C, beta=True, eps=1e-9, device=device, dtype=torch.float64)
        exact.load_state_dict(ours.state_dict())
        assert torch.equal(ours(x), exact(x))
        torch.testing.assert_close(ours(x), theirs(x))
    else:
        assert bool((off <= 1.001e-9 * x.square()).all())


@pytest.mark.parametrize("device", DEVICES)
def test_zero_alpha(device: str) -> None:
    """A channel whose alpha is 0 returns its input, unless eps is 0. Its alpha has a gradient,
    which is 0 if eps is positive."""
    x = torch.randn(2, C, 4, device=device)
    for eps, expected in ((None, x.square().sum((0, 2))), (1e-9, torch.zeros(C, device=device))):
        act = treadle.nn.Snake(C, alpha=0.0, eps=eps, device=device)
        y = act(x)
        assert torch.equal(y, x)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), act.alpha)[0], expected)
    assert treadle.nn.Snake(C, alpha=0.0, eps=0.0, device=device)(x).isnan().all()
    assert treadle.nn.Snake(C, alpha=0.0, beta=True, device=device)(x).isfinite().all()
    half = treadle.nn.Snake(C, alpha=0.0, device=device, dtype=torch.float16)
    assert torch.equal(half(x.half()), x.half())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("alpha", [1e-3, 1e-6, 1e-8, 1e-9, 0.0, -1e-9, -2e-9, -1e-8, -1e-6])
def test_alpha_near_zero_trains(alpha: float, device: str) -> None:
    """The formula of DAC and BigVGAN gives inf or NaN at -1e-9, and wrong gradients near it."""
    x = torch.linspace(-3, 3, 7, device=device).view(1, 1, 7)
    act = treadle.nn.Snake(1, alpha=alpha, device=device)
    y = act(x)
    (slope,) = torch.autograd.grad(y.sum(), act.alpha)
    wide, a = x.double(), act.alpha.detach().double().requires_grad_()
    exact = wide + a * (wide * torch.sinc(a * wide / torch.pi)).square()
    torch.testing.assert_close(y.double(), exact, rtol=2e-7, atol=0)
    torch.testing.assert_close(
        slope.double(), torch.autograd.grad(exact.sum(), a)[0], rtol=2e-6, atol=0
    )


def test_options() -> None:
    act = treadle.nn.Snake(C, alpha=2.0, beta=True, logscale=True, trainable=False)
    assert not any(p.requires_grad for p in act.parameters())
    torch.testing.assert_close(act.alpha, torch.full((C,), 2.0).log())
    assert str(act) == f"Snake({C}, beta=True, logscale=True, trainable=False)"
    assert act.eps == 1e-9 and treadle.nn.Snake(C).eps is None
    assert str(treadle.nn.Snake(C, eps=1e-9)) == f"Snake({C}, eps=1e-09)"
    assert str(treadle.nn.Snake(C)) == f"Snake({C})"
    nn.init.zeros_(act.alpha)
    act.reset_parameters()
    torch.testing.assert_close(act.alpha, act.beta)
    meta = treadle.nn.Snake(C, device="meta", dtype=torch.bfloat16)
    assert meta.alpha.is_meta and meta(torch.empty(2, C, 3, device="meta")).shape == (2, C, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"channels": 0}, ValueError, "Snake: channels must be an integer of at least 1, got 0"),
        ({"alpha": "1"}, TypeError, "Snake: alpha must be a number, got '1'"),
        (
            {"alpha": 0.0, "logscale": True},
            ValueError,
            "Snake: alpha must be positive with logscale, got 0.0",
        ),
        ({"beta": 1}, TypeError, "Snake: beta must be a bool, got int"),
        ({"eps": float("inf")}, ValueError, "Snake: eps must be a finite number, got inf"),
        (
            {"dtype": torch.int32},
            ValueError,
            "Snake: dtype must be float64, float32, float16 or bfloat16, got int32",
        ),
    ],
)
def test_bad_options(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        treadle.nn.Snake(**{"channels": C, **options})
    assert str(raised.value) == message


def test_bad_inputs() -> None:
    act = treadle.nn.Snake(C)
    for shape in ((4,), (2, 4, C)):
        with pytest.raises(
            ValueError, match=rf"^Snake: input must have shape \[N, {C}, ...\], got"
        ):
            act(torch.ones(shape))
    with pytest.raises(TypeError, match="^Snake: input must be a tensor, got list$"):
        act([1.0])
    wrong = {"alpha": torch.ones(1, C + 1, 1)}
    with pytest.raises(RuntimeError, match="size mismatch for alpha"):
        act.load_state_dict(wrong)
