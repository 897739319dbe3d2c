"""Runs torch.library.opcheck: schema, autograd registration, fake tensors, and AOTDispatcher.

AOTDispatcher compiles the op, which takes 60 times as long as the other checks. It gets one call of
each form of each overload; the other checks get every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from tests.elementwise.snake_cases import backward_calls
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import (
    CELLS,
    EACH_CELL,
    TRACED_CELLS,
    batch_sizes,
    layer_arguments,
)
from tests.recurrent.support.scan_cases import scan_call
from tests.sine_linear.cases import sine_arguments
from tests.sine_linear_jet.test_transforms import jet_ops
from tests.support.cases import ELEMENTWISE, OPS
from tests.support.forms import FORMS, INPLACE, OUT, Form
from tests.support.inputs import DEVICES, Call, Make, Op
from treadle.nn.formulas import CELLS as FORMULAS

ops = torch.ops.treadle
OpCall = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an overload and its arguments


UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")


def check_all(calls: Iterable[OpCall], grad: bool, traced: bool = True) -> None:
    """Checks all calls. If `traced`, traces the first call of each overload and set of options."""
    seen: set[Any] = set()
    for op, args, kwargs in calls:
        form = (op, *kwargs)
        whole = traced and form not in seen
        seen.add(form)
        checks = {} if whole else {"test_utils": UNTRACED}
        opcheck(op, with_grad(args) if grad else args, kwargs, **checks)


# Cases of elementwise ops that torch traces in different ways.
TRACED = ("4-dim", "transposed", "channels_last", "empty", "0-dim b", "alpha -3")


def overload(form: Form, name: str, y: Tensor) -> Any:
    """The overload of `name` that accepts the arguments after x in this form."""
    packet, args = getattr(ops, name), form.rest(y).args
    number = bool(args) and not isinstance(args[0], Tensor)
    return packet.Scalar if number and "Scalar" in packet.overloads() else packet.default


def elementwise_calls(op: Op, m: Make) -> list[OpCall]:
    """Returns a call of every overload that returns a new tensor."""
    x, y = m(4, 6), m(4, 6)
    forms = [(form, form.rest(y)) for form in FORMS.values() if form.op is op]
    found = [(overload(f, op.name, y), (x, *rest.args), rest.kwargs) for f, rest in forms]
    calls = [case.build(m) for case in op.cases if case.id.removeprefix(op.name)[1:] in TRACED]
    found += [(getattr(ops, op.name).default, call.args, call.kwargs) for call in calls]
    backward = backward_calls(m) if op.name == "snake" else ()
    return found + [(ops.snake_backward.default, call.args, call.kwargs) for call in backward]


def writing_calls(m: Make) -> list[OpCall]:
    x, y = m(4, 6), m(4, 6)
    return [
        *(
            (
                getattr(ops, name).out,
                (x, *form.rest(y).args),
                {**form.rest(y).kwargs, "out": m(4, 6)},
            )
            for name, form in OUT.items()
        ),
        *(
            (
                overload(form, f"{form.op.name}_", y),
                (x, *form.rest(y).args),
                form.rest(y).kwargs,
            )
            for form in INPLACE.values()
        ),
    ]


def cell_calls(device: str) -> list[Call]:
    m = Make("opcheck", device, torch.float32)
    half = Make("opcheck", device, torch.bfloat16)
    return [
        cell_arguments(m, (3, 5, 4)),
        cell_arguments(m, (3, 5, 4), bias="None"),
        cell_arguments(m, (3, 5, 4), bias="[1, 3H]"),
        cell_arguments(m, (0, 5, 4)),
        cell_arguments(m, (3, 0, 4)),
        cell_arguments(m, (3, 5, 4), lead=(2,)),
        cell_arguments(half, (3, 5, 4), cell_dtype=torch.float32),
    ]


def cell_ops(call: Call) -> list[OpCall]:
    new_h, new_cell, gates = ops.lltm_cell_forward(*call.args)
    grads = (torch.ones_like(new_h), torch.ones_like(new_cell))
    mask = [argument is not None for argument in call.args]
    return [
        (ops.lltm_cell.default, call.args, {}),
        (ops.lltm_cell_forward.default, call.args, {}),
        (ops.lltm_cell_backward.default, (*grads, *call.args, new_cell, gates, mask), {}),
    ]


def sine_layer_calls(device: str) -> list[Call]:
    m = Make("opcheck", device, torch.float32)
    return [
        sine_arguments(m, (3,), (5, 4)),
        sine_arguments(m, (2, 3), (3, 4), bias=False),
        sine_arguments(m, (), (5, 4)),
        sine_arguments(m, (0,), (5, 4)),
        sine_arguments(m, (3,), (5, 4), layers=(2,)),
        sine_arguments(Make("opcheck", device, torch.float64), (3,), (5, 4)),
        sine_arguments(Make("opcheck", device, torch.bfloat16), (3,), (5, 4)),
    ]


def sine_layer_ops(call: Call, every_mask: bool) -> list[OpCall]:
    """Returns calls with every mask of requested gradients, or with one mask per backward op."""
    *tensors, omega = call.args
    output, phase = ops.sine_linear_forward(*call.args)
    grad = torch.ones_like(output)
    kept = (*tensors, output, phase, omega)
    masks = [[True] * 4, [True, False, False, False], [False, True, True, True]]
    factors = (None, 2 * grad)
    return [
        (ops.sine_linear.default, call.args, {}),
        (ops.sine_linear_forward.default, call.args, {}),
        (ops.sine_linear_slope.default, (grad, None, *kept, 1), {}),
        (ops.sine_linear_slope.default, (grad, 2 * grad, *kept, 2), {}),
        *(
            (ops.sine_linear_backward.default, (grad, *kept, mask), {})
            for mask in (masks if every_mask else masks[:1])
        ),
        *((ops.sine_linear_backward_.default, (grad, *kept, sums), {}) for sums in (True, False)),
        *(
            (ops.sine_linear_slope_backward.default, (grad, 3 * grad, factor, *kept, 1, mask), {})
            for factor in (factors if every_mask else factors[1:])
            for mask in ([True, factor is not None, True], [False, False, True])[: 1 + every_mask]
        ),
    ]


PACKED = 4


def layer_calls(device: str, cell: str) -> list[tuple[Call, bool]]:
    """Returns calls, and for each of them whether it uses recompute."""
    arguments = partial(layer_arguments, cell=cell)
    m = Make("opcheck", device, torch.float32)
    half = Make("opcheck", device, torch.bfloat16)
    sizes = (3, 2, 5, 4)
    return [  # the first call and call number PACKED are traced
        (arguments(m, sizes), False),
        (arguments(m, sizes, directions=2, bias=False), False),
        (arguments(m, sizes, directions=2), True),
        (arguments(m, sizes, directions=2, lengths=(3, 1)), False),
        (arguments(m, sizes, lengths=(3, 2, 2)), True),
        (arguments(m, (0, 2, 5, 4)), False),
        (arguments(m, (3, 0, 5, 4)), False),
        (arguments(half, sizes, state=torch.float32), False),
    ]


def layer_ops(call: Call, recompute: bool) -> list[OpCall]:
    args = (call.args[0], batch_sizes(call.args[1]), *call.args[2:])
    kwargs = {**call.kwargs, "recompute": recompute}
    output, h_n, c_n, *saved = ops.recurrent_layer_forward(*args, **kwargs)
    grads = tuple(torch.ones_like(t) for t in (output, h_n, c_n))
    resets = {name: kwargs.get(name) for name in ("reset", "reset_h", "reset_c")}
    optional = (*call.args[6:], resets["reset_h"], resets["reset_c"])
    mask = [True] * 5 + [t is not None for t in optional]
    cell = call.kwargs["cell"]
    return [
        (ops.recurrent_layer.default, args, kwargs),
        (ops.recurrent_layer_forward.default, args, kwargs),
        (
            ops.recurrent_layer_backward.default,
            (*grads, *args, output, *saved, cell, recompute, "auto", mask),
            resets,
        ),
    ]


def layers_of(call: Call) -> list[OpCall]:
    """Returns calls of the cell's composite ops, for one bidirectional layer."""
    input, lengths, h0, c0, *weights = call.args
    sizes, cell = batch_sizes(lengths), call.kwargs["cell"]
    op, hx = getattr(ops, cell), h0 if cell not in ("lltm", "lstm") else [h0, c0]
    params = [t[d] for d in range(2) for t in weights if t is not None]
    options = (weights[2] is not None, 1, 0.0, False, True)
    name, args = "input", (input, hx, params, *options, False)
    if sizes is not None:
        name, args = "data", (input, sizes, hx, params, *options)
    forms = (name,) if cell not in ("lltm", "lstm") else (name, f"{name}_cells")
    from_zeros = (input, sizes, params, *options, False)
    return [
        *((getattr(op, form), args, {}) for form in forms),
        (ops.layers_from_zeros.default, from_zeros, {"cell": cell}),
    ]


