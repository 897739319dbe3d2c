"""The placements of DTensors that each op supports: shards or partial sums.

sharded.py runs the op on each process's shards. Both files are imported only if a program imports
torch.distributed.tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

Tensors = dict[str, Tensor]
Arguments = dict[str, Any]

WHOLE, SUM = Replicate(), Partial()


class Way(NamedTuple):
    """A way to shard an op along one dimension of a mesh."""

    inputs: dict[str, Placement]  # other arguments are replicated
    outputs: tuple[Placement, ...]


def _elementwise(tensors: Tensors, *linear: str) -> list[Way]:
    """An elementwise op may be sharded along any dimension of the result. If ``linear`` names
    arguments, these may instead be partial sums, and the result is then a partial sum too."""
    shapes = (t.shape for t in tensors.values())
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    ways = []
    for dim, size in enumerate(shape):
        inputs: dict[str, Placement] = {}
        for name, t in tensors.items():
            own = dim - len(shape) + t.dim()
            if own >= 0 and t.shape[own] == size:
                inputs[name] = Shard(own)
        ways.append(Way(inputs, (Shard(dim),)))
    return [*ways, Way(dict.fromkeys(linear, SUM), (SUM,))] if linear else ways


def _snake(tensors: Tensors, *results: str) -> list[Way]:
    """``snake`` may be sharded along any dimension of x. If that is the dimension of channels,
    parameters with one element per channel are also sharded. ``results`` names, for each result,
    the argument of the same shape."""
    x, ways = tensors["x"], []
    for dim in range(x.dim()):
        inputs: dict[str, Placement] = {}
        outputs: dict[str, Placement] = {}
        for name, t in tensors.items():
            of_channels = name in ("alpha", "beta")
            if not of_channels:
                inputs[name] = outputs[name] = Shard(dim)
            elif dim == 1 and t.shape[0] == x.shape[1]:
                inputs[name] = outputs[name] = Shard(0)
            else:
                inputs[name], outputs[name] = WHOLE, SUM
        ways.append(Way(inputs, tuple(outputs.get(name, WHOLE) for name in results)))
    return ways


def _sine_layer(tensors: Tensors, *results: str) -> list[Way]:
    """``sine_linear`` may be sharded by rows of the input, by columns of the output or, if a call
    runs N layers, by layer. ``results`` names, for each result, the argument or result of the same
    shape."""
    weight, last = tensors["weight"], tensors["input"].dim() - 1
    many = weight.dim() == 3

    def way(dim: int, parameters: Placement, grads: Placement) -> Way:
        inputs: dict[str, Placement] = dict.fromkeys(tensors, Shard(dim))
        outputs = inputs | {"weight": grads, "bias": grads}
        inputs |= {"weight": parameters, "bias": parameters}
        if dim == last:
            inputs["input"], outputs["input"] = WHOLE, SUM
        return Way(inputs, tuple(outputs.get(name, Shard(dim)) for name in results))

    of_columns = Shard(weight.dim() - 2)
    layers = [way(0, Shard(0), Shard(0))] if many else []
    rows = [way(dim, WHOLE, SUM) for dim in range(many, last)]
    return [*layers, *rows, way(last, of_columns, of_columns)]


def _jet_layer(tensors: Tensors, *results: str) -> list[Way]:
    """``sine_linear_jet`` may be sharded by points of the jet [P, ..., I], or by columns of the
    output. All parts share one phase [..., O]."""
    jet = tensors["jet"]

    def way(dim: int, parameters: Placement, grads: Placement) -> Way:
        inputs: dict[str, Placement] = dict.fromkeys(tensors, Shard(dim))
        inputs |= {"output": Shard(dim), "phase": Shard(dim - 1)}
        outputs = inputs | {"weight": grads, "bias": grads}
        inputs |= {"weight": parameters, "bias": parameters}
        if dim == jet.dim() - 1:
            inputs["jet"], outputs["jet"] = WHOLE, SUM
        return Way(inputs, tuple(outputs[name] for name in results))

    points = [way(dim, WHOLE, SUM) for dim in range(1, jet.dim() - 1)]
    return [*points, way(jet.dim() - 1, Shard(0), Shard(0))]


def _of_batch(tensors: Tensors, parameters: Sequence[str], *results: str | Placement) -> list[Way]:
    """A recurrent op may be sharded along the batch, the second-to-last dimension of everything
    except the parameters."""
    inputs: dict[str, Placement] = {
        name: Shard(t.dim() - 2)
        for name, t in tensors.items()
        if name not in parameters and t.dim() >= 2
    }
    outputs = inputs | dict.fromkeys(parameters, SUM)
    return [Way(inputs, tuple(outputs.get(r, WHOLE) if isinstance(r, str) else r for r in results))]


def _cell(tensors: Tensors, *results: str) -> list[Way]:
    if tensors["weights"].dim() == 3:  # N cells in one call
        return [Way(dict.fromkeys(tensors, Shard(0)), (Shard(0),) * len(results))]
    return _of_batch(tensors, ("weights", "bias"), *results)


def _layer(arguments: Arguments, tensors: Tensors, *results: str | Placement) -> list[Way]:
    if arguments.get("batch_sizes") is not None:
        return []  # a packed batch is replicated
    return _of_batch(tensors, ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), *results)


def _layer_forward(arguments: Arguments, tensors: Tensors) -> list[Way]:
    gates = WHOLE if arguments.get("recompute") else Shard(2)
    return _layer(arguments, tensors, "input", "h0", "c0", gates)


def _layer_backward(arguments: Arguments, tensors: Tensors) -> list[Way]:
    names = ("input", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return _layer(arguments, tensors, *names, "reset_h", "reset_c")


def _scan(arguments: Arguments, tensors: Tensors) -> list[Way]:
    units = {name: Shard(t.dim() - 1) for name, t in tensors.items() if name != "reset"}
    return [*_of_batch(tensors, (), "keep"), Way({**units}, (Shard(2),))]


Rule = Callable[[Arguments, Tensors], list[Way]]

RULES: dict[str, Rule] = {
    "sine": lambda _, t: _elementwise(t),
    "sine_": lambda _, t: _elementwise(t),
    "sine_backward": lambda _, t: _elementwise(t, "grad"),
    "cosine": lambda _, t: _elementwise(t),
    "cosine_": lambda _, t: _elementwise(t),
    "cosine_backward": lambda _, t: _elementwise(t, "grad"),
    "scale": lambda _, t: _elementwise(t, "x"),
    "scale_": lambda _, t: _elementwise(t, "x"),
    "vector_add": lambda _, t: _elementwise(t, "a", "b"),
    "vector_add_": lambda _, t: _elementwise(t, "a", "b"),
    "vector_add.Scalar": lambda _, t: _elementwise(t),
    "vector_add_.Scalar": lambda _, t: _elementwise(t),
    "snake": lambda _, t: _snake(t, "x"),
    "snake_": lambda _, t: _snake(t, "x"),
    "snake_backward": lambda _, t: _snake(t, "x", "alpha", "beta"),
    "sine_linear": lambda _, t: _sine_layer(t, "output"),
    "sine_linear_forward": lambda _, t: _sine_layer(t, "output", "phase"),
    "sine_linear_backward": lambda _, t: _sine_layer(t, "input", "weight", "bias", "grad"),
    "sine_linear_backward_": lambda _, t: _sine_layer(t, "bias"),
    "sine_linear_slope": lambda _, t: _sine_layer(t, "grad"),
    "sine_linear_slope_backward": lambda _, t: _sine_layer(t, "grad", "factor", "grad"),
    "sine_linear_jet": lambda _, t: _jet_layer(t, "output"),
    "sine_linear_jet_forward": lambda _, t: _jet_layer(t, "output", "phase"),
    "sine_linear_jet_backward": lambda _, t: _jet_layer(t, "jet", "weight", "bias"),
    "lltm_cell": lambda _, t: _cell(t, "old_h", "old_cell"),
    "lltm_cell_forward": lambda _, t: _cell(t, "old_h", "old_cell", "old_h"),
    "lltm_cell_backward": lambda _, t: _cell(t, "input", "weights", "bias", "old_h", "old_cell"),
    "recurrent_layer": lambda a, t: _layer(a, t, "input", "h0", "c0"),
    "recurrent_layer_forward": _layer_forward,
    "recurrent_layer_backward": _layer_backward,
    "affine_scan": _scan,
}
