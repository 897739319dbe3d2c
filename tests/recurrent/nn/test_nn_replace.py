"""treadle.nn.replace and restore change only the forward pass of a model's modules, in place."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.recurrent.plan.test_plan import BINDINGS
from tests.support.replaced import nodes
from treadle.nn import GRU, LSTM, Replaced, replace, restore


class Mine(nn.LSTM):
    """A subclass with its own forward pass."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        return super().forward(2 * input, hx)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": True, "dtype": torch.float64}
        self.first = nn.LSTM(3, 4, 2, bidirectional=True, **options)
        self.blocks = nn.ModuleList([nn.ModuleDict({"rnn": nn.GRU(8, 4, **options)})])
        self.again = self.first
        self.last = nn.LSTM(4, 4, **options)
        self.last.weight_hh_l0 = nn.Parameter(torch.randn(16, 4, dtype=torch.float64))
        self.twin = nn.LSTM(4, 4, **options)
        self.twin.weight_hh_l0 = self.last.weight_hh_l0
        self.head = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.first(x)
        x, _ = self.blocks[0]["rnn"](x)
        x = self.last(x)[0] + self.twin(x)[0]
        y: Tensor = self.head(x)
        return y


NAMES = ["first", "blocks.0.rnn", "last", "twin"]


def rows() -> Tensor:
    return torch.randn(5, 6, 3, dtype=torch.float64)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))


def test_in_place_and_back() -> None:
    model, x = Model(), rows()
    modules, parameters = list(model.modules()), list(model.parameters())
    keys, words, before = list(model.state_dict()), repr(model), (model(x), gradients(model, x))
    for change, ours in ((replace, True), (restore, False)):
        assert change(model) == Replaced(replaced=NAMES, left={})
        pairs = (model.first, LSTM, nn.LSTM), (model.blocks[0]["rnn"], GRU, nn.GRU)
        for module, kind, theirs in pairs:
            assert type(module) is theirs and isinstance(module, kind) == ours
        assert all(map(lambda a, b: a is b, model.modules(), modules))
        assert all(map(lambda a, b: a is b, model.parameters(), parameters))
        assert model.again is model.first and model.twin.weight_hh_l0 is model.last.weight_hh_l0
        assert list(model.state_dict()) == keys and repr(model) == words
        close((model(x), gradients(model, x)), before)
        # A second call changes nothing.
        assert change(model) == Replaced(replaced=[], left={})


def test_what_runs_is_ours() -> None:
    """The replaced model supports second derivatives, and its autograd graph contains treadle's
    nodes."""
    model = Model()
    replace(model)
    x = rows().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: torch.autograd.grad(model(x).sum(), x, create_graph=True)[0], x, fast_mode=True
    )
    names = [node.name() for node in nodes(model(x).grad_fn)]
    assert names.count("RecurrentLayerBackward") == 5


def test_a_model_that_is_one() -> None:
    for kind, ours in ((nn.LSTM, LSTM), (nn.GRU, GRU)):
        model = kind(3, 4, dropout=0.25, num_layers=2).eval()
        attributes = set(vars(model))
        assert replace(model) == Replaced([""], {}) and isinstance(model, ours)
        assert not model.training and model.dropout == 0.25 and not model.recompute
        model.recompute = True
        assert repr(model).endswith("recompute=True)")
        model.recompute = False
        assert restore(model) == Replaced([""], {}) and not isinstance(model, ours)
        assert repr(model) == repr(kind(3, 4, dropout=0.25, num_layers=2))
        assert set(vars(model)) == attributes


