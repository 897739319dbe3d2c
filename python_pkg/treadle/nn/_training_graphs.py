"""The CUDA graphs of a :class:`treadle.nn.TrainingStep`, and their nodes in autograd.

A call of the step runs in a slot, which has a graph for the forward pass, a graph for the backward
pass, and the memory of the tensors that are saved for the backward pass. So a slot is in use from a
call to the end of that call's backward pass. The argument ``calls`` is the number of slots. Slots
run in any order, so each forward graph has its own memory pool: in a shared pool, the temporary
tensors of one slot could overwrite the saved tensors of another. The backward graphs share a pool,
because only copies of their results are kept.

The backward graphs add the gradients of parameters to sums that all slots share. Autograd must get
each sum only once, after the backward passes of all calls. So every call also takes an input that
the caller does not see: the token, which is the output of ``_Parameters``. Autograd runs the node
of ``_Parameters`` after the nodes of all calls, and this node returns the sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .._check.tensors import dtype_name
from ._capture import capturing
from ._training_modules import Modules, leaves_of, without_hooks

WARM_UP = 3  # calls before the capture: libraries select kernels and allocate workspaces in them

Replay = Callable[[], None]


class Recorder:
    """Captures CUDA graphs on a separate stream, and makes each call wait for the previous one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = torch.cuda.current_stream(device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None  # the memory pool of the backward graphs

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """In this context, warm-up calls and captures use the separate stream."""
        self._side.wait_stream(self._last)
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            yield
        self._last.wait_stream(self._side)

    def capture(
        self, run: Callable[[], list[Tensor]], *, shared: bool
    ) -> tuple[list[Tensor], Replay]:
        """Captures ``run``, and returns its results and a function that replays the graph. A replay
        writes into these results. All graphs with ``shared`` use one memory pool."""
        graph = torch.cuda.CUDAGraph()
        pool = self._pool if shared else None
        with capturing(graph, pool=pool, stream=self._side):
            result = run()
        if shared:
            self._pool = graph.pool()
        return result, graph.replay

    def enter(self) -> None:
        """Make the current stream wait for the stream of the previous call, which may still use the
        memory."""
        current = torch.cuda.current_stream(self._device)
        if current != self._last:
            current.wait_stream(self._last)
            self._last = current


class Graphs:
    """Captures ``fn`` for inputs like ``samples``. A call replays the captured graphs."""

    def __init__(
        self,
        fn: Callable[..., Any],
        samples: Sequence[Tensor],
        structure: pytree.TreeSpec,
        calls: int,
    ) -> None:
        self._fn, self._structure, self.calls = fn, structure, calls
        self.device = samples[0].device
        self._autocast = _autocast(self.device)
        self._modules = Modules()
        self._recorder = Recorder(self.device)
        # The leaves of the captured autograd graph, in which aliases replace modules' parameters;
        # the sums of the leaves' gradients; and the parameters, which receive these sums.
        self.leaves: list[Tensor] = []
        self.sums: list[Tensor] = []
        self._parameters: list[Tensor] = []
        self.has_grad: set[int] = set()  # indices of the leaves that get gradients
        self._task: int | None = None  # the backward pass whose gradients are in the sums
        self._token: Tensor | None = None
        self._trained: list[bool] = []  # which parameters required grad when the token was made
        # Tensors created in inference mode cannot be written outside of it.
        with torch.inference_mode(False), torch.enable_grad(), self._recorder.prepare():
            slots = [Slot(self, samples) for _ in range(calls)]
            self._warm_up(slots[0])
            with self.aliased():
                self._capture(slots)
        self._free = deque(slots)

    def call(self, inputs: list[Tensor]) -> Any:
        self._modules.check()
        if (now := _autocast(self.device)) != self._autocast:
            raise RuntimeError(
                f"training_step: autocast must be {self._autocast}, as when the step was made, "
                f"got {now}"
            )
        self._make_token()
        node = None if self._token is None else self._token.grad_fn
        outputs = _Call.apply(self, node, self._token, *inputs)  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(outputs, self._result)

    def _make_token(self) -> None:
        if self._task is not None and torch._C._current_graph_task_id() < 0:
            # A backward pass failed before it reached the token, so the sums were not returned.
            torch._foreach_zero_(self.sums)
            self._task = None
        if len(self._free) == self.calls:
            self._token = None
        trained = [t.requires_grad for t in self._parameters]
        if trained and (self._token is None or trained != self._trained):
            self._token = _Parameters.apply(self, *self._parameters)  # type: ignore[no-untyped-call]
            self._trained = trained

    # ---- capture

    def run(self, inputs: list[Tensor]) -> list[Tensor]:
        """Calls fn and returns its tensors."""
        # If the graph used a copy of a weight from autocast's cache, replays would never cast the
        # weight again.
        torch.clear_autocast_cache()
        result = self._fn(*pytree.tree_unflatten(inputs, self._structure))
        torch.clear_autocast_cache()
        outputs, self._result = pytree.tree_flatten(result)
        for t in outputs:
            if not isinstance(t, Tensor):
                raise TypeError(
                    f"make_training_step: fn must return tensors, got {type(t).__name__}"
                )
        return outputs

    def _warm_up(self, slot: Slot) -> None:
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpus):
            begin = _sequence_number()
            versions = [t._version for t in slot.inputs]
            with self._modules.watched():
                outputs = self.run(slot.inputs)
            self._modules.hold(leaves_of(outputs, begin))
            if versions != [t._version for t in slot.inputs]:
                raise RuntimeError(
                    "make_training_step: fn must not change its arguments, got one that it changes"
                )
            self.trained_outputs = [k for k, t in enumerate(outputs) if t.requires_grad]
            if not self.trained_outputs:
                raise RuntimeError(
                    "make_training_step: fn must return at least one tensor that requires grad, "
                    "got none"
                )
            self.output_grads = [torch.zeros_like(outputs[k]) for k in self.trained_outputs]
            with self.aliased():
                outputs = self.run(slot.inputs)
                own = {id(t) for t in slot.inputs}
                self.leaves = [t for t in leaves_of(outputs, begin) if id(t) not in own]
                self._parameters = self._modules.parameters_of(self.leaves)
                self.sums = [torch.zeros_like(t) for t in self.leaves]
                del outputs
                for _ in range(WARM_UP):
                    slot.forward()
                    slot.backward()
            self._modules.restore_buffers()

    def aliased(self) -> AbstractContextManager[None]:
        return self._modules.aliased()

    def _capture(self, slots: list[Slot]) -> None:
        try:
            for slot in slots:
                slot.capture(self._recorder)
        except RuntimeError as error:
            first: BaseException = error  # ending the capture may have raised another error
            while first.__context__ is not None:
                first = first.__context__
            raise RuntimeError(
                "make_training_step: CUDA graphs must be able to capture fn and its backward pass, "
                "which must not wait for the device, got an error: "
                f"{str(first).partition(chr(10))[0]}"
            ) from error
        for slot in slots:
            slot.forget()
        if self.sums:
            torch._foreach_zero_(self.sums)

    # ---- called by the autograd nodes

    def versions(self) -> list[int]:
        """The parameters' version counters, which change when a parameter is written in place."""
        return [t._version for t in self._parameters]

    def take(self) -> Slot:
        if not self._free:
            raise RuntimeError(
                f"training_step: at most {self.calls} calls may wait for their backward pass, "
                "got one more: pass a larger calls= to make_training_step, or call the step in "
                "torch.no_grad() if no gradient is needed"
            )
        slot = self._free.popleft()
        slot.call += 1
        return slot

    def put(self, slot: Slot) -> None:
        self._free.append(slot)

    def forward(self, slot: Slot, inputs: tuple[Tensor, ...]) -> list[Any]:
        self._recorder.enter()
        torch._foreach_copy_(slot.detached_inputs, inputs)
        slot.replay_forward()
        return _copies(slot.results)

    def backward(self, slot: Slot, node: Any, grads: Sequence[Tensor | None]) -> list[Any]:
        """Replays the graph of the backward pass. ``node`` is the token's node, or None. If this
        backward pass does not run that node, the sums are left as they were."""
        wanted = node is not None and torch._C._will_engine_execute_node(node)
        task = torch._C._current_graph_task_id()
        if wanted and self._task not in (None, task):
            raise RuntimeError(
                "training_step: a backward pass must end before the next one begins, got one "
                "that began during another, or after another failed: after a failure, call the "
                "step again before the next backward pass"
            )
        self._recorder.enter()
        given = [grads[k] for k in self.trained_outputs]
        pairs = list(zip(self.output_grads, given, strict=True))
        if absent := [memory for memory, grad in pairs if grad is None]:
            torch._foreach_zero_(absent)
        if present := [grad for grad in given if grad is not None]:
            torch._foreach_copy_([memory for memory, grad in pairs if grad is not None], present)
        kept = None if wanted else [t.clone() for t in self.sums]
        slot.replay_backward()
        if wanted:
            self._task = task
        elif kept:
            torch._foreach_copy_(self.sums, kept)
        return _copies(slot.input_grads)

    def take_sums(self) -> list[Any]:
        """Returns copies of the sums of this backward pass, and sets the sums to zero."""
        if self._task != torch._C._current_graph_task_id():
            return [None] * len(self.sums)
        self._recorder.enter()
        found = _copies([t if k in self.has_grad else None for k, t in enumerate(self.sums)])
        torch._foreach_zero_(self.sums)
        self._task = None
        return found


