"""The policy of the PPO example learns to remember only if its layer resets."""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle
from tests.package.test_examples import EXAMPLES, run

FIGURE = EXAMPLES.parent / "docs" / "figures" / "recurrent_ppo.json"
UPDATES = 60


@pytest.fixture
def ppo(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module("recurrent_ppo")
    torch.set_num_threads(threads)


def test_it_learns_across_resets(ppo: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    learning: list[torch.Tensor] = []
    real = treadle.nn.GRU.forward

    def watched(self: Any, x: torch.Tensor, h: torch.Tensor, *, reset: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            learning.append(reset)
        return real(self, x, h, reset=reset)

    monkeypatch.setattr(treadle.nn.GRU, "forward", watched)
    training = ppo.train("", 0, UPDATES)
    assert sum(training.rates[:5]) / 5 < 0.65 and training.rate() > 0.85
    assert len(learning) == UPDATES * ppo.RULES.epochs * ppo.RULES.parts
    assert all(marks.shape[0] == ppo.STEPS and marks[1:].any() for marks in learning)
    # Episodes begin at different steps in different rows, so the batch cannot simply be split.
    assert any(marks[t].any() and not marks[t].all() for marks in learning for t in (1, 9, 20))


@pytest.mark.parametrize("ignored", ["learning", "always"])
def test_without_resets_it_does_not_learn(ppo: types.ModuleType, ignored: str) -> None:
    training = ppo.train(ignored, 0, UPDATES)
    assert training.inner_resets > 1000
    assert training.rate() < 0.65


def test_mazes(ppo: types.ModuleType) -> None:
    """At the end of a corridor, the reward is 1 for choosing the first sign and -1 otherwise."""
    mazes = ppo.Mazes(torch.Generator().manual_seed(0))
    first, length = mazes.sign.argmax(1), torch.ones(ppo.MAZES, dtype=torch.long)
    lengths = set()
    for _ in range(200):
        wrong = torch.arange(ppo.MAZES) % 3 == 0
        reward, ends = mazes.step(torch.where(wrong, 1 - first, first))
        assert (reward == torch.where(ends, 1.0 - 2.0 * wrong, 0.0)).all()
        lengths |= set(length[ends].tolist())
        first = torch.where(ends, mazes.sign.argmax(1), first)
        length = torch.where(ends, 1, length + 1)
    assert lengths == set(range(ppo.SHORTEST, ppo.LONGEST + 1))


def test_advantages_stop_at_ends(ppo: types.ModuleType) -> None:
    """Compares advantages with their definition, a sum over the rest of the episode."""
    shape = (ppo.STEPS, 3)
    torch.manual_seed(0)
    played = {"reward": torch.randn(shape), "value": torch.randn(shape)}
    played["ends"] = torch.rand(shape) < 0.2
    last = torch.randn(3)
    rules = ppo.RULES
    found = ppo.ppo.advantages(played, last, rules)
    values = torch.cat([played["value"], last[None]])
    for b in range(3):
        for t in range(ppo.STEPS):
            total, weight = 0.0, 1.0
            for s in range(t, ppo.STEPS):
                end = bool(played["ends"][s, b])
                after = 0.0 if end else rules.discount * values[s + 1, b]
                total += weight * (played["reward"][s, b] + after - values[s, b])
                weight *= rules.discount * rules.trace
                if end:
                    break
            torch.testing.assert_close(found[t, b], total, atol=1e-4, rtol=1e-4)


def test_command(tmp_path: Path) -> None:
    done = run("--updates", 2, "--ignore-resets", script="recurrent_ppo.py")
    assert done.returncode == 1
    assert "of the mazes solved" in done.stdout and "below 95%" in done.stderr


def test_figure(ppo: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "SEEDS", 1)
    path = tmp_path / "curves.png"
    assert ppo.main(["--updates", "2", "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    drawn, kept = json.loads(path.with_suffix(".json").read_text()), json.loads(FIGURE.read_text())
    assert drawn["settings"] == kept["settings"] and drawn["curves"].keys() == kept["curves"].keys()
    assert all(len(rates) == 2 for runs in drawn["curves"].values() for rates in runs)


def test_committed_curves(ppo: types.ModuleType) -> None:
    curves = json.loads(FIGURE.read_text())["curves"]
    ends = {way: [sum(rates[-10:]) / 10 for rates in runs] for way, runs in curves.items()}
    good, *others = ends.values()
    assert min(good) >= ppo.TARGET and max(map(max, others)) < 0.65
    assert FIGURE.with_suffix(".png").stat().st_size < 150_000
