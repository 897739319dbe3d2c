"""Lazily negative views, such as `z.conj().imag`, are read and written as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.inputs import DEVICES

ALPHA = torch.tensor([0.5, 1.5, 2.5])
Call = Callable[..., Any]


def snake(x: Tensor) -> Tensor:
    alpha = ALPHA.to(x.device)[:, None]
    return x + (alpha * x).sin().square() / alpha


# Our op, which accepts out=, our in-place op, and a function that computes the expected values.
OPS: dict[str, tuple[Call, Call, Call]] = {
    "vector_add": (
        lambda x, **o: treadle.vector_add(x, x.clone(), alpha=2, **o),
        lambda x: treadle.vector_add_(x, x.clone(), alpha=2),
        lambda x: x + 2 * x,
    ),
    "vector_add a number": (
        lambda x, **o: treadle.vector_add(x, 2.0, **o),
        lambda x: treadle.vector_add_(x, 2.0),
        lambda x: x + 2,
    ),
    "scale": (
        lambda x, **o: treadle.scale(x, 2.0, **o),
        lambda x: treadle.scale_(x, 2.0),
        lambda x: x * 2,
    ),
    "sine": (treadle.sine, treadle.sine_, torch.sin),
    "cosine": (treadle.cosine, treadle.cosine_, torch.cos),
    "snake": (
        lambda x, **o: treadle.snake(x, ALPHA.to(x.device), **o),
        lambda x: treadle.snake_(x, ALPHA.to(x.device)),
        snake,
    ),
}
EACH = [pytest.mark.parametrize("name", OPS), pytest.mark.parametrize("device", DEVICES)]


def each(test: Any) -> Any:
    for mark in EACH:
        test = mark(test)
    return test


def negative(device: str, shape: tuple[int, ...] = (2, 3, 5)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(2, *shape, generator=generator).to(device)
    found = torch.complex(both[0], both[1]).conj().imag
    assert found.is_neg()
    return found


@each
def test_written_in_place(name: str, device: str) -> None:
    _, inplace, values = OPS[name]
    x = negative(device)
    base, expected, version = x._base, values(x.clone()), x._version
    assert base is not None
    assert inplace(x) is x and x.is_neg() and x._version > version
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(torch.view_as_real(base.resolve_conj())[..., 1], -expected)


@each
@pytest.mark.parametrize("shape", [(2, 3, 5), (0,)], ids=["fits", "resized"])
def test_written_as_out(name: str, device: str, shape: tuple[int, ...]) -> None:
    call, _, values = OPS[name]
    x, out = negative(device), negative(device, shape)
    assert call(x, out=out) is out and out.is_neg()
    torch.testing.assert_close(out, values(x.clone()))
    plain = torch.empty(2, 3, 5, device=device)
    torch.testing.assert_close(call(x, out=plain), values(x.clone()))


@each
def test_gradients_through_what_is_written(name: str, device: str) -> None:
    _, inplace, values = OPS[name]
    grads = []
    for change in (inplace, lambda x: x.copy_(values(x.clone()))):
        leaf = negative(device).clone().requires_grad_()
        x = torch.complex(torch.zeros_like(leaf), leaf).conj().imag
        assert x.is_neg()
        change(x)
        grads.append(torch.autograd.grad(x.square().sum(), leaf)[0])
    torch.testing.assert_close(*grads)


def test_a_conjugate_is_refused_in_words() -> None:
    z = torch.complex(torch.rand(3), torch.rand(3)).conj()
    for call in (treadle.sine_, lambda z: treadle.scale_(z, 2.0)):
        with pytest.raises(RuntimeError, match="complex64"):
            call(z)
