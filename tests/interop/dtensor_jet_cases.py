"""Jets on DTensors. dtensor_cases.py runs the cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module

import treadle
from tests.interop.with_processes import (
    PROCESSES,
    SUM,
    R,
    add_equal,
    case,
    placed,
    s,
    tensors,
)

# The number of parts of a jet with two coordinates.
PARTS = {"none": 3, "laplacian": 4, "hessian_diagonal": 5}
W, B = (4, 3), (4,)


def layer(second: str) -> Any:
    def run(jet: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return treadle.sine_linear_jet(jet, weight, bias, 3.0, 2, second)

    return run


for second, parts in PARTS.items():
    add_equal(
        f"sine_linear_jet points {second}",
        layer(second),
        [((parts, 5, 3), s(1)), (W, R), (B, R)],
        [s(1)],
        [s(1), SUM, SUM],
    )
add_equal(
    "sine_linear_jet columns",
    layer("laplacian"),
    [((4, 5, 3), R), (W, s(0)), (B, s(0))],
    [s(2)],
    [SUM, s(0), s(0)],
)
add_equal(
    "sine_linear_jet on a grid",
    layer("none"),
    [((3, 2, 5, 3), (s(1), R)), (W, (R, s(0)))],
    [(s(1), s(3))],
    [(s(1), SUM), (SUM, s(0))],
    grid=(1, 2),
)


@case("Siren.jet")
def siren_jet() -> None:
    """Points sharded over two processes give the same parts and gradients as in one process."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    flags: dict[str, bool]
    for outputs, flags in (
        (1, {}),
        (2, {"hessian_diagonal": True}),
        (1, {"laplacian": False}),
        (2, {"laplacian": False}),
    ):
        torch.manual_seed(0)
        net, cut = (
            treadle.nn.Siren(3, 6, 1, outputs, outermost_linear=True, dtype=torch.float64)
            for _ in range(2)
        )
        cut.load_state_dict(net.state_dict())
        distribute_module(cut, mesh)
        (x,) = tensors([(5, 3)])
        theirs, ours = net.jet(x, **flags), cut.jet(placed(x, s(0), mesh), **flags)
        for one, other in zip(ours, theirs, strict=True):
            if other is None:
                assert one is None
                continue
            assert one.placements == (s(0),), (outputs, flags, one)
            torch.testing.assert_close(one.full_tensor(), other)
        for jet in (ours, theirs):
            sum(part.square().sum() for part in jet if part is not None).backward()
        for one, other in zip(cut.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(one.grad.full_tensor(), other.grad)


class Call(torch.nn.Module):
    def __init__(self, layer: treadle.nn.SineLinear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, jet: treadle.Jet) -> treadle.Jet:
        return self.layer.jet(jet)


@case("jets of an own network")
def own_network() -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    x, w, b, last = tensors([(5, 3), (4, 3), (4,), (2, 4)])

    def run(x: Tensor, w: Tensor, b: Tensor, last: Tensor) -> treadle.Jet:
        h = treadle.Jet.of(x)
        layer = treadle.nn.SineLinear(3, 4, omega_0=2.0, dtype=torch.float64)
        h = torch.func.functional_call(Call(layer), {"layer.weight": w, "layer.bias": b}, (h,))
        return treadle.jet_linear(h * h + 2.0 * h, last).map(torch.tanh)

    theirs = run(x, w, b, last)
    ours = run(placed(x, s(0), mesh), *(placed(t, R, mesh) for t in (w, b, last)))
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        assert one.placements == (s(0),), one.placements
        torch.testing.assert_close(one.full_tensor(), other)
