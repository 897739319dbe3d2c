"""Code shared by all recurrent modules: checks of arguments, forms of input, states, packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .._check.tensors import check_dense
from ._cell_dicts import hooks_run, wrong_cell
from ._check import (
    check_bool,
    check_features,
    check_hx,
    check_lengths,
    check_resets,
    check_same_dtype,
)
from ._errors import NoTensorError, ShapeError
from ._tracers import NotScripted, break_graphs_at_pad, differs, fx_leaf, is_tracing

States = tuple[Tensor, ...]
Pair = tuple[Tensor, Tensor]

_layers_from_zeros: Any = torch.ops.treadle.layers_from_zeros.default

PAD = (
    "; pass torch.nested.to_padded_tensor(input, 0.0) and lengths=, which is "
    "input.offsets().diff() for a jagged tensor"
)


class Options(NamedTuple):
    """The checked keyword arguments of a call."""

    reset: Tensor | None
    reset_hx: States
    lengths: Tensor | None
    return_cells: bool


class Front:
    """The forward pass of a layer that has torch.nn.LSTM's attributes.

    It is separate from the layer, because torch's modules can use it too (treadle.nn.replace).
    """

    name: str  # the module's name, shown in errors
    # The names of the states, h0 first. If there is only one, calls take and return a plain tensor.
    states: tuple[str, ...]
    op: Callable[..., tuple[Tensor, ...]]  # called like torch.lstm

    def __init__(
        self, name: str, states: tuple[str, ...], op: Callable[..., tuple[Tensor, ...]]
    ) -> None:
        self.name, self.states, self.op = name, states, op

    def parameters(self, layer: Any) -> list[Tensor]:
        """The parameters of each layer and direction, in the order that the op expects."""
        # They are read at every call, because nn.utils.parametrize and functional_call replace
        # them. Reading an attribute of a module takes five times as long as reading this dict.
        own: dict[str, Tensor] = layer._parameters
        return [
            own[name] if name in own else getattr(layer, name)
            for names in layer._all_weights
            for name in names
        ]

    def op_of(self, layer: Any) -> Callable[..., tuple[Tensor, ...]]:
        return self.op

    def run(
        self,
        layer: Any,
        input: tuple[Tensor, ...],
        states: States | None,
        net: tuple[Any, ...],
        rest: tuple[bool, ...],
        options: Options,
    ) -> tuple[Tensor, ...]:
        """Calls the op. ``net`` has the op's arguments from ``params`` to ``bidirectional``."""
        reset_hx = options.reset_hx
        given: dict[str, Any] = {
            # After restore(), the layer of a Step is a torch.nn module, which lacks `recompute`.
            "recompute": getattr(layer, "recompute", False),
            "reset": options.reset,
            # This key must always exist, because guards that torch.compile made may read it.
            "lengths": options.lengths,
        }
        op: Any = self.op_of(layer)
        if states is None:
            data, batch_sizes = input if len(input) == 2 else (*input, None)
            given |= {"cell": op.__name__, "reset_hx": reset_hx or None}
            given |= {"cells": options.return_cells}
            found = _layers_from_zeros(data, batch_sizes, *net, *(rest or (False,)), **given)
        else:
            given |= {"reset_hx": self.given(reset_hx) if reset_hx else None}
            given |= {"return_cells": options.return_cells}
            found = op(*input, self.given(states), *net, *rest, **given)
        return found  # type: ignore[no-any-return]

    def rename_entries(self, layer: Any, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Renames another module's entries to this layer's names, or returns why that fails."""
        return None

    def op_makes_zeros(self, input: Tensor) -> bool:
        """Whether the op itself makes the initial zeros. Under a tracer it does not, because the
        trace must contain the ops that make them."""
        return type(input) is Tensor and not torch.compiler.is_compiling() and not is_tracing()

    def zeros(self, input: Tensor, shape: tuple[int, ...]) -> States:
        """The initial states if the caller passes none."""
        # If input is a DTensor, the op requires DTensors as states, and new_zeros makes one.
        zeros = input.new_zeros(shape)
        return (zeros,) * len(self.states)

    def called(
        self,
        layer: Any,
        input: object,
        hx: object,
        reset: object,
        reset_hx: object,
        lengths: object,
        return_cells: object,
    ) -> tuple[Any, ...]:
        """Returns the output, the states and, if ``return_cells``, c of all steps."""
        packed = isinstance(input, PackedSequence)
        if not isinstance(input.data if packed else input, Tensor):  # type: ignore[attr-defined]
            given = {"reset": reset, "reset_hx": reset_hx, "lengths": lengths}
            leaf = fx_leaf(layer, input, hx, **given, return_cells=return_cells)
            if leaf is not None:
                return leaf  # type: ignore[no-any-return]
        options = Options(
            *check_resets(self.name, self.states, reset, reset_hx),
            check_lengths(self.name, input, lengths),
            check_bool(self.name, "return_cells", return_cells),
        )
        if options.return_cells and len(self.states) == 1:
            raise ValueError(
                f"{self.name}: return_cells must be False, got True: the output is the "
                "state of every step"
            )
        forward: Callable[..., Any] = self._forward_packed if packed else self._forward_rows
        output, states, cells = forward(layer, input, hx, options)
        found = output, self.given(states)
        return (*found, cells) if options.return_cells else found

    def _forward_rows(
        self, layer: Any, input: object, hx: object, options: Options
    ) -> tuple[Tensor, States, Tensor | None]:
        checked = self._check_input(layer, input)
        batched, batch_dim = checked.dim() == 3, 0 if layer.batch_first else 1
        states = self._start(layer, checked, hx, checked.size(batch_dim) if batched else None)
        if batched:
            return self._run(layer, (checked,), states, options, layer.batch_first)
        reset, reset_hx, lengths, _ = options
        options = options._replace(
            reset=None if reset is None else reset.unsqueeze(batch_dim),
            # Without a batch, states of L layers are [L*D, H], or [L*D, T, H] for all steps.
            reset_hx=tuple(
                state.unsqueeze(1 if state.dim() == 2 else 1 + batch_dim) for state in reset_hx
            ),
            lengths=None if lengths is None else lengths.unsqueeze(0),
        )
        states = states and tuple(state.unsqueeze(1) for state in states)
        rows = checked.unsqueeze(batch_dim)
        output, last, cells = self._run(layer, (rows,), states, options, layer.batch_first)
        return (
            output.squeeze(batch_dim),
            tuple(state.squeeze(1) for state in last),
            None if cells is None else cells.squeeze(batch_dim),
        )

    def _forward_packed(
        self, layer: Any, input: PackedSequence, hx: Any, options: Options
    ) -> tuple[PackedSequence, States, PackedSequence | None]:
        break_graphs_at_pad()
        data, batch_sizes, sorted_indices, unsorted_indices = input
        check_features(self.name, "[S, I]", data)
        # Under torch.export, pack_padded_sequence returns batch_sizes of another dtype.
        if batch_sizes.dtype is not torch.int64:
            raise RuntimeError(
                f"{self.name}: input must be padded and passed with lengths= under "
                "torch.export, got a PackedSequence"
            )
        if data.dim() != 2 or differs(data.size(-1), layer.input_size):
            raise ShapeError(
                f"{self.name}: input.data must have shape [S, I] with I = {layer.input_size}, "
                f"got {list(data.shape)}"
            )
        batch: Any
        if sorted_indices is not None:
            batch = sorted_indices.size(0)
        elif hx is not None and torch.compiler.is_compiling():
            # The compiler cannot compare hx with batch_sizes[0], so hx determines how many rows
            # there are. The op raises if hx has too few, and returns extra rows unchanged.
            first = hx if isinstance(hx, Tensor) else hx[0]
            batch = first.size(1) if isinstance(first, Tensor) and first.dim() == 3 else 0
        elif is_tracing():
            batch = batch_sizes[0]  # a tensor, so that the trace computes it for each call
        else:
            batch = int(batch_sizes[0]) if len(batch_sizes) else 0
        states = self._start(layer, data, hx, batch)
        if states is not None and hx is not None:
            states = _permuted(states, sorted_indices)
        # If reset_hx has one state for each row, they are in the caller's order. If it has one for
        # each step and row, they are in the order of the data.
        if any(state.dim() == 3 and state.size(1) == batch for state in options.reset_hx):
            options = options._replace(reset_hx=_permuted(options.reset_hx, sorted_indices))
        output, last, cells = self._run(layer, (data, batch_sizes), states, options)

        def packed(data: Tensor) -> PackedSequence:
            return PackedSequence(data, batch_sizes, sorted_indices, unsorted_indices)

        last = _permuted(last, unsorted_indices)
        return packed(output), last, None if cells is None else packed(cells)

    def _run(
        self,
        layer: Any,
        input: tuple[Tensor, ...],
        states: States | None,
        options: Options,
        *rest: bool,
    ) -> tuple[Tensor, States, Tensor | None]:
        """Returns the output, the states, and the cell states or None if not requested."""
        parameters = self.parameters(layer)
        name = "input" if len(input) == 1 else "input.data"
        check_same_dtype(self.name, name, input[0], parameters[0])
        net = (
            parameters,
            layer.bias,
            layer.num_layers,
            layer.dropout,
            layer.training,
            layer.bidirectional,
        )
        output, *found = self.run(layer, input, states, net, rest, options)
        if options.return_cells:
            return output, tuple(found[:-1]), found[-1]
        return output, tuple(found), None

    def given(self, states: States) -> Tensor | States:
        """The states in the caller's form: a tuple, or a tensor if the cell has one state."""
        return states[0] if len(self.states) == 1 else states

    def _check_input(self, layer: Any, input: object) -> Tensor:
        if not isinstance(input, Tensor):
            raise NoTensorError(
                f"{self.name}: input must be a tensor or a PackedSequence, "
                f"got {type(input).__name__}"
            )
        check_dense(self.name, "input", input, PAD)
        letters = "[B, T, I]" if layer.batch_first else "[T, B, I]"
        check_features(self.name, letters, input)
        known = input.dim() in (2, 3)
        if not known or differs(input.size(-1), layer.input_size):
            raise (ShapeError if known else ValueError)(
                f"{self.name}: input must have shape {letters} or [T, I] with "
                f"I = {layer.input_size}, got {list(input.shape)}"
            )
        return input

    def _start(self, layer: Any, input: Tensor, hx: object, batch: int | None) -> States | None:
        """The checked ``hx``, or zeros, or None if the op makes the zeros. If ``batch`` is None,
        the states have no batch dimension."""
        if hx is None and self.op_makes_zeros(input):
            return None
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        letters = "[num_layers * D, H]" if batch is None else "[num_layers * D, B, H]"
        shape = (count, *(() if batch is None else (batch,)), layer.hidden_size)
        projection = getattr(layer, "proj_size", 0)
        if hx is None:
            return self.zeros(input, shape)[1 if projection else 0 :]  # run_projected takes only c0
        return check_hx(self.name, self.states, hx, letters, shape, projection)


def load(
    layer: Any,
    front: Front,
    own: Callable[..., None],
    state_dict: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    *args: Any,
) -> None:
    """Calls ``own`` to load the entries below ``prefix``, unless they belong to another cell."""
    # state_dict is a copy made by load_state_dict, so it may be changed.
    with hooks_run(layer, state_dict, prefix, metadata, *args):
        why = None
        if getattr(layer, "groups", 1) == 1:  # with groups, shapes do not identify the cell
            why = wrong_cell(front.name, front.name, state_dict, prefix, metadata)
        why = why or front.rename_entries(layer, state_dict, prefix)
        if why:
            args[-1].append(why)  # replaces torch's list of names and sizes
        else:
            own(state_dict, prefix, metadata, *args)


class SequenceLayers(NotScripted):
    """The base class of recurrent modules. ``_front`` runs the forward pass."""

    _front: Front

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    training: bool
    recompute: bool
    _all_weights: list[list[str]]  # names, a list for each layer and direction

    # Sets Dynamo's callback in this thread (None: compile nothing), and returns the old one.
    _set_compiler: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame

    def forward(
        self,
        input: Any,
        hx: Any = None,
        *,
        reset: Any = None,
        reset_hx: Any = None,
        lengths: Any = None,
        return_cells: Any = False,
    ) -> Any:
        """Run whole sequences through all layers.

        Args:
            input: [T, B, I] ([B, T, I] if ``batch_first``), or [T, I] without a batch, or a
                ``PackedSequence`` of sequences in any order.
            hx: ``(h0, c0)``, or ``h0`` for a GRU or an RNN, each [num_layers * D, B, H]
                ([num_layers * D, H] without a batch). D is 2 if ``bidirectional``, else 1. In an
                LSTM with projections, h has size P instead of H, here and in all results. For a
                ``PackedSequence``, rows are in the order before packing. With half-precision
                inputs, ``c0`` may be float32, and c then stays float32. If ``hx`` is None, states
                are zeros in the dtype of ``input`` (c of an LLTM under autocast: at least float32).
            reset: bool, [T, B] ([B, T] if ``batch_first``; [T] without a batch). For a
                ``PackedSequence``, a bool ``PackedSequence``, or one value for each row of its
                data. Where true, the sequence resets before that step; see :func:`treadle.lstm`.
            reset_hx: the state after a reset; zeros if None. Like ``hx`` or, with a state for each
                step, [num_layers * D, T, B, H] ([num_layers * D, B, T, H] if ``batch_first``).
            lengths: [B] ([] without a batch), int64 or int32 on the device of ``input``: the number
                of steps of each sequence. Give it instead of a ``PackedSequence``. See
                :func:`treadle.lstm` for the treatment of padding and of values outside 0 ... T.
            return_cells: whether to also return c of all steps, as the last result. It must be
                False for a GRU and an RNN, whose output already is the state of each step.

        Returns:
            ``output``: [T, B, D*H], [B, T, D*H], [T, D*H] or a ``PackedSequence``, like ``input``.
            It is h of the last layer at every step, in the dtype of ``input`` (under autocast: the
            lower precision). ``(h_n, c_n)``, or only ``h_n``: the states after the last step of
            each sequence (in the second direction, after its first), with the shapes of ``hx``. For
            a sequence without steps they are ``hx``. ``cells``, shaped like ``output``, if
            ``return_cells``.

        Raises:
            ValueError, TypeError: a shape, or ``hx``, is not as above. (If sequences were already
                sorted before packing, ``torch.compile`` does not detect an ``hx`` with too many
                rows, and extra rows are returned unchanged.)
            RuntimeError: dtypes or devices do not match; see :func:`treadle.lstm`.
            Errors of LSTM, GRU and RNN are also instances of the classes that torch.nn raises.

        ``torch.compile`` breaks the graph at torch's ``pack_padded_sequence`` and
        ``pad_packed_sequence``; with ``lengths``, neither is needed.
        """
        # Dynamo does not compile this function, because its `try` contains a graph break. It would
        # compile the functions called here, in a cache that all layers share. So turn Dynamo off.
        compiler = None if torch.compiler.is_compiling() else self._set_compiler(None)
        try:
            return self._called(input, hx, reset, reset_hx, lengths, return_cells)
        finally:
            if compiler is not None:
                self._set_compiler(compiler)

    def _called(self, *args: object) -> tuple[Any, ...]:
        return self._front.called(self, *args)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any], *args: Any
    ) -> None:
        own = super()._load_from_state_dict  # type: ignore[misc]
        load(self, self._front, own, state_dict, prefix, metadata, *args)


