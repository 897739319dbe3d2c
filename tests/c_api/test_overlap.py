"""An output may be one of the inputs, but must not overlap other memory of the call."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

from tests.c_api import native
from tests.c_api.calls import Call, good
from tests.c_api.hostile import complaint

WRITTEN = {
    "treadle_lltm_cell": ("new_h", "new_cell"),
    "treadle_lltm_cell_backward": ("grad_gates", "grad_old_cell"),
    "treadle_sine_linear": ("output", "phase"),
    "treadle_sine_linear_backward": ("grad_z",),
    **{f"treadle_{name}": ("out",) for op in ("sine", "cosine") for name in (op, f"{op}_backward")},
    "treadle_scale": ("out",),
    "treadle_vector_add": ("out",),
}


def arrays_of(call: Call) -> list[str]:
    return [name for name, a in call.arguments.items() if isinstance(a, native.Array)]


PAIRS = [
    (function, out, other)
    for function, outs in WRITTEN.items()
    for out, other in itertools.product(outs, arrays_of(good(function)))
    if out != other
]


@pytest.mark.parametrize(("function", "out", "other"), PAIRS)
def test_a_part_of_another_array(function: str, out: str, other: str) -> None:
    for by in (-8, 8, 16):
        call = good(function)
        # Move the other array 16 bytes into its memory, so that `out` may start before it.
        start = call.arguments[other].data + 16
        call.arguments[other].data = start
        call.arguments[out].data = start + by
        assert complaint(call) == "", by


@pytest.mark.parametrize("function", [f for f, outs in WRITTEN.items() if len(outs) == 2])
def test_one_array_for_both_outputs(function: str) -> None:
    first, second = WRITTEN[function]
    call = good(function)
    call.arguments[second].data = call.arguments[first].data
    assert complaint(call) == ""
    call = good(function)
    if call.arguments[first].dtype != call.arguments[second].dtype:
        return
    if function == "treadle_lltm_cell":
        call.arguments[second] = call.arguments[first]
        assert complaint(call, first) == ""


@pytest.mark.parametrize(
    ("function", "out"), [(f, out) for f, outs in WRITTEN.items() for out in outs]
)
def test_an_element_twice(function: str, out: str) -> None:
    for steps in ([0, 1], [1, 0], [0, 0], [1, 1], [-1, 1], [3, 1]):
        call = good(function)
        call.arguments[out].strides = call_strides = (ctypes.c_int64 * 2)(*steps)
        call.kept.append(call_strides)
        assert complaint(call, out) == "", steps


def test_the_other_way_round_is_another_array() -> None:
    x = torch.arange(6.0)
    before = x.clone()
    backward = native.array_at(x.data_ptr() + 20, [6], [-1], torch.float32, x)
    assert native.status_of("treadle_sine", native.cpu(), native.array(x), backward)
    assert native.error_text().startswith("out must be x or share no memory with it, got")
    turned = native.array_at(x.data_ptr(), [2, 3], [1, 2], torch.float32, x)
    square = native.array_at(x.data_ptr(), [2, 3], [3, 1], torch.float32, x)
    assert native.status_of("treadle_sine", native.cpu(), turned, square)
    assert torch.equal(x, before)


def test_neighbours_do_not_overlap() -> None:
    """Adjacent arrays are accepted, and so is an empty one inside another."""
    x = torch.randn(32)
    expected = torch.ops.treadle.sine(x[:16].clone())
    native.call("treadle_sine", native.cpu(), native.array(x[:16]), native.array(x[16:]))
    assert torch.equal(x[16:], expected)
    nothing = native.array_at(x.data_ptr() + 2, [0], [1], torch.float32)
    inside = native.array(x[:1])
    native.call("treadle_sine", native.cpu(), inside, nothing)


BLOCKS = {
    "treadle_recurrent_forward": ("inputs", "outputs"),
    "treadle_recurrent_backward": ("saved", "grads"),
}


def fields_of(call: Call, argument: str) -> list[tuple[str, str]]:
    return [(argument, field) for field, *_ in call.arguments[argument]._fields_[1:]]


@pytest.mark.parametrize("function", BLOCKS)
def test_blocks_of_recurrent_layers(function: str) -> None:
    """Outputs and workspaces that overlap another array of the call are refused."""
    read, written = BLOCKS[function]
    call = good(function)
    outs = fields_of(call, written)
    for out, other in itertools.product(outs, [*fields_of(call, read), *outs]):
        for by in (0, 16, -16):
            if out == other:
                continue
            call = good(function)
            at = getattr(call.arguments[other[0]], other[1]) + 16
            setattr(call.arguments[other[0]], other[1], at)
            setattr(call.arguments[out[0]], out[1], at + by)
            assert complaint(call) == "", (out, other, by)
    for argument, field in [*fields_of(call, read), *outs]:
        for by in (0, 64):
            call = good(function)
            setattr(call.arguments[argument], field, call.arguments["workspace"] + by)
            assert complaint(call) == "", (field, by)
