"""Value, gradient and Laplacian of a SIREN computed by jets, autograd, torch.func or torch-jet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import treadle
from benchmarks.recurrent.layer_memory import step
from benchmarks.sine_linear.layer import OMEGA
from treadle import reference


@dataclass(frozen=True)
class Wanted:
    """The derivatives to compute, and whether the parameters require gradients."""

    gradient: bool
    laplacian: bool
    training: bool


Layer = Callable[[Tensor, Tensor, Tensor, float], Tensor]
Params = tuple[Tensor, ...]  # weight and bias of each layer
Derivatives = tuple[Tensor, "Tensor | None", "Tensor | None"]  # [N, 1], [N, d], [N, 1]
Derive = Callable[[Wanted, Tensor, Params], Derivatives]


class Jets(nn.Module):
    """Calls Siren.jet in forward, so that functional_call can pass parameters."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.net = treadle.nn.Siren(
            widths[0], widths[1], len(widths) - 3, widths[-1], True, OMEGA, OMEGA, device="meta"
        )
        self.names = [f"net.{name}" for name, _ in self.net.named_parameters()]

    def forward(self, x: Tensor, gradient: bool, laplacian: bool) -> treadle.Jet:
        return self.net.jet(x, gradient, laplacian)


@lru_cache
def module(widths: tuple[int, ...]) -> Jets:
    return Jets(widths)


def by_jets(wanted: Wanted, x: Tensor, params: Params) -> Derivatives:
    net = module((x.shape[1], *(weight.shape[0] for weight in params[::2])))
    given = dict(zip(net.names, params, strict=True))
    jet = torch.func.functional_call(net, given, (x, wanted.gradient, wanted.laplacian))
    gradient = None if jet.gradient is None else jet.gradient.squeeze(1)
    return jet.value, gradient, jet.laplacian


def uniform(device: str, bound: float, *shape: int) -> Tensor:
    return (torch.rand(shape, device=device) * 2 - 1) * bound


def drawn(device: str, widths: Sequence[int]) -> list[Tensor]:
    """Random weight and bias of each layer of a SIREN."""
    made = []
    for number, (i, o) in enumerate(zip(widths, widths[1:], strict=False)):
        bound = 1 / i if number == 0 else (6 / i) ** 0.5 / OMEGA
        made += [uniform(device, bound, o, i), uniform(device, i**-0.5, o)]
    return made


def values(layer: Layer, x: Tensor, params: Params) -> Tensor:
    pairs = list(zip(params[::2], params[1::2], strict=True))
    for weight, bias in pairs[:-1]:
        x = layer(x, weight, bias, OMEGA)
    return F.linear(x, *pairs[-1])


def by_autograd(layer: Layer) -> Derive:
    def derive(wanted: Wanted, x: Tensor, params: Params) -> Derivatives:
        x = x.detach().requires_grad_()
        y = values(layer, x, params)
        graph = wanted.laplacian or wanted.training
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=graph)
        found = None
        for k in range(x.shape[1]) if wanted.laplacian else ():
            along = slope[:, k]
            (second,) = torch.autograd.grad(
                along,
                x,
                torch.ones_like(along),
                create_graph=wanted.training,
                retain_graph=wanted.training or k + 1 < x.shape[1],
            )
            found = second[:, k : k + 1] if found is None else found + second[:, k : k + 1]
        if not wanted.training:
            y, slope = y.detach(), slope.detach()
        return y, slope, found

    return derive


def by_func(wanted: Wanted, x: Tensor, params: Params) -> Derivatives:
    """Applies forward mode twice, to one coordinate at a time."""
    jvp: Any = torch.func.jvp
    y, slopes, found = None, [], None
    for k in range(x.shape[1]):
        direction = torch.zeros_like(x)
        direction[:, k] = 1

        def along(x: Tensor, direction: Tensor = direction) -> tuple[Tensor, Tensor]:
            return jvp(lambda x: values(reference.sine_linear, x, params), (x,), (direction,))  # type: ignore[no-any-return]

        if wanted.laplacian:
            (y, slope), (_, second) = jvp(along, (x,), (direction,))
            found = second if found is None else found + second
        else:
            y, slope = along(x)
        slopes.append(slope)
    assert y is not None
    return y, torch.cat(slopes, dim=1) if wanted.gradient else None, found


# The first parameter with which by_torch_jet last traced a program, and that program. A call with
# another parameter traces again.
_traced: list[tuple[Tensor, Any]] = []


def by_torch_jet(wanted: Wanted, x: Tensor, params: Params) -> Derivatives:
    """Computes only the Laplacian. Returns x in place of the values."""
    import jet

    if not _traced or _traced[0][0] is not params[0]:

        def point(x: Tensor) -> Tensor:
            return values(reference.sine_linear, x, params)

        laplacian = jet.laplacian(point, (torch.zeros_like(x[0]),))
        _traced[:] = [(params[0], torch.vmap(laplacian))]
    return x, None, _traced[0][1](x)


def cpu_peak(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """The peak memory of a step minus the memory in use before it, from torch's profiler."""
    step(function, args)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step(function, args)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
