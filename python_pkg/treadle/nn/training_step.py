"""Runs a function as CUDA graphs, for training loops that call it at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .._check.tensors import dtype_name
from ._check import check_count
from ._training_graphs import Graphs

__all__ = ["TrainingStep", "make_training_step"]


def make_training_step(
    fn: Callable[..., Any], sample_args: Sequence[Any], *, calls: int = 1
) -> TrainingStep:
    """Make ``fn`` callable as a CUDA graph, with a second graph for its backward pass.

    A loop over time that calls a cell between other layers takes far longer on the host than on the
    device. The returned object computes the same as ``fn``. A call copies its arguments and replays
    a graph. In autograd the call is one node, whose backward pass replays the other graph.
    Parameters get the same gradients as with ``fn``. If a backward pass goes through several calls,
    each parameter's gradient is summed over these calls, and then accumulated into ``.grad`` once.
    On a CPU, and in ``torch.no_grad()``, a call runs ``fn`` itself.

    Capture as much as possible at once: a function that loops over all steps is faster than a
    function of one step. If ``fn`` is a function of one step, it can be called up to ``calls``
    times before the backward pass.

    Args:
        fn: a module, or any function of tensors, which may call modules and treadle's layers. It
            must not wait for the device, change its arguments, or depend on values on the host that
            change between calls, because its Python code runs only during the capture. If autocast
            is enabled in ``fn`` or during the capture, the graph contains the casts.
        sample_args: the arguments of a call: tensors, or tuples, lists and dicts of tensors, all on
            one device. Later arguments must have the same shapes and dtypes. An argument can be
            differentiated only if its sample requires grad. Warm-up calls use the samples' values.
        calls: how many calls may wait for their backward pass at the same time. Each of them has
            its own memory for activations. If ``fn`` is one step of a loop, pass the number
            of steps before each backward pass.

    Returns:
        A :class:`TrainingStep`. Like ``fn``, it returns new tensors at each call.

    Raises:
        TypeError: ``fn`` is not callable, or one of its arguments or results is not a tensor.
        ValueError: ``calls`` is less than 1, there are no arguments, or they are on several
            devices.
        RuntimeError: ``fn`` cannot be captured, changes an argument, returns nothing that requires
            grad, or needs the gradient of a tensor that was computed earlier and is not an
            argument.

    Example::

        def observe(features, actions, h):  # [T, B, E], [T, B, A], [B, H]
            states = []
            for feature, action in zip(features, actions):
                h = cell(torch.cat([feature, action], -1), h)
                states.append(h)
            return torch.stack(states)

        observe = treadle.nn.make_training_step(observe, (features, actions, h))
        for features, actions in data:
            loss(observe(features, actions, h)).backward()
    """
    if not callable(fn):
        raise TypeError(f"make_training_step: fn must be callable, got {type(fn).__name__}")
    if not isinstance(sample_args, tuple | list):
        raise TypeError(
            "make_training_step: sample_args must be a tuple of the arguments, "
            f"got {type(sample_args).__name__}"
        )
    return TrainingStep(fn, tuple(sample_args), check_count("make_training_step", "calls", calls))


@dataclass(frozen=True)
class _Sample:
    """What later calls must pass in place of one tensor of ``sample_args``."""

    name: str  # "args[0]"
    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, path: Any, value: object) -> _Sample:
        name = f"args{pytree.keystr(path)}"
        if not isinstance(value, Tensor):
            raise TypeError(
                f"make_training_step: sample_{name} must be a tensor, got {type(value).__name__}: "
                "bind other arguments by functools.partial"
            )
        return cls(name, value.shape, value.dtype, value.requires_grad)


class TrainingStep:
    """Runs a function as CUDA graphs. :func:`make_training_step` creates a TrainingStep.

    The graphs of the forward and the backward pass read the modules' parameters at the addresses
    that the parameters had during the capture. So a call uses the values that ``optimizer.step()``
    or ``load_state_dict`` last wrote there. Calls may run on different streams: each waits for the
    previous one. Second derivatives (``create_graph=True``) raise.
    """

    _captured_on = ("cuda",)

    def __init__(self, fn: Callable[..., Any], sample_args: tuple[Any, ...], calls: int) -> None:
        self._fn = fn
        paths, self._structure = pytree.tree_flatten_with_path(sample_args)
        self._samples = [_Sample.of(path, value) for path, value in paths]
        devices = {value.device for _, value in paths}
        if len(devices) != 1:
            got = " and ".join(sorted(map(str, devices))) or "no tensor"
            raise ValueError(
                f"make_training_step: sample_args must be tensors on one device, got {got}"
            )
        (self._device,) = devices
        self._graphs: Graphs | None = None
        if self._device.type in self._captured_on:
            tensors = [value for _, value in paths]
            self._graphs = Graphs(fn, tensors, self._structure, calls)

    def __call__(self, *args: Any) -> Any:
        """Returns the same as ``fn(*args)``.

        Raises:
            TypeError: an argument is not a tensor, but its sample was one.
            ValueError: the arguments have another structure, or one has another shape.
            RuntimeError: a dtype or device differs; an argument requires grad, but its sample did
                not; ``calls`` calls already wait for their backward pass; or a parameter has moved,
                a module changed from ``train()`` to ``eval()``, or autocast differs.
        """
        if not torch.is_grad_enabled():
            return self._fn(*args)
        tensors = self._checked(args)
        if self._graphs is None:
            return self._fn(*args)
        return self._graphs.call(tensors)

    def _checked(self, args: tuple[Any, ...]) -> list[Tensor]:
        tensors, structure = pytree.tree_flatten(args)
        if structure != self._structure:
            raise ValueError(
                "training_step: args must have the structure of sample_args, "
                f"{self._structure}, got {structure}"
            )
        for sample, t in zip(self._samples, tensors, strict=True):
            if not isinstance(t, Tensor):
                raise TypeError(
                    f"training_step: {sample.name} must be a tensor, got {type(t).__name__}"
                )
            if t.shape != sample.shape:
                raise ValueError(
                    f"training_step: {sample.name} must have the sample's shape, "
                    f"{list(sample.shape)}, got {list(t.shape)}: make a step for each shape"
                )
            if t.dtype is not sample.dtype:
                raise RuntimeError(
                    f"training_step: {sample.name} must have the sample's dtype, "
                    f"{dtype_name(sample.dtype)}, got {dtype_name(t.dtype)}"
                )
            if t.device != self._device:
                raise RuntimeError(
                    f"training_step: {sample.name} must be on the samples' device, "
                    f"{self._device}, got {t.device}"
                )
            if t.requires_grad and not sample.requires_grad:
                raise RuntimeError(
                    f"training_step: {sample.name} must not require grad, because its sample does "
                    "not, got requires_grad=True: make the step with sample.requires_grad_(), or "
                    f"pass {sample.name}.detach()"
                )
        return tensors
