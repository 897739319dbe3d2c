"""Checks each step of recurrent_layer with its formula in float64, starting from the kernel's own
result of the previous step. Because all h are known, all steps are checked at once.

Over many steps, results in half types diverge from any reference although each step is correct.
csrc/recurrent/layer/layer.h explains the sizes, such as T.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.recurrent.kernels import persistent_calls as calls
from tests.recurrent.kernels.persistent_calls import Cases, Given
from tests.recurrent.kernels.persistent_checks import Checks
from tests.recurrent.support.layer_cases import Lengths
from tests.support.inputs import HALVES, on_hopper
from tests.support.layouts import (
    Layout,
    misaligned,
    padded_rows,
    reversed_dims,
    strided,
    transposed,
)

STEPS, BATCHES = (1, 2, 3, 17, 257), (1, 2, 3, 17, 64, 200)
MOST = 257 * 64 * 1024  # the largest T * B * H, to limit the memory for float64
FINE = 1e-5  # relative error of sums in float32


def running(x: Tensor, d: int) -> Tensor:
    """Cumulative sums over the steps, in the order of direction d."""
    return x.cumsum(0) if d == 0 else x.flip(0).cumsum(0).flip(0)


def at_first_step(x: Tensor, one: Given, d: int, otherwise: Tensor) -> Tensor:
    """[B, ...] from [T, B, ...]: the values at each row's first step in direction d, or `otherwise`
    for rows without steps."""
    lengths = one.valid.sum(0)
    at = lengths * 0 if d == 0 else (lengths - 1).clamp(min=0)
    found = x[at, torch.arange(len(at), device=at.device)]
    return torch.where(lengths[:, None] > 0, found, otherwise)


def previous(h: Tensor, h0: Tensor, one: Given, d: int) -> Tensor:
    """[T, B, H]: the state before each step."""
    if d == 0:
        return torch.cat([h0[None], h])[:-1]
    going = torch.cat([one.valid, torch.zeros_like(one.valid[:1])])[1:, :, None]
    return torch.where(going, torch.cat([h, h0[None]])[1:], h0)


def check_forward(one: Given, saved: list[Tensor], checks: Checks, algorithm: str) -> None:
    output, h_n, c_n, gates = saved
    directions, _, hidden = one.h0.shape
    valid = one.valid[..., None]
    outputs = one.padded(output).unflatten(-1, (directions, hidden))
    inputs = one.padded(one.input).unflatten(-1, (directions, 3 * hidden))
    for d in range(directions):
        h = outputs[:, :, d]
        read = partial(calls.as_multiplied, algorithm=algorithm)
        before = read(previous(h, one.h0[d], one, d))
        expected = read(inputs[:, :, d]) + before @ read(one.weight_hh[d]).t()
        if one.bias_ih is not None:
            expected += one.bias_ih[d].double()
        slack = FINE * (1 + expected.abs().max())
        checks.close(one.padded(gates[d]), expected * valid, slack, f"gates of direction {d}")

        i, o, z = expected.chunk(3, dim=-1)
        i = i.sigmoid()
        c0, added = one.c0[d].double(), F.elu(z) * i * valid
        c = c0 + running(added, d)
        reach = slack * (1 + running(i * (1 + z.abs() * (1 - i)) * valid, d))
        checks.close(h, c.tanh() * o.sigmoid() * valid, slack + reach, f"output of direction {d}")
        checks.close(c_n[d], c0 + added.sum(0), reach.amax(0), f"c_n of direction {d}")
        last = at_first_step(h, one, 1 - d, one.h0[d])
        checks.bits(h_n[d], last, f"h_n of direction {d}")


def check_backward(one: Given, saved: list[Tensor], grads: list[Tensor], checks: Checks) -> None:
    output, _, _, gates = saved
    grad_input, grad_h0, grad_c0, _, grad_weight, *grad_bias = grads
    directions, batch, hidden = one.h0.shape
    valid = one.valid[..., None]
    outputs = one.padded(output).unflatten(-1, (directions, hidden))
    # The input's gradient equals the gates' gradients, because weight_ih is the identity.
    grad_gates = one.padded(grad_input).unflatten(-1, (directions, 3 * hidden))
    grad_output, grad_h_n, grad_c_n = one.grads
    for d in range(directions):
        of = f"of direction {d}"
        i, o, z = one.padded(gates[d]).double().chunk(3, dim=-1)
        i, o = i.sigmoid(), o.sigmoid()
        c = one.c0[d].double() + running(F.elu(z) * i * valid, d)
        t = c.tanh()

        dg, weight = grad_gates[:, :, d].double(), one.weight_hh[d].double()
        before = dg @ weight  # what each step passes to the preceding one
        nothing = torch.zeros_like(before[:1])
        dh = torch.cat([before, nothing])[1:] if d == 0 else torch.cat([nothing, before])[:-1]
        if grad_output is not None:
            dh += one.padded(grad_output).unflatten(-1, (directions, hidden))[:, :, d]
        lengths = one.valid.sum(0)
        last = (lengths - 1).clamp(min=0) if d == 0 else lengths * 0
        dh[last, torch.arange(batch, device=last.device)] += grad_h_n[d].double()
        slope = o * (1 - t * t) * valid
        dc = grad_c_n[d].double() + running(dh * slope, 1 - d)
        grad_i, grad_o = dc * F.elu(z) * i * (1 - i), dh * t * o * (1 - o)
        expected = torch.cat([grad_i, grad_o, dc * i * z.clamp(max=0).exp()], dim=-1) * valid
        slack = FINE * (1 + dh.abs().max())
        reach = slack * (1 + running(slope, 1 - d)) * (1 + z.abs())
        wide = torch.cat([slack + reach] * 3, dim=-1)
        checks.close(grad_gates[:, :, d], expected, wide, f"gradients of gates {of}")

        total = grad_c_n[d].double() + (dh * slope).sum(0)
        checks.close(grad_c0[d], total, reach.amax(0), f"grad_c0 {of}")
        first = at_first_step(before, one, d, grad_h_n[d].double())
        checks.close(grad_h0[d], first, slack, f"grad_h0 {of}")
        entering = previous(outputs[:, :, d], one.h0[d], one, d)
        # `rows` is the kernel's own h before each step, and `own` its own gradients of gates.
        rows, own = (t.flatten(0, 1)[one.places] for t in (entering, grad_gates[:, :, d]))
        product = own.double().t() @ rows.double()
        checks.close_as(grad_weight[d], product, own.t() @ rows, f"grad_weight_hh {of}")
        if one.bias_ih is not None:
            total = own.double().sum(0)
            checks.close_as(grad_bias[0][d], total, own.sum(0), f"grad_bias {of}")


def check(one: Given, algorithm: str) -> None:
    """Checks both passes, and that a call that saves nothing gives the same bits."""
    with Checks() as checks:
        saved = calls.forward(one, algorithm)
        check_forward(one, saved, checks, algorithm)
        checks.all_bits(calls.inference(one, algorithm), saved[:3], "nothing saved")
        check_backward(one, saved, calls.backward(one, saved, algorithm), checks)


def check_given(algorithm: str, *arguments: Any, **options: Any) -> None:
    check(calls.given(*arguments, **options), algorithm)


def options_of(turn: int) -> dict[str, Any]:
    """Options of case number ``turn``. Over all numbers of steps, every batch size gets every value
    of each option."""
    turn += turn // len(BATCHES)
    return {
        "bias": turn % 3 > 0,
        "state": torch.float32 if turn % 2 else None,
        "grad_output": turn % 5 > 0,
    }


Kinds = tuple[torch.dtype, ...]


def each_kind(dtypes: Kinds, turn: int) -> Iterable[tuple[torch.dtype, int]]:
    """Half types with one and with two directions; float32 alternately with one or two."""
    if dtypes == HALVES:
        return itertools.product(dtypes, (1, 2))
    return [(dtype, 1 + (turn + turn // len(BATCHES)) % 2) for dtype in dtypes]


def sizes(algorithm: str, *widths: int, dtypes: Kinds = HALVES) -> Cases:
    """Cases of all T and B, with alternating options."""
    for turn, (h, t, b) in enumerate(itertools.product(widths, STEPS, BATCHES)):
        if t * b * h > MOST:
            continue
        options = options_of(turn)
        for dtype, d in each_kind(dtypes, turn):
            name = f"T{t} B{b} H{h} D{d} {dtype} {options}"
            given = name, dtype, (t, b, h)
            yield name, partial(check_given, algorithm, *given, directions=d, **options)


# Numbers of rows. They include, for the grid and for each cluster size, the largest number of rows
# that can be resident at once, and that number plus one.
SHARED = (*range(4, 18), *range(20, 66, 5), 90, 105, 112, 113, 120, 128, 129, 133, 150, 225)
SHARED += (256, 257)


def batches(algorithm: str, *widths: int, dtypes: Kinds = HALVES) -> Cases:
    """Batch sizes for which the kernels divide the rows in many ways, with one direction or two."""
    for turn, (h, b) in enumerate(itertools.product(widths, SHARED)):
        for n, dtype in enumerate(dtypes):
            d = 1 + (turn + turn // len(SHARED) + n) % 2
            name = f"B{b} H{h} D{d} {dtype}"
            given = name, dtype, (6, b, h)
            options = options_of(turn) | {"directions": d}
            yield name, partial(check_given, algorithm, *given, **options)


def shares(*sizes: tuple[int, int, int]) -> Cases:
    """Cases of the algorithm "tiles". The number of tiles of the output decides whether a thread
    block computes 64 hidden units or 32."""
    for turn, (size, dtype) in enumerate(itertools.product(sizes, calls.DTYPES.values())):
        name = f"T{size[0]} B{size[1]} H{size[2]} {dtype}"
        given = name, dtype, tuple(size)
        yield name, partial(check_given, "tiles", *given, directions=1, **options_of(turn))


def some_lengths(count: int, most: int) -> tuple[int, ...]:
    chosen = random.Random(0)
    return tuple(sorted((chosen.randint(1, most) for _ in range(count)), reverse=True))


# The lengths of the rows, and the number of additional steps at the end that have no rows.
PACKED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((5,), 0),
    ((17, 2, 1), 0),
    ((5, 4, 3, 2, 1), 2),
    ((17, *[3] * 8, *[1] * 8), 0),
    ((9,) * 17, 0),
    ((5, 3, 0, 0), 0),
    ((0, 0), 3),
    (some_lengths(200, 40), 0),
    ((257, 129, 2), 0),
    ((600, 3), 0),  # more steps than one launch can upload offsets for
    (tuple(257 - 4 * n for n in range(64)), 0),
)


def packed(algorithm: str, *widths: int, dtypes: Kinds = HALVES) -> Cases:
    for turn, (h, (lengths, idle)) in enumerate(itertools.product(widths, PACKED)):
        for dtype, d in each_kind(dtypes, turn):
            name = f"{len(lengths)} rows of {lengths[:3]}.. H{h} D{d} {dtype}"
            given = name, dtype, (0, 0, h)
            options = {"lengths": lengths, "idle_steps": idle, "directions": d}
            yield name, partial(check_given, algorithm, *given, **options, **options_of(turn))


def has_backward_kernel(algorithm: str, h: int) -> bool:
    """False if the backward pass of a layer with `h` units in a half type may run algorithm "step":
    before sm_90, a cluster is one block, and for more than 96 units some cells have no kernel."""
    return on_hopper() or algorithm != "cluster" or h <= 96


def check_layout(
    algorithm: str, dtype: torch.dtype, h: int, lengths: Lengths, layout: Layout
) -> None:
    """Every layout gives the same bits, except for products by cuBLAS, which chooses its algorithm
    by layout."""
    one = calls.given("layouts", dtype, (5, 17, h), lengths=lengths)
    dense, elsewhere = calls.both(one, algorithm), one.map(layout)
    laid = calls.both(elsewhere, algorithm)
    with Checks() as checks:
        # The results and, unless cuBLAS contributes to them, the gradients of input, h0 and c0.
        steps_backward = algorithm in ("tiles", "warp") or not has_backward_kernel(algorithm, h)
        same = 4 if steps_backward else 7
        checks.all_bits(laid[:same], dense[:same], "result")
        for ours, theirs in zip(laid[same:], dense[same:], strict=True):
            # In float32 the errors of sums exceed the rounding of the result.
            bound = (4 if dtype in HALVES else 16) * torch.finfo(dtype).eps
            checks.close_in_norm(ours, theirs.double(), bound, "gradients")
        dense_again = [t.contiguous() for t in elsewhere.tensors]
        checks.all_bits(dense_again, [t.contiguous() for t in one.tensors], "argument")


def layouts_of(algorithm: str, *widths: int, dtypes: Kinds = HALVES) -> Cases:
    each = (strided, transposed, padded_rows, misaligned, reversed_dims)
    for h, layout, lengths in itertools.product(widths, each, (None, (5, 5, 3, 1))):
        for dtype in dtypes:
            name = f"H{h} {layout.__name__} {lengths} {dtype}"
            yield name, partial(check_layout, algorithm, dtype, h, lengths, layout)


GROUPS: dict[str, Callable[..., Cases]] = {
    "sizes": sizes,
    "batches": batches,
    "packed": packed,
    "layouts": layouts_of,
}
# The same cases in float32, but fewer.
GROUPS |= {
    f"float {name}": partial(group, dtypes=(torch.float32,)) for name, group in GROUPS.items()
}
GROUPS["shares"] = shares
