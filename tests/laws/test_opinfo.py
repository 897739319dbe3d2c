"""Runs our ops and torch's on torch's own samples for add, mul, sin and cos.

Where torch computes a result, our result must have the same dtype, shape and strides. The results
of add and mul must have the same bits; the errors of sin and cos are bounded in ulps. Where torch
raises, our op must raise the same type of exception. Our ops also raise for bool and complex
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.cases import OPS
from tests.support.compare import attempt, same_bits, same_layout, twin, within_ulps
from tests.support.inputs import DEVICES, FLOATING, HALVES, INTEGERS

pytest.importorskip("expecttest", reason="torch's sample generators need expecttest")
pytest.importorskip("numpy", reason="torch's sample generators need numpy")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

INFO = {info.name: info for info in op_db if not info.variant_test_name}
REFUSED = (torch.bool, torch.complex64, torch.complex128, torch.complex32)
DTYPES = FLOATING + INTEGERS + REFUSED
LARGE = 1 << 18


@dataclass
class Twins:
    """An op's functions in torch and in treadle, for the same arguments."""

    torch_op: Callable[..., Tensor]
    torch_inplace: Callable[..., Tensor]
    our_op: Callable[..., Tensor]
    our_inplace: Callable[..., Tensor]
    ulps: Mapping[torch.dtype, float] | None  # None if bits must be equal
    keeps_integers: bool


TWINS = {
    op.torch_function.__name__: Twins(
        op.torch_function, op.torch_inplace, op.function, op.inplace, op.ulps, op.keeps_integers
    )
    for op in OPS.values()
    if op.elementwise and op.torch_function and op.torch_inplace and op.inplace
}
UNARY = set(TWINS) - {"add", "mul"}  # no second argument

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def samples(name: str, device: str, dtype: torch.dtype) -> Iterator[Sample]:
    """Arguments from both of OpInfo's generators. treadle.scale takes only a number, so if mul's
    second argument is a tensor, its first element replaces it."""
    info = INFO[name]
    for generator in (info.sample_inputs, info.reference_inputs):
        for sample in generator(device, dtype):
            arguments, keywords = (sample.input, *sample.args), dict(sample.kwargs)
            if not isinstance(sample.input, Tensor):
                continue  # see test_a_number_first
            if sample.input.numel() > LARGE and dtype != torch.float32:
                continue  # takes seconds per dtype and runs the same code
            if name == "mul" and isinstance(arguments[1], Tensor):
                if arguments[1].numel() == 0:
                    continue
                arguments = (arguments[0], arguments[1].detach().flatten()[0].item())
            yield arguments, keywords


def result_dtype(name: str, arguments: tuple[Any, ...]) -> torch.dtype:
    if name not in UNARY:
        return torch.result_type(arguments[0], arguments[1])
    dtype: torch.dtype = arguments[0].dtype
    integral = not dtype.is_floating_point and not dtype.is_complex
    floats = integral and not TWINS[name].keeps_integers
    return torch.get_default_dtype() if floats else dtype


def rounded_once(expected: Tensor, arguments: tuple[Any, ...], alpha: float) -> Tensor:
    """a + alpha b as one fma, after rounding alpha to the half type, as in torch's CPU code.

    Some of torch's loops (for tails and strides) also round the product, so that its bits depend on
    the position of an element. Our loops always use one fma.
    """
    a, b = (torch.as_tensor(t, dtype=torch.float64) for t in arguments)
    product = b * torch.tensor(alpha, dtype=expected.dtype).double()
    exact = (a + product).float().to(expected.dtype)
    return torch.empty_strided(expected.shape, expected.stride(), dtype=exact.dtype).copy_(exact)


def check(name: str, actual: Tensor, expected: Tensor, sample: Sample, what: str) -> None:
    arguments, keywords = sample
    alpha = keywords.get("alpha", 1)
    what = f"{name} {what} of {[getattr(a, 'shape', a) for a in arguments]} {keywords}"
    twins = TWINS[name]
    if twins.ulps is not None:
        same_layout(actual, expected, what)
        within_ulps(actual, twins.torch_op(arguments[0].double()), twins.ulps[actual.dtype], what)
    elif expected.dtype in HALVES and alpha != 1 and expected.device.type == "cpu":
        same_bits(actual, rounded_once(expected, arguments, alpha), what)
    else:
        same_bits(actual, expected, what)


def refuses(name: str, arguments: tuple[Any, ...]) -> str | None:
    """Our error text for a sample whose result is bool or complex, or None for others."""
    if name not in UNARY and isinstance(arguments[1], complex):
        rule = {"add": "b must be a tensor or a real number", "mul": "factor must be a real number"}
        return rule[name] + ", got a complex one"
    dtype = result_dtype(name, arguments)
    if dtype not in REFUSED:
        return None
    subject = "a + alpha * b" if name == "add" else "x"
    spelt = str(dtype).removeprefix("torch.")
    return f"{subject} must give a result of an integer or floating-point dtype, got {spelt}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", TWINS)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_samples(name: str, dtype: torch.dtype, device: str) -> None:
    twins, count = TWINS[name], 0
    for sample in samples(name, device, dtype):
        arguments, keywords = sample
        words = refuses(name, arguments)
        if words is not None:
            with pytest.raises(RuntimeError) as raised:
                twins.our_op(*arguments, **keywords)
            assert words in str(raised.value)
            count += 1
            continue
        expected, refusal = attempt(lambda: twins.torch_op(*arguments, **keywords))  # noqa: B023
        assert refusal is None, refusal
        check(name, twins.our_op(*arguments, **keywords), expected, sample, "result")
        for what, ours, theirs in written(twins, sample, expected):
            check(name, ours, theirs, sample, what)
        count += 1
    assert count >= (10 if name in UNARY else 20)


