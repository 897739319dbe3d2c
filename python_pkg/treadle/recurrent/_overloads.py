"""Selects the overload of a layer op from a call's arguments, and sets the signature for help()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.overrides import is_tensor_like
from typing_extensions import get_overloads, overload

from .._check.tensors import check_dense, check_tensor, dtype_name


class Overloads(NamedTuple):
    """The overloads of one op. They are selected here, because torch would try them one by one."""

    name: str
    input: Any
    data: Any
    input_cells: Any = None  # the overload that also returns the cell states
    data_cells: Any = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cells = kwargs.pop("return_cells", False)
        if not isinstance(cells, bool):
            kind = type(cells).__name__
            raise TypeError(f"{self.name}: return_cells must be a bool, got {kind}")
        if cells and self.input_cells is None:
            raise RuntimeError(
                f"{self.name}: return_cells must be False, got True: the output is the "
                "state of every step"
            )
        packed = _packed(self.name, args, kwargs)
        self._check_types(args, kwargs, packed)
        if not packed:
            return (self.input_cells if cells else self.input)(*args, **kwargs)
        if kwargs.pop("lengths", None) is not None:
            raise RuntimeError(
                f"{self.name}: lengths must come with a padded input, got batch_sizes"
            )
        return (self.data_cells if cells else self.data)(*args, **kwargs)

    def _check_types(self, args: tuple[Any, ...], kwargs: dict[str, Any], packed: bool) -> None:
        """Check input, hx and params. Without these checks, an error of torch.ops would print whole
        tensors. If hx were h instead of (h, c), torch.ops would also take h for batch_sizes."""
        first = "data" if packed else "input"
        if args or first in kwargs:
            input = args[0] if args else kwargs[first]
            if isinstance(input, Tensor):
                check_dense(self.name, first, input, "; pad it and pass lengths=")
            else:
                check_tensor(self.name, first, input)
        place = 2 if packed and "batch_sizes" not in kwargs else 1
        if len(args) > place or "hx" in kwargs:
            self._check_hx(args[place] if len(args) > place else kwargs["hx"])
        if len(args) > place + 1 or "params" in kwargs:
            params = args[place + 1] if len(args) > place + 1 else kwargs["params"]
            if not isinstance(params, (tuple, list)) and not _is_traced(params):
                rule, kind = "params must be a list of tensors", type(params).__name__
                raise TypeError(f"{self.name}: {rule}, got {kind}")
            if any(p is None for p in params):
                raise TypeError(
                    f"{self.name}: params must be a list of tensors, got a list with None"
                )

    def _check_hx(self, hx: object) -> None:
        one, many = isinstance(hx, Tensor), isinstance(hx, (tuple, list))
        if (one if self.input_cells is None else many) or _is_traced(hx):
            return
        rule = "a tensor (h0)" if self.input_cells is None else "a pair of tensors (h0, c0)"
        kind = "a tensor" if one else type(hx).__name__
        raise TypeError(f"{self.name}: hx must be {rule}, got {kind}")


def _is_traced(value: object) -> bool:
    """Whether ``value`` is a proxy, which a tracer such as torch.fx passes instead of a tensor."""
    return not isinstance(value, Tensor) and is_tensor_like(value)  # type: ignore[no-untyped-call]


def overloads(name: str) -> Overloads:
    op = getattr(torch.ops.treadle, name)
    # In the order of Overloads' fields.
    found = {each: getattr(op, each) for each in Overloads._fields[1:] if each in op.overloads()}
    return Overloads(name, **found)


def _packed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call has batch_sizes, the only integer tensor that may be the second argument."""
    if "batch_sizes" in kwargs:
        return True
    second = args[1] if len(args) > 1 else None
    if not isinstance(second, Tensor) or second.is_floating_point() or second.is_complex():
        return False
    if second.dtype is not torch.int64:
        if second.dim() != 1:
            return False  # the second argument is hx, of a dtype that the op does not support
        raise RuntimeError(
            f"{name}: batch_sizes must have dtype int64, got {dtype_name(second.dtype)}"
        )
    return True


class WithCells(Protocol):
    """The signature of lltm and lstm."""

    @overload
    def __call__(
        self,
        input: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Sequence[Tensor] | None = None,
        lengths: Tensor | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        input: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Sequence[Tensor] | None = None,
        lengths: Tensor | None = None,
        return_cells: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Sequence[Tensor] | None = None,
        return_cells: Literal[False] = False,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Sequence[Tensor] | None = None,
        return_cells: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class WithoutCells(Protocol):
    """The signature of gru, rnn_tanh and rnn_relu."""

    @overload
    def __call__(
        self,
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        data: Tensor,
        batch_sizes: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        *,
        recompute: bool = False,
        reset: Tensor | None = None,
        reset_hx: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def with_cells(function: Callable[..., Any]) -> WithCells:
    return _with_signature(function, WithCells)  # type: ignore[no-any-return]


def without_cells(function: Callable[..., Any]) -> WithoutCells:
    return _with_signature(function, WithoutCells)  # type: ignore[no-any-return]


def _with_signature(function: Any, protocol: Any) -> Any:
    """Makes help() and notebooks show the arguments of the first overload, for padded input."""
    # get_overloads comes from typing_extensions, because typing lacks it before Python 3.11.
    padded = inspect.signature(get_overloads(protocol.__call__)[0])
    _, *parameters = (
        p.replace(annotation="bool") if p.name == "return_cells" else p
        for p in padded.parameters.values()
    )
    result = padded.return_annotation
    if "return_cells" in padded.parameters:
        result = "tuple[Tensor, ...]"
    function.__signature__ = padded.replace(parameters=parameters, return_annotation=result)
    return function
