"""What a backward pass of the sine layer has in memory at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import treadle

from .cases import DEVICES, FLOATING
from .inputs import Make
from .sine_linear_cases import OMEGA, sine_arguments
from .sine_linear_gradients import WIDE, large_arguments, same

TWICE = "backward through the graph a second time"


class Storages(TorchDispatchMode):
    """Which of these storages are alive when an op is called."""

    def __init__(self, of: dict[str, Tensor], when: str) -> None:
        super().__init__()
        self.storages = {n: StorageWeakRef(t.untyped_storage()) for n, t in of.items()}
        self.when, self.found = when, []  # type: ignore[var-annotated]

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if f.name() == self.when:
            self.found.append({n for n, s in self.storages.items() if not s.expired()})
        return f(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
def test_an_output_that_is_not_read_is_gone(
    dtype: torch.dtype, hooks: bool, keep: bool, device: str
) -> None:
    """float32 needs it for its cosine. Of a graph that is kept nothing goes."""
    call = sine_arguments(Make("gone", device, dtype), (300,), (3, 64))
    leaves = [t.requires_grad_() for t in call.args[:3]]
    if hooks:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.view_as(t), lambda t: t):
            y = treadle.sine_linear(*leaves, OMEGA)
    else:
        y = treadle.sine_linear(*leaves, OMEGA)
    z = y.sum()
    alive = Storages({"y": y}, "treadle::sine_linear_backward")
    del y
    with alive:
        first = torch.autograd.grad(z, leaves, retain_graph=keep)
    assert alive.found == [{"y"} if keep or dtype == torch.float32 else set()]
    if keep:
        same(torch.autograd.grad(z, leaves), first)
    with pytest.raises(RuntimeError, match=TWICE):
        torch.autograd.grad(z, leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_saved_is_gone_when_a_large_slope_is_multiplied(
    dtype: torch.dtype, device: str
) -> None:
    leaves, by = large_arguments(dtype, device)
    saved: dict[str, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        if len(t) == len(by) and t.shape[1] == WIDE:
            saved["y" if t.is_floating_point() else "phase"] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = treadle.sine_linear(*leaves, OMEGA)
    z = (y * by).sum()
    alive = Storages(saved, "aten::mm")
    assert saved.keys() == {"y", "phase"}
    saved.clear()
    del y
    with alive:
        torch.autograd.grad(z, leaves)
    assert alive.found == [set(), set()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_second_derivatives_of_a_graph_that_goes(dtype: torch.dtype, device: str) -> None:
    """They come while it is there, and torch's error after."""
    for keep in (True, False):
        call = sine_arguments(Make("gone", device, dtype), (300,), (3, 64))
        leaves = [t.requires_grad_() for t in call.args[:3]]
        y = treadle.sine_linear(*leaves, OMEGA)
        options = {"create_graph": True, "retain_graph": keep}
        first = torch.autograd.grad(y.square().sum(), leaves, **options)
        value = sum(t.square().sum() for t in first)
        if keep:
            assert all(t is not None for t in torch.autograd.grad(value, leaves))
        else:
            with pytest.raises(RuntimeError, match=TWICE):
                torch.autograd.grad(value, leaves)
