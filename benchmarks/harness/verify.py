"""Verifies results before timing, by the rule of the tests, on the benchmark's own inputs.

`verify` explains the rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treadle import reference

# A baseline's result is wrong if its error exceeds this fraction of the largest value. Over the few
# steps that are compared, rounding errors of half types stay far below this fraction.
FAR_OFF = 0.1
# How many elements are compared at once: float64 copies of gigabytes would not fit in memory.
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}


class Refused(Exception):
    """The op gives wrong results here, so it must not be timed."""


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def leaves(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor) and a.requires_grad]


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fills new memory with NaN, which shows elements that an op does not write."""
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def evaluate(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """The results of a call, and then the gradients of the arguments that require one."""
    results = as_tuple(function(*args))
    wanted = leaves(args)
    if not wanted:
        return list(results)
    # Cotangents are drawn on the device of the results, because drawing a large batch on the CPU
    # would take seconds.
    device = results[0].device
    generator = torch.Generator(device).manual_seed(5)
    cotangents = [
        torch.randn(r.shape, generator=generator, dtype=torch.float64, device=device).to(r)
        for r in results
    ]
    return [*(r.detach() for r in results), *torch.autograd.grad(results, wanted, cotangents)]


def exact(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in float64."""
    return tuple(
        a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in args
    )


def pieces(args: tuple[Any, ...], got: list[Tensor]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the arguments with their results. Vectors of equal length are yielded in chunks."""
    tensors = [t for t in (*args, *got) if isinstance(t, Tensor)]
    if leaves(args) or any(t.shape != tensors[0].shape or t.dim() != 1 for t in tensors):
        yield args, got
        return
    chunk = CHUNK[got[0].device.type]
    for start in range(0, max(1, len(tensors[0])), chunk):
        part = slice(start, start + chunk)
        yield (
            tuple(a[part] if isinstance(a, Tensor) else a for a in args),
            [g[part] for g in got],
        )


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether all tensors are equal. (Other arguments are the same in every chunk.)"""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))


def verify(
    function: Callable[..., Any],
    op: str,
    args: tuple[Any, ...],
    *,
    plain: Callable[..., Any] | None = None,
    bits: bool = False,
    poison: bool = False,
) -> float:
    """The largest error divided by its limit; raises Refused if it exceeds 1.

    The limit is twice (for gradients three times) the error of the plain PyTorch composition in the
    same dtype, plus 8 eps of the largest value. With `bits`, results must also be bitwise equal to
    the composition's. The composition is `plain` or, by default, the function of
    `treadle.reference` with the op's name.
    """
    plain = plain or getattr(reference, op)
    if poison:
        with poisoned_memory():
            whole = evaluate(function, args)
    else:
        whole = evaluate(function, args)
    worst, first = 0.0, None
    for part, got in pieces(args, whole):
        # A chunk that repeats the first one's inputs and results has the same error.
        if first is None:
            first = (*part, *got)
        elif same(first, (*part, *got)):
            continue
        truths, others = evaluate(plain, exact(part)), evaluate(plain, part)
        count = len(others) - len(leaves(part))
        for index, (value, other, truth) in enumerate(zip(got, others, truths, strict=True)):
            what = f"result {index}" if index < count else f"gradient {index - count}"
            if (value.shape, value.dtype) != (other.shape, other.dtype):
                raise Refused(f"{op}: {what} is {value.dtype} {list(value.shape)}")
            worst = max(worst, compare(f"{op}: {what}", value, other, truth, index < count))
            if bits and index < count and not torch.equal(value, other):
                raise Refused(f"{op}: {what} differs from torch's in some bits")
    return worst


def verify_baseline(
    function: Callable[..., Any],
    op: str,
    args: tuple[Any, ...],
    *,
    plain: Callable[..., Any] | None = None,
    poison: bool = False,
) -> float:
    """The largest error of a baseline, as `off_by` computes it for each result.

    The expected results are those of `plain` in float64. A baseline need not meet the rule of
    treadle's ops: it may round differently, but must compute the same function.
    """
    del poison  # only our results are checked for unwritten elements
    found, truths = evaluate(function, args), evaluate(plain or getattr(reference, op), exact(args))
    count, worst = len(found) - len(leaves(args)), 0.0
    for index, (value, truth) in enumerate(zip(found, truths, strict=True)):
        what = f"result {index}" if index < count else f"gradient {index - count}"
        worst = max(worst, off_by(f"{op}: {what}", value, truth))
    return worst


def off_by(what: str, value: Tensor, truth: Tensor) -> float:
    """The largest error divided by the largest value of the truth. Raises Refused if the quotient
    exceeds FAR_OFF."""
    if value.shape != truth.shape:
        raise Refused(f"{what} is {list(value.shape)}")
    if not truth.numel():
        return 0.0
    largest, error = float(truth.abs().max()), float((value.double() - truth).abs().max())
    # `not ... <=` instead of `>`, so that NaN fails.
    if not error <= FAR_OFF * largest:
        share = error / largest if largest else float("inf")
        raise Refused(f"{what} is off by {share:.2f} of its largest value")
    return error / largest if largest else 0.0


def compare(what: str, value: Tensor, other: Tensor, truth: Tensor, is_result: bool) -> float:
    """The error of `value` divided by its limit. Raises Refused if the quotient exceeds 1."""
    if not truth.numel():
        return 0.0
    error, allowed = (float((t.double() - truth).abs().max()) for t in (value, other))
    eps = torch.finfo(value.dtype).eps
    limit = (2 if is_result else 3) * allowed + 8 * eps * float(truth.abs().max())
    # `not ... <=` instead of `>`, so that NaN fails.
    if not error <= limit:
        raise Refused(f"{what} is wrong by {error:.2e}, where {limit:.2e} is allowed")
    return error / limit if limit else 0.0
