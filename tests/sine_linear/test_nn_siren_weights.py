"""Weights of other implementations load into Siren and give the same results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from treadle.nn import SineLinear, Siren

W0, LATER = 20.0, 10.0


class Sine(nn.Module):
    def __init__(self, omega: float) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * x)


def omega_of(k: int) -> float:
    return LATER if k else W0


class PaperLayer(nn.Module):
    """The SIREN paper's sine layer, which contains a linear module: `linear.weight`."""

    def __init__(self, rows: int, columns: int, omega: float) -> None:
        super().__init__()
        self.linear, self.omega = nn.Linear(rows, columns), omega

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * self.linear(x))


class Paper(nn.Module):
    """A network of PaperLayers. Its state dict has `net.{k}.linear.weight`, and `net.{K}.weight`
    for a linear last layer."""

    def __init__(self, sizes: list[int], linear: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            PaperLayer(a, b, omega_of(k))
            for k, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False))
        ]
        if linear:
            layers[-1] = nn.Linear(*sizes[-2:])
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    """The paper's FCBlock, with `net.{k}.0.weight`."""

    def __init__(self, sizes: list[int], linear: bool) -> None:
        super().__init__()
        layers = []
        for k, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
            parts: list[nn.Module] = [nn.Linear(a, b)]
            if not (linear and k == len(sizes) - 2):
                parts.append(Sine(omega_of(k)))
            layers.append(nn.Sequential(*parts))
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Blocks(nn.Module):
    """The paper's SingleBVPNet, which has an FCBlock, with `net.net.{k}.0.weight`."""

    def __init__(self, sizes: list[int], linear: bool) -> None:
        super().__init__()
        self.net = Block(sizes, linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Activated(nn.Module):
    """Parameters next to an activation, as in siren-pytorch."""

    def __init__(self, rows: int, columns: int, activation: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, rows) / 10)
        self.bias = nn.Parameter(torch.randn(columns) / 10)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(nn.functional.linear(x, self.weight, self.bias))


class Package(nn.Module):
    """siren-pytorch's SirenNet, with `layers.{k}.weight` (in its first versions `net.{k}.weight`)
    and `last_layer.weight`."""

    def __init__(self, sizes: list[int], linear: bool, name: str) -> None:
        super().__init__()
        *pairs, last = zip(sizes, sizes[1:], strict=False)
        layers = [Activated(a, b, Sine(omega_of(k))) for k, (a, b) in enumerate(pairs)]
        setattr(self, name, nn.ModuleList(layers))
        self.last_layer = Activated(*last, nn.Identity() if linear else Sine(LATER))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        for layer in getattr(self, self.name):
            x = layer(x)
        return self.last_layer(x)