def test_hooks_stay() -> None:
    model, calls = nn.Sequential(nn.GRU(3, 4)), []
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model[0].register_forward_hook(lambda *_: calls.append("after"))
    model[0].weight_hh_l0.register_hook(lambda grad: calls.append("grad") or 2 * grad)
    x = torch.randn(2, 3, 3)
    found = []
    for change in (lambda m: None, replace, restore):
        change(model)
        output, _ = model(x)
        found.append(torch.autograd.grad(output.sum(), model[0].weight_hh_l0)[0])
        assert calls == ["before", "after", "grad"]
        calls.clear()
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def subclass_of(kind: str, name: str) -> str:
    return (
        f"{name} is a subclass and may have its own forward pass; if that pass calls "
        f"torch.nn.{kind}.forward, define class Ours({name}, treadle.nn.{kind}) to call treadle's "
        "instead, and create the module from Ours or set its __class__ to Ours"
    )


def test_what_is_left() -> None:
    """replace() lists every recurrent module of torch that it does not replace, with the reason."""
    hooked = nn.LSTM(3, 4)
    hooked.forward = functools.partial(hooked.forward)  # type: ignore[method-assign]
    model = nn.ModuleDict(
        {"mine": Mine(3, 4), "hooked": hooked, "ours": LSTM(3, 4),
         "head": nn.Linear(4, 1), "lltm": treadle.nn.LLTM(3, 4)}
    )  # fmt: skip
    kinds = [type(m) for m in model.values()]
    found = replace(model)
    assert found.replaced == []
    assert found.left == {
        "mine": subclass_of("LSTM", "Mine"),
        "hooked": "its forward was set on the module: call replace before setting it",
    }
    assert [type(m) for m in model.values()] == kinds
    assert [isinstance(m, LSTM) for m in model.values()].count(True) == 1

    class Ours(treadle.nn.GRU):
        pass

    model = nn.ModuleList([Ours(3, 4), GRU(3, 4)])
    assert replace(model) == Replaced([], {})
    assert restore(model) == Replaced(["1"], {"0": "Ours is a subclass"})


class Padding(nn.RNNBase):
    """A class like the base of pytorch-forecasting's LSTM and GRU."""

    def forward(self, x: Tensor, hx: Any = None, lengths: Tensor | None = None) -> Any:
        output, last = super().forward(x, hx)  # type: ignore[misc]
        return (output if lengths is None else output * 0 + lengths), last


class PaddingGRU(Padding, nn.GRU):
    pass


@pytest.mark.parametrize("theirs", [Mine, PaddingGRU])
def test_the_way_that_is_named_for_subclasses(theirs: Any) -> None:
    name = "LSTM" if issubclass(theirs, nn.LSTM) else "GRU"
    model, x = nn.ModuleDict({"rnn": theirs(3, 4, 2, dtype=torch.float64)}), rows()
    expected = model["rnn"](x)
    assert replace(model).left == {"rnn": subclass_of(name, theirs.__name__)}
    ours = type("Ours", (theirs, getattr(treadle.nn, name)), {})
    made = ours(3, 4, 2, dtype=torch.float64)
    made.load_state_dict(model["rnn"].state_dict())
    model["rnn"].__class__ = ours
    for layer in (made, model["rnn"]):
        found = layer(x)
        close(found, expected)
        assert "RecurrentLayerBackward" in {node.name() for node in nodes(found[0].grad_fn)}


def test_state_dicts_go_both_ways() -> None:
    model, replaced, x = Model(), Model(), rows()
    replace(replaced)
    replaced.load_state_dict(model.state_dict())
    close(replaced(x), model(x))
    close(copy.deepcopy(replaced)(x), model(x))
    model = Model()
    model.load_state_dict(replaced.state_dict())
    close(replaced(x), model(x))


