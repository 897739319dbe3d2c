"""TorchRL and treadle.torchrl for the tests in this folder, which are skipped without TorchRL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchrl", reason="torchrl is not installed")

from tensordict import TensorDict  # noqa: E402
from torchrl import modules as theirs  # noqa: E402

import treadle.torchrl as ours  # noqa: E402

KINDS = ["LSTMModule", "GRUModule"]
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
INPUTS, H = 3, 5


def keys(kind: str) -> dict[str, list[Any]]:
    states = ["h", "c"] if kind == "LSTMModule" else ["h"]
    return {"in_keys": ["seen", *states], "out_keys": ["out", *[("next", s) for s in states]]}


def pair(
    kind: str,
    of_ours: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: Any,
) -> tuple[Any, Any]:
    """Our module and TorchRL's, with the same parameters."""
    torch.manual_seed(0)
    options |= {"input_size": INPUTS, "hidden_size": H, **keys(kind)}
    mine = getattr(ours, kind)(**options, **(of_ours or {})).to(device, dtype)
    other = getattr(theirs, kind)(**options).to(device, dtype)
    mine.load_state_dict(other.state_dict())
    return mine, other


def batch(
    kind: str,
    shape: tuple[int, ...] = (4, 9),
    layers: int = 1,
    dtype: torch.dtype = torch.float64,
    chance: float = 0.3,
    states: bool = True,
) -> TensorDict:
    torch.manual_seed(1)
    entries = {"seen": torch.randn(*shape, INPUTS, dtype=dtype)}
    if states:
        for key in keys(kind)["in_keys"][1:]:
            entries[key] = torch.randn(*shape, layers, H, dtype=dtype)
    return TensorDict({**entries, "is_init": torch.rand(*shape, 1) < chance}, shape)


def run(module: Any, given: TensorDict) -> TensorDict:
    with theirs.set_recurrent_mode(True):
        return module(given.clone())


def same(found: TensorDict, expected: TensorDict) -> None:
    names = [str(key) for key in found.keys(True, True)]
    assert sorted(names) == sorted(str(key) for key in expected.keys(True, True))
    assert found.shape == expected.shape
    for key in expected.keys(True, True):
        torch.testing.assert_close(found[key], expected[key])


def gradients(module: Any, given: TensorDict, recurrent: bool = True) -> dict[str, Tensor]:
    """Gradients of all inputs and parameters, from all outputs."""
    given = given.apply(lambda t: t.clone().requires_grad_(t.is_floating_point()))
    inputs = {str(key): t for key, t in given.items() if t.is_floating_point()}
    inputs |= dict(module.named_parameters())
    with theirs.set_recurrent_mode(recurrent):
        found = module(given.copy())
    torch.manual_seed(2)
    outputs = [found[key] for key in module.out_keys]
    grads = torch.autograd.grad(
        sum((y * torch.randn(y.shape, dtype=y.dtype).to(y.device)).sum() for y in outputs),
        list(inputs.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(inputs, grads, strict=True))


def same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, msg=lambda said, n=name: f"{n}: {said}")


__all__ = [
    "EACH_KIND",
    "H",
    "INPUTS",
    "TensorDict",
    "batch",
    "gradients",
    "keys",
    "ours",
    "pair",
    "run",
    "same",
    "same_gradients",
    "theirs",
]
