"""Tests LayerComposition, the composition of a layer from ATen ops, which composition.cpp makes an
op. Its tangents and second derivatives equal those that torch.func computes for torch's own layers
or, for LLTM, for treadle.reference."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from tests.support.inputs import Make
from tests.support.installed import ROOT
from tools.native import cuda, host
from tools.native.graph import Graph
from treadle import _build, reference

Results = tuple[Tensor, Tensor, Tensor]
Optionals = list[Tensor | None]

LAYERS: dict[str, Callable[..., Any]] = {
    "lltm": reference.lltm,
    "lstm": torch.lstm,
    "gru": torch.gru,
}
GATES = {"lltm": 3, "lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # gates in a weight
SIZES = {None: (3, 2), (4, 3, 1): (4, 3)}  # T, B of dense and packed sequences
BATCH_SIZES = {None: None, (4, 3, 1): torch.tensor([3, 2, 2, 1])}
FEATURES, HIDDEN = 3, 2
NAMES = ("input", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")

CELL = pytest.mark.parametrize("cell", LAYERS)


# Session-scoped, because a process can register the library's ops only once.
@pytest.fixture(scope="session")
def derivatives(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Optionals]:
    there = host.Torch.installed()
    graph = Graph(there, cuda.Missing("", ""), Path(), "")
    flags = [*graph.own_flags(), *graph.torch_flags(), "-O0"]
    library = tmp_path_factory.mktemp("composition") / "composition.so"
    command = [*host.cxx().split(), "-shared", *flags, "tests/recurrent/layer/composition.cpp"]
    # These files contain functions that cells defined by formulas call.
    kernels = Path(_build.kernels_path())
    command += ["csrc/recurrent/formula/evaluate.cpp", str(kernels), f"-Wl,-rpath,{kernels.parent}"]
    command += [f"-L{there.lib_dir}", "-lc10", "-ltorch_cpu", "-o", str(library)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.ops.load_library(library)
    return torch.ops.treadle_composition.derivatives  # type: ignore[no-any-return]


class Drawn:
    """Arguments of a layer, gradients of its results, and tangents of both."""

    def __init__(
        self, cell: str, lengths: tuple[int, ...] | None, directions: int, biases: bool
    ) -> None:
        self.cell, self.sizes = cell, BATCH_SIZES[lengths]
        self.make = Make(f"{cell} {lengths} {directions} {biases}", "cpu", torch.float64)
        t, b = SIZES[lengths]
        rows = (t, b) if lengths is None else (sum(lengths),)
        d, width = directions, GATES[cell] * HIDDEN
        self.results = [(*rows, d * HIDDEN), (d, b, HIDDEN), (d, b, HIDDEN)]
        self.shapes = [(*rows, FEATURES), (d, b, HIDDEN), (d, b, HIDDEN)]
        self.shapes += [(d, width, FEATURES), (d, width, HIDDEN)]
        if biases:
            self.shapes += [(d, width)] * (1 if cell == "lltm" else 2)
        self.arguments, self.tangents = self.drawn(self.shapes), self.drawn(self.shapes)
        self.grads, self.grad_tangents = self.drawn(self.results), self.drawn(self.results)

    def drawn(self, shapes: list[tuple[int, ...]]) -> list[Tensor]:
        found = [self.make(*shape) for shape in shapes]
        if self.cell not in ("lltm", "lstm") and shapes is self.shapes:
            found[2] = found[1]  # a GRU's c is its h
        return found

    def dense(self, input: Tensor, h0: Tensor, c0: Tensor, *weights: Tensor) -> Results:
        """The layer in plain PyTorch."""
        states = h0 if self.cell not in ("lltm", "lstm") else (h0, c0)
        params = [weight[d] for d in range(len(h0)) for weight in weights]
        bias, both = len(weights) > 2, len(h0) == 2
        found = LAYERS[self.cell](input, states, params, bias, 1, 0.0, False, both, False)
        return found if self.cell in ("lltm", "lstm") else (*found, found[1])

    def layer(self, input: Tensor, h0: Tensor, c0: Tensor, *weights: Tensor) -> Results:
        """Like ``dense``, but row by row if lengths differ, because torch.func does not support
        torch's packed layers."""
        if self.sizes is None:
            return self.dense(input, h0, c0, *weights)
        starts = [0, *itertools.accumulate(self.sizes.tolist())]
        places, found = [], []
        for b in range(h0.shape[1]):
            own = [starts[t] + b for t, rows in enumerate(self.sizes.tolist()) if rows > b]
            row = slice(b, b + 1)
            found.append(self.dense(input[own, None], h0[:, row], c0[:, row], *weights))
            places += own
        output, h_n, c_n = zip(*found, strict=True)
        order = torch.tensor(places).argsort()
        return torch.cat(output)[order, 0], torch.cat(h_n, 1), torch.cat(c_n, 1)

    def expected(self) -> list[Tensor]:
        def gradients(arguments: list[Tensor], grads: list[Tensor]) -> Any:
            return vjp(self.layer, *arguments)[1](tuple(grads))

        _, moved = jvp(self.layer, tuple(self.arguments), tuple(self.tangents))
        pairs = (self.arguments, self.grads), (self.tangents, self.grad_tangents)
        return [*moved, *jvp(gradients, *pairs)[1]]

    def whole(self, given: Optionals) -> Optionals:
        """Adds None for missing biases."""
        return [*given, *[None] * (len(NAMES) - len(given))]

    def found(self, op: Callable[..., Optionals], tangents: Optionals) -> Optionals:
        given = self.whole([*self.arguments])
        grads, grad_tangents = self.grads, self.grad_tangents
        found = op(self.cell, given, self.sizes, self.whole(tangents), grads, grad_tangents)
        return found

    def compare(self, found: Optionals, expected: list[Tensor]) -> None:
        found = [t for t in found if t is not None]
        assert len(found) == len(expected) == 3 + len(self.shapes)
        if self.cell not in (
            "lltm",
            "lstm",
        ):  # h0 and c0 are one state, whose gradient torch returns as a whole
            found[4:6] = [found[4] + found[5]]
            expected = [*expected[:5], *expected[6:]]
        for actual, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-11)