class Wrapper(nn.Module):
    """siren-pytorch's SirenWrapper, with `net.layers.{k}.weight` and a buffer of coordinates."""

    def __init__(self, sizes: list[int], linear: bool, name: str) -> None:
        super().__init__()
        self.net = Package(sizes, linear, name)
        self.register_buffer("grid", torch.rand(12, sizes[0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


LAYOUTS = {
    "paper": (Paper, "net.0.linear.weight"),
    "paper, FCBlock": (Block, "net.0.0.weight"),
    "paper, boundary values": (Blocks, "net.net.0.0.weight"),
    "siren-pytorch": (lambda s, linear: Package(s, linear, "layers"), "layers.0.weight"),
    "siren-pytorch, first": (lambda s, linear: Package(s, linear, "net"), "net.0.weight"),
    "SirenWrapper": (lambda s, linear: Wrapper(s, linear, "layers"), "net.layers.0.weight"),
    "SirenWrapper, first": (lambda s, linear: Wrapper(s, linear, "net"), "net.net.0.weight"),
}


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_load_as_they_are(layout: str, linear: bool) -> None:
    make, key = LAYOUTS[layout]
    # Runs in float64, because rounding errors of the first layer's phase grow in later layers.
    theirs = make([2, 12, 12, 12, 3], linear).double()
    saved = theirs.state_dict()
    assert key in saved and len(saved) == 8 + ("grid" in saved)
    before = dict(saved)
    alone = Siren(2, 12, 2, 3, linear, W0, LATER, dtype=torch.float64)
    assert str(alone.load_state_dict(saved)) == "<All keys matched successfully>"
    assert saved.keys() == before.keys()
    # Inside another module, all names get a prefix.
    outer = nn.ModuleDict({"siren": Siren(2, 12, 2, 3, linear, W0, LATER).double()})
    outer.load_state_dict({f"siren.{name}": value for name, value in saved.items()})
    x = torch.rand(20, 2, dtype=torch.float64) * 2 - 1
    for ours in (alone, outer["siren"]):
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_siren_within_the_papers_network() -> None:
    """`self.net = Siren(...)` replaces FCBlock, so the saved prefix looks like part of a name."""
    theirs = Blocks([2, 12, 12, 12, 3], True).double()
    ours = Blocks([2, 12, 12, 12, 3], True)
    ours.net = Siren(2, 12, 2, 3, True, W0, LATER, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(20, 2, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


def test_a_modulator_is_not_lost_silently() -> None:
    saved = Wrapper([2, 12, 12, 3], True, "layers").state_dict()
    saved["modulator.layers.0.0.weight"] = torch.zeros(12, 5)
    net = Siren(2, 12, 1, 3, True)
    with pytest.raises(RuntimeError, match='Unexpected key.*"modulator.layers.0.0.weight"'):
        net.load_state_dict(saved)
    found = net.load_state_dict(saved, strict=False)
    assert found.unexpected_keys == ["modulator.layers.0.0.weight"] and not found.missing_keys
    assert torch.equal(net.net[0].weight, saved["net.layers.0.weight"])


def test_other_entries_named_grid_are_unexpected() -> None:
    net = Siren(2, 12, 1, 3)
    with pytest.raises(RuntimeError, match='Unexpected key.*"grid"'):
        net.load_state_dict({**net.state_dict(), "grid": torch.zeros(2)})


def test_a_layer_of_the_paper_loads() -> None:
    theirs = PaperLayer(3, 5, 30.0).double()
    ours = SineLinear(3, 5, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.rand(4, 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strict", [True, False])
def test_a_linear_last_layer_of_the_paper_is_no_sine(strict: bool) -> None:
    """A linear last layer of the paper has the names of a last sine layer of Siren, but must not
    load into it. A last sine layer of the paper has other names."""
    saved = Paper([2, 12, 12, 3], True).state_dict()
    outer = nn.ModuleDict({"siren": Siren(2, 12, 1, 3)})
    words = r"Siren: outermost_linear must be True for this state dict, got False: siren"
    with pytest.raises(RuntimeError, match=words):
        given = {f"siren.{name}": value for name, value in saved.items()}
        outer.load_state_dict(given, strict=strict)
    with pytest.raises(RuntimeError, match='Missing.*"net.2.weight"'):
        Siren(2, 12, 1, 3, True).load_state_dict(Paper([2, 12, 12, 3], False).state_dict())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_does_not_fit_is_named(layout: str) -> None:
    make, key = LAYOUTS[layout]
    saved = make([2, 12, 12, 12, 3], True).state_dict()
    net = Siren(2, 12, 1, 3, True)
    with pytest.raises(RuntimeError, match="size mismatch|Unexpected key"):
        net.load_state_dict(saved)
    del saved[key]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "net.0.weight"'):
        Siren(2, 12, 2, 3, True).load_state_dict(saved)
    extra = {**net.state_dict(), "net.0.linear.weight": torch.zeros(12, 2)}
    with pytest.raises(RuntimeError, match='Unexpected key.*"net.0.linear.weight"'):
        net.load_state_dict(extra)
