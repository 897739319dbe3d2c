"""A Siren's values and their gradient with respect to the points, computed in reverse mode.

In general, torch.func computes them. If only autograd is active, a net of sine layers and a final
linear layer becomes a single autograd Node, which needs less memory. For each sine layer the Node
saves the phase, the output (only in float32), and the gradient of each output of the net with
respect to the layer's output. The backward pass recomputes the rest. The Node processes points in
chunks, so intermediate results use little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from ..jets._map import outside_inference
from ..sine_linear import sine_linear
from ._siren_pull_back import Gradients, Layer, Params, weight_of
from ._tracers import is_tracing

_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY  # the dispatch mode of torch.fx's make_fx

_forward = torch.ops.treadle.sine_linear_forward.default

# The points are processed in up to _PARTS chunks. A chunk has at least _LEAST points, and enough
# points for the values of one layer to fill _AT_ONCE bytes. In addition to saved tensors, the
# computation of a chunk needs nine times the memory of these values.
_PARTS = 8
_AT_ONCE, _LEAST = 1 << 18, 2048


def composed(values: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Values [..., O] and gradient [..., O, d] of any net, differentiable any number of times.

    torch.compile does not support double backward, but it traces torch.func.vjp as a part of the
    forward pass.
    """
    return outside_inference(lambda: _composed(values, x))


