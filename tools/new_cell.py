"""Write the skeleton of a recurrent layer whose cell is a formula: `make new-cell NAME=CIFG`.

The script writes two new files, and adds the layer's name to two others. The layer runs at once, on
CPUs and GPUs, and all tests of cells run on it. The test that compares it with a loop written from
its paper fails until you write that loop. docs/write_a_cell.md explains the steps.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.new_op import Refused, Skeleton, sorted_into  # noqa: E402

FORMULAS = "python_pkg/treadle/nn/formulas"
PAPERS = "tests/recurrent/formula/papers"

MODULE = '''\
"""TODO: one sentence about the cell."""

from __future__ import annotations

from typing import Any

import torch

from ..._formula.cell import Cell
from ..recurrent import Recurrent

__all__ = ["@CELL@", "@NAME@"]


# TODO: the step of the paper. The arguments are the gates, then the states, or h without states.
def _step(a: Any, h: Any) -> Any:
    return torch.tanh(a)


@CELL@ = Cell("@NAME@", gates=("a",), forward=_step)


class @NAME@(Recurrent):
    """TODO: Layers of which cell, with the interface of :class:`torch.nn.GRU`, or
    :class:`torch.nn.LSTM` for a cell with states besides h.

    Let a be ``W_ih x + b_ih + W_hh h + b_hh``. Then a step is::

        h = tanh(a)

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device,
            dtype: as in torch.nn.GRU.
        recompute: save less for the backward pass, which then recomputes the rest.

    Parameters: those of :class:`treadle.nn.Recurrent`, with a block of H rows for a.

    Raises:
        TypeError, ValueError: an argument is not as above.

    Source: TODO.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(@CELL@, *args, **kwargs)
'''

PAPER = '''\
"""A layer of @NAME@ as a loop over the steps."""

from __future__ import annotations

import torch
from torch import Tensor

import treadle


def run(layer: treadle.nn.Recurrent, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The output [T, B, H] of x [T, B, I], and the last states [B, H]. States start as zeros."""
    h, found = x.new_zeros(x.shape[1], layer.hidden_size), []
    for row in x:
        gates = row @ layer.weight_ih_l0.T + layer.bias_ih_l0
        gates = gates + h @ layer.weight_hh_l0.T + layer.bias_hh_l0
        raise NotImplementedError("@NAME@: write the equations of the paper here")
        found.append(h)
    return torch.stack(found), (h,)
'''

NEXT = f"""\

@NAME@ is a layer now, with the step h = tanh(a). Next:
1. Write the gates, states and step in {FORMULAS}/@FILE@.py, and the docstring.
2. Write the equations of the paper as a loop in {PAPERS}/@FILE@.py.
3. Run: python -m pytest tests/recurrent/formula -k @NAME@, and then tests/laws -k @NAME@.
4. Name treadle.nn.@NAME@ in README.md, CHANGELOG.md and docs/write_a_cell.md.
"""


def check(name: str, root: Path) -> None:
    if not name:
        raise Refused("NAME must be given, as in `make new-cell NAME=CIFG`, got none")
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise Refused(
            "NAME must be the name of a class, of letters and digits, and begin with a capital "
            f"letter, such as CIFG or LiGRU, got {name!r}"
        )
    modules = (root / "python_pkg/treadle/nn/__init__.py").read_text()
    if f'"{name}",' in modules or (root / FORMULAS / f"{name.lower()}.py").exists():
        raise Refused(f"NAME must be new, got {name!r}, which treadle.nn already has")


def imported(names: Iterable[str]) -> str:
    """Names in the order in which ruff sorts imports: constants, then classes."""
    return ", ".join(sorted(names, key=lambda name: (not name.isupper(), name)))


def cell_of(name: str) -> str:
    return f"{name.upper()}_CELL"


def listed(names: list[str]) -> str:
    """The text of the package of formulas."""
    lines = [
        '"""Layers whose cells are formulas (treadle.Cell). `make new-cell` adds a layer."""\n',
        *(f"from .{name.lower()} import {imported((name, cell_of(name)))}" for name in names),
        "\nCELLS = {",
        *(f'    "{name}": {cell_of(name)},' for name in names),
        "}\n\n__all__ = [",
        *(f'    "{name}",' for name in ("CELLS", *names)),
        "]",
    ]
    return "\n".join(lines) + "\n"


def planned(name: str, root: Path) -> dict[str, str]:
    """The text of each file, new or changed. All texts exist before the first file is written."""
    package, modules = f"{FORMULAS}/__init__.py", "python_pkg/treadle/nn/__init__.py"
    known = re.findall(r'^    "(\w+)": \w+_CELL,$', (root / package).read_text(), re.M)
    text = (root / modules).read_text()
    line = r"^from \.formulas import .*$"
    if len(re.findall(line, text, re.M)) != 1:
        raise Refused(f"{modules} must import names of .formulas in one line")
    text = re.sub(line, f"from .formulas import {imported([*known, name])}", text, flags=re.M)
    return {
        f"{FORMULAS}/{name.lower()}.py": filled(MODULE, name),
        f"{PAPERS}/{name.lower()}.py": filled(PAPER, name),
        package: listed(sorted([*known, name], key=str.lower)),
        modules: sorted_into(text, name),
    }


def filled(text: str, name: str) -> str:
    for word, value in (("@NAME@", name), ("@CELL@", cell_of(name)), ("@FILE@", name.lower())):
        text = text.replace(word, value)
    return text


main = Skeleton(
    command="new-cell",
    about=(__doc__ or "").splitlines()[0],
    of="name of the layer's class, such as CIFG",
    check=check,
    planned=planned,
    following=partial(filled, NEXT),
).main


if __name__ == "__main__":
    raise SystemExit(main())
