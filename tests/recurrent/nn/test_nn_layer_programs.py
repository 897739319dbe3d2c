"""treadle.nn.LLTM in programs: compile, export, checkpoint, parametrize, vmap, training."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES
from treadle.nn import LLTM

T, B, I, H = 4, 3, 5, 7  # noqa: E741
FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
    {"num_layers": 2, "recompute": True},
]


def flat(result: Any) -> tuple[Tensor, ...]:
    output, (h, c) = result
    return (output.data if isinstance(output, PackedSequence) else output, h, c)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(flat(actual), flat(expected), rtol=1e-12, atol=1e-12)


def states(layer: LLTM, *batch: int) -> tuple[Tensor, Tensor]:
    count = layer.num_layers * (1 + layer.bidirectional)
    return tuple(  # type: ignore[return-value]
        torch.randn(count, *batch, H).to(layer.weight_ih_l0) for _ in range(2)
    )


def batch_of(layer: LLTM, steps: int = T, rows: int = B) -> Tensor:
    shape = (rows, steps, I) if layer.batch_first else (steps, rows, I)
    return torch.randn(shape).to(layer.weight_ih_l0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(form: dict[str, Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    layer = LLTM(I, H, **form, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x = batch_of(layer)
    close(compiled(x), layer(x))
    close(compiled(x, states_ := states(layer, B)), layer(x, states_))
    close(compiled(x[0], states_ := states(layer)), layer(x[0], states_))
    grads = []
    for call in (compiled, layer):
        output, (h, c) = call(x)
        loss = output.square().sum() + (h * c).sum()
        grads.append(torch.autograd.grad(loss, list(layer.parameters())))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("with_hx", [True, False])
def test_compiles_packed_sequences(is_sorted: bool, with_hx: bool) -> None:
    torch._dynamo.reset()
    layer = LLTM(I, H, bidirectional=True, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    lengths = (4, 2, 1) if is_sorted else (2, 4, 1)
    rows = [torch.randn(length, I, dtype=torch.float64) for length in lengths]
    packed = pack_sequence(rows, enforce_sorted=is_sorted)
    hx = states(layer, B) if with_hx else None
    close(compiled(packed, hx), layer(packed, hx))
    if hx is not None:
        # The call raises the op's error, or a compiler error that contains the module's error.
        with pytest.raises(RuntimeError):
            compiled(packed, states(layer, B - 1))
        with pytest.raises(torch._dynamo.exc.Unsupported):  # not an internal error of the compiler
            compiled(packed, (hx[0][0, 0], hx[1]))


def test_compiled_sizes_do_not_compile_again() -> None:
    torch._dynamo.reset()
    layer = LLTM(I, H, num_layers=2, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for steps, rows in ((4, 3), (5, 6), (17, 2)):
            x = batch_of(layer, steps, rows)
            close(compiled(x), layer(x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strict", [False, True])
def test_exports(form: dict[str, Any], strict: bool) -> None:
    layer = LLTM(I, H, **form, dtype=torch.float64).eval()
    x, hx = batch_of(layer), states(layer, B)
    steps, rows = torch.export.Dim("steps", max=4096), torch.export.Dim("rows", max=4096)
    sizes = {0: rows, 1: steps} if layer.batch_first else {0: steps, 1: rows}
    dynamic = (sizes, ({1: rows}, {1: rows}))
    program = torch.export.export(layer, (x, hx), dynamic_shapes=dynamic, strict=strict)
    x, hx = batch_of(layer, 9, 2), states(layer, 2)
    close(program.module()(x, hx), layer(x, hx))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_checkpointing_changes_no_gradient(device: str, reentrant: bool, autocast: bool) -> None:
    layer = LLTM(I, H, num_layers=2, dropout=0.5, device=device)
    x = torch.randn(T, B, I, device=device, requires_grad=True)
    found = []

    def call(x: Tensor) -> tuple[Tensor, ...]:
        return flat(layer(x))

    for again in (False, True):
        layer.zero_grad()
        x.grad = None
        torch.manual_seed(1)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            # Reentrant checkpointing does not see tensors in a nested tuple.
            run = (lambda x: checkpoint(call, x, use_reentrant=reentrant)) if again else call
            output, h, c = run(x)
        (output.float().square().sum() + (h * c).float().sum()).backward()
        found.append([p.grad for p in (x, *layer.parameters())])
    for ours, expected in zip(*found, strict=True):
        same_bits(ours, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
def test_autocast_keeps_the_cell_state_wide(device: str, inputs: torch.dtype) -> None:
    layer = LLTM(I, H, num_layers=2, device=device)
    x = torch.randn(T, B, I, device=device, dtype=inputs)
    half = LLTM(I, H, num_layers=2, device=device, dtype=torch.bfloat16)
    half.load_state_dict(layer.state_dict())
    with torch.autocast(device, torch.bfloat16):
        output, (h, c) = layer(x)
        assert (output.dtype, h.dtype, c.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
        again = layer(x, (h, c))
    zeros = torch.zeros(2, B, H, device=device)
    for ours, expected in zip(
        flat(again),
        flat(half(x.bfloat16(), half(x.bfloat16(), (zeros.bfloat16(), zeros))[1])),
        strict=True,
    ):
        same_bits(ours, expected)
    (again[0].float().sum() + again[1][1].sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l1_reverse", "bias_l0_reverse"])
def test_parametrizations(name: str) -> None:
    """The layer uses a parametrized tensor, and the original parameter gets a gradient."""

    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return 2 * value

    layer = LLTM(I, H, num_layers=2, bidirectional=True, dtype=torch.float64)
    x = batch_of(layer)
    doubled = copy.deepcopy(layer)
    getattr(doubled, name).data.mul_(2)
    expected = doubled(x)
    parametrize.register_parametrization(layer, name, Twice())
    for call in (layer, copy.deepcopy(layer)):
        close(call(x), expected)
    layer(x)[0].sum().backward()
    original = getattr(layer.parametrizations, name).original
    torch.autograd.backward(expected[0].sum())
    torch.testing.assert_close(original.grad, 2 * getattr(doubled, name).grad)
    parametrize.remove_parametrizations(layer, name)
    close(layer(x), expected)


@pytest.mark.parametrize("old", [False, True])
def test_weight_norm(old: bool) -> None:
    layer = LLTM(I, H, dtype=torch.float64)
    x = batch_of(layer)
    before = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # nn.utils.weight_norm is deprecated
        (nn.utils.weight_norm if old else parametrizations.weight_norm)(layer, "weight_hh_l0")
    close(layer(x), before)
    layer(x)[0].sum().backward()
    grads = [p.grad for name, p in layer.named_parameters() if "weight_hh" in name]
    assert len(grads) == 2 and all(grad is not None and grad.any() for grad in grads)
    if not old:
        orthogonal = parametrizations.orthogonal(LLTM(I, H), "weight_hh_l0")
        assert orthogonal(torch.randn(T, B, I))[0].isfinite().all()


def test_functional_call_and_an_ensemble_by_vmap() -> None:
    layers = [LLTM(I, H, 2, bidirectional=True, dtype=torch.float64) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(layers)
    x = batch_of(layers[0])

    def call(params: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(layers[0], (params, buffers), (x,))

    close(call(dict(layers[1].named_parameters())), layers[1](x))
    outs = flat(torch.func.vmap(call)(params))
    loss = torch.func.vmap(torch.func.grad(lambda params: call(params)[0].square().sum()))
    grads = loss({name: p.detach() for name, p in params.items()})
    for index, layer in enumerate(layers):
        torch.testing.assert_close(
            tuple(out[index] for out in outs), flat(layer(x)), rtol=1e-12, atol=1e-12
        )
        layer(x)[0].square().sum().backward()
        for name, p in layer.named_parameters():
            torch.testing.assert_close(grads[name][index], p.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recompute", [False, True])
def test_learns_where_the_marked_number_stood(device: str, recompute: bool) -> None:
    """Two bidirectional layers learn to output, at every step, the number at the marked step."""
    torch.manual_seed(0)
    layer = LLTM(2, 16, 2, bidirectional=True, device=device, recompute=recompute)
    head = nn.Linear(32, 1, device=device)
    values = torch.randn(8, 64, device=device)
    marks = torch.zeros_like(values)
    marks[torch.arange(64) % 8, torch.arange(64)] = 1
    target = (values * marks).sum(0).expand(8, -1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(120):
        output, _ = layer(torch.stack([values, marks], dim=-1))
        loss = (head(output).squeeze(-1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0], losses[::20]


@pytest.mark.parametrize("device", DEVICES)
def test_the_function_takes_its_arguments_by_name(device: str) -> None:
    layer = LLTM(I, H, device=device)
    x = torch.randn(T, B, I, device=device)
    hx = [torch.randn(1, B, H, device=device)] * 2
    settings = {
        "hx": hx,
        "params": list(layer.parameters()),
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": False,
    }
    expected = flat(layer(x, hx))
    padded = treadle.lltm(input=x, **settings, batch_first=False)
    sizes = torch.full((T,), B)
    packed = treadle.lltm(data=x.flatten(0, 1), batch_sizes=sizes, **settings, recompute=True)
    mixed = treadle.lltm(x.flatten(0, 1), batch_sizes=sizes, **settings)
    for found in (padded, packed, mixed):
        torch.testing.assert_close(found[0].view(T, B, H), expected[0])
        torch.testing.assert_close(found[1:], expected[1:])
