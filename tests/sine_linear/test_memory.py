"""The peak memory of a backward pass of the sine layer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.sine_linear.cases import OMEGA, sine_arguments
from tests.sine_linear.gradients import LARGE, expected, large_arguments, same, wide
from tests.support.cases import DEVICES, FLOATING
from tests.support.inputs import Make
from treadle import reference

TWICE = "backward through the graph a second time"


def most(prepare: Callable[[], Tensor], run: Callable[[Tensor], Any], device: str) -> int:
    """The peak bytes of tensors in `run`, beyond those allocated by `prepare`."""
    if device == "cuda":
        # The first product of a thread allocates cuBLAS's workspace.
        square = torch.ones(8, 8, device=device, requires_grad=True)
        (square @ square).sum().backward()
        z = prepare()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(z)
        return torch.cuda.max_memory_allocated() - before
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as found:
        z = prepare()
        with torch.profiler.record_function("run"):
            run(z)
    events = sorted(found.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    begin = next(n for n, e in enumerate(events) if e.name() == "run")
    sizes = [e.nbytes() for e in events[begin:] if e.name() == "[memory]"]
    return max(accumulate(sizes, initial=0))


def beyond_the_products(by: Tensor, x: Tensor, weight: Tensor, device: str) -> int:
    """Bytes that torch's own products, for the gradients of x and the weight, need besides results.

    On a CPU without instructions for bfloat16, a product needs a float32 copy of the result; on one
    with tiles for bfloat16 (AMX), the second needs memory for packed operands.
    """

    def beyond(a: Tensor, b: Tensor) -> int:
        found: list[Tensor] = []
        return most(lambda: a, lambda a: found.append(a @ b), device) - found[0].nbytes

    return max(beyond(by, weight), beyond(by.mT, x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_large_slope_lies_where_its_gradient_lay(
    dtype: torch.dtype, keep: bool, device: str
) -> None:
    """The slope overwrites the gradient, so there is no second tensor of that size. The gradient of
    an equally large input reuses the layer's saved output if nothing else references it."""
    for inputs in (8, wide(device)):
        leaves, by = large_arguments(dtype, device, inputs=inputs)
        theirs, found = expected(by, leaves), list[Tensor]()

        def prepare(leaves: list[Tensor] = leaves, by: Tensor = by) -> Tensor:
            return (treadle.sine_linear(*leaves, OMEGA) * by).sum()

        def run(z: Tensor, leaves: list[Tensor] = leaves, found: list[Tensor] = found) -> None:
            found += torch.autograd.grad(z, leaves, retain_graph=keep)

        tensors = 2 if inputs == wide(device) and keep else 1
        most_allowed = (tensors + 0.25) * LARGE + theirs[1].nbytes
        if device == "cpu":
            x, weight = (t.detach() for t in leaves[:2])
            most_allowed += beyond_the_products(by, x, weight, device)
        assert most(prepare, run, device) <= most_allowed
        same(found, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_of_a_network(device: str) -> None:
    """Peak memory is lower than in plain PyTorch, which keeps the phases and sines of every layer,
    and two gradients at a time."""
    make = Make("network", device, torch.float32)
    sizes, found = (2, 256, 256, 256, 256, 1), []
    weights = [make(o, i, by=i**-0.5) for i, o in zip(sizes, sizes[1:], strict=False)]
    x = make(LARGE // (256 * 4), 2)
    for layer in (treadle.sine_linear, reference.sine_linear):

        def loss(layer: Any = layer) -> Tensor:
            h = x
            for w in weights[:-1]:
                h = layer(h, w, None, 1.0)
            return (F.linear(h, weights[-1]) ** 2).mean()

        for w in weights:
            w.requires_grad_().grad = None
        loss().backward()  # allocates workspaces of libraries and the parameters' gradients
        found.append(most(lambda: x, lambda _, loss=loss: loss().backward(), device))
    assert found[0] <= 0.72 * found[1]


class Storages(TorchDispatchMode):
    """Records which storages are alive at each call of the op `when`."""

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
    """The backward pass reads the output only in float32, to compute the cosine. With retain_graph
    nothing is released."""
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
        if len(t) == len(by) and t.shape[1] == wide(device):
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
    """Higher derivatives work while the graph exists, and raise torch's error afterwards."""
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
