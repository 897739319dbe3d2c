"""Modules that treadle.nn.replace has changed keep torch's class but run treadle's forward pass.
Tests copies of them, computed weights, other tools that set `forward`, and the compiler."""

from __future__ import annotations

import abc
import copy
import functools
import gc
import inspect
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations, parametrize, prune

import treadle
from tests.support.replaced import EACH, B, H, I, Net, T, X, in_file, is_ours, replaced
from treadle.nn import Replaced, replace, restore


@EACH
def test_it_is_of_both_classes(kind: str) -> None:
    net = replaced(kind)
    theirs, ours = getattr(nn, kind), getattr(treadle.nn, kind)
    assert type(net.rnn) is theirs and isinstance(net.rnn, ours) and is_ours(net)

    class Sub(ours):  # type: ignore[misc]
        pass

    class WithAbstract(abc.ABC, nn.Module):
        pass

    class Mixed(WithAbstract, ours):  # type: ignore[misc]
        pass

    assert not isinstance(net.rnn, Sub) and not isinstance(Net(kind).rnn, ours)
    assert isinstance(Sub(I, H), ours) and isinstance(Mixed(I, H), ours)
    other = treadle.nn.GRU if kind == "LSTM" else treadle.nn.LSTM
    assert not isinstance(net.rnn, other) and not isinstance(net, ours)
    assert restore(net) == Replaced(["rnn"], {}) and not isinstance(net.rnn, ours)
    assert not is_ours(net)


@EACH
def test_its_arguments_are_ours(kind: str) -> None:
    net, ours = replaced(kind), getattr(treadle.nn, kind)
    assert inspect.signature(net.rnn.forward) == inspect.signature(ours(I, H).forward)
    output, _ = net.rnn(X, lengths=torch.full((B,), T), reset=torch.zeros(B, T, dtype=torch.bool))
    torch.testing.assert_close(output, net.rnn(X)[0])
    step = treadle.nn.make_step(net.rnn, B)
    assert torch.equal(step(X[:, 0]), net.rnn(X[:, :1])[0][:, 0])
    with pytest.raises(RuntimeError, match=f"{kind}: the state dict must be an? {kind}'s, got a"):
        net.rnn.load_state_dict((nn.GRU if kind == "RNN" else nn.RNN)(I, H).state_dict())


@EACH
def test_memory_is_freed_with_the_last_reference(kind: str) -> None:
    net = replaced(kind)
    net(X).sum().backward()
    weight, forward = weakref.ref(net.rnn.weight_hh_l0), net.rnn.forward
    gc.disable()
    try:
        del net
        assert weight() is None
    finally:
        gc.enable()
    words = f"{kind}: the module must still exist when its forward is called"
    with pytest.raises(RuntimeError, match=words):
        forward(X)


def thrown_away(net: Net) -> None:
    """Sets all parameters of net.rnn to about 0, to show whose parameters a copy reads."""
    with torch.no_grad():
        for name, parameter in net.rnn.named_parameters():
            parameter.zero_() if "original" not in name else parameter.fill_(1e-9)


COPIES: dict[str, Callable[[Net], Net]] = {
    "deepcopy": copy.deepcopy,
    "of a list": lambda net: copy.deepcopy([net.rnn.forward, net])[1],  # type: ignore[return-value]
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "file": lambda net: in_file(
        functools.partial(torch.save, net), functools.partial(torch.load, weights_only=False)
    ),
}


@EACH
@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("parametrized", [False, True])
def test_copies_call_themselves(kind: str, way: str, parametrized: bool) -> None:
    net = replaced(kind)
    if parametrized:
        if way in ("pickle", "file"):
            pytest.skip("torch refuses to pickle parametrized modules")
        parametrize.register_parametrization(net.rnn, "weight_hh_l0", nn.Identity())
    net.rnn.recompute = True
    expected = net(X)
    copied = COPIES[way](net)
    thrown_away(copied)
    # Neither module reads the other's weights.
    assert torch.equal(net(X), expected) and is_ours(copied) and copied.rnn.recompute
    assert copied.rnn(X)[0].abs().max() < 1e-6
    assert restore(copied) == Replaced(["rnn"], {}) and not is_ours(copied) and is_ours(net)


@EACH
def test_a_shallow_copy_is_replaced_again(kind: str) -> None:
    """Until it is replaced again, a shallow copy calls the original module."""
    layer = replaced(kind).rnn
    shallow = copy.copy(layer)
    shallow._parameters = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    assert not isinstance(shallow, getattr(treadle.nn, kind))
    assert replace(shallow) == Replaced([""], {})
    assert shallow(X)[0].abs().max() == 0 < layer(X)[0].abs().max()


@EACH
def test_replicas_of_data_parallel(kind: str) -> None:
    layer = replaced(kind).rnn
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer.named_parameters():
        setattr(replica, name, torch.zeros_like(parameter))  # like torch.nn.parallel.replicate
    assert replica(X)[0].abs().max() == 0 < layer(X)[0].abs().max()
    again = replica._replicate_for_data_parallel()
    assert again.forward.__self__.layer is again


