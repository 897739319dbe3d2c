"""Compares treadle.nn.LSTM, GRU and RNN with torch.nn's after every way to change weights, such as
writes to a layer's _flat_weights, which torch.nn's forward pass reads."""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations, prune

import treadle
from tests.recurrent.nn.test_nn_rnn import EACH, KINDS, close, flat

T, B, I, H = 4, 2, 3, 5  # noqa: E741
DOUBLE: Any = {"dtype": torch.float64}
X = torch.rand(T, B, I, **DOUBLE)
Layer = Any
# Changes a layer, for example by a factor. May return a new layer, or the results of a call.
Change = Callable[[Layer, Tensor], Any]


def assigned(layer: Layer, r: Tensor) -> None:
    layer._flat_weights = [r * w.detach() for w in layer._flat_weights]


def one_entry(layer: Layer, r: Tensor) -> None:
    layer._flat_weights[1] = r * layer._flat_weights[1].detach()


def own_parameters_again(layer: Layer, r: Tensor) -> None:
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


def attribute(layer: Layer, r: Tensor) -> None:
    """Replaces weight_hh_l0 with a plain attribute, like AWD-LSTM's WeightDrop."""
    weight = layer.weight_hh_l0
    del layer.weight_hh_l0
    layer.weight_hh_l0 = r * weight.detach()


def other_parameter(layer: Layer, r: Tensor) -> None:
    weight = layer.weight_ih_l0
    if "weight_ih_l0" in vars(layer):
        del layer.weight_ih_l0
    layer.weight_ih_l0 = nn.Parameter(r * weight.detach())


def registered(layer: Layer, r: Tensor) -> None:
    layer._parameters["bias_hh_l0"] = layer.bias_hh_l0.detach() * r


def in_place(layer: Layer, r: Tensor) -> None:
    with torch.no_grad():
        layer.weight_ih_l0.mul_(r)


def converted(layer: Layer, r: Tensor) -> None:
    layer.float().double()


def loaded(layer: Layer, r: Tensor) -> None:
    values = {name: r * value for name, value in layer.state_dict().items()}
    assign = all(isinstance(p, nn.Parameter) for p in layer._parameters.values())
    layer.load_state_dict(values, assign=assign)


def for_one_call(layer: Layer, r: Tensor) -> Any:
    values = {name: r * value for name, value in layer.named_parameters()}
    return functional_call(layer, values, (X,))


def copied(layer: Layer, r: Tensor) -> Layer:
    return copy.deepcopy(layer)


def pickled(layer: Layer, r: Tensor) -> Layer:
    return pickle.loads(pickle.dumps(layer))


CHANGES: list[Change] = [
    assigned, one_entry, own_parameters_again, attribute, other_parameter, registered, in_place,
    converted, loaded, for_one_call, copied, pickled,
]  # fmt: skip


def twins(kind: str, way: str = "made", **options: Any) -> list[Layer]:
    """torch's layer and treadle's, with the same parameters."""
    torch.manual_seed(0)
    theirs = KINDS[kind][1](I, H, **DOUBLE, **options)
    ours = copy.deepcopy(theirs)
    if way == "replaced":
        treadle.nn.replace(ours)
    else:
        ours = KINDS[kind][0](I, H, **DOUBLE, **options)
        ours.load_state_dict(theirs.state_dict())
    return [theirs, ours]


def program(layer: Layer, steps: list[tuple[Change, Tensor, bool]]) -> list[list[Tensor]]:
    found = [flat(layer(X))]
    for change, number, run in steps:
        given = change(layer, number)
        layer = given if isinstance(given, nn.Module) else layer
        if isinstance(given, tuple):
            found.append(flat(given))
        if run:
            found.append(flat(layer(X)))
    found.append(flat(layer(X)))
    return found


@EACH
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_change(kind: str, change: Change) -> None:
    """Changes the weights, in some cases after a write to _flat_weights, and then writes one entry
    of _flat_weights."""
    number = torch.tensor(0.5, **DOUBLE)
    for before in (None, one_entry, assigned):
        for run in (True, False):
            steps = [(each, number, run) for each in (before, change, one_entry) if each]
            theirs, ours = (program(layer, steps) for layer in twins(kind))
            close(ours, theirs)


