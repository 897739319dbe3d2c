"""Helpers of treadle.onnx: dtypes, nodes of an ONNX graph, and Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset18 as op

__all__ = ["cast", "constant", "narrowed", "scan", "wide_dtype"]

Value = Any  # a tensor of the ONNX graph; mypy does not know onnx_ir
Ops = Any  # makes nodes: onnxscript's op in the graph, _Body in the body of a Scan

HALF_TYPES = ir.DataType.FLOAT16, ir.DataType.BFLOAT16


def wide_dtype(dtype: Any) -> Any:
    """The dtype in which ops on values of ``dtype`` compute."""
    return ir.DataType.FLOAT if dtype in HALF_TYPES else dtype


def constant(value: Any, dtype: Any) -> Value:
    """A number, or a size known only when the model runs, as a value of the graph."""
    if isinstance(value, ir.Value):
        return cast(value, dtype)
    return op.Constant(value=ir.tensor(value, dtype=dtype))


def cast(value: Value, dtype: Any) -> Value:
    return value if value.dtype == dtype else op.Cast(value, to=dtype)


def narrowed(value: Value, dtype: Any, to: Any) -> Value:
    """``value``, which was computed in ``dtype``, cast to the dtype ``to``."""
    return value if dtype == to else op.Cast(value, to=to)


class _Body:
    """Makes nodes for the body of a Scan, just as ``op`` does for the graph."""

    def __init__(self) -> None:
        self._tape: Any = ir.tape.Tape()

    def nodes(self) -> list[Any]:
        return list(self._tape.nodes)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        def node(*inputs: Value, **attributes: Any) -> Value:
            count = attributes.get("num_outputs", 1)
            made = self._tape.op_multi_out(
                name, inputs, attributes, num_outputs=count, version=op.version
            )
            return made[0] if count == 1 else made

        return node


def scan(
    step: Callable[..., Sequence[Value]],
    states: Sequence[Value],
    rows: Sequence[tuple[Value, Any]],
    dtype: Any,
    back: bool,
) -> Sequence[Value]:
    """Adds a Scan whose body is ``step(op, *states, *rows)``. Returns the states after all steps,
    then the other results, each with all steps in one tensor.

    ``rows`` has pairs of a value and its dtype. Step t gets row t of the value. ``dtype`` is the
    dtype of all other values. If ``back``, the steps run from the last to the first.
    """
    dtypes = [dtype] * len(states) + [each for _, each in rows]
    given = [
        ir.Value(name=f"step_in_{k}", type=ir.TensorType(each)) for k, each in enumerate(dtypes)
    ]
    body = _Body()
    made = step(body, *given)
    # Names in the body of a Scan must not occur in the graph.
    nodes = body.nodes()
    for n, node in enumerate(nodes):
        for k, value in enumerate(node.outputs):
            value.name = f"step_{n}_{k}"
    for value in made:
        value.type = ir.TensorType(dtype)
    first = op.Scan(
        *states,
        *(value for value, _ in rows),
        body=ir.Graph(given, made, nodes=nodes, name="step"),
        num_scan_inputs=len(rows),
        scan_input_directions=[int(back)] * len(rows),
        scan_output_directions=[int(back)] * (len(made) - len(states)),
    )
    # ``op`` does not know how many outputs a Scan has.
    whole = first.producer()
    whole.resize_outputs(len(made))
    return whole.outputs  # type: ignore[no-any-return]
