"""Proximal policy optimization (PPO) for recurrent policies, used by recurrent_ppo.py and agent/.

A batch holds T steps of B environments. Each environment is a row of the batch. The policy starts a
row from the state that it had at the end of the previous batch. If an episode begins in the middle
of a row, the policy resets its state there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

# A recorded batch. Each of these entries is [T, B]: "action", "chance" (the log-probability of the
# action when it was taken), "value", "reward", "ends" (whether this step ended an episode) and
# "advantage". Other entries are the policy's inputs.
Played = dict[str, Tensor]
# A function that runs the current policy on some rows of a batch, given their initial states
# [1, B, H]. It returns the distributions of actions and the values.
Judge = Callable[[Played, Tensor], tuple[Categorical, Tensor]]


@dataclass(frozen=True)
class Rules:
    discount: float
    trace: float  # lambda of generalized advantage estimation
    clip: float  # the ratio of probabilities is clipped to 1 ± clip
    entropy: float  # the weight of the entropy bonus
    epochs: int
    parts: int  # minibatches per epoch, each with different rows
    norm: float = 0.5  # gradients are clipped to this norm


def advantages(played: Played, value: Tensor, rules: Rules) -> Tensor:
    """Generalized advantage estimation, separately for each episode. ``value`` [B] is the value of
    the states after the last step."""
    found, trace = [], torch.zeros_like(value)
    for t in reversed(range(len(played["reward"]))):
        goes_on = rules.discount * ~played["ends"][t]
        change = played["reward"][t] + goes_on * value - played["value"][t]
        trace = change + goes_on * rules.trace * trace
        value = played["value"][t]
        found.append(trace)
    return torch.stack(found[::-1])


def loss(choice: Categorical, value: Tensor, part: Played, rules: Rules) -> Tensor:
    """PPO's clipped surrogate loss, plus half the squared error of the values, minus an entropy
    bonus."""
    ratio = (choice.log_prob(part["action"]) - part["chance"]).exp()
    gain = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
    better = torch.min(ratio * gain, ratio.clamp(1 - rules.clip, 1 + rules.clip) * gain)
    wrong = F.mse_loss(value, part["advantage"] + part["value"])
    return 0.5 * wrong - better.mean() - rules.entropy * choice.entropy().mean()


def improve(
    judge: Judge,
    optimizer: torch.optim.Optimizer,
    played: Played,
    start: Tensor,
    rules: Rules,
    random: torch.Generator | None = None,
) -> None:
    """Update the policy from a batch whose rows started from the states ``start`` [1, B, H].
    ``random`` shuffles the rows, and must be on the device of ``start``."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(rules.epochs):
        order = torch.randperm(start.shape[1], generator=random, device=start.device)
        for rows in order.chunk(rules.parts):
            part = {name: value[:, rows] for name, value in played.items()}
            optimizer.zero_grad()
            loss(*judge(part, start[:, rows]), part, rules).backward()
            nn.utils.clip_grad_norm_(parameters, rules.norm)
            optimizer.step()
