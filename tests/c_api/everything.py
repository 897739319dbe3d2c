"""Runs every function of kernels.h at real sizes, for the sanitizers (benchmarks/sanitize.py).

Arrays have odd sizes and every layout, and are misaligned. Optional arguments are given or omitted.
Other tests check the values. Results and workspaces are not initialised, so that
sanitizers report reads of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import CELLS, Layer, Sizes, backward, forward
from tests.c_api.operands import FLOATS, LAYOUTS, OUT_LAYOUTS, Op, Operand, contiguous, ops_of
from tests.support.inputs import HALVES

Run = Callable[[], None]
ROWS, COLUMNS = 131, 77
DTYPES = (*FLOATS, torch.int64, torch.int16, torch.uint8)  # the same as in sanitize.py
# On CUDA, one size runs with algorithm "cluster" and the other with "grid". On the CPU, threads
# share the rows.
SIZES = (Sizes(3, 17, 64, directions=2), Sizes(2, 20, 1024))


def device_of(place: str) -> native.Device:
    return native.cpu(2) if place == "cpu" else native.cuda()


def moved(operand: Operand, place: str) -> Operand:
    """The operand copied to `place`, with the same layout."""
    flat, view = operand.flat.to(place), operand.view
    there = flat.as_strided(view.shape, view.stride(), view.storage_offset())
    return replace(operand, flat=flat, view=there)


def elementwise(place: str) -> Iterator[Run]:
    for dtype in DTYPES:
        for op in ops_of(dtype):
            for layout in LAYOUTS:
                inputs = [
                    moved(make(ROWS, COLUMNS, dtype, seed), place)
                    for seed, make in enumerate((layout, contiguous)[: op.inputs])
                ]
                outs = OUT_LAYOUTS[:2] if layout is contiguous else (contiguous,)
                for out_layout in outs:
                    out = moved(out_layout(ROWS, COLUMNS, dtype, 9), place)
                    yield partial(run_op, op, inputs, out, place)


def run_op(op: Op, inputs: list[Operand], out: Operand, place: str) -> None:
    op.run(device_of(place), [x.array for x in inputs], out.array)


def called(name: str, place: str, *arguments: Tensor | float | None) -> None:
    given = (native.array(x) if isinstance(x, Tensor) else x for x in arguments)
    native.call(f"treadle_{name}", device_of(place), *given)


def pointwise(place: str) -> Iterator[Run]:
    for dtype in FLOATS:
        for c_dtype in (dtype, torch.float32) if dtype in HALVES else (dtype,):
            yield from lltm_cell(place, dtype, c_dtype)
        yield from sine_linear(place, dtype)


def lltm_cell(place: str, dtype: torch.dtype, c_dtype: torch.dtype) -> Iterator[Run]:
    wide, narrow = (ROWS, 3 * COLUMNS), (ROWS, COLUMNS)
    gates, h = (torch.randn(s).to(place, dtype) for s in (wide, narrow))
    c = torch.randn(narrow).to(place, c_dtype)
    for bias in (torch.randn(3 * COLUMNS).to(place, dtype), None):
        new_h, new_c = torch.empty_like(h), torch.empty_like(c)
        yield partial(called, "lltm_cell", place, gates, bias, c, new_h, new_c)
        for grad_c in (c, None):
            grads = torch.empty_like(gates), torch.empty_like(c)
            given = (gates, bias, c, h, grad_c)
            yield partial(called, "lltm_cell_backward", place, *given, *grads)


def sine_linear(place: str, dtype: torch.dtype) -> Iterator[Run]:
    kept = dtype if dtype == torch.float64 else torch.int16
    product = torch.randn(ROWS, COLUMNS).to(place, torch.promote_types(dtype, torch.float32))
    output = torch.empty(ROWS, COLUMNS, dtype=dtype, device=place)
    phase = torch.empty(ROWS, COLUMNS, dtype=kept, device=place)
    for bias in (torch.randn(COLUMNS).to(place, dtype), None):
        for wanted in (None, phase):
            yield partial(called, "sine_linear", place, product, bias, 30.0, output, wanted)
    grad, grad_z = torch.randn(ROWS, COLUMNS).to(place, dtype), torch.empty_like(output)
    given = (grad, output, phase, 30.0, grad_z)
    yield partial(called, "sine_linear_backward", place, *given)


def recurrent(place: str) -> Iterator[Run]:
    for dtype in (torch.float32, torch.float64) if place == "cpu" else (torch.float32, *HALVES):
        for sizes in SIZES:
            for cell in CELLS:
                layer = Layer.random(cell, sizes, dtype)
                layer = layer if place == "cpu" else layer.on_cuda()
                yield partial(both_passes, replace(layer, filled=False), place)


def both_passes(layer: Layer, place: str) -> None:
    output, h_n, c_n, gates = forward(layer, on=device_of(place))
    grads = torch.randn_like(output), torch.randn_like(h_n), torch.randn_like(c_n)
    backward(layer, gates, grads, on=device_of(place))


def runs(place: str, layers: bool = True) -> Iterator[Run]:
    yield from elementwise(place)
    yield from pointwise(place)
    if layers:
        yield from recurrent(place)
