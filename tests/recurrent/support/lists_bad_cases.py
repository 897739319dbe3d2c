"""Invalid tensor lists (hx, params) in calls of the ops lltm, lstm, gru and rnn_*. Even if it is
recurrent_layer that finds an error, the text must begin with the name of the called op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import BLOCKS, CELLS
from tests.support.bad_arguments import REAL, wrong_devices, wrong_dtypes
from tests.support.inputs import Bad, Make, without_storage

T, B, I, H, L, D = 2, 3, 5, 4, 2, 2  # noqa: E741
STATES = (L * D, B, H)
Shapes = tuple[tuple[int, ...], ...]


def shapes_of(cell: str, features: int = I) -> Shapes:
    """Shapes of one direction's parameters."""
    width = BLOCKS[cell] * H
    return ((width, features), (width, H), *[(width,)] * (1 if cell == "lltm" else 2))


def both_layers(cell: str, directions: int = D, layers: int = L) -> Shapes:
    later = shapes_of(cell, directions * H)
    return (*shapes_of(cell) * directions, *later * directions * (layers - 1))


def states(cell: str, h0: Tensor, c0: Tensor) -> Any:
    """States in the form of the op's hx."""
    return h0 if cell not in ("lltm", "lstm") else (h0, c0)


def run(make: Make, cell: str, replaced: dict[int, Tensor] | None = None, **changed: Any) -> Any:
    """Calls the op on valid arguments with some parameters replaced."""
    params = [make(*shape) for shape in both_layers(cell)]
    for k, t in (replaced or {}).items():
        params[k] = t
    arguments: dict[str, Any] = {
        "input": make(T, B, I),
        "hx": states(cell, make(*STATES), make(*STATES)),
        "params": params,
        "has_biases": True,
        "num_layers": L,
        "dropout": 0.0,
        "train": False,
        "bidirectional": True,
        "batch_first": False,
    }
    return getattr(torch.ops.treadle, cell)(*{**arguments, **changed}.values())


def packed(make: Make, cell: str, sizes: Tensor) -> Any:
    """Calls the op on packed data with five rows."""
    state, params = make(1, B, H), [make(*shape) for shape in shapes_of(cell)]
    hx, options = states(cell, state, state), (True, 1, 0.0, False)
    return getattr(treadle, cell)(make(5, I), sizes, hx, params, *options, bidirectional=False)


def lists(cell: str) -> list[Bad]:
    each, g = len(shapes_of(cell)), BLOCKS[cell]
    found = [
        Bad(
            f"{cell} num_layers",
            lambda m: run(m, cell, num_layers=0),
            f"{cell}: num_layers must be at least 1, got 0",
        ),
        Bad(
            f"{cell} params",
            lambda m: run(m, cell, num_layers=1),
            f"{cell}: params must have {each} tensors per layer and direction, {2 * each} in total "
            f"(num_layers=1, bidirectional=True), got {4 * each}",
        ),
        Bad(
            f"{cell} h0",
            lambda m: run(m, cell, hx=states(cell, m(L, B, H), m(*STATES))),
            f"{cell}: h0 must have shape [L*D, B, H] with L*D = 4, got [2, 3, 4]",
        ),
        Bad(
            f"{cell} input",
            lambda m: run(m, cell, input=m(T, I)),
            f"{cell}: input must have shape [T, B, I], got [2, 5]",
        ),
        Bad(
            f"{cell} input, batch first",
            lambda m: run(m, cell, input=m(T, I), batch_first=True),
            f"{cell}: input must have shape [B, T, I], got [2, 5]",
        ),
        Bad(
            f"{cell} weight_hh",
            lambda m: run(m, cell, {k: m(g * H, H + 1) for k in (1, 1 + each)}),
            f"{cell}: weight_hh must have shape [D, {g}H, H] = [2, {g * H}, 4], "
            f"got [2, {g * H}, 5]",
        ),
        Bad(
            f"{cell} batch_sizes dtype",
            lambda m: packed(m, cell, torch.tensor([3, 2], dtype=torch.int32)),
            f"{cell}: batch_sizes must have dtype int64, got int32",
        ),
        Bad(
            f"{cell} batch_sizes storage",
            lambda m: packed(m, cell, without_storage(torch.tensor([3, 2]))),
            f"{cell}: batch_sizes must have a storage of at least 16 bytes, got 0 bytes",
            REAL,
        ),
    ]
    if cell not in ("lltm", "lstm"):
        return found
    return [
        *found,
        Bad(
            f"{cell} hx",
            lambda m: run(m, cell, hx=(m(*STATES),)),
            f"{cell}: hx must be two tensors, h0 and c0, got 1",
        ),
        Bad(
            f"{cell} c0",
            lambda m: run(m, cell, hx=(m(*STATES), m(B, H))),
            f"{cell}: c0 must have shape [L*D, B, H] with L*D = 4, got [3, 4]",
        ),
    ]