@EACH
@pytest.mark.parametrize("seed", range(6))
def test_programs_of_changes(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    for way in ("made", "replaced"):
        steps = [
            (
                draw.choice(CHANGES),
                torch.tensor(draw.uniform(0.5, 1.5), **DOUBLE),
                draw.random() < 0.6,
            )
            for _ in range(12)
        ]
        theirs, ours = (program(layer, steps) for layer in twins(kind, way))
        close(ours, theirs)


@EACH
def test_gradients_are_those_of_what_was_written(kind: str) -> None:
    grads = []
    for layer in twins(kind):
        written = [(2 * w).detach().requires_grad_() for w in layer._flat_weights]
        layer._flat_weights = written
        grads.append(torch.autograd.grad(layer(X)[0].square().sum(), written))
    close(grads[1], grads[0])


@EACH
def test_a_subclass_that_changes_them_for_a_call(kind: str) -> None:
    def halved(base: Any) -> Any:
        class Halved(base):  # type: ignore[misc]
            def forward(self, input: Tensor, hx: Any = None) -> Any:
                kept = self._flat_weights
                names = zip(kept, self._flat_weights_names, strict=True)
                self._flat_weights = [w / 2 if "hh" in name else w for w, name in names]
                result = super().forward(input, hx)
                self._flat_weights = kept
                return result

        return Halved

    theirs, ours = twins(kind)
    plain = flat(ours(X))
    found = []
    for layer in (theirs, ours):
        own = type(layer)
        layer.__class__ = halved(own)
        found.append([flat(layer(X)), flat(layer(X))])
        layer.__class__ = own
    close(found[1], found[0])
    close(flat(ours(X)), plain)
    assert not torch.allclose(found[1][0][0], plain[0])


@EACH
def test_of_another_length_the_op_refuses_them(kind: str) -> None:
    for layer in twins(kind):
        layer(X)
        for written in (layer._flat_weights[:2], [*layer._flat_weights, layer.bias_hh_l0], []):
            layer._flat_weights = written
            with pytest.raises((RuntimeError, IndexError)):
                layer(X)


# ---- computed weights


@EACH
def test_computed_weights_are_computed_once_a_call(kind: str) -> None:
    """The layer keeps neither the computed tensors nor their graph."""
    theirs, ours = twins(kind)
    calls = []

    class Doubled(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            calls.append(1)
            return 2 * w

    for layer in (theirs, ours):
        nn.utils.parametrize.register_parametrization(layer, "weight_hh_l0", Doubled())
    close(flat(ours(X)), flat(theirs(X)))
    for _ in range(2):
        calls.clear()
        ours(X)
        assert len(calls) == 1
        assert all(w.is_leaf for w in ours._flat_weights)
    nn.utils.parametrize.remove_parametrizations(ours, "weight_hh_l0")
    nn.utils.parametrize.remove_parametrizations(theirs, "weight_hh_l0")
    close(flat(ours(X)), flat(theirs(X)))
    for layer in (theirs, ours):
        one_entry(layer, torch.tensor(0.5))
    close(flat(ours(X)), flat(theirs(X)))


@EACH
def test_normed_and_pruned_weights(kind: str) -> None:
    changes: list[Callable[[Layer], Any]] = [
        lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
        lambda layer: parametrizations.spectral_norm(layer, "weight_ih_l0").eval(),
        lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.4),
    ]
    for change in changes:
        theirs, ours = twins(kind)
        torch.manual_seed(1)
        change(theirs)
        torch.manual_seed(1)
        change(ours)
        for _ in range(2):
            close(flat(ours(X)), flat(theirs(X)))


@EACH
def test_functional_calls_leave_nothing_behind(kind: str) -> None:
    """No later call of either layer reads tensors that belong to a finished vmap or grad."""
    theirs, ours = twins(kind)
    values = {name: p.detach() for name, p in ours.named_parameters()}

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(ours, values, (row,))[0].sum()  # type: ignore[no-any-return]

    rows = torch.rand(3, T, I, **DOUBLE)
    found = vmap(grad(loss), (None, 0))(values, rows)
    for n, row in enumerate(rows):
        wanted = torch.autograd.grad(theirs(row)[0].sum(), list(theirs.parameters()))
        close([each[n] for each in found.values()], list(wanted))
    copies = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    treadle.nn.restore(ours)
    assert all(map(lambda a, b: a is b, ours._flat_weights, ours.parameters()))
    for layer in (ours, *copies):
        close(flat(layer(X)), flat(theirs(X)))


def test_a_step_refuses_written_weights() -> None:
    layer = treadle.nn.GRU(I, H)
    assigned(layer, torch.tensor(2.0))
    words = "make_step: layer must use its own parameters, got other tensors in layer._flat_weights"
    with pytest.raises(ValueError, match=re.escape(words)):
        treadle.nn.make_step(layer, B)


# ---- torch.compile


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_compiled(kind: str) -> None:
    """Like an eager layer, a compiled layer reads weights that are written after compilation."""
    theirs, ours = twins(kind, bidirectional=True)
    half = torch.tensor(0.5, **DOUBLE)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(ours, backend="eager", fullgraph=True)
        changes = [in_place, one_entry, own_parameters_again, assigned, other_parameter, registered]
        for change in (*changes, one_entry):
            for layer in (theirs, ours):
                change(layer, half)
            expected = flat(theirs(X))
            close(flat(compiled(X)), expected)
            close(flat(ours(X)), expected)
        for layer in (theirs, ours):
            own_parameters_again(layer, half)
        values = {name: p.detach() * 0.5 for name, p in theirs.named_parameters()}
        call = torch.compile(
            lambda values, x: functional_call(ours, values, (x,)), backend="eager", fullgraph=True
        )
        close(flat(call(values, X)), flat(functional_call(theirs, values, (X,))))
        close(flat(ours(X)), flat(theirs(X)))
