"""A block-diagonal W_hh with n groups, given as weight_hh [D, GH, H/n]. It is compared with the
whole matrix [D, GH, H], whose other blocks are zeros."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.formula_cases import LEAKY
from tests.recurrent.support.layer_cases import BLOCKS, C_PARTS, batch_sizes
from tests.support.cases import DEVICES
from tests.support.inputs import GPU
from treadle.nn.formulas import CELLS as FORMULAS

CELLS = ["lltm", "lstm", "gru", "rnn_tanh", FORMULAS["MGU"].key, LEAKY.key]
EACH_CELL = pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.split("_")[0])
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
LENGTHS = (5, 4, 4, 1)
op = torch.ops.treadle.recurrent_layer


def whole(weight: Tensor, gates: int) -> Tensor:
    """The whole matrix [D, GH, H] for the blocks [D, GH, H/n]."""
    d, rows, own = weight.shape
    groups = rows // gates // own
    blocks = weight.view(d, gates, groups, own, own)
    found = weight.new_zeros(d, gates, groups, own, groups, own)
    for j in range(groups):
        found[:, :, j, :, j] = blocks[:, :, j]
    return found.reshape(d, rows, groups * own)


def blocks_of(weight: Tensor, gates: int, groups: int) -> Tensor:
    """The inverse of `whole`: the blocks of a whole matrix."""
    d, rows, hidden = weight.shape
    own = hidden // groups
    split = weight.view(d, gates, groups, own, groups, own)
    return torch.stack([split[:, :, j, :, j] for j in range(groups)], 2).reshape(d, rows, own)


def arguments(
    cell: str, groups: int, directions: int, packed: bool, resets: str, **kind: Any
) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors that have gradients, in the op's order, and the other arguments."""
    torch.manual_seed(1)
    hidden = groups * (1 if groups == 5 else 6)
    features, batch, steps = 3, len(LENGTHS), LENGTHS[0]
    rows = (sum(LENGTHS),) if packed else (steps, batch)
    width, d = BLOCKS[cell] * hidden, directions
    parts = C_PARTS.get(cell, 1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(**kind)

    tensors = [
        draw(*rows, features),
        draw(d, batch, hidden),
        draw(d, batch, parts * hidden),
        0.5 * draw(d, width, features),
        0.5 * draw(d, width, hidden // groups),
        draw(d, width),
    ]
    if cell != "lltm":
        tensors.append(draw(d, width))
    given: dict[str, Any] = {"cell": cell, "sizes": batch_sizes(LENGTHS) if packed else None}
    if resets:
        given["reset"] = torch.rand(*rows, 1, device=kind.get("device")) < 0.4
        if resets != "zeros":
            places = (batch,) if resets == "rows" else rows
            tensors += [draw(d, *places, hidden), draw(d, *places, parts * hidden)]
    return tensors, given


def run(tensors: list[Tensor], given: dict[str, Any], **more: Any) -> Any:
    given = dict(given)
    biases = 2 if given["cell"] != "lltm" else 1
    input, h0, c0, w_ih, w_hh, *rest = tensors
    given_biases = [*rest[:biases], *[None] * (2 - biases)]
    if len(rest) > biases:
        given |= {"reset_h": rest[biases], "reset_c": rest[biases + 1]}
    return op(input, given.pop("sizes"), h0, c0, w_ih, w_hh, *given_biases, **given, **more)


def derived(tensors: list[Tensor], given: dict[str, Any], **more: Any) -> list[Tensor]:
    """Results and all gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    results = run(leaves, given, **more)
    torch.manual_seed(2)
    grads = [torch.randn(t.shape, dtype=torch.float64).to(t) for t in results]
    return [*results, *torch.autograd.grad(results, leaves, grads)]


def by_the_whole(tensors: list[Tensor], given: dict[str, Any], groups: int) -> list[Tensor]:
    """Like `derived`, but computed with the whole matrix."""
    gates = BLOCKS[given["cell"]]
    found = derived([*tensors[:4], whole(tensors[4], gates), *tensors[5:]], given)
    of_weight = 3 + 4  # three results, then the gradients
    found[of_weight] = blocks_of(found[of_weight], gates, groups)
    return found


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.is_contiguous()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


FORMS = list(itertools.product((1, 2), (False, True), ("", "zeros", "rows", "steps")))


@EACH_DEVICE
@EACH_CELL
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_as_the_whole_matrix(cell: str, groups: int, device: str) -> None:
    for directions, packed, resets in FORMS:
        tensors, given = arguments(cell, groups, directions, packed, resets, device=device)
        agree(derived(tensors, given), by_the_whole(tensors, given, groups), 1e-12)


@EACH_DEVICE
@EACH_CELL
def test_without_directions_and_with_recompute(cell: str, device: str) -> None:
    tensors, given = arguments(cell, 2, 1, False, "", device=device)
    tensors[3:] = [t.squeeze(0) for t in tensors[3:]]
    leaves = [t.requires_grad_() for t in tensors]
    found = run(leaves, given)
    grads = torch.autograd.grad([t.sum() for t in found], leaves)
    again = torch.autograd.grad([t.sum() for t in run(leaves, given, recompute=True)], leaves)
    stacked = [*tensors[:3], *(t.unsqueeze(0) for t in tensors[3:])]
    expected = torch.autograd.grad([t.sum() for t in run(stacked, given)], leaves)
    agree(list(grads), list(expected), 1e-12)
    agree(list(again), list(expected), 1e-12)


@EACH_DEVICE
@EACH_CELL
def test_other_derivatives(cell: str, device: str) -> None:
    """Tests second derivatives, forward mode, batched gradients, vmap over samples and weights."""
    for directions, packed, resets in ((2, False, "steps"), (1, True, "rows")):
        tensors, given = arguments(cell, 2, directions, packed, resets, device=device)
        leaves = [t.requires_grad_() for t in tensors]

        def function(*leaves: Tensor, given: dict[str, Any] = given) -> Any:
            return run(list(leaves), given)

        checks = {"check_forward_ad": True, "check_batched_grad": True, "fast_mode": True}
        assert torch.autograd.gradcheck(function, leaves, **checks)
        assert torch.autograd.gradgradcheck(
            function, leaves, check_fwd_over_rev=True, fast_mode=True
        )
    tensors, given = arguments(cell, 2, 1, False, "", device=device)
    for batched in ((0, 1, 2), (4,), tuple(range(len(tensors)))):
        stacks = [torch.stack([t, 2 * t, -t]) if i in batched else t for i, t in enumerate(tensors)]
        dims = tuple(0 if i in batched else None for i in range(len(tensors)))

        def gradients(*leaves: Tensor, given: dict[str, Any] = given) -> Any:
            def loss(*leaves: Tensor) -> Tensor:
                return sum((t * t).sum() for t in run(list(leaves), given))

            return torch.func.grad(loss, argnums=tuple(range(len(leaves))))(*leaves)

        found = torch.vmap(gradients, dims)(*stacks)
        for n in range(3):
            one = gradients(*(t[n] if i in batched else t for i, t in enumerate(stacks)))
            for a, b in zip(found, one, strict=True):
                torch.testing.assert_close(a[n], b, rtol=1e-11, atol=1e-11)


@EACH_DEVICE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@EACH_CELL
def test_other_dtypes(cell: str, dtype: torch.dtype, device: str) -> None:
    bound = {torch.float32: 2e-5, torch.float16: 3e-2, torch.bfloat16: 2e-1}[dtype]
    tensors, given = arguments(cell, 2, 2, False, "rows", device=device)
    exact = derived(tensors, given)
    narrow = derived([t.to(dtype) for t in tensors], given)
    for a, b in zip(narrow, exact, strict=True):
        assert (a.double() - b).norm() <= bound * b.norm().clamp(min=1)


@GPU
@pytest.mark.parametrize("algorithm", ["auto", "cluster", "grid", "step"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@EACH_CELL
def test_kernels(cell: str, dtype: torch.dtype, algorithm: str) -> None:
    """Tests larger sizes with each algorithm, without and with resets."""
    hidden, batch, steps = 32, 19, 11
    for groups, directions, resets in ((4, 1, False), (2, 2, True)):
        torch.manual_seed(3)
        d, width, parts = directions, BLOCKS[cell] * hidden * groups, C_PARTS.get(cell, 1)
        kind: dict[str, Any] = {"device": "cuda", "dtype": dtype}
        tensors = [
            torch.randn(steps, batch, 24, **kind),
            torch.randn(d, batch, hidden * groups, **kind),
            torch.randn(d, batch, parts * hidden * groups, **kind),
            0.2 * torch.randn(d, width, 24, **kind),
            0.2 * torch.randn(d, width, hidden, **kind),
            *(torch.randn(d, width, **kind) for _ in range(1 if cell == "lltm" else 2)),
        ]
        given: dict[str, Any] = {"cell": cell, "sizes": None}
        if resets:
            given["reset"] = torch.rand(steps, batch, 1, device="cuda") < 0.2
        ours = derived(tensors, given, algorithm=algorithm)
        exact = derived([t.double() for t in tensors], given, algorithm="step")
        bound = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
        for a, b in zip(ours, exact, strict=True):
            assert (a.double() - b).norm() <= bound * b.norm()


@EACH_DEVICE
def test_lists_of_layers(device: str) -> None:
    """Stacks accept block-diagonal weights, and start from zeros of the right size."""
    kind: dict[str, Any] = {"device": device, "dtype": torch.float64}
    layer = treadle.nn.Recurrent(LEAKY, 3, 12, 2, bidirectional=True, groups=3, **kind)
    assert layer.weight_hh_l1_reverse.shape == (24, 4) and "groups=3" in repr(layer)
    x = torch.randn(5, 2, 3, **kind)
    output, states = layer(x)
    assert output.shape == (5, 2, 24) and [s.shape for s in states] == [(4, 2, 12)] * 3
    params = [torch.randn(48, 3, **kind), torch.randn(48, 4, **kind), *torch.randn(2, 48, **kind)]
    dense = [params[0], whole(params[1][None], 4)[0], *params[2:]]
    zeros = (torch.zeros(1, 2, 12, **kind),) * 2
    options = (True, 1, 0.0, False, False, False)
    for ours, theirs in zip(
        treadle.lstm(x, zeros, params, *options), torch.lstm(x, zeros, dense, *options), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@EACH_DEVICE
@pytest.mark.parametrize("cell", ["lltm", "lstm", "gru", "rnn_relu"])
def test_lengths_and_cells(cell: str, device: str) -> None:
    """Stacked layers give the results and gradients that they have with the whole matrix, also with
    `lengths` and `return_cells`."""
    function, states = getattr(treadle, cell), 2 if cell in ("lltm", "lstm") else 1
    gates, biases, hidden = BLOCKS[cell], 1 if cell == "lltm" else 2, 12
    kind: dict[str, Any] = {"device": device, "dtype": torch.float64, "requires_grad": True}
    for bidirectional, groups in ((False, 3), (True, 2)):
        d = 2 if bidirectional else 1
        x = torch.randn(5, 4, 3, **kind)
        hx = [torch.randn(2 * d, 4, hidden, **kind) for _ in range(states)]
        params = []
        for features in (3, 12 * d):
            for _ in range(d):
                params += [
                    torch.randn(gates * hidden, features, **kind),
                    torch.randn(gates * hidden, hidden // groups, **kind),
                    *(torch.randn(gates * hidden, **kind) for _ in range(biases)),
                ]
        full = [
            whole(p[None], gates)[0] if n % (2 + biases) == 1 else p for n, p in enumerate(params)
        ]
        given: list[dict[str, Any]] = [{"lengths": torch.tensor([5, 0, 3, 1], device=device)}]
        if states == 2:
            reset = torch.rand(5, 4, device=device) < 0.3
            given += [{"return_cells": True, "reset": reset}, given[0] | {"return_cells": True}]
        forms: list[tuple[Tensor, ...]] = [(x,)] * len(given)
        if states == 2:
            sizes = torch.tensor([4, 3, 1])
            forms.append((x.flatten(0, 1)[:8], sizes))
            given.append({"return_cells": True, "reset": reset.flatten()[:8]})
        for input, options in zip(forms, given, strict=True):
            last = () if len(input) == 2 else (False,)
            rest = (True, 2, 0.0, False, bidirectional, *last)
            state: Any = hx if states == 2 else hx[0]
            ours = function(*input, state, params, *rest, **options)
            theirs = function(*input, state, full, *rest, **options)
            agree(list(ours), list(theirs), 1e-12)
            leaves = [x, *hx, *params]
            loss = [sum((t * t).sum() for t in results) for results in (ours, theirs)]
            grads = [torch.autograd.grad(each, leaves, retain_graph=True) for each in loss]
            for a, b in zip(*grads, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [3, 12])
def test_compiled(groups: int, fresh_compile: None) -> None:
    layer = treadle.nn.Recurrent(LEAKY, 3, 12, groups=groups)
    x = torch.randn(5, 2, 3)
    found = torch.compile(layer, fullgraph=True)(x)[0]
    torch.testing.assert_close(found, layer(x)[0])
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), layer.weight_hh_l0)[0],
        torch.autograd.grad(layer(x)[0].sum(), layer.weight_hh_l0)[0],
    )


def test_errors() -> None:
    with pytest.raises(ValueError, match="groups must divide hidden_size, 12, got 5"):
        treadle.nn.Recurrent(LEAKY, 3, 12, groups=5)
    with pytest.raises(ValueError, match="groups must be an integer of at least 1, got 0"):
        treadle.nn.Recurrent(LEAKY, 3, 12, groups=0)
    x, states = torch.randn(5, 2, 3), (torch.zeros(1, 2, 12),) * 2
    params = [torch.randn(48, 3), torch.randn(48, 5), torch.randn(48), torch.randn(48)]
    options = (True, 1, 0.0, False, False, False)
    with pytest.raises(RuntimeError, match=r"weight_hh must have shape \[4H, H\] = \[48, 12\]"):
        treadle.lstm(x, states, params, *options)
