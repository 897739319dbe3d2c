"""Tensors with equal values on every device, and the classes of calls, cases and ops."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import gpus, layouts

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_hopper() -> bool:
    """Whether this GPU runs the kernels that need sm_90."""
    return gpus.architecture() == 90


HOPPER = pytest.mark.skipif(not on_hopper(), reason="needs a GPU of sm_90")
FUSED_SINES = pytest.mark.skipif(
    not (80 <= gpus.architecture() <= 90 or gpus.architecture() >= 120),
    reason="needs a GPU with kernels that compute both the product and the sines",
)
# For tests of algorithms that run a whole layer in one launch.
SM80 = pytest.mark.skipif(gpus.architecture() < 80, reason="needs a GPU of sm_80 or later")
# Without a GPU there are no cases on CUDA. Otherwise pytest would collect 8,000 cases only to skip
# them.
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


class Make:
    """Makes the tensors of a case. The name of the case seeds their values, which are computed on
    the CPU and moved to the device."""

    def __init__(self, name: str, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def __call__(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        by: float | Tensor = 1.0,
        to: Any = None,
        positive: bool = False,
    ) -> Tensor:
        """Normally distributed values times ``by``, all positive if ``positive``, or small integers
        for integer dtypes. ``to`` is a layout of layouts.py."""
        dtype = dtype or self.dtype
        if dtype.is_floating_point:
            t = torch.randn(shape, generator=self.generator, dtype=torch.float64)
            t = (t.abs() if positive else t) * by
        else:
            low, high = (0, 2) if dtype == torch.bool else (0, 100)
            t = torch.randint(low, high, shape, generator=self.generator)
            if dtype.is_signed:
                t = t - 50
        return (to or layouts.dense)(t.to(dtype).to(self.device))


@dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def run(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with every tensor changed."""
        return Call(
            tuple(change(a) if isinstance(a, Tensor) else a for a in self.args), self.kwargs
        )

    def with_options(self, **options: Any) -> Call:
        """The same call with these additional keyword arguments."""
        return Call(self.args, {**self.kwargs, **options})

    def with_args(self, values: dict[int, Any]) -> Call:
        """The same call with the arguments at these positions replaced."""
        return Call(tuple(values.get(i, a) for i, a in enumerate(self.args)), self.kwargs)


@dataclass(frozen=True)
class Case:
    id: str
    build: Callable[[Make], Call]
    dtypes: tuple[torch.dtype, ...]  # the dtypes with which tests run the case
    big: bool = False  # too big for tests such as gradcheck
    drawn: str = ""  # seeds the random numbers instead of the id

    def call(self, device: str = "cpu", dtype: torch.dtype | None = None) -> Call:
        return self.build(Make(self.drawn or self.id, device, dtype or self.dtypes[0]))


@dataclass(frozen=True)
class Op:
    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    overloads: tuple[str, ...]  # names in torch.ops.treadle of ops that return new tensors
    differentiable: tuple[int, ...]  # positions of the tensors that a gradient can reach
    cases: tuple[Case, ...]
    inplace: Callable[..., Any] | None = None  # writes into and returns the first argument
    torch_inplace: Callable[..., Any] | None = None  # torch's twin of inplace
    has_out: bool = False
    saved: tuple[int, ...] = ()  # positions of the tensors whose values the derivative needs
    torch_function: Callable[..., Any] | None = None  # torch's twin of function, with out=
    # The largest error in ulps, or None if results are bitwise equal to the twin's.
    ulps: Mapping[torch.dtype, float] | None = None
    # Only for elementwise ops: a function for each variant of a call. It makes the arguments after
    # the first from a tensor of the first one's shape. See forms.py.
    rest: Mapping[str, Callable[[Tensor], Call]] | None = None
    parameters: bool = False  # whether shapes of later tensors differ from the first one's

    @property
    def elementwise(self) -> bool:
        return self.rest is not None

    @property
    def is_layer(self) -> bool:
        """Whether this is recurrent_layer; the second word of the name is then its cell."""
        return self.name.startswith("recurrent_layer ")

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all cases."""
        return {dtype for case in self.cases for dtype in case.dtypes}

    @property
    def keeps_integers(self) -> bool:
        return torch.int32 in self.dtypes

    def like_first_case(self, make: Make, *shape: int) -> Call:
        """The first case's call with tensors of this shape. If the op has parameters, they have the
        shapes of the last variant in `rest`."""
        call = self.cases[0].call()
        if self.parameters:
            *_, variant = (self.rest or {}).values()
            rest = variant(make(*shape)).map(Tensor.clone)
            return Call((make(*shape), *rest.args), rest.kwargs)
        args = (make(*shape) if isinstance(a, Tensor) else a for a in call.args)
        return Call(tuple(args), call.kwargs)

    def leaves(self, call: Call) -> list[int]:
        """Positions of this call's tensors that can require grad."""
        return [
            i
            for i in self.differentiable
            if i < len(call.args)
            and isinstance(call.args[i], Tensor)
            and call.args[i].is_floating_point()
        ]


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def requiring_grad(op: Op, call: Call, positions: list[int] | None = None) -> Call:
    """The same call, in which the tensors at ``positions`` (default: all that can) require grad."""
    wanted = op.leaves(call) if positions is None else positions
    return call.with_args({i: call.args[i].detach().requires_grad_() for i in wanted})


@dataclass(frozen=True)
class Bad:
    """A call that must raise, with exactly this message."""

    id: str
    run: Callable[[Make], Any]
    message: str  # {device}: the tensors' device; {other}: the device of a misplaced tensor
    devices: tuple[str, ...] = ("cpu", "cuda", "meta")
    error: type[Exception] = RuntimeError


def batched(args: list[Any], subset: tuple[int, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """Arguments and in_dims for vmap. Arguments whose index is in ``subset`` get a batch dimension,
    at various positions."""
    args = list(args)
    in_dims: list[int | None] = [None] * len(args)
    for i in subset:
        if args[i] is None:
            continue
        in_dims[i] = i % (args[i].dim() + 1)
        args[i] = torch.stack([args[i] * k for k in (1.0, -0.5, 0.25)], in_dims[i])
    return args, tuple(in_dims)


def other_device(device: str) -> str:
    return "meta" if device == "cpu" else "cpu"


def elsewhere(make: Make, *shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=make.dtype, device=other_device(make.device))


def of_dtype(make: Make, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, device=make.device)


def without_storage(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(0)
    return t