class Slot:
    """The graphs and the memory of a call. After its backward pass, another call can use them."""

    def __init__(self, graphs: Graphs, samples: Sequence[Tensor]) -> None:
        self._graphs = graphs
        self.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in samples]
        self.detached_inputs = [t.detach() for t in self.inputs]
        self.call = 0  # how many calls have used this slot

    def capture(self, recorder: Recorder) -> None:
        self.results, self.replay_forward = recorder.capture(self.forward, shared=False)
        self.input_grads, self.replay_backward = recorder.capture(self.backward, shared=True)

    def forward(self) -> list[Any]:
        self._outputs = self._graphs.run(self.inputs)
        return [t.detach() for t in self._outputs]

    def backward(self) -> list[Any]:
        """Returns the gradients of the inputs, and adds the gradients of the leaves to the sums."""
        graphs = self._graphs
        wanted = [k for k, t in enumerate(self.inputs) if t.requires_grad]
        with torch.autocast(graphs.device.type, enabled=False), without_hooks(graphs.leaves):
            # retain_graph keeps the saved tensors: the CUDA graph reads them at every replay.
            grads = torch.autograd.grad(
                [self._outputs[k] for k in graphs.trained_outputs],
                [*(self.inputs[k] for k in wanted), *graphs.leaves],
                graphs.output_grads,
                retain_graph=True,
                allow_unused=True,
            )
        of_inputs: list[Tensor | None] = [None] * len(self.inputs)
        for k, grad in zip(wanted, grads, strict=False):
            of_inputs[k] = grad
        added = {k: grad for k, grad in enumerate(grads[len(wanted) :]) if grad is not None}
        if added:
            torch._foreach_add_([graphs.sums[k] for k in added], list(added.values()))
        graphs.has_grad |= added.keys()
        return of_inputs

    def forget(self) -> None:
        """Drops the autograd graph. The pools of the CUDA graphs keep the memory of its tensors."""
        self._outputs = []