@EACH
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_data_parallel_on_two_gpus(kind: str) -> None:
    net = replaced(kind).cuda()
    given = X.cuda()
    wanted = net(given)
    found = nn.DataParallel(net, [0, 1])(given)
    torch.testing.assert_close(found, wanted)
    grads = [torch.autograd.grad(y.sum(), list(net.parameters())) for y in (found, wanted)]
    torch.testing.assert_close(*grads)
    assert is_ours(net.cpu())


@EACH
def test_a_forward_that_another_tool_has_set(kind: str) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    net, plain = replaced(kind), Net(kind)
    for each in (net, plain):
        hooks.add_hook_to_module(each.rnn, hooks.ModelHook())
    assert is_ours(net) and isinstance(net.rnn, getattr(treadle.nn, kind))
    words = "its forward was set on the module"
    assert replace(plain).left == {"rnn": f"{words}: call replace before setting it"}
    assert restore(net).left == {"rnn": f"{words} after replace: remove that forward first"}
    assert is_ours(net) and not is_ours(plain)
    hooks.remove_hook_from_module(net.rnn)
    assert is_ours(net) and restore(net) == Replaced(["rnn"], {}) and not is_ours(net)


@EACH
def test_computed_weights(kind: str) -> None:
    """Both versions of weight_norm and pruning compute weights correctly, whether they are applied
    before or after replace."""
    ways: list[tuple[Any, Any]] = [
        (parametrizations.weight_norm, parametrize.remove_parametrizations),
        (torch.nn.utils.weight_norm, torch.nn.utils.remove_weight_norm),
        (functools.partial(prune.l1_unstructured, amount=0.4), prune.remove),
    ]
    for norm, remove in ways:
        for before in (True, False):
            net, plain = Net(kind), Net(kind)
            if not before:
                assert replace(net).replaced == ["rnn"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the older weight_norm is deprecated
                for each in (net, plain):
                    norm(each.rnn, "weight_hh_l0")
            if before:
                assert replace(net) == Replaced(["rnn"], {})
            for _ in range(2):
                torch.testing.assert_close(net(X), plain(X))
                grads = [
                    torch.autograd.grad(m(X).sum(), list(m.parameters())) for m in (net, plain)
                ]
                torch.testing.assert_close(*grads)
                for each in (net, plain):
                    with torch.no_grad():
                        for name, parameter in each.rnn.named_parameters():
                            if "_g" in name or "original0" in name:
                                parameter.mul_(0.5)
            assert is_ours(net)
            remove(net.rnn, "weight_hh_l0")
            remove(plain.rnn, "weight_hh_l0")
            torch.testing.assert_close(net(X), plain(X))
            assert is_ours(net) and restore(net) == Replaced(["rnn"], {}) and not is_ours(net)


@EACH
def test_functional_call(kind: str) -> None:
    net, plain = replaced(kind), Net(kind)
    values = {name: 2 * p for name, p in plain.named_parameters()}
    call = functional_call(net, values, (X,))
    torch.testing.assert_close(call, functional_call(plain, values, (X,)))
    torch.testing.assert_close(net(X), plain(X))
    assert is_ours(net)

    def loss(values: dict[str, Tensor], row: Tensor, model: Net) -> Tensor:
        return functional_call(model, values, (row[None],)).sum()  # type: ignore[no-any-return]

    values = {name: p.detach() for name, p in net.named_parameters()}
    rows = vmap(grad(loss), (None, 0, None))(values, X, net)
    for row in (0, 4):
        wanted = torch.autograd.grad(plain(X[row][None]).sum(), list(plain.parameters()))
        torch.testing.assert_close([each[row] for each in rows.values()], list(wanted))
    assert is_ours(net)


# ---- torch.compile, torch.export, torch.fx


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_compiles_without_graph_breaks(kind: str) -> None:
    net = replaced(kind)
    with torch._dynamo.config.patch(allow_rnn=True, error_on_recompile=True):
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=True)
        for rows in (5, 3, 8):
            x = torch.randn(rows, T, I)
            torch.testing.assert_close(compiled(x), net(x))
            with torch.no_grad():
                net.rnn.weight_hh_l0.mul_(0.5)
    assert not torch._dynamo.utils.counters["graph_break"]


@EACH
@pytest.mark.usefixtures("fresh_compile")
def test_the_compiler_compiles_as_much_as_with_torchs(kind: str) -> None:
    found = []
    for change in (replace, lambda model: None):
        torch._dynamo.reset()
        counter = CompileCounter()
        layers = nn.ModuleList([getattr(nn, kind)(I, H, n) for n in (1, 2, 3)])
        change(layers)
        compiled = torch.compile(lambda x, m=layers: [n(x)[0].sum() for n in m], backend=counter)
        for rows in (2, 3, 4):
            compiled(torch.randn(T, rows, I))
        found.append(counter.frame_count)
    assert found[0] == found[1]


@EACH
def test_exports_and_traces(kind: str) -> None:
    net = replaced(kind)
    program = torch.export.export(net, (X,))
    assert f"treadle.{kind.lower()}" in str(program.graph)
    torch.testing.assert_close(program.module()(X), net(X))
    graph = torch.fx.symbolic_trace(net)
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"] == ["rnn", "head"]
    assert graph.rnn is net.rnn and torch.equal(graph(X), net(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.trace is deprecated
        trace = torch.jit.trace(net, (X,), check_trace=False)
    assert "treadle::" in str(trace.inlined_graph)
    assert torch.equal(trace(X[:3]), net(X[:3]))
