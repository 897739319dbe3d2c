"""Measures tokens per second of language models, in training steps and in generate()."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from recurrent_lm import RecurrentForCausalLM

Models = dict[str, RecurrentForCausalLM]
PROMPT = 32  # bytes
SECONDS = 1.0  # per measurement; each call is timed at least three times


@dataclass
class Workload:
    """``batch`` rows of ``length`` tokens, to learn from in one training step or to generate.

    In training, bfloat16 means autocast, as in Trainer. In generation it is the parameters' dtype.
    """

    task: str
    dtype: str
    batch: int
    length: int


def training_speed(models: Models, load: Workload) -> dict[str, float]:
    """Tokens per second of whole steps: forward, backward, AdamW."""
    device = next(iter(models.values())).device
    tokens = torch.randint(1, 256, (load.batch, load.length), device=device)
    half = load.dtype == "bfloat16"

    def step(model: RecurrentForCausalLM) -> Callable[[], None]:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=device.type == "cuda")

        def run() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    return in_turns({name: step(model) for name, model in models.items()}, load, device)


def generation_speed(models: Models, load: Workload) -> dict[str, float]:
    """Tokens per second of greedy ``generate()``."""
    device = next(iter(models.values())).device
    prompt = torch.randint(1, 256, (load.batch, PROMPT), device=device)
    rules = {"max_new_tokens": load.length, "do_sample": False}

    def write(model: RecurrentForCausalLM) -> Callable[[], object]:
        model.to(getattr(torch, load.dtype)).eval()
        return lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **rules)

    return in_turns({name: write(model) for name, model in models.items()}, load, device)


def in_turns(
    calls: dict[str, Callable[[], object]], load: Workload, device: torch.device
) -> dict[str, float]:
    """Calls the functions alternately. Returns the tokens per second of each, from its median time
    without the first call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    begun = time.perf_counter()
    while min(map(len, times.values())) < 4 or time.perf_counter() - begun < SECONDS * len(calls):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    count = load.batch * load.length
    return {name: count / statistics.median(found[1:]) for name, found in times.items()}