def test_trains_as_before() -> None:
    """An optimizer created before replace takes the same steps as with torch's layers."""
    torch.manual_seed(0)
    model, x = Model(), rows()
    other = copy.deepcopy(model)
    losses = []
    for each in (model, other):
        optimizer = torch.optim.Adam(each.parameters(), lr=1e-2)
        own = []
        for step in range(20):
            if each is other and step == 3:
                assert replace(each).replaced == NAMES
            loss = (each(x).sum((1, 2)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            own.append(loss.item())
        losses.append(own)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[1][-1] < 0.5 * losses[1][0]


@pytest.mark.parametrize("function", [replace, restore])
def test_refuses_what_is_no_module(function: Any) -> None:
    words = f"treadle.nn.{function.__name__}: model must be a torch.nn.Module, got dict"
    with pytest.raises(TypeError, match=f"^{words}$"):
        function({})


def test_complex_layers_are_left() -> None:
    model = nn.Sequential(nn.LSTM(3, 4, dtype=torch.complex64), nn.GRU(3, 4))
    found = replace(model)
    assert found == Replaced(["1"], {"0": "it has parameters of complex64"})
    assert type(model[0]) is nn.LSTM


class Gpu:
    """The properties of a GPU that the planner needs."""

    def __init__(self, name: str, major: int, minor: int, processors: int, shared: int) -> None:
        self.name, self.major, self.minor = name, major, minor
        self.multi_processor_count, self.L2_cache_size = processors, 6 << 20
        self.shared_memory_per_block_optin = shared << 10

    def __str__(self) -> str:
        return self.name


T4, L4, A100 = Gpu("T4", 7, 5, 40, 64), Gpu("L4", 8, 9, 58, 99), Gpu("A100", 8, 0, 108, 163)


class OnGpu(torch.Tensor):
    """A parameter that claims to be on a GPU."""

    device = torch.device("cuda")


def projected(*args: Any, **kwargs: Any) -> nn.LSTM:
    return nn.LSTM(*args, **kwargs, proj_size=64)


@BINDINGS
@pytest.mark.parametrize(
    ("gpu", "kind", "hidden", "dtype", "stays"),
    [
        (T4, nn.LSTM, 128, torch.float16, True),
        (T4, nn.GRU, 64, torch.float32, True),
        (T4, nn.LSTM, 128, torch.bfloat16, False),
        (T4, nn.LSTM, 128, torch.float64, False),
        (T4, projected, 128, torch.bfloat16, False),
        (L4, projected, 512, torch.float16, False),
        (A100, projected, 1024, torch.bfloat16, False),
        (A100, projected, 4096, torch.float16, True),
        (L4, nn.LSTM, 512, torch.float16, False),
        (L4, nn.LSTM, 1024, torch.float16, True),
        (A100, nn.LSTM, 1024, torch.float16, False),
        (A100, nn.GRU, 256, torch.float32, False),
        (A100, nn.LSTM, 2048, torch.float32, True),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_only_what_is_faster(
    gpu: Gpu,
    kind: Callable[..., nn.RNNBase],
    hidden: int,
    dtype: torch.dtype,
    stays: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), kind(2, hidden, device="meta", dtype=dtype))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert replace(copy.deepcopy(model), only_if_faster=True).left == {}  # not on a GPU
    weight = torch.empty(0, dtype=dtype).as_subclass(OnGpu)
    monkeypatch.setattr(model[1], "parameters", lambda *_, **__: iter([weight]))
    found = replace(model, only_if_faster=True)
    assert (found.replaced == []) == stays and isinstance(model[1], (LSTM, GRU)) != stays
    words = f"on {gpu.name}, a {str(dtype)[6:]} layer with hidden_size {hidden} launches a matrix"
    assert [why.startswith(words) for why in found.left.values()] == [True] * stays


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_stay_on_a_gpu_where_only_what_is_faster_is_wanted(
    kind: type[nn.RNNCellBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell: Any = kind(2, 3, device="meta")
    assert replace(copy.deepcopy(cell), only_if_faster=True).left == {}  # not on a GPU
    monkeypatch.setattr(cell, "parameters", lambda *_, **__: iter([weight]))
    weight = torch.empty(0).as_subclass(OnGpu)
    found = replace(nn.Sequential(cell), only_if_faster=True)
    assert found.replaced == []
    why = (
        "on a GPU, inference of more than 32 rows may be slower with treadle's cells than with "
        "torch's"
    )
    assert found.left == {"0": why}
