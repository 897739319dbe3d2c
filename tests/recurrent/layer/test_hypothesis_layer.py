"""recurrent_layer on drawn sizes, lengths, strides, dtypes, and incoming and requested gradients,
by the rule of test_hypothesis_cell."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recurrent.layer.test_hypothesis_cell import (
    Arguments,
    check_gradients,
    close,
    in_double,
    leaves,
    rounded,
)
from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    BLOCKS,
    CELLS,
    NAMES,
    Lengths,
    layer,
    layer_reference,
)
from tests.support.drawn import SETTINGS, tensors
from tests.support.inputs import DEVICES, FLOATING, HALVES


@st.composite
def arguments(draw: st.DrawFn, cell: str) -> tuple[Lengths, Arguments]:
    """Draws few steps, small sizes (sometimes with H larger than a vector), and a memory layout for
    each tensor."""
    sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 17])
    t, b, i, h = draw(st.integers(0, 4)), draw(sizes), draw(sizes), draw(sizes)
    if draw(st.integers(0, 4)) == 0:
        h = draw(st.sampled_from([31, 64, 65]))
    d = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(FLOATING))
    wide = dtype in HALVES and draw(st.booleans())
    lengths: Lengths = None
    rows: tuple[int, ...] = (t, b)
    if draw(st.booleans()):
        drawn = draw(st.lists(st.integers(1, 5), max_size=5))
        lengths = tuple(sorted(drawn, reverse=True))
        b, rows = len(lengths), (sum(lengths),)
    width = BLOCKS[cell] * h
    shapes: dict[str, tuple[int, ...] | None] = {
        "input": (*rows, i),
        "h0": (d, b, h),
        "c0": (d, b, h),
        "weight_ih": (d, width, i),
        "weight_hh": (d, width, h),
        "bias_ih": draw(st.sampled_from([(d, width), None])),
    }
    if cell != "lltm":
        # Either bias may be given without the other.
        shapes["bias_hh"] = draw(st.sampled_from([(d, width), None]))
    found: Arguments = []
    for name, shape in shapes.items():
        if shape is None:
            found.append(None)
            continue
        kind = torch.float32 if wide and name == "c0" else dtype
        # This factor keeps gates of order one at any width.
        by = 0.3 * (h + i + 1) ** -0.5 if name.startswith("weight") else 1.0
        found.append(draw(tensors(shape, kind, special=False, by=by)))
    return lengths, found


@pytest.mark.parametrize("device", DEVICES)
# Near 0, rounding decides whether relu has a gradient.
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "rnn_relu"])
@settings(SETTINGS, max_examples=250)
@given(data=st.data())
def test_recurrent_layer(cell: str, device: str, data: st.DataObject) -> None:
    """Checks all results, and every requested gradient of some of the results."""
    lengths, drawn = data.draw(arguments(cell))
    wanted = [t is not None and data.draw(st.booleans()) for t in drawn]
    if cell.startswith("rnn"):  # the reference has no graph from c0, which it does not read
        wanted[1] |= wanted[2]
    used = data.draw(st.sampled_from([(0, 1, 2), (0, 1, 2), (0,), (1,), (2,), (0, 2), (1, 2)]))
    recompute = data.draw(st.booleans())
    ours_in, plain_in = (leaves(drawn, wanted, device) for _ in range(2))
    exact_in = in_double(plain_in)
    eps = torch.finfo(drawn[0].dtype).eps  # type: ignore[union-attr]
    ours = layer(ours_in[0], lengths, *ours_in[1:], cell=cell, recompute=recompute)
    runs = [(ours, ours_in)]
    for inputs in (plain_in, exact_in, rounded(exact_in, eps)):
        runs.append((layer_reference(inputs[0], lengths, *inputs[1:], cell=cell), inputs))
    for name, *results in zip(("output", "h_n", "c_n"), *(run[0] for run in runs[:3]), strict=True):
        close(*results, 2, eps, name)
    asked = dict(zip((NAMES[i] for i in ARGUMENTS[cell]), wanted, strict=True))
    check_gradients(data, used, asked, eps, *runs)
