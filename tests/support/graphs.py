"""Finds launches in a CUDA graph that may overlap the previous launch, and removes the overlap.

Graph capture turns the attribute of programmatic dependent launch into an edge type, which the
driver reports. So tests need neither a second build nor time measurements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint8, c_void_p
from typing import Any

import torch

MOST = 4096  # edges
PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC


class EdgeData(ctypes.Structure):
    """CUgraphEdgeData of cuda.h."""

    _fields_ = [
        ("from_port", c_uint8),
        ("to_port", c_uint8),
        ("type", c_uint8),
        ("reserved", c_uint8 * 5),
    ]


def captured(call: Callable[[], Any], times: int) -> torch.cuda.CUDAGraph:
    """A graph of `times` calls, not instantiated yet. A first call loads the kernels."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def overlaps(graph: torch.cuda.CUDAGraph) -> list[bool]:
    """For each edge, whether its second launch may begin before the first has ended."""
    return [edge.type == PROGRAMMATIC for edge in _edges(graph)[2]]


def keep_apart(graph: torch.cuda.CUDAGraph) -> None:
    """Changes the graph so that each launch waits until the previous ones have ended."""
    before, after, data = _edges(graph)
    count = c_size_t(len(data))
    _driver("cuGraphRemoveDependencies_v2", _raw(graph), before, after, data, count)
    _driver("cuGraphAddDependencies_v2", _raw(graph), before, after, None, count)


def _edges(graph: torch.cuda.CUDAGraph) -> tuple[Any, Any, Any]:
    """The edges of a graph: start nodes, end nodes, and types."""
    before, after, data = (c_void_p * MOST)(), (c_void_p * MOST)(), (EdgeData * MOST)()
    count = c_size_t(MOST)
    _driver("cuGraphGetEdges_v2", _raw(graph), before, after, data, byref(count))
    assert count.value < MOST
    found = range(count.value)
    nodes, edges = c_void_p * len(found), EdgeData * len(found)
    return (
        nodes(*(before[i] for i in found)),
        nodes(*(after[i] for i in found)),
        edges(*(data[i] for i in found)),
    )


def _raw(graph: torch.cuda.CUDAGraph) -> c_void_p:
    return c_void_p(graph.raw_cuda_graph())


def _driver(name: str, *arguments: Any) -> None:
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if error:
        raise RuntimeError(f"{name} returned {error}")