def written(twins: Twins, sample: Sample, expected: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Results of our op and torch's with out= (first resized, then strided) and in place."""
    arguments, keywords = sample
    if expected.numel() > LARGE:
        return
    ours, theirs = expected.new_empty(0), expected.new_empty(0)
    assert twins.our_op(*arguments, **keywords, out=ours) is ours
    twins.torch_op(*arguments, **keywords, out=theirs)
    yield "out= of no elements", ours, theirs
    ours, theirs = (expected.new_zeros(*expected.shape, 2)[..., 0] for _ in range(2))
    twins.our_op(*arguments, **keywords, out=ours)
    twins.torch_op(*arguments, **keywords, out=theirs)
    yield "strided out=", ours, theirs
    first = arguments[0]
    if overlaps_itself(first):
        return
    ours, theirs = twin(first), twin(first)
    _, refusal = attempt(lambda: twins.torch_inplace(theirs, *arguments[1:], **keywords))
    if refusal is None:
        assert twins.our_inplace(ours, *arguments[1:], **keywords) is ours
        yield "in place", ours, theirs
    else:
        with pytest.raises(type(refusal)):
            twins.our_inplace(ours, *arguments[1:], **keywords)


def overlaps_itself(t: Tensor) -> bool:
    """Whether two elements share an address, so that an in-place result depends on the order."""
    if t.numel() == 0 or t.is_contiguous():
        return False
    addresses = sum(
        torch.arange(size).mul(stride).view(-1, *(1,) * (t.dim() - 1 - d))
        for d, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True))
    )
    return addresses.unique().numel() < t.numel()  # type: ignore[union-attr]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", TWINS)
def test_gradients_of_samples(name: str, dtype: torch.dtype, device: str) -> None:
    for arguments, keywords in samples(name, device, dtype):
        arguments = tuple(as_leaf(a) for a in arguments)
        leaves = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
        if not leaves or leaves[0].numel() > LARGE:
            continue
        expected = TWINS[name].torch_op(*arguments, **keywords)
        actual = TWINS[name].our_op(*arguments, **keywords)
        grad = torch.randn_like(expected)
        theirs = torch.autograd.grad(expected, leaves, grad)
        ours = torch.autograd.grad(actual, leaves, grad)
        for mine, yours in zip(ours, theirs, strict=True):
            if TWINS[name].ulps is not None:
                same_layout(mine, yours)
                torch.testing.assert_close(mine, yours, equal_nan=True)
            else:
                same_bits(mine, yours, f"gradient of {name}")


def as_leaf(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return twin(value.detach()).requires_grad_()
    return value


def wrong(name: str, device: str) -> Iterator[tuple[str, Sample]]:
    """Calls that torch rejects: its own error_inputs, and some that its generators lack."""
    first = torch.arange(12.0, device=device).view(3, 4)
    second = () if name in UNARY else (2.0,)
    yield "integer out=", ((first, *second), {"out": first.to(torch.int64)})
    yield "expanded out=", ((first, *second), {"out": first.new_zeros(1).expand(first.shape)})
    whole = torch.cat([first.flatten(), first.flatten()[:1]])
    yield "overlapping out=", ((whole[:-1], *second), {"out": whole[1:]})
    leaf = first.clone().requires_grad_()
    yield "out= that requires grad", ((first, *second), {"out": leaf})
    yield "out= of one that requires grad", ((leaf, *second), {"out": torch.empty_like(first)})
    if name == "add":
        yield "shapes", ((torch.ones(2, 3, device=device), torch.ones(4, device=device)), {})
        yield (
            "alpha of integers",
            ((torch.ones(3, dtype=torch.int64, device=device), 2), {"alpha": 0.5}),
        )
        yield "alpha out of range", ((torch.ones(3, device=device), 2), {"alpha": 1e300})
    for bad in INFO[name].error_inputs(device) if INFO[name].error_inputs_func else ():
        sample = bad.sample_input
        yield "error_inputs", ((sample.input, *sample.args), sample.kwargs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TWINS)
def test_refused_samples(name: str, device: str) -> None:
    for what, (arguments, keywords) in wrong(name, device):
        _, theirs = attempt(lambda: TWINS[name].torch_op(*arguments, **keywords))  # noqa: B023
        assert theirs is not None, f"torch takes {what}"
        with pytest.raises(type(theirs)):
            TWINS[name].our_op(*arguments, **keywords)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", TWINS)
def test_sparse_samples_are_refused(name: str, layout: torch.layout, device: str) -> None:
    sparse = torch.eye(3, device=device).to_sparse(layout=layout)
    second = {"add": (sparse,), "mul": (2.0,)}.get(name, ())
    with pytest.raises(NotImplementedError, match="tensors must be dense"):
        TWINS[name].our_op(sparse, *second)


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_first(device: str) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises((RuntimeError, TypeError)):
        treadle.vector_add(2.0, x)  # type: ignore[arg-type]
    with pytest.raises((RuntimeError, TypeError)):
        treadle.scale(2.0, x)  # type: ignore[arg-type]
