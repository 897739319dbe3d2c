"""Runs every block of docs/coming_from.md in order, with stand-ins for the original classes
that have the same names and arguments."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.sine_linear.test_nn_siren_weights import Sine

PAGES = Path(__file__).resolve().parents[2] / "docs"


class SingleBVPNet(nn.Module):
    def __init__(self, hidden_features: int, num_hidden_layers: int) -> None:
        super().__init__()
        sizes = [2, *[hidden_features] * (num_hidden_layers + 1)]
        layers = [nn.Sequential(nn.Linear(a, b), Sine(30)) for a, b in pairwise(sizes)]
        block = nn.Module()
        block.net = nn.Sequential(*layers, nn.Sequential(nn.Linear(hidden_features, 1)))
        self.net = block

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"model_out": self.net.net(batch["coords"])}


class SirenLayer(nn.Module):
    def __init__(self, rows: int, columns: int, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, rows) / 10)
        self.bias = nn.Parameter(torch.randn(columns) / 10) if bias else None
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(nn.functional.linear(x, self.weight, self.bias))


class SirenNet(nn.Module):
    def __init__(
        self, dim_in: int, dim_hidden: int, dim_out: int, num_layers: int, use_bias: bool = True
    ) -> None:
        super().__init__()
        sizes = [dim_in, *[dim_hidden] * num_layers]
        self.layers = nn.ModuleList(
            SirenLayer(a, b, use_bias, Sine(1 if k else 30))
            for k, (a, b) in enumerate(pairwise(sizes))
        )
        self.last_layer = SirenLayer(dim_hidden, dim_out, use_bias, nn.Identity())

    def forward(self, x: Tensor, factors: tuple[Tensor, ...] = ()) -> Tensor:
        for layer, factor in zip(self.layers, factors or [1] * len(self.layers), strict=True):
            x = layer(x) * factor
        return self.last_layer(x)


class Modulator(nn.Module):
    def __init__(self, dim_in: int, dim_hidden: int, num_layers: int) -> None:
        super().__init__()
        sizes = [dim_in, *[dim_hidden + dim_in] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(size, dim_hidden), nn.ReLU()) for size in sizes
        )

    def forward(self, latent: Tensor) -> tuple[Tensor, ...]:
        found, x = [], latent
        for layer in self.layers:
            found.append(layer(x))
            x = torch.cat([found[-1], latent])
        return tuple(found)


class SirenWrapper(nn.Module):
    def __init__(self, net: SirenNet, image_width: int, image_height: int, latent_dim: int) -> None:
        super().__init__()
        self.net, self.shape = net, (image_height, image_width)
        width = net.last_layer.weight.size(1)
        self.modulator = Modulator(latent_dim, width, len(net.layers))
        rows, columns = (torch.linspace(-1, 1, n) for n in self.shape)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
        self.register_buffer("grid", grid.reshape(-1, 2))

    def forward(self, latent: Tensor) -> Tensor:
        y = self.net(self.grid, self.modulator(latent))
        return y.reshape(*self.shape, -1).movedim(-1, 0)[None]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.S | re.M)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, classes in {
        "modules": [SingleBVPNet],
        # siren-pytorch 0.1.7 exports only two of its module's names from the package.
        "siren_pytorch": [SirenNet, SirenWrapper],
        "siren_pytorch.siren_pytorch": [SirenNet, SirenWrapper, Modulator],
    }.items():
        module: Any = ModuleType(name)
        for kind in classes:
            setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """In float32, a rounding error in the first layer's phase would grow through later layers."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def same(actual: Tensor, expected: Tensor) -> None:
    assert expected.std() > 1e-3
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("stand_ins", "in_float64")
def test_blocks_run_and_networks_agree() -> None:
    torch.manual_seed(0)
    recurrent, cells, network, paper, package, wrapper = blocks("coming_from.md")
    names: dict[str, Any] = {}
    x = torch.rand(50, 2) * 2 - 1
    exec(recurrent, names)
    steps = torch.rand(3, 2, 64)
    same(names["ours"](steps)[0], names["theirs"](steps)[0])
    exec(cells, names)
    x_cell = torch.rand(2, 64)
    same(names["cell"](x_cell)[0], names["cells"][0](x_cell)[0])
    exec(network, names)
    exec(paper, names)
    found = names["ours"]({"coords": x})
    same(found["model_out"], names["theirs"]({"coords": x})["model_out"])
    (slope,) = torch.autograd.grad(found["model_out"].sum(), found["model_in"])
    assert slope.shape == x.shape
    exec(package, names)
    same(names["ours"](x), names["theirs"](x))
    exec(wrapper, names)
    latent = torch.randn(32, requires_grad=True)
    y, expected = names["image"](latent), names["theirs"](latent)
    same(y, expected)
    grads = [torch.autograd.grad(t.square().sum(), latent)[0] for t in (y, expected)]
    same(*grads)


def test_blocks_of_the_sine_layers_page_run() -> None:
    names: dict[str, Any] = {}
    for block in blocks("sine_linear.md"):
        exec(block, names)
    assert names["layer"].weight.grad.abs().max() > 0
