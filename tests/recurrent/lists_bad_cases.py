"""What lltm must refuse of its lists, and what recurrent_layer refuses in its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.support.bad_arguments import REAL, wrong_devices, wrong_dtypes
from tests.support.inputs import Bad, Make, without_storage

T, B, I, H, L, D = 2, 3, 5, 4, 2, 2  # noqa: E741
STATES = (L * D, B, H)
# Of one direction, and of one in the layer behind.
SHAPES = ((3 * H, I), (3 * H, H), (3 * H,))
LATER = ((3 * H, D * H), *SHAPES[1:])


def run(make: Make, replaced: dict[int, Tensor] | None = None, **changed: Any) -> Any:
    """lltm on good arguments, some of params replaced."""
    params = [make(*shape) for shape in (*SHAPES * D, *LATER * D)]
    for k, t in (replaced or {}).items():
        params[k] = t
    arguments: dict[str, Any] = {
        "input": make(T, B, I),
        "hx": (make(*STATES), make(*STATES)),
        "params": params,
        "has_biases": True,
        "num_layers": L,
        "dropout": 0.0,
        "train": False,
        "bidirectional": True,
        "batch_first": False,
    }
    return torch.ops.treadle.lltm(*{**arguments, **changed}.values())


def packed(make: Make, sizes: Tensor) -> Any:
    """treadle.lltm on five rows."""
    states, params = make(1, B, H), [make(*shape) for shape in SHAPES]
    return treadle.lltm(
        make(5, I), sizes, (states, states), params, True, 1, 0.0, False, bidirectional=False
    )


def lists() -> list[Bad]:
    return [
        Bad(
            "lltm hx",
            lambda m: run(m, hx=(m(*STATES),)),
            "lltm: hx must be two tensors, h0 and c0, got 1",
        ),
        Bad(
            "lltm num_layers",
            lambda m: run(m, num_layers=0),
            "lltm: num_layers must be at least 1, got 0",
        ),
        Bad(
            "lltm params",
            lambda m: run(m, num_layers=1),
            "lltm: params must be 3 tensors for each of 2 layers and directions, 6 in all, got 12",
        ),
        Bad(
            "lltm h0",
            lambda m: run(m, hx=(m(L, B, H), m(*STATES))),
            "lltm: h0 must have shape [L*D, B, H] with L*D = 4, got [2, 3, 4]",
        ),
        Bad(
            "lltm c0",
            lambda m: run(m, hx=(m(*STATES), m(B, H))),
            "lltm: c0 must have shape [L*D, B, H] with L*D = 4, got [3, 4]",
        ),
        Bad(
            "lltm input",
            lambda m: run(m, input=m(T, I)),
            "lltm: input must have shape [T, B, I], got [2, 5]",
        ),
        Bad(
            "lltm weight_hh",
            lambda m: run(m, {k: m(3 * H, H + 1) for k in (1, 4)}),
            "lltm: weight_hh must have shape [D, 3H, H] = [2, 12, 4], got [2, 12, 5]",
        ),
        Bad(
            "lltm batch_sizes storage",
            lambda m: packed(m, without_storage(torch.tensor([3, 2]))),
            "lltm: batch_sizes must lie inside its storage, 16 bytes, got a storage of 0 bytes",
            REAL,
        ),
    ]


def second_directions() -> list[Bad]:
    """Against the first direction's, with which they are stacked."""
    places = {f"params[{k}]": k for k in (3, 4, 5, 9)}
    shapes = {name: (*SHAPES * D, *LATER * D)[k] for name, k in places.items()}
    first = {name: f"params[{k - 3}]" for name, k in places.items()}

    def changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
        return run(make, {places[name]: change(make(*shapes[name]))})

    wrong_shapes = [
        Bad(
            f"lltm {name} {what}",
            lambda m, name=name, wrong=wrong: changed(m, name, lambda _: m(*wrong)),
            f"lltm: {name} must have shape that of {first[name]} = {list(shape)}, got "
            f"{list(wrong)}",
        )
        for name, shape in shapes.items()
        for what, wrong in (("shape", (*shape[:-1], shape[-1] + 1)), ("of no dimension", ()))
    ]
    return [
        *wrong_shapes,
        *wrong_dtypes("lltm", changed, first, torch.bfloat16),
        *wrong_devices("lltm", changed, first),
    ]


def storages(directions: int, layers: int) -> list[Bad]:
    """Each member of the lists without storage, as sharded training leaves parameters."""
    later = ((3 * H, directions * H), *SHAPES[1:])
    shapes = (*SHAPES * directions, *later * directions * (layers - 1))
    states = (layers * directions, B, H)

    def call(make: Make, name: str) -> Any:
        lost = {"h0": 0, "c0": 1}.get(name)
        hx = [make(*states) if k != lost else without_storage(make(*states)) for k in range(2)]
        params = [make(*shape) for shape in shapes]
        if lost is None:
            params[int(name[7:-1])].untyped_storage().resize_(0)
        return torch.ops.treadle.lltm(
            make(T, B, I), hx, params, True, layers, 0.0, False, directions == 2, False
        )

    members = {"h0": states, "c0": states, **{f"params[{k}]": s for k, s in enumerate(shapes)}}
    return [
        Bad(
            f"lltm {name} storage, directions {directions}, layers {layers}",
            lambda m, name=name: call(m, name),
            f"lltm: {name} must lie inside its storage, {4 * torch.Size(shape).numel()} bytes, "
            "got a storage of 0 bytes",
        )
        for name, shape in members.items()
    ]


def vmapped() -> Bad:
    """The value that vmap wraps."""

    def call(make: Make) -> Any:
        x, state = make(T, B, I), make(D, B, H)
        params = [make(*shape) for shape in SHAPES * D]
        lost = without_storage(make(2, *SHAPES[1]))

        def of_one(w: Tensor) -> Any:
            own = [*params[:4], w, params[5]]
            return torch.ops.treadle.lltm(x, [state] * 2, own, True, 1, 0.0, False, True, False)

        return torch.func.vmap(of_one)(lost)

    return Bad(
        "lltm params storage in vmap",
        call,
        "lltm: params[4] must lie inside its storage, 384 bytes, got a storage of 0 bytes",
    )


def lists_bad() -> list[Bad]:
    sizes = ((1, 1), (2, 1), (1, 2), (2, 2))
    lost = [bad for directions, layers in sizes for bad in storages(directions, layers)]
    return [*lists(), *second_directions(), *lost, vmapped()]
