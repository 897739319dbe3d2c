"""Jets of sine layers: comparison with autograd, difficult phases, saved values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacrev, vmap

import treadle
from tests.sine_linear_jet.cases import SECONDS, jet_arguments
from tests.support.cases import DEVICES, FLOATING, HALVES, OPS
from tests.support.compare import same_bits
from tests.support.inputs import GPU, Call, Make, requiring_grad
from tests.support.rule import gradients, obeys, within_rule
from treadle import reference

OP = OPS["sine_linear_jet"]
ops = torch.ops.treadle
INF, NAN = math.inf, math.nan


def of_coordinates(x: Tensor, second: str) -> Tensor:
    """The jet of x [N, d] with respect to its own coordinates."""
    n, d = x.shape
    first = torch.eye(d, dtype=x.dtype, device=x.device)[:, None].expand(d, n, d)
    seconds = x.new_zeros(()).expand((0, 1, d)[SECONDS.index(second)], n, d)
    return torch.cat([x[None], first, seconds])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("second", SECONDS)
def test_derivatives_are_those_of_autograd(second: str, d: int, device: str) -> None:
    """Tests the jet of a network of three layers, and the gradients of its parameters."""
    make = Make(f"network {d}", device, torch.float64)
    x = make(7, d)
    widths = ((6, d), (6, 6), (2, 6))
    parameters = [(make(*w, by=0.7), make(w[0], by=0.3)) for w in widths]
    leaves = [t.requires_grad_() for pair in parameters for t in pair]

    def network(point: Tensor) -> Tensor:
        for weight, bias in parameters:
            point = treadle.sine_linear(point, weight, bias, 1.4)
        return point

    jet = of_coordinates(x, second)
    for weight, bias in parameters:
        jet = ops.sine_linear_jet(jet, weight, bias, 1.4, d, second)
    value, first, last = jet.split([1, d, jet.shape[0] - 1 - d])
    of_autograd = [network(x)[None], vmap(jacrev(network))(x).permute(2, 0, 1)]
    if second != "none":
        diagonal = vmap(hessian(network))(x).diagonal(dim1=-2, dim2=-1).permute(2, 0, 1)
        laplacian = second == "laplacian"
        of_autograd.append(diagonal.sum(0, keepdim=True) if laplacian else diagonal)
    found = [value, first, last][: len(of_autograd)]
    close: Callable[..., None] = torch.testing.assert_close
    close(found, of_autograd, rtol=1e-10, atol=1e-10)
    losses = [sum((k + 1) * t.sin().sum() for k, t in enumerate(ts)) for ts in (found, of_autograd)]
    close(*(torch.autograd.grad(loss, leaves) for loss in losses), rtol=1e-10, atol=1e-10)


def quarter_turns(make: Make, omega: float, width: int, second: str) -> Call:
    """Values whose phases differ from odd multiples of pi / 2 by 1e-9 to 0.1, on both sides."""
    jet, weight, _, _, d, _ = jet_arguments(make, (400,), (width, 24), second=second).args
    with torch.no_grad():
        weight *= 0.3
        z = (jet[0].double() @ weight.double().T)[:, :1]
        distance = torch.logspace(-9, -1, 400, dtype=torch.float64, device=z.device)[:, None]
        target = ((omega * z / math.pi).round() + 0.5) * math.pi + distance * z.sign()
        # The first column depends only on the first input, whose product with omega is its phase.
        weight[0] = 0
        weight[0, 0] = 1
        jet[0, :, :1] = (target / omega).to(jet.dtype)
    return Call((jet, weight, None, omega, d, second))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("omega", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_near_quarter_turns(dtype: torch.dtype, second: str, omega: float, device: str) -> None:
    """The backward pass divides by cosines, which are small near odd multiples of pi / 2."""
    if dtype == torch.float16:
        omega = min(omega, 60.0)  # with a larger omega, the composition overflows
    make = Make(f"quarter {omega} {second}", device, dtype)
    call = quarter_turns(make, omega, 6, second)
    if dtype == torch.float16:
        call.args[0][1:] *= 1 / omega
    obeys(OP, requiring_grad(OP, call))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_first_parts_alone_near_quarter_turns(dtype: torch.dtype, device: str) -> None:
    """The loss depends only on y_1, the first derivative of the output. So the gradient of the
    value needs z_1, the first derivative of the sine's argument. The op computes z_1 as y_1 /
    (omega c), although the cosine c is almost 0. Some of these phases are saved as exactly pi / 2
    or 3 pi / 2, or as a cosine of 0."""
    distance = torch.linspace(-3e-4, 3e-4, 1001, dtype=torch.float64)
    u = torch.cat([0.5 * math.pi + distance, 1.5 * math.pi + distance])
    # Rounding u to a half type may change it by 5e-4, so a second input adds the difference.
    high = u.to(dtype)
    values = torch.stack([high, (u - high.double()).to(dtype)], -1)
    jet = torch.stack([values, torch.tensor([0.75, 0], dtype=dtype).expand(values.shape)])
    jet = jet.to(device).requires_grad_()
    weight = torch.ones(1, 2, device=device, dtype=dtype).requires_grad_()
    y = ops.sine_linear_jet(jet, weight, None, 1.0, 1)
    grad = torch.zeros_like(y)
    grad[1] = 1
    (found,) = torch.autograd.grad(y, jet, grad)
    # The gradient with respect to the value is s'' z_1 = -0.75 sin(u).
    expected = -0.75 * jet[0].detach().double().sum(-1, keepdim=True).sin()
    tolerance = {torch.float32: 4e-7}.get(dtype, 2 * torch.finfo(dtype).eps)
    assert float((found[0].double() - expected).abs().max()) < tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1e-7, 1e-5, 1e-3])
def test_small_derivatives_of_halves(scale: float, device: str) -> None:
    """Gradients below float16's normal range, such as those of a loss weighted by 1e-7, are not
    lost."""
    make = Make("small", device, torch.float16)
    call = jet_arguments(make, (60,), (8, 16), omega=30.0)
    call.args[0][1:] *= scale
    obeys(OP, requiring_grad(OP, call))


SPECIAL = (0.0, 1.0, -0.7, 3.0, INF, -INF, NAN)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_nan_and_inf_as_in_the_composition(dtype: torch.dtype, second: str, device: str) -> None:
    """NaN and inf in one part of a jet, or in one part of the gradient."""
    call = jet_arguments(Make("special", device, dtype), (len(SPECIAL),), (1, 1), second=second)
    special = torch.tensor(SPECIAL, dtype=dtype, device=device)[:, None]
    for where in ("jet", "grad"):
        for part in range(call.args[0].shape[0]):
            found = []
            for function in (OP.function, OP.reference):
                jet, grad = call.args[0].clone(), torch.ones_like(call.args[0])
                (jet if where == "jet" else grad)[part] = special
                leaves = [jet.requires_grad_(), call.args[1].clone().requires_grad_()]
                y = function(*leaves, *call.args[2:])
                found.append([y.detach(), torch.autograd.grad(y, leaves[0], grad)[0]])
            for ours, theirs in zip(*found, strict=True):
                assert torch.equal(ours.isnan(), theirs.isnan()), (where, part)
                assert torch.equal(ours.isinf(), theirs.isinf()), (where, part)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_saved_bytes(dtype: torch.dtype, second: str, device: str) -> None:
    """The op saves its arguments and its result, and 2 more bytes per value (8 in float64)."""
    call = jet_arguments(Make("saved", device, dtype), (4, 50), (8, 32), second=second)
    leaves = [t.requires_grad_() for t in call.args[:3]]
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = call.run(OP.function)
    for t in (*leaves, y):
        kept.pop(t.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) == y[0].numel() * (8 if dtype == torch.float64 else 2)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_kept_without_gradients(device: str) -> None:
    call = jet_arguments(Make("saved", device, torch.float32), (4,), (5, 3))
    seen = []

    class Ops(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend([str(f)] if f.namespace == "treadle" else [])
            return f(*args, **(kwargs or {}))

    with Ops():
        call.run(OP.function)
        with torch.no_grad():
            call.map(lambda t: t.requires_grad_()).run(OP.function)
        call.map(lambda t: t.requires_grad_()).run(OP.function)
    plain, kept = "treadle.sine_linear_jet.default", "treadle.sine_linear_jet_forward.default"
    assert seen == [plain, plain, kept]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_a_result_that_is_written_over(dtype: torch.dtype, device: str) -> None:
    """`y *= 2` gives the gradients of `y = y * 2`, because the output is recomputed."""
    call = jet_arguments(Make("over", device, dtype), (9,), (5, 8))
    found = []
    for write in (lambda y: y.mul_(2), lambda y: y * 2):
        given = requiring_grad(OP, call)
        y = write(given.run(OP.function))
        found.append(torch.autograd.grad(y.sum(), given.args[:3]))
    for ours, expected in zip(*found, strict=True):
        same_bits(ours, expected)


# Numbers of points and outputs. The larger ones exceed what a CUDA block processes and what a
# thread sums.
MANY = ((1, 1), (3, 31), (2_500, 256), (70_001, 24), (1_300, 1_032))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", MANY, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
def test_of_many_points(dtype: torch.dtype, sizes: tuple[int, int], device: str) -> None:
    """Gradients of weights and bias are sums over many points."""
    points, outputs = sizes
    if device == "cpu":
        points, outputs = min(points, 300), min(outputs, 256)
    call = jet_arguments(Make("many", device, dtype), (points,), (5, outputs))
    y, grads = gradients(OP.function, call, (0, 1, 2), None)
    truth = gradients(OP.reference, call, (0, 1, 2), torch.float64)
    composition = gradients(OP.reference, call, (0, 1, 2), None)
    within_rule(y[0], truth[0][0], composition[0][0])
    for k, (a, t, c) in enumerate(zip(grads, truth[1], composition[1], strict=True)):
        within_rule(a, t, c, gradient=True, what=str(k))


@GPU
@pytest.mark.parametrize("inputs", [2, 4, 40])
@pytest.mark.parametrize("d", [1, 4, 5, 8])
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("device", ["cuda"])
def test_wide_accesses(device: str, second: str, d: int, inputs: int) -> None:
    """Sizes are large enough for CUDA to access 16 bytes at a time."""
    for dtype in FLOATING:
        make = Make(f"wide {d} {inputs}", device, dtype)
        obeys(OP, jet_arguments(make, (530,), (inputs, 256), coordinates=d, second=second))


@pytest.mark.parametrize("device", DEVICES)
def test_more_than_a_chunk(device: str) -> None:
    """The CPU multiplies half types in chunks of 8,192 points of width 256. This tests the last
    chunk."""
    make = Make("chunks", device, torch.bfloat16)
    call = jet_arguments(make, (8_200,), (5, 256), coordinates=1, second="none")
    last = call.with_args({0: call.args[0][:, -30:]})
    torch.testing.assert_close(call.run(OP.function)[:, -30:], last.run(OP.function))


@GPU
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_same_bits_twice(dtype: torch.dtype, second: str) -> None:
    call = jet_arguments(Make("twice", "cuda", dtype), (50_000,), (40, 64), second=second)
    first = gradients(OP.function, call, (0, 1, 2), None)
    for _ in range(3):
        again = gradients(OP.function, call, (0, 1, 2), None)
        for a, b in zip((*first[0], *first[1]), (*again[0], *again[1]), strict=True):
            same_bits(a, b)


def test_the_reference_is_the_layers() -> None:
    """The value equals that of sine_linear's reference, so tolerances of both ops are
    comparable."""
    call = jet_arguments(Make("reference", "cpu", torch.float64), (5,), (3, 4))
    jet, weight, bias, omega, *_ = call.args
    torch.testing.assert_close(
        call.run(OP.reference)[0], reference.sine_linear(jet[0], weight, bias, omega)
    )