class CellLayers(SequenceLayers):
    """Layers whose cells have c and h. The overloads of ``forward`` are for type checkers."""

    if TYPE_CHECKING:

        @overload
        def forward(
            self,
            input: Tensor,
            hx: Pair | None = None,
            *,
            reset: Tensor | None = None,
            reset_hx: Pair | None = None,
            lengths: Tensor | None = None,
            return_cells: Literal[False] = False,
        ) -> tuple[Tensor, Pair]: ...

        @overload
        def forward(
            self,
            input: Tensor,
            hx: Pair | None = None,
            *,
            reset: Tensor | None = None,
            reset_hx: Pair | None = None,
            lengths: Tensor | None = None,
            return_cells: Literal[True],
        ) -> tuple[Tensor, Pair, Tensor]: ...

        @overload
        def forward(
            self,
            input: PackedSequence,
            hx: Pair | None = None,
            *,
            reset: Tensor | PackedSequence | None = None,
            reset_hx: Pair | None = None,
            return_cells: Literal[False] = False,
        ) -> tuple[PackedSequence, Pair]: ...

        @overload
        def forward(
            self,
            input: PackedSequence,
            hx: Pair | None = None,
            *,
            reset: Tensor | PackedSequence | None = None,
            reset_hx: Pair | None = None,
            return_cells: Literal[True],
        ) -> tuple[PackedSequence, Pair, PackedSequence]: ...

        def forward(self, input: Any, hx: Any = None, **options: Any) -> Any: ...


def _permuted(states: States, indices: Tensor | None) -> States:
    """The states, with the batch dimension in the order of ``indices``."""
    if indices is None:
        return states
    return tuple(state.index_select(1, indices) for state in states)
