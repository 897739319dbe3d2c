"""LSTMModule and GRUModule of treadle.torchrl give the same results as TorchRL's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.interop.with_torchrl import (
    EACH_KIND,
    H,
    TensorDict,
    batch,
    gradients,
    ours,
    pair,
    run,
    same,
    same_gradients,
)
from tests.support.inputs import DEVICES

step_mdp = pytest.importorskip("torchrl.envs.utils").step_mdp
SHAPES = [(9,), (4, 9), (2, 3, 9), (4, 1)]


@EACH_KIND
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_whole_sequences(
    kind: str, layers: int, shape: tuple[int, ...], states: bool, chance: float
) -> None:
    """Values, keys and shapes are the same, and so are the gradients of all inputs and states."""
    mine, other = pair(kind, num_layers=layers)
    given = batch(kind, shape, layers, chance=chance, states=states)
    same(run(mine, given), run(other, given))
    same_gradients(gradients(mine, given), gradients(other, given))


@EACH_KIND
@pytest.mark.parametrize("device", DEVICES)
def test_on_each_device(kind: str, device: str) -> None:
    mine, other = pair(kind, device=device, num_layers=2)
    given = batch(kind, layers=2).to(device)
    same(run(mine, given), run(other, given))
    same_gradients(gradients(mine, given), gradients(other, given))


@EACH_KIND
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_options(kind: str, bias: bool, recompute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = pair(kind, {"recurrent_recompute": recompute}, num_layers=2, bias=bias)
    taken = set()
    for op in ("lstm", "gru"):
        real = getattr(ours, op)

        def watched(*args: Any, real: Any = real, **kwargs: Any) -> Any:
            taken.add(kwargs["recompute"])
            return real(*args, **kwargs)

        monkeypatch.setattr(ours, op, watched)
    given = batch(kind, layers=2)
    same(run(mine, given), run(other, given))
    same_gradients(gradients(mine, given), gradients(other, given))
    assert taken == {recompute == "full"}


@EACH_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes(kind: str, dtype: torch.dtype) -> None:
    mine, other = pair(kind, dtype=dtype)
    given = batch(kind, dtype=dtype)
    found, expected = run(mine, given), run(other, given)
    for key in mine.out_keys:
        assert found[key].dtype == dtype
        bounds = {} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.03}
        torch.testing.assert_close(found[key], expected[key], **bounds)


@EACH_KIND
def test_steps_and_sequences_agree(kind: str) -> None:
    """Runs step by step as in a collector, then the collected batch in one call."""
    mine, other = pair(kind, num_layers=2)
    whole = batch(kind, (4, 9), 2, states=False)
    collected: list[list[TensorDict]] = [[], []]
    for module, steps in zip((mine, other), collected, strict=True):
        now = TensorDict({s: torch.zeros(4, 2, H).double() for s in module.in_keys[1:-1]}, [4])
        for t in range(9):
            now["seen"], now["is_init"] = whole["seen"][:, t], whole["is_init"][:, t]
            # Resets states as InitTracker and the primers do for a new episode.
            for state in module.in_keys[1:-1]:
                now[state] = torch.where(now["is_init"].unsqueeze(-1), 0, now[state])
            steps.append(module(now.clone()))
            now = step_mdp(steps[-1], keep_other=True)
    found, expected = (torch.stack(steps, 1) for steps in collected)
    same(found, expected)
    with_states = found.exclude("out", "next")
    torch.testing.assert_close(run(mine, with_states)["out"], found["out"])


@EACH_KIND
def test_one_step_has_gradients_of_ours(kind: str) -> None:
    mine, other = pair(kind, num_layers=2)
    given = batch(kind, (6,), 2)
    same_gradients(gradients(mine, given, False), gradients(other, given, False))


@EACH_KIND
def test_dropout_is_between_layers_in_training(kind: str) -> None:
    mine, other = pair(kind, num_layers=2, dropout=0.5)
    for given in (batch(kind, layers=2, chance=0.0), batch(kind, layers=2)):
        assert (run(mine, given)["out"] != run(mine, given)["out"]).any()
        # Dropout does not touch the input of the first layer, so its states are the same.
        for key in mine.out_keys[1:]:
            found, expected = run(mine, given)[key], run(other, given)[key]
            torch.testing.assert_close(found[..., 0, :], expected[..., 0, :])
    given = batch(kind, layers=2, chance=0.0)
    found = []
    for module in (mine, other):
        torch.manual_seed(3)
        found.append(run(module, given))
    same(*found)  # Dropout drops the same elements if TorchRL does not split the rows.
    same(run(mine.eval(), given), run(other.eval(), given))


@EACH_KIND
def test_no_size_depends_on_the_marks(kind: str) -> None:
    """Inside vmap no values can be read, so splitting rows where is_init is true would fail."""
    mine, other = pair(kind, num_layers=2)
    given = batch(kind, layers=2)
    several = torch.stack([torch.rand(4, 9, 1) < chance for chance in (0.0, 0.2, 0.6)])

    def outputs(marks: Tensor) -> tuple[Tensor, ...]:
        found = run(mine, given.clone().set("is_init", marks))
        return tuple(found[key] for key in mine.out_keys)

    found = torch.vmap(outputs)(several)
    for n, marks in enumerate(several):
        expected = run(other, given.clone().set("is_init", marks))
        for values, key in zip(found, mine.out_keys, strict=True):
            torch.testing.assert_close(values[n], expected[key])


@EACH_KIND
def test_parameters_of_several_nets(kind: str) -> None:
    """An ensemble runs under vmap, as in TorchRL's losses."""
    mine, other = pair(kind)
    given = batch(kind)
    weights = TensorDict.from_module(mine).data
    weights = torch.stack([weights, weights * 0.5])

    def output(weights: TensorDict) -> Tensor:
        with weights.to_module(mine):
            return run(mine, given)["out"]

    found = torch.vmap(output)(weights)
    with weights[1].to_module(other):
        torch.testing.assert_close(found[1], run(other, given)["out"])


@EACH_KIND
def test_nan_stays_in_its_trajectory(kind: str) -> None:
    mine, _ = pair(kind)
    given = batch(kind, (1, 9), chance=0.0)
    given["is_init"][:, 4] = True
    good = run(mine, given)
    given["seen"][:, 2] = float("nan")
    found = run(mine, given)
    for key in mine.out_keys:
        torch.testing.assert_close(found[key][:, 4:], good[key][:, 4:])
        assert found[key][:, 3].isnan().all()
