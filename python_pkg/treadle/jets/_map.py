"""Jets of functions that have no jet formula: torch.func computes them, one direction at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ._parts import total

Result = TypeVar("Result")


def mapped(
    function: Callable[[Tensor], Tensor], value: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """Applies a function of each point's values to a jet in the form that ``_parts.split`` returns.
    The result is packed."""
    if exporting():
        return _exported(function, value, first, second)
    return outside_inference(lambda: _mapped(function, value, first, second))


def outside_inference(run: Callable[[], Result]) -> Result:
    """Calls ``run`` outside inference mode, in which torch.func silently gives zero derivatives."""
    # Programs made by torch.compile do not enter inference mode.
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return run()
    with torch.inference_mode(False), torch.no_grad():
        return run()


def exporting() -> bool:
    """Whether torch.export runs. torch.compiler.is_exporting is also true in torch.compile."""
    return torch.compiler._is_exporting_flag


def _exported(function: Callable[[Tensor], Tensor], *parts: Tensor) -> Tensor:
    """Traces the ops that torch.func calls and runs them without torch.func, which torch.export
    does not support."""
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError("Jet.map: torch.export must have strict=False, got strict=True")
    from torch.fx.experimental import proxy_tensor

    def traced(*parts: Tensor) -> Tensor:
        return _mapped(function, *parts)

    without = proxy_tensor._temp_remove_pre_dispatch_torch_function_mode
    with proxy_tensor.disable_proxy_modes_tracing(), without():
        program = proxy_tensor.make_fx(traced)(*(part.detach() for part in parts))
    return program(*parts)  # type: ignore[no-any-return]


def _mapped(
    function: Callable[[Tensor], Tensor], value: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    x = value.squeeze(0)

    def slope(x: Tensor, direction: Tensor) -> Tensor:
        return _pushed(function, (x,), (direction,))

    parts = [function(x), *(slope(x, direction) for direction in first.unbind())]
    bends = []
    for k in range(len(first) if len(second) else 0):
        # The Laplacian must be added once to the sum over directions, so only the first direction
        # includes it.
        bend = second[k] if k < len(second) else torch.zeros_like(x)
        bends.append(_pushed(slope, (x, first[k]), (first[k], bend)))
    if len(second) == 1 and len(bends) > 1:
        bends = [total(torch.stack(bends), 0)]
    return torch.stack(parts + bends)


def _pushed(
    function: Callable[..., Tensor], at: tuple[Tensor, ...], along: tuple[Tensor, ...]
) -> Tensor:
    """The derivative of a function along a direction, like the second result of torch.func.jvp.

    torch.compile supports neither a jvp of a jvp nor a jvp with dynamic sizes. A vjp is linear, so
    its own vjp gives the jvp.
    """
    vjp: Any = torch.func.vjp
    result, pull = vjp(function, *at)
    return vjp(pull, torch.zeros_like(result))[1](along)[0]  # type: ignore[no-any-return]
