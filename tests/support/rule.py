"""The rule: the tolerance of results, derived from the error of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.support.inputs import Call, Make, Op, outputs


def worst(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def within_rule(
    actual: Tensor,
    truth: Tensor,
    composition: Tensor,
    *,
    gradient: bool = False,
    what: str = "",
    slack: float = 1,
) -> None:
    """Checks that the error is at most twice that of the composition (for gradients, three times)
    plus 8 eps times the largest value. In float64, the error is at most 1e-11 times the largest
    value.

    The composition is the formula in plain PyTorch ops. ``composition`` is its result in the dtype
    of the inputs, and ``truth`` its result for the same inputs in float64. ``slack`` multiplies the
    whole bound; tests that set it explain why.
    """
    assert actual.shape == truth.shape == composition.shape, f"{what}: {actual.shape}"
    assert actual.dtype == composition.dtype, f"{what}: {actual.dtype}, not {composition.dtype}"
    assert bool(actual.isfinite().all()), f"{what}: not finite"
    error = worst(actual.double() - truth)
    if actual.dtype == torch.float64:
        bound = 1e-11 * worst(truth)
    else:
        allowed = 3 if gradient else 2
        bound = allowed * worst(composition.double() - truth)
        bound += 8 * torch.finfo(actual.dtype).eps * worst(truth)
    bound *= slack
    assert error <= bound, f"{what}: error {error:.3g} where {bound:.3g} is allowed"


def gradients(
    function: Callable[..., Any], call: Call, leaves: Sequence[int], dtype: torch.dtype | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Results, and gradients for random cotangents. If ``dtype`` is given, all tensors are cast to
    it."""

    def cast(t: Tensor) -> Tensor:
        return t.detach().to(dtype or t.dtype)

    call = call.map(cast)
    call = call.with_args({i: call.args[i].requires_grad_() for i in leaves})
    results = outputs(call.run(function))
    make = Make("cotangents", results[0].device.type, torch.float64)
    # Values that every dtype can represent, so that all dtypes differentiate the same function.
    cotangents = [make(*r.shape).bfloat16().to(r.dtype) for r in results]
    found = torch.autograd.grad(results, [call.args[i] for i in leaves], cotangents)
    return tuple(r.detach() for r in results), found


def obeys(op: Op, call: Call, *, backward: bool = True, slack: float = 1) -> None:
    """Checks results, and gradients of all differentiable arguments, with `within_rule`."""
    leaves = op.leaves(call) if backward else []
    if not leaves:
        runs = [
            (outputs(c.run(f)), ())
            for f, c in (
                (op.function, call),
                (op.reference, call.map(Tensor.double)),
                (op.reference, call),
            )
        ]
    else:
        runs = [
            gradients(op.function, call, leaves, None),
            gradients(op.reference, call, leaves, torch.float64),
            gradients(op.reference, call, leaves, None),
        ]
    for n, results in enumerate(zip(*(forward for forward, _ in runs), strict=True)):
        within_rule(*results, what=f"result {n}", slack=slack)
    for leaf, grads in zip(leaves, zip(*(found for _, found in runs), strict=True), strict=True):
        assert grads[0].device == call.args[leaf].device
        within_rule(*grads, gradient=True, what=f"gradient of argument {leaf}", slack=slack)