def with_grad(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, grad: bool, device: str) -> None:
    check_all(elementwise_calls(OPS[name], Make("opcheck", device, torch.float32)), grad)


@pytest.mark.parametrize("device", DEVICES)
def test_promotion(device: str) -> None:
    m = Make("opcheck", device, torch.float32)
    integers, halves = m(6, dtype=torch.int32), m(6, dtype=torch.float16)
    opcheck(ops.vector_add.default, (integers, halves))
    opcheck(ops.vector_add.default, with_grad((m(6), halves)))
    opcheck(ops.vector_add.Scalar, (integers, 2.5))
    opcheck(ops.scale.default, (integers, 0.5))
    opcheck(ops.scale.default, (integers > 0, 3))
    for name, form in OUT.items():
        rest = form.rest(integers)
        opcheck(getattr(ops, name).default, (integers, *rest.args), rest.kwargs)


@pytest.mark.parametrize("device", DEVICES)
def test_writing(device: str) -> None:
    for op, args, kwargs in writing_calls(Make("opcheck", device, torch.float32)):
        opcheck(op, args, kwargs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("number", range(len(cell_calls("meta"))))
def test_cell(number: int, grad: bool, device: str) -> None:
    check_all(cell_ops(cell_calls(device)[number]), grad, traced=number == 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("number", range(len(sine_layer_calls("meta"))))
def test_sine_layer(number: int, grad: bool, device: str) -> None:
    calls = sine_layer_ops(sine_layer_calls(device)[number], number == 0)
    if grad:  # sine_linear_backward_ has no derivatives
        calls = [call for call in calls if call[0] is not ops.sine_linear_backward_.default]
    check_all(calls, grad, traced=number == 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("number", range(len(layer_calls("meta", "lltm"))))
@EACH_CELL
def test_layer(cell: str, number: int, grad: bool, device: str) -> None:
    call, recompute = layer_calls(device, cell)[number]
    calls = layer_ops(call, recompute)
    backward, args, kwargs = calls[-1]
    if grad and call.args[1] is not None:
        # The derivative of this op reads batch_sizes, which have no values during tracing.
        calls.pop()
        if number == PACKED:
            with pytest.raises(Exception, match="batch_sizes must have values for tangents"):
                opcheck(backward, with_grad(args), kwargs)
    check_all(calls, grad, traced=number in (0, PACKED) and cell in TRACED_CELLS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [None, (3, 1)], ids=str)
@EACH_CELL
def test_layers(cell: str, lengths: tuple[int, ...] | None, device: str) -> None:
    make = Make("opcheck", device, torch.float32)
    call = layer_arguments(make, (3, 2, 5, 4), cell=cell, directions=2, lengths=lengths)
    for wanted in (call, call.map(lambda t: t.requires_grad_())):
        for op, args, kwargs in layers_of(wanted):
            # layers_from_zeros reads the rows of a packed batch from batch_sizes, whose values
            # tracing hides. Modules call it only in eager mode.
            reads_sizes = op is ops.layers_from_zeros.default and lengths is not None
            checks = UNTRACED[:2] if reads_sizes else () if cell in TRACED_CELLS else UNTRACED
            opcheck(op, args, kwargs, **({"test_utils": checks} if checks else {}))


def layers_of_a_formula(device: str, grad: bool) -> OpCall:
    make = Make("opcheck", device, torch.float32)
    call = layer_arguments(make, (3, 2, 5, 4), cell=FORMULAS["MGU"].key, no_directions=True)
    if grad:
        call = call.map(lambda t: t.requires_grad_())
    x, _, h0, _, *parameters = call.args
    arguments = (x, None, [h0], parameters, True, 1, 0.0, False, False, False)
    return ops.recurrent_layers.default, arguments, {"cell": FORMULAS["MGU"].key}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
def test_layers_of_a_formula(grad: bool, device: str) -> None:
    op, arguments, options = layers_of_a_formula(device, grad)
    opcheck(op, arguments, options)


def step_of_a_cell(device: str, cell: str) -> OpCall:
    gates = {"lstm": 4, "gru": 3}[cell] * 4
    sizes = [(3, 2), (3, 4), (3, 4), (gates, 2), (gates, 4), (gates,), (gates,)]
    tensors: list[Tensor | None] = [torch.randn(size, device=device) for size in sizes]
    if cell != "lstm":
        tensors[2] = None
    return ops.cell_step.default, tuple(tensors), {"cell": cell}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_step_of_a_cell(cell: str, device: str) -> None:
    op, arguments, options = step_of_a_cell(device, cell)
    # torch.gru_cell itself cannot be traced for a GPU.
    checks = {"test_utils": UNTRACED[:2]} if (cell, device) == ("gru", "cuda") else {}
    for given in (arguments, with_grad(arguments)):
        opcheck(op, given, options, **checks)


def test_every_op_is_here() -> None:
    make = Make("opcheck", "cpu", torch.float32)
    calls = [call for name in ELEMENTWISE for call in elementwise_calls(OPS[name], make)]
    calls += [*writing_calls(make), *cell_ops(cell_calls("cpu")[0])]
    calls += layer_ops(*layer_calls("cpu", "lltm")[0])
    calls += [*sine_layer_ops(sine_layer_calls("cpu")[0], True), *jet_ops("cpu", "none")]
    for cell, lengths in itertools.product(CELLS, (None, (2, 1))):
        call = layer_arguments(make, (2, 2, 3, 4), cell=cell, directions=2, lengths=lengths)
        calls += layers_of(call)
    calls += [scan_call(make), layers_of_a_formula("cpu", False), step_of_a_cell("cpu", "lstm")]
    tested = {str(call[0]) for call in calls}
    registered = {
        f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}"
        for schema in torch._C._jit_get_all_schemas()
        # Only fake kernels call the ops that end in _empty.
        if schema.name.startswith("treadle::") and not schema.name.endswith("_empty")
    }
    assert tested == registered


def test_a_wrong_op_is_noticed() -> None:
    """opcheck detects a fake kernel with a wrong shape, and a write that the schema does not
    declare. (It does not compare strides: test_numbers does.)"""
    with torch.library._scoped_library("treadle_planted", "DEF") as library:
        library.define("shape(Tensor x) -> Tensor")
        library.define("writes(Tensor x) -> Tensor")
        library.impl("shape", lambda x: x.clone(), "CPU")
        library.impl("shape", lambda x: torch.empty_like(x.t()), "Meta")
        library.impl("writes", lambda x: x.add_(1).clone(), "CPU")
        library.impl("writes", lambda x: torch.empty_like(x), "Meta")
        planted = torch.ops.treadle_planted
        with pytest.raises(Exception, match="[Ss]hape"):
            opcheck(planted.shape.default, (torch.randn(3, 4),))
        with pytest.raises(Exception, match="was mutated"):
            opcheck(planted.writes.default, (torch.randn(3, 4),))
