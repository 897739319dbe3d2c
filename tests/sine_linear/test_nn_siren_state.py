"""Siren's state dict: its omegas, and conversion to the SIREN paper's code and siren-pytorch."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.sine_linear.test_nn_siren_weights import LATER, LAYOUTS, W0
from treadle.nn import SineLinear, Siren

SIZES = [2, 12, 12, 12, 3]
Dict = dict[str, Any]


def made(linear: bool = True, first: float = W0, later: float = LATER, **options: Any) -> Siren:
    return Siren(2, 12, 2, 3, linear, first, later, dtype=torch.float64, **options)


def points() -> Tensor:
    return torch.rand(20, 2, dtype=torch.float64) * 2 - 1


# ---- conversion to other code

WAYS: dict[str, Callable[[Siren], dict[str, Tensor]]] = {
    "paper": lambda net: net.to_paper_state_dict(),
    "siren-pytorch": lambda net: net.to_siren_pytorch_state_dict(),
}


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("layout", WAYS)
def test_there_and_back(layout: str, linear: bool) -> None:
    net, theirs, x = made(linear), LAYOUTS[layout][0](SIZES, linear).double(), points()
    theirs.load_state_dict(WAYS[layout](net))
    torch.testing.assert_close(theirs(x), net(x), rtol=1e-9, atol=1e-9)
    again = made(linear)
    again.load_state_dict(WAYS[layout](net))
    assert torch.equal(again(x), net(x))
    given = WAYS[layout](again)
    assert all(torch.equal(value, given[name]) for name, value in theirs.state_dict().items())
    shared = {value.data_ptr() for value in given.values()}
    assert shared == {p.data_ptr() for p in again.parameters()}
    assert not any(value.requires_grad for value in given.values())


@pytest.mark.parametrize("linear", [True, False])
def test_to_the_papers_blocks(linear: bool) -> None:
    """In the blocks of the paper's code, all omegas are 30."""
    theirs = LAYOUTS["paper, boundary values"][0](SIZES, linear)
    net = made(linear, 30, 30)
    theirs.load_state_dict(net.to_paper_state_dict(blocks=True))
    assert torch.equal(theirs.net.net[1][0].weight, net.net[1].weight.float())
    words = "omega_0 must be 30 in every layer with blocks=True, got 20.0 in net.0"
    with pytest.raises(ValueError, match=re.escape(words)):
        made(linear).to_paper_state_dict(blocks=True)
    with pytest.raises(TypeError, match="blocks must be a bool, got int"):
        net.to_paper_state_dict(blocks=1)  # type: ignore[arg-type]


def test_without_bias() -> None:
    net = made(bias=False)
    for way in WAYS.values():
        found = way(net)
        assert len(found) == 4 and not any("bias" in name for name in found)
        again = made(bias=False)
        again.load_state_dict(found)
        assert all(map(torch.equal, again.parameters(), net.parameters()))


def test_a_final_activation_has_siren_pytorchs_names() -> None:
    net = made(final_activation=nn.PReLU(3, 0.1, dtype=torch.float64))
    found = net.to_siren_pytorch_state_dict()
    assert "last_layer.activation.weight" in found and len(found) == 9
    again = made(final_activation=nn.PReLU(3, dtype=torch.float64))
    again.load_state_dict(found)
    x = points()
    assert torch.equal(again(x), net(x)) and bool((net(x) < 0).any())
    words = "final_activation must be None, got PReLU: the paper's networks have none"
    with pytest.raises(ValueError, match=words):
        net.to_paper_state_dict()


def test_a_parametrized_weight_goes_as_it_is_computed() -> None:
    net = made()
    nn.utils.parametrizations.weight_norm(net.net[0])
    for way in WAYS.values():
        assert torch.equal(next(iter(way(net).values())), net.net[0].weight)


# ---- omega


