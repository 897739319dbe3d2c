"""Runs a recurrent layer one step at a time, for example in a policy. On a GPU, a call replays a
CUDA graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._check.tensors import dtype_name
from ._capture import capturing
from ._check import HALVES, check_bool, check_count, check_hx
from ._methods import front_of, parameters_of
from ._sequence import Options, States

__all__ = ["Step", "make_step"]

NO_OPTIONS = Options(reset=None, reset_hx=(), lengths=None, return_cells=False)
WARM_UP = 3  # calls before the capture: libraries select kernels and allocate workspaces in them


def make_step(layer: nn.Module, batch: int, *, clone: bool = False) -> Step:
    """Make ``layer`` callable one step at a time, with the state kept on its device.

    For a single step, the layer's host code takes far longer than its kernels on the device. So the
    step is captured once as a CUDA graph, and a call copies its input and replays the graph.
    On a CPU a call runs the layer's op.

    Args:
        layer: a :class:`treadle.nn.LSTM`, :class:`GRU`, :class:`RNN`, :class:`LLTM` or
            :class:`Recurrent` in one direction, with any number of layers. The step has the device
            and dtype of the layer's parameters, also under autocast. It runs as in ``eval()``,
            without dropout, and without gradients.
        batch: B, the number of rows.
        clone: return a new tensor at each call. If False, every call returns the same tensor and
            overwrites the previous output.

    Returns:
        A :class:`Step` whose state is zeros.

    Raises:
        TypeError: ``layer`` is not one of these modules, ``batch`` is not an integer, or ``clone``
            is not a bool.
        ValueError: ``batch`` is less than 1; ``layer`` is bidirectional; or a parameter is
            recomputed at every call (``torch.nn.utils.parametrize``), is on meta, or is sharded.

    Example::

        step = treadle.nn.make_step(treadle.nn.GRU(8, 64), batch=16)
        for _ in range(100):
            features = step(observation, begins)    # [16, 8], [16] bool -> [16, 64]
    """
    if front_of(layer) is None:
        raise TypeError(
            "make_step: layer must be a treadle.nn.LSTM, GRU, RNN, LLTM or Recurrent, "
            f"got {type(layer).__module__}.{type(layer).__qualname__}"
        )
    rows, copies = check_count("make_step", "batch", batch), check_bool("make_step", "clone", clone)
    return Step(layer, rows, copies)


class Step:
    """Runs one step of a recurrent layer at each call. :func:`make_step` creates a Step.

    A Step reads the layer's own parameters, so the next call uses the values that
    ``optimizer.step()`` or ``load_state_dict`` wrote. Calls may run on different streams: each
    waits for the previous one. The layer's ``forward`` and its hooks do not run.
    """

    def __init__(self, layer: Any, batch: int, clone: bool) -> None:
        self._layer, self._clone = layer, clone
        # The Front is saved, because treadle.nn.restore may turn the layer into a torch module.
        front = front_of(layer)
        assert front is not None
        self._front, self._names = front, front.states
        # The graph reads the parameters' memory. These references prevent its reuse.
        self._parameters = _own_parameters(layer)
        self._places = [(name, p.data_ptr()) for name, p in self._parameters.items()]
        first = next(iter(self._parameters.values()))
        self._device, self._dtype = first.device, first.dtype
        # Tensors created in inference mode cannot be written outside of it.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._make_memory(batch)
            self._graph: torch.cuda.CUDAGraph | None = None
            self._stream: torch.cuda.Stream | None = None  # the last call's stream
            if self._device.type == "cuda":
                self._capture()

    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take one step.

        Args:
            input: [B, I], of the parameters' dtype and device.
            reset: [B] bool on the same device. Where it is true, the row's state is set to zeros
                before this step. None resets no row.

        Returns:
            h of the last layer, [B, H] ([B, P] with projections), of the parameters' dtype. The
            next call overwrites it, unless the step was made with ``clone=True``. Writing to this
            tensor does not change the state.

        Raises:
            TypeError: ``input`` or ``reset`` is not a tensor.
            ValueError: a shape is not as above.
            RuntimeError: a dtype or device is not as above, ``input`` requires grad, or a parameter
                of the layer has moved.
        """
        self._check_call(input, reset)
        self._enter()
        self._input.copy_(input)
        if reset is not None:
            self._reset.copy_(reset)
            self._marked = True
        elif self._marked:
            self._reset.zero_()
            self._marked = False
        if self._graph is None:
            self._output.copy_(self._advance())
        else:
            self._graph.replay()
        return self._output.clone() if self._clone else self._output

    @property
    def state(self) -> Tensor | States:
        """The state after the last step, in the form of the layer's ``hx``: h, or a tuple of h
        and the other states, each [num_layers, B, H]. For float16 and bfloat16, all states except h
        are float32. Every step reads and writes these tensors. If you write to them, the next step
        begins with the new values."""
        return self._states[0] if len(self._names) == 1 else self._states

    def set_state(self, hx: Tensor | States) -> None:
        """Make the next step begin with ``hx``, in the form in which the layer returns it. For
        float16 and bfloat16, all states but h may be float32.

        Raises:
            TypeError, ValueError: ``hx`` is not a valid ``hx`` of the layer.
            RuntimeError: a state has another dtype or device.
        """
        shape = tuple(self._states[-1].shape)
        names = self._names
        states = check_hx("step", names, hx, "[num_layers, B, H]", shape, self._projection)
        for name, state, own in zip(names, states, self._states, strict=True):
            if state.dtype not in (self._dtype, own.dtype):
                also = f" or {dtype_name(own.dtype)}" if own.dtype != self._dtype else ""
                raise RuntimeError(
                    f"step: {name} must have dtype {dtype_name(self._dtype)}{also}, "
                    f"got {dtype_name(state.dtype)}"
                )
            self._check_device(name, state)
        self._enter()
        with torch.no_grad():
            for state, own in zip(states, self._states, strict=True):
                own.copy_(state)

    def reset_all(self) -> None:
        """Make the next step begin with zeros in every row."""
        self._enter()
        for memory in self._memory:
            memory.zero_()

    # ---- memory and the graph

    def _make_memory(self, batch: int) -> None:
        layer = self._layer
        kind: dict[str, Any] = {"device": self._device, "dtype": self._dtype}
        shape = (layer.num_layers, batch, layer.hidden_size)
        self._projection = getattr(layer, "proj_size", 0)
        features = self._projection or layer.hidden_size  # the size of h
        of_c = self._dtype if self._dtype not in HALVES else torch.float32
        others = len(self._names) - 1
        if others and (self._projection or of_c is not self._dtype):
            self._memory = [
                torch.zeros(*shape[:2], features, **kind),
                torch.zeros(others, *shape, device=self._device, dtype=of_c),
            ]
            self._states: States = (self._memory[0], *self._memory[1].unbind())
        else:  # all states in one tensor, so that one kernel resets them
            self._memory = [torch.zeros(len(self._names), *shape, **kind)]
            self._states = self._memory[0].unbind()
        self._input = torch.zeros(batch, layer.input_size, **kind)
        self._reset = torch.zeros(batch, dtype=torch.bool, device=self._device)
        self._marked = False  # whether a row of _reset may be true
        self._output = torch.zeros(batch, features, **kind)

    def _advance(self) -> Tensor:
        """Runs one step on ``_input``, ``_reset`` and the states. No tensor here requires grad."""
        kind = self._device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._advance()
        layer = self._layer
        if self._marked:
            for memory in self._memory:
                # A multiplication by 0 would keep NaN.
                memory.masked_fill_(self._reset.unsqueeze(-1), 0)
        parameters = list(self._parameters.values())
        output, *last = self._front.run(
            layer,
            (self._input.unsqueeze(0),),
            self._states,
            (parameters, layer.bias, layer.num_layers, 0.0, False, False),
            (False,),
            NO_OPTIONS,
        )
        torch._foreach_copy_(list(self._states), last)
        return output[0]

    def _capture(self) -> None:
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.current_stream()
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(self._stream)
            self._marked = True  # the graph always reads _reset
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._advance()
            self._stream.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, stream=side):
                self._output = self._advance()
            self._graph, self._marked = graph, False
            self.reset_all()

    def _enter(self) -> None:
        """Make the current stream wait for the stream of the previous call, which may still use the
        memory."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        if current != self._stream:
            current.wait_stream(self._stream)
            self._stream = current

    # ---- checks

    def _check_call(self, input: Tensor, reset: Tensor | None) -> None:
        _check_tensor("input", input, "[B, I]", self._input)
        if input.dtype is not self._dtype:
            raise RuntimeError(
                f"step: input must have the parameters' dtype, {dtype_name(self._dtype)}, "
                f"got {dtype_name(input.dtype)}"
            )
        self._check_device("input", input)
        if input.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "step: input must not require grad, because a step records no gradients, got a "
                "tensor that does: pass input.detach(), or call the layer itself to train it"
            )
        if reset is not None:
            _check_tensor("reset", reset, "[B]", self._reset)
            if reset.dtype is not torch.bool:
                raise RuntimeError(
                    f"step: reset must have dtype bool, got {dtype_name(reset.dtype)}: "
                    "call reset.bool()"
                )
            self._check_device("reset", reset)
        parameters: dict[str, Tensor] = self._layer._parameters
        for name, place in self._places:
            found = parameters.get(name)
            if found is None or found.data_ptr() != place:
                raise RuntimeError(
                    f"step: {name} must stay at the address that it had when the step was made, "
                    "got another address: call make_step again after .to() or after assigning a "
                    "parameter"
                )

    def _check_device(self, name: str, t: Tensor) -> None:
        if t.device != self._device:
            raise RuntimeError(
                f"step: {name} must be on the parameters' device, {self._device}, got {t.device}"
            )


def _own_parameters(layer: Any) -> dict[str, Tensor]:
    if layer.bidirectional:
        raise ValueError(
            "make_step: layer must have one direction, got bidirectional=True: the second "
            "direction reads each sequence from its end"
        )
    own: dict[str, Tensor] = layer._parameters
    names = [name for names in layer._all_weights for name in names]
    for name in names:
        if own.get(name) is None:
            raise ValueError(
                f"make_step: layer must have plain parameters, got a {name} that is computed at "
                "every call: first call parametrize.remove_parametrizations, prune.remove or "
                "remove_weight_norm of torch.nn.utils"
            )
        if type(own[name]) is not nn.Parameter or own[name].is_meta:
            kind = "on meta" if own[name].is_meta else f"a {type(own[name].data).__name__}"
            raise ValueError(
                f"make_step: layer must have plain parameters with values, got a {name} that is "
                f"{kind}"
            )
    if any(a is not own[b] for a, b in zip(parameters_of(layer), names, strict=False)):
        raise ValueError(
            "make_step: layer must use its own parameters, got other tensors in "
            "layer._flat_weights: assign them to the parameters instead"
        )
    return {name: own[name].detach() for name in names}


def _check_tensor(name: str, t: object, letters: str, like: Tensor) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"step: {name} must be a tensor, got {type(t).__name__}")
    if t.shape != like.shape:
        how = ""
        if name == "reset" and t.shape == (*like.shape, 1):  # simulators give floats [B, 1]
            how = ": call reset.squeeze(-1)" + ("" if t.dtype is torch.bool else ".bool()")
        raise ValueError(
            f"step: {name} must have shape {letters} = {list(like.shape)}, got {list(t.shape)}{how}"
        )
