"""Exports models to ONNX and runs them in onnxruntime. Tests that import this are skipped if one of
the packages is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402

import treadle.onnx  # noqa: E402
from treadle.nn import GRU, LLTM, LSTM, RNN  # noqa: E402

KINDS: dict[str, Any] = {"LSTM": LSTM, "GRU": GRU, "RNN": RNN, "LLTM": LLTM}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
INPUTS, H = 3, 4
DYNAMIC = torch.export.Dim.DYNAMIC


def exported(
    model: nn.Module, args: tuple[Tensor, ...], dynamic: Any = None, **options: Any
) -> Any:
    """Exports a model in evaluation mode with treadle.onnx's table, and checks that the ONNX model
    is valid."""
    options = {"custom_translation_table": treadle.onnx.translation_table()} | options
    program = torch.onnx.export(
        model.eval(), args, dynamo=True, dynamic_shapes=dynamic, verbose=False, **options
    )
    onnx.checker.check_model(program.model_proto, full_check=True)
    return program


def nodes(program: Any) -> Counter[str]:
    """Counts the nodes of each type in the graph, without those in the body of a Scan."""
    return Counter(node.op_type for node in program.model_proto.graph.node)


def flat(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [tensor for each in results for tensor in flat(each)]


def agrees(
    program: Any, model: nn.Module, calls: Sequence[tuple[Tensor, ...]], **bounds: float
) -> None:
    """Compares onnxruntime with the model for every call. Tolerances are tight in float64."""
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    for args in calls:
        found = session.run(
            None, {name: value.numpy() for name, value in zip(names, args, strict=True)}
        )
        with torch.no_grad():
            expected = flat(model(*args))
        assert len(found) == len(expected)
        for ours, theirs in zip(expected, found, strict=True):
            own = {"atol": 1e-12, "rtol": 1e-12} if ours.dtype == torch.float64 else bounds
            torch.testing.assert_close(torch.from_numpy(theirs), ours, **own)


__all__ = [
    "DYNAMIC",
    "EACH_KIND",
    "INPUTS",
    "KINDS",
    "H",
    "agrees",
    "exported",
    "flat",
    "nodes",
]
