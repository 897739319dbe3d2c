"""The agent's loop (perceive, reason, act), all on one device, optionally as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from agent_nets import ACTIONS, Eye, Mind
from agent_world import KINDS, World
from torch import Tensor

import treadle

WARM_UP = 3
# The agents to evaluate: the full agent, and variants that lack one of its abilities.
WHO = {
    "agent": "the agent",
    "cue forgotten": "the agent, made to forget the first frame",
    "eyes shut": "the agent, with its eyes shut",
    "random": "random moves",
}


class Loop:
    """An eye and a mind in a world, whose rows are rooms. A step advances all rows.

    A step updates the loop's tensors in place, so that a CUDA graph of it can be replayed. ``who``
    is a key of WHO. With ``make_step``, treadle.nn.make_step runs the layer and keeps its state.
    """

    def __init__(
        self, world: World, eye: Eye, mind: Mind, who: str = "agent", make_step: bool = False
    ) -> None:
        self.world, self.eye, self.mind, self.who = world, eye, mind, who
        layer, kind = mind.layer, {"device": world.device}
        self.one = treadle.nn.make_step(layer, world.rows) if make_step else None
        state = (
            self.one.state if self.one else torch.zeros(1, world.rows, layer.hidden_size, **kind)
        )
        self.h: Tensor = state
        self.moves = torch.arange(ACTIONS, device=world.device)
        self.last = torch.zeros(world.rows, ACTIONS, **kind)  # the previous move
        self.frame = torch.empty(0)  # the last frame seen

    def perceive(self) -> Tensor:
        """The mind's input, [B, I]: for each tile, the probability of each kind according to the
        eye, and then the last move."""
        self.frame = self.world.frame()
        sight = self.eye(self.frame).softmax(-1).flatten(1)
        if self.who == "eyes shut":
            sight = torch.full_like(sight, 1 / KINDS)
        return torch.cat([sight, self.last * ~self.world.begins[:, None]], -1)

    def reason(self, x: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the moves and the value, after one step of the GRU."""
        if self.who == "cue forgotten":
            begins = begins | (self.world.clock == 1)
        if self.one is not None:
            return self.mind.decide(self.one(x, begins))
        scores, value, h = self.mind(x[None], self.h, begins[None])
        self.h.copy_(h)
        return scores[0], value[0]

    @torch.no_grad()
    def step(self) -> dict[str, Tensor]:
        """Takes one step in every row. Returns one step of ppo.Played: each entry is [B], but
        ``x``, the mind's input, is [B, I]."""
        x, begins = self.perceive(), self.world.begins.clone()
        scores, value = self.reason(x, begins)
        if self.who == "random":
            scores = torch.zeros_like(scores)
        # The argmax of the scores plus Gumbel noise is a sample from their softmax.
        action = (scores - torch.empty_like(scores).exponential_().log()).argmax(-1)
        chance = scores.log_softmax(-1).gather(-1, action[:, None])[:, 0]
        self.last.copy_(action[:, None] == self.moves)
        reward, ends = self.world.step(action)
        return {
            "x": x,
            "begins": begins,
            "action": action,
            "chance": chance,
            "value": value,
            "reward": reward,
            "ends": ends,
        }

    @torch.no_grad()
    def play(self, steps: int) -> tuple[dict[str, Tensor], Tensor]:
        """Takes ``steps`` steps. Returns ppo.Played, in which each entry is [T, B] (``x``:
        [T, B, I]), and the value [B] of the state after the last step."""
        played = [self.step() for _ in range(steps)]
        together = {name: torch.stack([step[name] for step in played]) for name in played[0]}
        _, value, _ = self.mind(self.perceive()[None], self.h, self.world.begins[None])
        return together, value[0]


class Captured:
    """A call captured as a CUDA graph. Each replay draws new random numbers, and writes its results
    to the same tensors. This object holds a reference to the call, because the graph uses tensors
    of the call, which must stay alive."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.graph = call, torch.cuda.CUDAGraph()
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                call()
        current.wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.made = call()

    def __call__(self) -> Any:
        self.graph.replay()
        return self.made


def player(loop: Loop, steps: int) -> Callable[[], tuple[dict[str, Tensor], Tensor]]:
    """A function that calls ``loop.play(steps)``. On a GPU it replays one graph of all steps."""

    def play() -> tuple[dict[str, Tensor], Tensor]:
        return loop.play(steps)

    return Captured(play) if loop.world.device.type == "cuda" else play


def success(loop: Loop, steps: int) -> dict[str, float]:
    """The number of episodes that end within ``steps`` steps, the fraction of them that end on the
    right digit, and their mean length."""
    ends = right = torch.zeros((), device=loop.world.device)
    for _ in range(steps):
        played = loop.step()
        ends = ends + played["ends"].sum()
        right = right + (played["reward"] > 0).sum()
    count, found = int(ends), int(right)
    return {
        "episodes": count,
        "success": round(found / count, 4),
        "steps": round(steps * loop.world.rows / count, 2),
    }