def second_directions(cell: str) -> list[Bad]:
    """Parameters of the second direction are stacked with the first one's, and must match them."""
    each, every = len(shapes_of(cell)), both_layers(cell)
    # The second direction's parameters: all of the first layer, and the first of the second layer.
    places = {f"params[{k}]": k for k in (*range(each, 2 * each), 3 * each)}
    shapes = {name: every[k] for name, k in places.items()}
    first = {name: f"params[{k - each}]" for name, k in places.items()}

    def changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
        return run(make, cell, {places[name]: change(make(*shapes[name]))})

    wrong_shapes = [
        Bad(
            f"{cell} {name} {what}",
            lambda m, name=name, wrong=wrong: changed(m, name, lambda _: m(*wrong)),
            f"{cell}: {name} must have the same shape as {first[name]}, {list(shape)}, got "
            f"{list(wrong)}",
        )
        for name, shape in shapes.items()
        for what, wrong in (("shape", (*shape[:-1], shape[-1] + 1)), ("of no dimension", ()))
    ]
    return [
        *wrong_shapes,
        *wrong_dtypes(cell, changed, first, torch.bfloat16),
        *wrong_devices(cell, changed, first),
    ]


def storages(cell: str, directions: int, layers: int) -> list[Bad]:
    """Each list element in turn has no storage, like parameters in sharded training."""
    shapes = both_layers(cell, directions, layers)
    one_state = (layers * directions, B, H)

    def call(make: Make, name: str) -> Any:
        lost = {"h0": 0, "c0": 1}.get(name)
        made = [
            make(*one_state) if k != lost else without_storage(make(*one_state)) for k in range(2)
        ]
        params = [make(*shape) for shape in shapes]
        if lost is None:
            params[int(name[7:-1])].untyped_storage().resize_(0)
        options = (True, layers, 0.0, False, directions == 2, False)
        hx = states(cell, *made)
        return getattr(torch.ops.treadle, cell)(make(T, B, I), hx, params, *options)

    members: dict[str, tuple[int, ...]] = {f"params[{k}]": s for k, s in enumerate(shapes)}
    members |= dict.fromkeys(("h0",) if cell not in ("lltm", "lstm") else ("h0", "c0"), one_state)
    return [
        Bad(
            f"{cell} {name} storage, directions {directions}, layers {layers}",
            lambda m, name=name: call(m, name),
            f"{cell}: {name} must have a storage of at least {4 * torch.Size(shape).numel()} "
            "bytes, got 0 bytes",
        )
        for name, shape in members.items()
    ]


def vmapped(cell: str) -> Bad:
    """A parameter whose tensor, under vmap's wrapper, has no storage."""
    shapes, each = shapes_of(cell), len(shapes_of(cell))

    def call(make: Make) -> Any:
        x, state = make(T, B, I), make(D, B, H)
        params = [make(*shape) for shape in shapes * D]
        lost = without_storage(make(2, *shapes[1]))

        def of_one(w: Tensor) -> Any:
            own = [*params[: each + 1], w, *params[each + 2 :]]
            options = (True, 1, 0.0, False, True, False)
            return getattr(torch.ops.treadle, cell)(x, states(cell, state, state), own, *options)

        return torch.func.vmap(of_one)(lost)

    return Bad(
        f"{cell} params storage in vmap",
        call,
        f"{cell}: params[{each + 1}] must have a storage of at least "
        f"{2 * BLOCKS[cell] * H * H * 4} bytes, got 0 bytes",
    )


def lists_bad() -> list[Bad]:
    found: list[Bad] = []
    for cell in CELLS:
        found += [*lists(cell), *second_directions(cell), vmapped(cell)]
        for directions, layers in ((1, 1), (2, 1), (1, 2), (2, 2)):
            found += storages(cell, directions, layers)
    return found
