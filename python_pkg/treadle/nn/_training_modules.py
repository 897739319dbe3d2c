"""Finds what a function reads besides its arguments: modules and leaves of its autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


class Modules:
    """The modules that a function calls, and what its captured graphs assume about them."""

    def __init__(self) -> None:
        self._training: dict[nn.Module, bool] = {}
        self._buffers: list[tuple[Tensor, Tensor]] = []
        # For each parameter: the dict that contains it, its name, the parameter, its address, and
        # whether it was frozen.
        self._parameters: list[tuple[dict[str, Any], str, Tensor, int, bool]] = []
        self._aliases: dict[int, nn.Parameter] = {}  # the keys are ids of parameters

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the modules that are called in this context, and the values of their buffers."""

        thread = get_ident()

        def note(module: nn.Module, args: object) -> None:
            if module in self._training or get_ident() != thread:
                return
            self._training[module] = module.training
            held = (b for b in module._buffers.values() if b is not None)
            self._buffers.extend((b, b.detach().clone()) for b in held)

        hook = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()

    def restore_buffers(self) -> None:
        """Restores buffers, so that warm-up calls do not change the statistics of a batch norm."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        self._buffers = []

    def hold(self, leaves: Sequence[Tensor]) -> None:
        """Record the modules' parameters and the other leaves that the function reads, and make an
        alias of each parameter that it reads."""
        known: set[int] = set()
        read = {id(t) for t in leaves}
        for module in self._training:
            own: dict[str, Any] = module._parameters
            for name, p in own.items():
                if p is None:
                    continue
                known.add(id(p))
                self._parameters.append((own, name, p, p.data_ptr(), not p.requires_grad))
                if id(p) in read:
                    self._aliases[id(p)] = nn.Parameter(p.detach())
        for t in leaves:
            if id(t) not in known:
                self._parameters.append(({"a tensor": t}, "a tensor", t, t.data_ptr(), False))

    @contextmanager
    def aliased(self) -> Iterator[None]:
        """In this context, the modules' parameters are replaced by aliases that share their memory.

        Other autograd graphs may keep the AccumulateGrad nodes of the parameters alive. These nodes
        belong to the stream on which they were created, so a captured graph cannot use them.
        """
        held = []
        for module in self._training:
            own: dict[str, Any] = module._parameters
            flat: list[Any] = module.__dict__.get("_flat_weights", [])  # in torch.nn.RNNBase
            held.append((own, dict(own), flat, list(flat)))
            own.update({name: self._aliases.get(id(p), p) for name, p in own.items()})
            flat[:] = [self._aliases.get(id(p), p) for p in flat]
        try:
            yield
        finally:
            for own, parameters, flat, weights in held:
                own.update(parameters)
                flat[:] = weights

    def parameters_of(self, leaves: Iterable[Tensor]) -> list[Tensor]:
        """Returns ``leaves``, with each alias replaced by its parameter."""
        held = [p for _, _, p, *_ in self._parameters if id(p) in self._aliases]
        behind = {id(self._aliases[id(p)]): p for p in held}
        return [behind.get(id(t), t) for t in leaves]

    def check(self) -> None:
        """Raises if the captured graphs would not compute what the modules would compute now."""
        for module, training in self._training.items():
            if module.training is not training:
                raise RuntimeError(
                    f"training_step: {type(module).__name__} must be in {_mode(training)}, as when "
                    f"the step was made, got {_mode(not training)}: make another step, or evaluate "
                    "in torch.no_grad()"
                )
        for own, name, p, address, frozen in self._parameters:
            if own.get(name) is not p or p.data_ptr() != address:
                raise RuntimeError(
                    f"training_step: {name} must stay at the address that it had when the step "
                    "was made, got another address: call make_training_step again after .to() or "
                    "after assigning a parameter"
                )
            if frozen and p.requires_grad:
                raise RuntimeError(
                    f"training_step: {name} must not require grad, because it did not when the "
                    "step was made, got requires_grad=True: call make_training_step again"
                )


def _mode(training: bool) -> str:
    return "train()" if training else "eval()"


def leaves_of(outputs: Iterable[Tensor], begin: int) -> list[Tensor]:
    """The leaves with respect to which ``outputs`` can be differentiated.

    The function's nodes have sequence numbers above ``begin``. Other nodes belong to an autograd
    graph outside of the function, which a captured backward pass could not reach.
    """
    edges = (torch.autograd.graph.get_gradient_edge(t) for t in outputs if t.requires_grad)
    nodes: list[Any] = [edge.node for edge in edges]
    seen, found = set(nodes), []
    while nodes:
        node = nodes.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            found.append(node.variable)
        elif node._sequence_nr() <= begin:
            raise RuntimeError(
                "make_training_step: fn must get as an argument every tensor that requires grad "
                f"and was computed before the call, got a result of {node.name()} that is no "
                "argument: add it to sample_args"
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


@contextmanager
def without_hooks(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Removes the leaves' hooks within this context. In the caller's backward pass, autograd runs
    them when it accumulates the gradients, so the captured backward pass must not run them too."""
    held = [t._backward_hooks for t in leaves if t._backward_hooks]
    copies = [dict(hooks) for hooks in held]
    for hooks in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, copy in zip(held, copies, strict=True):
            hooks.update(copy)