def _composed(values: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    vjp: Any = torch.func.vjp
    value, pull = vjp(values, x)
    rows, outputs = [], value.shape[-1]
    for k in range(outputs):
        # A row of ones and zeros, built from ops that DTensors support.
        column = torch.ones_like(value[..., k : k + 1])
        along = torch.cat([column * (i == k) for i in range(outputs)], dim=value.dim() - 1)
        # Under autocast, the dtype of x may differ from that of the value.
        rows.append(pull(along)[0].to(value.dtype))
    # torch.stack of DTensors does not support negative dimensions.
    return value, torch.stack(rows, dim=x.dim() - 1)


def is_plain(*tensors: Any) -> bool:
    """Whether only autograd is active: no transform, tracer, tangent or tensor subclass."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not is_tracing()
        and torch._C._get_dispatch_mode(_PROXY) is None
        and forward_ad._current_level < 0
        and all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
        # The vmap that autograd uses for is_grads_batched is not reported as a transform.
        and not any(
            t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors
        )
    )


def pulled_back(x: Tensor, omegas: Sequence[float], params: Params) -> tuple[Tensor, Tensor]:
    """Values [..., O] and gradient [..., O, d] of sine layers followed by a linear layer.

    All tensors must be plain, and autocast must be off.
    """
    flat = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *params)):
        value, gradient = _Pull.apply(tuple(omegas), flat, *params)  # type: ignore[no-untyped-call]
    else:
        value, gradient = _through(omegas, flat, params, None)
    lead = x.shape[:-1]
    return value.view(*lead, *value.shape[1:]), gradient.view(*lead, *gradient.shape[1:])


class _Kept(NamedTuple):
    """Tensors saved for the backward pass. ``outputs`` and ``phases`` have a tensor per layer."""

    outputs: list[Tensor]  # [N, width]; empty if the phases suffice to recompute them
    phases: list[Tensor]
    # For each output of the net, its gradient with respect to the output of each sine layer except
    # the last.
    pulls: list[Tensor]

    @staticmethod
    def of(x: Tensor, params: Params) -> _Kept:
        *widths, outputs = (len(weight) for weight in params[::2] if weight is not None)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.int16

        def made(dtype: torch.dtype, widths: Sequence[int]) -> list[Tensor]:
            return [x.new_empty(len(x), width, dtype=dtype) for width in widths]

        own = made(x.dtype, widths) if x.dtype == torch.float32 else []
        return _Kept(own, made(dtype, widths), made(x.dtype, widths[:-1] * outputs))

    @staticmethod
    def again(tensors: Sequence[Tensor], count: int, dtype: torch.dtype) -> _Kept:
        first = count if dtype == torch.float32 else 0
        after = first + count
        return _Kept(list(tensors[:first]), list(tensors[first:after]), list(tensors[after:]))

    def at(self, rows: slice) -> _Kept:
        return _Kept(*([t[rows] for t in tensors] for tensors in self))


def _chunks(x: Tensor, params: Params) -> Iterator[slice]:
    width = max(len(weight) for weight in params[::2] if weight is not None)
    count = max(_AT_ONCE // (width * x.element_size()), _LEAST, -(-len(x) // _PARTS))
    for begin in range(0, max(len(x), 1), count):
        yield slice(begin, min(begin + count, len(x)))


def _through(
    omegas: Sequence[float], x: Tensor, params: Params, kept: _Kept | None
) -> tuple[Tensor, Tensor]:
    """Values [N, O] and gradient [N, O, d]. Fills ``kept`` if it is not None."""
    last = weight_of(params, -1)
    value = x.new_empty(len(x), len(last))
    gradient = x.new_empty(len(x), len(last), x.shape[1])
    for rows in _chunks(x, params):
        layers, y = [], x[rows]
        for k, omega in enumerate(omegas):
            weight, bias = weight_of(params, k), params[2 * k + 1]
            output, phase = _forward(y, weight, bias, omega)
            layers.append(Layer(y, weight, bias, output, phase, omega))
            y = output
        value[rows] = F.linear(y, last, params[-1])
        pulls = None
        if kept is not None:
            pulls = kept.pulls
            for into, layer in zip(kept.phases, layers, strict=True):
                into[rows] = layer.phase
            for into, layer in zip(kept.outputs, layers[: len(kept.outputs)], strict=True):
                assert layer.output is not None
                into[rows] = layer.output
        _pull(layers, last, gradient, rows, pulls)
    return value, gradient


def _pull(
    layers: Sequence[Layer],
    last: Tensor,
    gradient: Tensor,
    rows: slice,
    pulls: Sequence[Tensor] | None,
) -> None:
    inner = len(layers) - 1
    for number, along in enumerate(last):
        grad = along.expand_as(layers[-1].phase)
        for k in range(inner, 0, -1):
            into = None if pulls is None else pulls[number * inner + k - 1][rows]
            grad = torch.mm(layers[k].slope(grad), layers[k].weight, out=into)
        gradient[rows, number] = layers[0].slope(grad) @ layers[0].weight


class _Pull(torch.autograd.Function):
    """The Node. Its inputs are omegas, x [N, d] and params; its results are the values [N, O] and
    the gradient [N, O, d]."""

    @staticmethod
    def forward(
        ctx: Any, omegas: tuple[float, ...], x: Tensor, *params: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        kept = _Kept.of(x, params)
        results = _through(omegas, x, params, kept)
        ctx.omegas = omegas
        ctx.save_for_backward(x, *params, *(t for tensors in kept for t in tensors))
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        omegas, needed, count = ctx.omegas, list(ctx.needs_input_grad[1:]), len(ctx.omegas)
        needed[-1] &= grads[0] is not None  # the gradient does not depend on the last bias
        x, *saved = ctx.saved_tensors
        params, saved = saved[: 2 * count + 2], saved[2 * count + 2 :]
        if all(grad is None for grad in grads):
            return (None,) * (2 + len(params))
        # Autocast would change the dtype of matrix products, which must be the forward pass's.
        with torch.autocast(x.device.type, enabled=False):
            # Compiled autograd can trace the code below, so its gradients count as plain.
            plain = torch.compiler.is_compiling() or is_plain(*grads)
            if torch.is_grad_enabled() or not plain:
                return None, *_composed_backward(omegas, x, params, needed, grads)
            kept, found = _Kept.again(saved, count, x.dtype), Gradients(x, params, needed)
            for rows in _chunks(x, params):
                here = kept.at(rows)
                layers = _made_again(omegas, x[rows], params, here)
                cut = (None if grad is None else grad[rows] for grad in grads)
                found.add(layers, here.pulls, rows, *cut)
            return None, *found.results()


def _made_again(omegas: Sequence[float], x: Tensor, params: Params, kept: _Kept) -> list[Layer]:
    layers: list[Layer] = []
    for k, omega in enumerate(omegas):
        input = layers[-1].value() if layers else x
        output = kept.outputs[k] if kept.outputs else None
        weight, bias = weight_of(params, k), params[2 * k + 1]
        layers.append(Layer(input, weight, bias, output, kept.phases[k], omega))
    return layers


def _composed_backward(
    omegas: Sequence[float],
    x: Tensor,
    params: Params,
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> Iterator[Tensor | None]:
    """The gradients of x and params, composed of ops that can be differentiated again."""
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # The gradients are taken with respect to views. So if a parameter depends on x, the
        # gradient of x computed here does not include the path through that parameter.
        taken = [t if t is None else t.view_as(t) for t in (x, *params)]

        def values(x: Tensor) -> Tensor:
            for k, omega in enumerate(omegas):
                x = sine_linear(x, taken[2 * k + 1], taken[2 * k + 2], omega)  # type: ignore[arg-type]
            return F.linear(x, taken[-2], taken[-1])  # type: ignore[arg-type]

        results = composed(values, taken[0])  # type: ignore[arg-type]
        pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None]
        wanted = [t for t, needs in zip(taken, needed, strict=True) if needs and t is not None]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=create,
            allow_unused=True,
        )
    left = iter(found)
    for needs in needed:
        yield next(left) if needs else None
