"""Bad arguments raise before anything is launched, with the same text on every device."""

from __future__ import annotations

import pytest
import torch

import treadle
from tests.support.bad_cases import BAD
from tests.support.inputs import DEVICES, Bad, Make, other_device

PLACES = [
    pytest.param(bad, device, id=f"{bad.id}-{device}")
    for bad in BAD
    for device in bad.devices
    if device in (*DEVICES, "meta")
]


def raises_its_message(bad: Bad, device: str) -> None:
    make = Make(bad.id, device, torch.float32)
    expected = bad.message.format(
        device=torch.empty(0, device=device).device, other=other_device(device)
    )
    with pytest.raises(bad.error) as raised:
        bad.run(make)
    assert str(raised.value) == expected
    assert type(raised.value) is bad.error


@pytest.mark.parametrize(("bad", "device"), PLACES)
def test_message(bad: Bad, device: str) -> None:
    raises_its_message(bad, device)
    x = torch.ones(5, device=device)
    doubled = treadle.scale(x, 2)
    assert device == "meta" or doubled.tolist() == [2.0] * 5, "ops fail after the error"


def test_every_bad_case_has_a_name_of_its_own() -> None:
    assert len({bad.id for bad in BAD}) == len(BAD)


def test_another_message_is_noticed() -> None:
    wrong = Bad("x", lambda m: treadle.scale(m(3), 1j), "scale: factor must be real")
    with pytest.raises(AssertionError):
        raises_its_message(wrong, "cpu")
    with pytest.raises(pytest.fail.Exception):
        raises_its_message(Bad("x", lambda m: treadle.scale(m(3), 2), ""), "cpu")


def test_a_leaf_below_no_grad_is_written() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        treadle.scale_(x, 2)
        treadle.scale(x, 2, out=torch.empty(3))
    assert x.tolist() == [2.0] * 3