@CELL
@pytest.mark.parametrize("lengths", SIZES, ids=["dense", "packed"])
@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("biases", (True, False), ids=["biases", "no bias"])
def test_tangents_and_second_derivatives(
    derivatives: Callable[..., Optionals],
    cell: str,
    lengths: tuple[int, ...] | None,
    directions: int,
    biases: bool,
) -> None:
    drawn = Drawn(cell, lengths, directions, biases)
    drawn.compare(drawn.found(derivatives, [*drawn.tangents]), drawn.expected())


@CELL
def test_missing_tangents_are_zero(derivatives: Callable[..., Optionals], cell: str) -> None:
    drawn = Drawn(cell, (4, 3, 1), 2, True)
    states = (1, 2)  # a GRU has only one state
    groups = [(0,), states, *((k,) for k in range(3, len(drawn.shapes)))]
    for group in groups:
        alone = [t if k in group else None for k, t in enumerate(drawn.tangents)]
        drawn_alone = Drawn(cell, (4, 3, 1), 2, True)
        drawn_alone.tangents = [
            t if k in group else torch.zeros_like(t) for k, t in enumerate(drawn.tangents)
        ]
        drawn.compare(drawn.found(derivatives, alone), drawn_alone.expected())


@CELL
def test_nothing_is_computed_of_no_tangent(
    derivatives: Callable[..., Optionals], cell: str
) -> None:
    drawn = Drawn(cell, (4, 3, 1), 2, True)
    drawn.grad_tangents = [None] * 3  # type: ignore[list-item]
    assert drawn.found(derivatives, [None] * len(drawn.shapes)) == [None] * 10


@CELL
def test_batched(derivatives: Callable[..., Optionals], cell: str) -> None:
    """Runs the op under vmap, as torch.func.jacfwd and torch.func.hessian do."""
    drawn = Drawn(cell, None, 2, True)
    several = [drawn.drawn(drawn.shapes) for _ in range(2)]

    def one(*tangents: Tensor) -> list[Tensor]:
        return [t for t in drawn.found(derivatives, [*tangents]) if t is not None]

    batched = vmap(one)(*(torch.stack(pair) for pair in zip(*several, strict=True)))
    for k, tangents in enumerate(several):
        for actual, wanted in zip(batched, one(*tangents), strict=True):
            torch.testing.assert_close(actual[k], wanted, rtol=1e-11, atol=1e-11)