def test_a_wrong_omega_raises_with_both_numbers() -> None:
    saved = made().state_dict()
    with pytest.raises(RuntimeError) as raised:
        made(first=10, later=1).load_state_dict(saved, strict=False)
    text = str(raised.value)
    assert text.count("SineLinear: omega_0 must be ") == 3
    assert "omega_0 must be 20.0, that of the state dict, got 10.0" in text
    assert "omega_0 must be 10.0, that of the state dict, got 1.0" in text
    assert "to load the weights regardless, remove the entry 'net.0._extra_state'" in text
    other = made(first=10, later=1)
    other.load_state_dict({name: v for name, v in saved.items() if "_extra" not in name})
    assert torch.equal(other.net[2].weight, saved["net.2.weight"])
    with pytest.raises(ValueError, match="^SineLinear: omega_0 must be 5.0, .* got 20.0$"):
        made().net[0].set_extra_state(torch.tensor(5.0))


@pytest.mark.parametrize("strict", [True, False])
def test_files_without_omega_load(strict: bool) -> None:
    net = made()
    old = {name: value for name, value in net.state_dict().items() if "_extra" not in name}
    assert len(old) == 8
    assert str(made().load_state_dict(old, strict=strict)) == "<All keys matched successfully>"
    outer = nn.ModuleDict({"siren": made()})
    outer.load_state_dict({f"siren.{name}": value for name, value in old.items()}, strict=strict)
    assert torch.equal(outer["siren"].net[2].weight, net.net[2].weight)


@pytest.mark.parametrize("omega", [30.0, 33.3, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_rounded_omega_is_the_same(omega: float, dtype: torch.dtype) -> None:
    """Casting a whole state dict also casts omega."""
    layer = SineLinear(2, 3, omega_0=omega)
    layer.load_state_dict({name: value.to(dtype) for name, value in layer.state_dict().items()})
    other = SineLinear(2, 3, omega_0=omega * 1.1)
    with pytest.raises(RuntimeError, match="omega_0 must be"):
        other.load_state_dict({name: v.to(dtype) for name, v in layer.state_dict().items()})


@pytest.mark.parametrize("state", [torch.zeros(2), "30", None])
def test_an_omega_is_one_number(state: object) -> None:
    layer = SineLinear(2, 3)
    with pytest.raises(RuntimeError, match="the extra state must be one number, omega_0, got "):
        layer.load_state_dict({**layer.state_dict(), "_extra_state": state})
    layer.load_state_dict({**layer.state_dict(), "_extra_state": 30})


def saved_by_torch(state: Dict, path: Path) -> Dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def saved_by_safetensors(state: Dict, path: Path) -> Dict:
    files = pytest.importorskip("safetensors.torch")
    files.save_file(state, path / "net.safetensors")
    return files.load_file(path / "net.safetensors")


def averaged(state: Dict, path: Path) -> Dict:
    return {name: (value + value) / 2 for name, value in state.items()}


def compiled(state: Dict, path: Path) -> Dict:
    net = made()
    net.load_state_dict(state)
    given = torch.compile(copy.deepcopy(net)).state_dict()
    return {name.removeprefix("_orig_mod."): value for name, value in given.items()}


@pytest.mark.parametrize("way", [saved_by_torch, saved_by_safetensors, averaged, compiled])
def test_omega_survives(way: Callable[[Dict, Path], Dict], tmp_path: Path) -> None:
    net, x = made(), points()
    state = way(net.state_dict(), tmp_path)
    again = made()
    assert str(again.load_state_dict(state)) == "<All keys matched successfully>"
    assert torch.equal(again(x), net(x))
    with pytest.raises(
        RuntimeError, match="omega_0 must be 20.0, that of the state dict, got 30.0"
    ):
        made(first=30).load_state_dict(state)


def test_programs_that_read_state_dicts() -> None:
    """Tests functional_call, and loading with assign=True into and from the meta device."""
    net, x = made(), points()
    assert torch.equal(torch.func.functional_call(made(), net.state_dict(), x), net(x))
    with torch.device("meta"):
        empty = made()
        assert not empty.state_dict()["net.0._extra_state"].is_meta
    empty.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(empty(x), net(x))
    without = {name: value.to("meta") for name, value in net.state_dict().items()}
    empty.load_state_dict(without, assign=True)
    assert empty.net[0].weight.is_meta
    assert [name for name, _ in net.named_buffers()] == []