class _Lease:
    """Holds a slot for one call, and returns it to the free slots after the call's backward pass,
    or when autograd drops the call's node."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs, self.slot = graphs, graphs.take()
        self._call, self._held = self.slot.call, True
        self._versions = graphs.versions()

    def __del__(self) -> None:
        if getattr(self, "_held", False):
            self.end()

    def end(self) -> None:
        if self._held:
            self._held = False
            self._graphs.put(self.slot)

    def check(self) -> None:
        if self.slot.call != self._call:
            raise RuntimeError(
                "training_step: the backward pass of a call must not run again after later calls "
                "have reused the call's memory, got such a backward pass: pass a larger calls= to "
                "make_training_step"
            )
        if self._versions != self._graphs.versions():
            raise RuntimeError(
                "training_step: the parameters must not change between a call and its backward "
                "pass, got a parameter that was written in place: call optimizer.step() after the "
                "backward pass"
            )


class _Parameters(torch.autograd.Function):
    """Makes the token on which all calls depend. Its backward pass returns the parameters'
    gradients."""

    @staticmethod
    def forward(ctx: Any, graphs: Graphs, *leaves: Tensor) -> Tensor:
        ctx.graphs = graphs
        ctx.set_materialize_grads(False)
        return torch.empty((), device=graphs.device)

    @staticmethod
    def backward(ctx: Any, token: None) -> tuple[Any, ...]:
        return None, *ctx.graphs.take_sums()


class _Call(torch.autograd.Function):
    """A call of the step."""

    @staticmethod
    def forward(
        ctx: Any, graphs: Graphs, node: Any, token: Tensor | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.graphs, ctx.node, ctx.lease = graphs, node, _Lease(graphs)
        outputs = graphs.forward(ctx.lease.slot, inputs)
        others = [t for k, t in enumerate(outputs) if k not in graphs.trained_outputs]
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "training_step: create_graph must be False, because a training step has no second "
                "derivatives, got True: call fn itself to compute them"
            )
        ctx.lease.check()
        found = ctx.graphs.backward(ctx.lease.slot, ctx.node, grads)
        ctx.lease.end()
        return None, None, None, *found


def _copies(tensors: Sequence[Tensor | None]) -> list[Any]:
    held = [t for t in tensors if t is not None]
    copies = [torch.empty_like(t) for t in held]
    if copies:
        torch._foreach_copy_(copies, held)
    rest = iter(copies)
    return [None if t is None else next(rest) for t in tensors]


def _autocast(device: torch.device) -> str:
    if not torch.is_autocast_enabled(device.type):
        return "disabled"
    return f"enabled in {dtype_name(torch.get_autocast_dtype(device.type))}"


def _sequence_number() -> int:
    """A number that is less than the sequence number of any node that this thread creates later."""
    node = torch.ones((), requires_grad=True).neg().grad_fn
    assert node is not None
    return node._sequence_nr()
