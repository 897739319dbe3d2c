"""Tests modules of treadle.torchrl: construction, options that TorchRL runs, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import treadle
from tests.interop.with_torchrl import (
    EACH_KIND,
    INPUTS,
    H,
    batch,
    keys,
    ours,
    pair,
    run,
    same,
    theirs,
)


@EACH_KIND
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"python_based": True}], ids=str)
def test_what_torchrl_runs_itself(kind: str, options: dict[str, Any]) -> None:
    mine, other = pair(kind, num_layers=2, **options)
    given = batch(kind, layers=4 if "bidirectional" in options else 2)
    same(run(mine, given), run(other, given))


def test_projections_are_torchrls() -> None:
    mine, other = pair("LSTMModule", proj_size=2)
    given = batch("LSTMModule")
    given["h"] = given["h"][..., :2]
    same(run(mine, given), run(other, given))


@EACH_KIND
def test_layers_are_treadles(kind: str) -> None:
    """The module's layer is treadle's, whether the module makes it or receives it."""
    name = kind[: -len("Module")]
    attribute, wanted = name.lower(), getattr(treadle.nn, name)
    mine, _ = pair(kind)
    assert isinstance(getattr(mine, attribute), wanted)
    layers = getattr(torch.nn, name)(INPUTS, H, batch_first=True)
    given = getattr(ours, kind)(**{attribute: layers}, **keys(kind))
    assert getattr(given, attribute) is layers and isinstance(layers, wanted)
    made = mine.make_python_based()
    assert made is mine and isinstance(getattr(mine, attribute), getattr(theirs, name))
    assert isinstance(getattr(mine.make_cudnn_based(), attribute), wanted)


@EACH_KIND
def test_primers_and_keys(kind: str) -> None:
    mine, other = pair(kind, num_layers=2)
    assert (mine.in_keys, mine.out_keys) == (other.in_keys, other.out_keys)
    primers = [module.make_tensordict_primer().primers for module in (mine, other)]
    assert primers[0] == primers[1]
    assert isinstance(mine, getattr(theirs, kind))
    assert mine.recurrent_backend == "treadle"


@EACH_KIND
@pytest.mark.parametrize("recurrent", [False, True])
def test_called_with_tensors(kind: str, recurrent: bool) -> None:
    """Tensors can be passed as keyword arguments named by the keys (tensordict's `dispatch`)."""
    mine, other = pair(kind)
    given = batch(kind, (4, 9) if recurrent else (4,))
    with theirs.set_recurrent_mode(recurrent):
        found = mine(**given.to_dict())
        expected = other(**given.to_dict())
    assert len(found) == len(mine.out_keys)
    torch.testing.assert_close(found, expected)


@EACH_KIND
def test_nested_keys(kind: str) -> None:
    nested = {"in_keys": [("agent", key) for key in keys(kind)["in_keys"]]}
    nested["out_keys"] = [("agent", "out"), *(("next", *key) for key in nested["in_keys"][1:])]
    mine, other = (
        getattr(lib, kind)(input_size=INPUTS, hidden_size=H, **nested).double()
        for lib in (ours, theirs)
    )
    mine.load_state_dict(other.state_dict())
    given = batch(kind)
    deep = given.empty().set("is_init", given["is_init"]).set("agent", given.exclude("is_init"))
    same(run(mine, deep), run(other, deep))


def test_without_inner_cells() -> None:
    """c is correct at the last step, and 0 at all earlier steps."""
    mine, other = pair("LSTMModule", {"inner_cells": False}, num_layers=2)
    given = batch("LSTMModule", layers=2)
    found, expected = run(mine, given), run(other, given)
    assert expected["next", "c"][:, :-1].any()
    expected["next", "c"][:, :-1] = 0
    same(found, expected)


BAD = (
    (
        {"recurrent_backend": "pad"},
        "recurrent_backend must be 'treadle', got 'pad': for other backends, use "
        "torchrl.modules.{kind}",
    ),
    ({"recurrent_recompute": "half"}, "recurrent_recompute must be 'none' or 'full', got 'half'"),
)


@EACH_KIND
@pytest.mark.parametrize(("options", "message"), BAD)
def test_wrong_options(kind: str, options: dict[str, Any], message: str) -> None:
    said = re.escape(f"{kind}: {message.format(kind=kind)}")
    with pytest.raises(ValueError, match=f"^{said}$"):
        getattr(ours, kind)(input_size=INPUTS, hidden_size=H, **keys(kind), **options)


def test_wrong_use() -> None:
    with pytest.raises(TypeError, match="^LSTMModule: inner_cells must be a bool, got int$"):
        ours.LSTMModule(input_size=INPUTS, hidden_size=H, inner_cells=1, **keys("LSTMModule"))
    mine, _ = pair("LSTMModule")
    given = batch("LSTMModule")
    said = re.escape("LSTMModule: the tensordict must have all of ['h', 'c'] or none, got 1")
    with pytest.raises(RuntimeError, match=f"^{said}$"):
        run(mine, given.exclude("c"))
    for missing in ("seen", "is_init"):
        with pytest.raises(KeyError, match=missing):
            run(mine, given.exclude(missing))
    with pytest.raises(ValueError, match="at least one batch dim"):
        run(mine, given[0, 0])
