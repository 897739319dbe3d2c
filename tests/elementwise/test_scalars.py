"""NumPy scalars and 0-dim tensors work wherever torch's twin accepts them, with the same
results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import treadle
from tests.support.inputs import DEVICES, FLOATING, HALVES, INTEGERS, Make

# torch treats a NumPy bool as a floating-point number, and rounds a longdouble.
SCALARS = (
    *(dtype(2.1) for dtype in (np.float16, np.float32, np.float64, np.longdouble)),
    *(dtype(3) for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64)),
    np.bool_(True),
)
TENSORS = tuple(
    torch.tensor(value, dtype=dtype)
    for value, dtypes in ((2.1, FLOATING), (3, INTEGERS), (True, (torch.bool,)))
    for dtype in dtypes
)
# torch refuses a bool alpha for integers; treadle accepts it, like Python's True.
ALPHAS = (*SCALARS[:-1], *(t for t in TENSORS if t.dtype != torch.bool))
Form = Callable[..., Any]
# Our op and torch's, called with x, out and the number, for every argument that may be a number.
PLACES: dict[str, tuple[Form, Form]] = {
    "scale": (lambda x, _, n: treadle.scale(x, n), lambda x, _, n: torch.mul(x, n)),
    "scale_": (lambda x, _, n: treadle.scale_(x, n), lambda x, _, n: x.mul_(n)),
    "scale out": (
        lambda x, out, n: treadle.scale(x, n, out=out),
        lambda x, out, n: torch.mul(x, n, out=out),
    ),
    "b": (lambda x, _, n: treadle.vector_add(x, n), lambda x, _, n: torch.add(x, n)),
    "b alpha": (
        lambda x, _, n: treadle.vector_add(x, n, alpha=2),
        lambda x, _, n: torch.add(x, n, alpha=2),
    ),
    "b in place": (lambda x, _, n: treadle.vector_add_(x, n), lambda x, _, n: x.add_(n)),
    "b out": (
        lambda x, out, n: treadle.vector_add(x, n, out=out),
        lambda x, out, n: torch.add(x, n, out=out),
    ),
    "alpha": (
        lambda x, _, n: treadle.vector_add(x, x, alpha=n),
        lambda x, _, n: torch.add(x, x, alpha=n),
    ),
    "alpha in place": (
        lambda x, _, n: treadle.vector_add_(x, x.clone(), alpha=n),
        lambda x, _, n: x.add_(x.clone(), alpha=n),
    ),
    "alpha out": (
        lambda x, out, n: treadle.vector_add(x, x, alpha=n, out=out),
        lambda x, out, n: torch.add(x, x, alpha=n, out=out),
    ),
}


def result(form: Form, x: Tensor, out: Tensor, number: Any) -> Tensor | None:
    """The result, or None if the call raised."""
    try:
        found = form(x.clone(), out.clone(), number)
    except (RuntimeError, TypeError):
        return None
    assert isinstance(found, Tensor)
    return found


def as_torch(place: str, x: Tensor, number: Any) -> bool:
    """Checks that our result equals torch's, or that both calls raise (then returns False)."""
    ours, theirs = PLACES[place]
    if place.startswith("alpha") and x.dtype in HALVES:
        # Some of torch's CPU loops also round the product (see tests/laws/test_opinfo.py).
        theirs = lambda x, out, n: ours(x, out, float(n))  # noqa: E731
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    # On CUDA, torch checks whether alpha fits the dtype of `out`. On the CPU, it checks whether
    # alpha fits that of x, and so do our ops.
    on_cpu = place == "alpha out" and x.dtype not in HALVES
    there = torch.device("cpu") if on_cpu else x.device
    wanted = result(theirs, x.to(there), out.to(there), number)
    found = result(ours, x, out, number)
    what = f"{place} of {x.dtype} {list(x.shape)} and {number!r}"
    assert (found is None) == (wanted is None), f"{what}: {found} unlike {wanted}"
    if found is None or wanted is None:
        return False
    assert found.dtype == wanted.dtype, what
    if x.device == there:
        assert torch.equal(found, wanted), f"{what}: {found} unlike {wanted}"
    else:
        torch.testing.assert_close(found.to(there), wanted, msg=lambda text: f"{what}: {text}")
    return True


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", PLACES)
def test_like_torch(place: str, device: str) -> None:
    numbers = ALPHAS if place.startswith("alpha") else (*SCALARS, *TENSORS)
    good = 0
    for dtype in FLOATING + INTEGERS:
        for shape in ((9,), ()):
            x = Make("scalars", device, dtype)(*shape)
            good += sum(as_torch(place, x, number) for number in numbers)
    assert good > 9 * len(numbers)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_on_the_device(device: str) -> None:
    x = Make("scalars", device, torch.float16)(9)
    for number in TENSORS:
        as_torch("scale", x, number.to(device))
        as_torch("scale_", x, number.to(device))


