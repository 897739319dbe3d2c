"""affine_scan, which computes cell states, in cases that tests/laws does not cover."""

from __future__ import annotations

import pytest
import torch
from torch.library import opcheck

from tests.recurrent.support.reset_cases import marks_of
from tests.recurrent.support.scan_cases import scan, scan_arguments, scan_call, scan_reference
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, Make

T, B, H = 9, 3, 2
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_passes_a_reset(bad: float, reverse: bool, device: str) -> None:
    """A bad value in one step changes neither values nor derivatives of other steps if all steps
    reset."""
    make = Make("nothing passes", device, torch.float64)
    call = scan_arguments(make, (T, B, H), marks="all", reverse=reverse)
    keep, add, start = call.args
    add[4] = bad
    for t in (keep, add, start):
        t.requires_grad_()
    result = scan(keep, add, start, **call.kwargs)
    others = [t for t in range(T) if t != 4]
    same_bits(result, add.detach())
    grads = torch.autograd.grad(result[others].sum(), [keep, start], create_graph=True)
    assert all((grad == 0).all() for grad in grads)
    again = torch.autograd.grad([g.sum() for g in grads], [keep, add, start], allow_unused=True)
    assert all(grad is None or bool((grad == 0).all()) for grad in again)
    result = scan(keep, add, start, **call.kwargs)
    cotangent = torch.ones_like(result)
    cotangent[4] = bad
    grads = torch.autograd.grad(result, [keep, add, start], cotangent)
    assert bool((grads[0] == 0).all())
    assert bool(grads[1][others].isfinite().all())
    assert bool((grads[2] == 0).all())
    tangent = torch.ones_like(keep)
    _, moved = torch.func.jvp(
        lambda k: scan(k, add.detach(), start.detach(), **call.kwargs), (keep,), (tangent,)
    )
    assert bool((moved == 0).all())


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_passes_in_second_derivatives(device: str) -> None:
    """Steps after the reset have the second derivatives of a sequence that begins at the reset."""
    make = Make("second derivatives", device, torch.float64)
    keep, add, start = scan_arguments(make, (T, B, H)).args
    reset = torch.zeros(T, B, 1, dtype=torch.bool, device=device)
    reset[5] = True

    def second(add: torch.Tensor) -> torch.Tensor:
        leaf = keep.clone().requires_grad_()
        result = torch.ops.treadle.affine_scan(leaf, add, start, reset=reset)[5:]
        (grad,) = torch.autograd.grad(result.square().sum(), leaf, create_graph=True)
        (found,) = torch.autograd.grad(grad[5:].sum(), leaf)
        return found[5:]

    poisoned = add.clone()
    poisoned[4] = NAN
    found = second(poisoned)
    assert bool((found != 0).any())
    same_bits(found, second(add))


@pytest.mark.parametrize("device", DEVICES)
def test_keeping_nothing_is_no_reset(device: str) -> None:
    """Where `keep` is 0, the derivative with respect to `keep` is the preceding result, not 0."""
    make = Make("keeping nothing", device, torch.float64)
    keep, add, start = scan_arguments(make, (T, B, H)).args
    keep = torch.zeros_like(keep).requires_grad_()
    result = scan(keep, add, start)
    (grad,) = torch.autograd.grad(result.sum(), keep)
    same_bits(grad, torch.cat([start.unsqueeze(0), add[:-1]]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", [1, 7, 8, 9, 127, 128, 129, 500])
def test_each_number_of_steps(steps: int, device: str) -> None:
    for marks in ("", "some"):
        make = Make("numbers of steps", device, torch.float32)
        call = scan_arguments(make, (steps, 5, 7), marks=marks)
        expected = scan_reference(*(t.double() for t in call.args), **call.kwargs)
        torch.testing.assert_close(call.run(scan).double(), expected, rtol=1e-5, atol=1e-5)


def test_marks_may_differ_between_samples_of_vmap() -> None:
    call = scan_arguments(Make("vmap", "cpu", torch.float64), (T, B, H))
    marks = marks_of("some", call.args[0], None)
    several = torch.stack([marks, ~marks, marks.roll(1, 0)])

    def one(reset: torch.Tensor) -> torch.Tensor:
        return torch.ops.treadle.affine_scan(*call.args, reset=reset)  # type: ignore[no-any-return]

    assert torch.equal(torch.func.vmap(one)(several), torch.stack([one(m) for m in several]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool, device: str) -> None:
    op, args, options = scan_call(Make("opcheck", device, torch.float32))
    opcheck(op, tuple(t.detach().requires_grad_(grad) for t in args), options)