def test_a_factor_that_requires_grad() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    factor = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    assert torch.autograd.gradcheck(treadle.scale, (x, factor))
    compiled = torch.compile(treadle.scale, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, factor), x * factor)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: treadle.scale(x, torch.ones(3)),
            "scale: factor must be a number or a 0-dim tensor, got a tensor of shape [3]",
        ),
        (lambda x: treadle.scale(x, "3"), "scale: factor must be a number, got str"),
        (lambda x: treadle.scale(x, np.ones(3)), "scale: factor must be a number, got ndarray"),
        (lambda x: treadle.scale_(x, None), "scale_: factor must be a number, got NoneType"),
        (
            lambda x: treadle.scale(x, np.complex64(2j)),
            "scale: factor must be a real number, got a complex one",
        ),
        (
            lambda x: treadle.scale(x, torch.tensor(2j)),
            "scale: factor must be a real number, got a complex one",
        ),
        (
            lambda x: treadle.scale(x > 0, torch.tensor(True)),
            "scale: x must give a result of an integer or floating-point dtype, got bool",
        ),
        (lambda x: treadle.vector_add(x, "3"), "vector_add: b must be a number, got str"),
        (
            lambda x: treadle.vector_add(x, "3", out=torch.empty(3)),
            "vector_add: b must be a number, got str",
        ),
        (
            lambda x: treadle.vector_add(x, x, alpha=np.ones(3)),
            "vector_add: alpha must be a number, got ndarray",
        ),
        (
            lambda x: treadle.vector_add_(x, x, alpha=torch.ones(3)),
            "vector_add_: alpha must be a number, got a tensor of shape [3]",
        ),
        (
            lambda x: treadle.vector_add(x, x, alpha=torch.tensor(2.0, requires_grad=True)),
            "vector_add: alpha must be a number, because it is not differentiable, got a tensor "
            "that requires grad",
        ),
    ],
)
def test_what_is_no_number(call: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        call(torch.ones(3))
    assert str(raised.value) == words
    # The dispatcher's error is not chained to ours.
    assert raised.value.__context__ is None


NO_TENSORS: tuple[Any, ...] = (np.ones(3), [1.0], {"x": torch.ones(999)}, 0.5, None)


@pytest.mark.parametrize("value", NO_TENSORS, ids=lambda value: type(value).__name__)
def test_what_is_no_tensor(value: Any) -> None:
    x, factors = torch.ones(3), (2, np.float32(2), torch.tensor(2))
    calls: dict[str, list[Any]] = {
        "scale: x": [partial(treadle.scale, value, n) for n in factors],
        "scale_: x": [partial(treadle.scale_, value, n) for n in factors],
        "vector_add: a": [
            *(partial(treadle.vector_add, value, b) for b in (x, 2, np.int64(2))),
            partial(treadle.vector_add, value, 2, out=x),
        ],
        "vector_add_: a": [partial(treadle.vector_add_, value, b) for b in (x, 2)],
    }
    if value is not None:
        calls |= {
            "sine: out": [partial(treadle.sine, x, out=value)],
            "cosine: out": [partial(treadle.cosine, x, out=value)],
            "scale: out": [partial(treadle.scale, x, n, out=value) for n in factors[:2]],
            "vector_add: out": [partial(treadle.vector_add, x, b, out=value) for b in (x, 2)],
        }
    for argument, wrong in calls.items():
        for call in wrong:
            with pytest.raises(TypeError) as raised:
                call()
            assert str(raised.value) == f"{argument} must be a tensor, got {type(value).__name__}"
            assert raised.value.__context__ is None


def test_a_wrong_tensor_is_not_blamed_on_the_number() -> None:
    with pytest.raises(RuntimeError, match="^vector_add: b must have a shape that broadcasts"):
        treadle.vector_add(torch.ones(2), torch.ones(3), alpha=np.float32(2))  # type: ignore[arg-type]


def test_numbers_beside_out_are_on_the_cpu_and_keep_their_kind() -> None:
    ones, out = torch.ones(3), torch.empty(3)
    with torch.device("meta"):
        assert torch.equal(treadle.vector_add(ones, 2.0, out=out), ones + 2)
    assert torch.equal(treadle.vector_add(ones, 2**63, out=out), ones + 2**63)
    with pytest.raises((TypeError, RuntimeError), match="bool"):
        treadle.vector_add(torch.tensor([True]), True, out=torch.empty(1, dtype=torch.int16))
