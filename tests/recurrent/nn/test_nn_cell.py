"""treadle.nn.LLTMCell follows PyTorch's conventions for modules and computes what
treadle.reference.lltm_cell computes."""

from __future__ import annotations

import copy
import io
import math
import pickle
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.support.inputs import DEVICES
from treadle.nn import LLTMCell

B, I, H = 4, 5, 7  # noqa: E741


class TutorialLLTM(nn.Module):
    """A module with the parameters, and their names, of the LLTM in PyTorch's tutorial on C++
    extensions."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3 * hidden_size, hidden_size + input_size))
        self.bias = nn.Parameter(torch.randn(1, 3 * hidden_size))


def by_reference(cell: LLTMCell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return treadle.reference.lltm_cell(x, cell.weights, cell.bias, h, c)


def same(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(I,), (B, I), (0, I)])
def test_shapes_are_those_of_lstm_cell(device: str, bias: bool, shape: tuple[int, ...]) -> None:
    ours = LLTMCell(I, H, bias, device=device)
    theirs = nn.LSTMCell(I, H, bias, device=device)
    x = torch.randn(shape, device=device)
    state = torch.randn(*shape[:-1], H, device=device)
    for hx in (None, (state, state), [state, state]):
        ours_out, theirs_out = ours(x, hx), theirs(x, hx)
        assert isinstance(ours_out, tuple) and len(ours_out) == 2
        for a, b in zip(ours_out, theirs_out, strict=True):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
def test_computes_the_reference(device: str, bias: bool) -> None:
    cell = LLTMCell(I, H, bias, device=device, dtype=torch.float64)
    x, h, c = (torch.randn(B, n, device=device, dtype=torch.float64) for n in (I, H, H))
    zeros = torch.zeros_like(h)
    same(cell(x, (h, c)), by_reference(cell, x, h, c))
    same(cell(x), by_reference(cell, x, zeros, zeros))
    same(cell(x[1], (h[1], c[1])), tuple(t[1] for t in by_reference(cell, x, h, c)))
    same(cell(x[1]), tuple(t[1] for t in cell(x)))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_through_several_steps(device: str) -> None:
    cell = LLTMCell(I, H, device=device, dtype=torch.float64)
    rows = torch.randn(6, B, I, device=device, dtype=torch.float64, requires_grad=True)
    start = torch.randn(B, H, device=device, dtype=torch.float64, requires_grad=True)
    leaves = (*cell.parameters(), rows, start)
    grads = []
    for step in (cell, lambda x, hx: by_reference(cell, x, *hx)):
        hx = start, 2 * start
        for x in rows.unbind():
            hx = step(x, hx)
        grads.append(torch.autograd.grad(hx[0].sum() + hx[1].square().sum(), leaves))
    assert all(grad.abs().max() > 1e-6 for grad in grads[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_training_lowers_the_loss(device: str) -> None:
    torch.manual_seed(0)
    cell, head = LLTMCell(1, 16, device=device), nn.Linear(16, 1, device=device)
    rows = torch.randn(5, 64, 1, device=device)
    target = rows.sum(0)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(150):
        hx = None
        for x in rows.unbind():
            hx = cell(x, hx)
        loss = (head(hx[0]) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_states_start_in_the_dtype_of_the_input(device: str, dtype: torch.dtype) -> None:
    cell = LLTMCell(I, H, device=device, dtype=dtype)
    h, c = cell(torch.randn(B, I, device=device, dtype=dtype))
    assert (h.dtype, c.dtype) == (dtype, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_float32_cell_state_stays_float32(device: str, dtype: torch.dtype) -> None:
    cell = LLTMCell(I, H, device=device, dtype=dtype)
    x, h = (torch.randn(B, n, device=device, dtype=dtype) for n in (I, H))
    c = torch.full((B, H), 1e4, device=device)
    for _ in range(3):
        before = c
        h, c = cell(x, (h, c))
        assert (h.dtype, c.dtype) == (dtype, torch.float32)
        # Near 10,000, float16 and bfloat16 would lose this change to rounding.
        assert 0 < (c - before).abs().max() < 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
def test_autocast_keeps_the_cell_state_wide(device: str, inputs: torch.dtype) -> None:
    cell = LLTMCell(I, H, device=device)
    x = torch.randn(B, I, device=device, dtype=inputs)
    with torch.autocast(device, torch.bfloat16):
        hx = cell(x)
        assert (hx[0].dtype, hx[1].dtype) == (torch.bfloat16, torch.float32)
        h, c = cell(x, hx)
    assert (h.dtype, c.dtype) == (torch.bfloat16, torch.float32)
    (h.sum() + c.sum()).backward()
    assert cell.weights.grad is not None and cell.weights.grad.dtype == torch.float32


def test_parameters_are_drawn_like_those_of_lstm_cell() -> None:
    torch.manual_seed(3)
    cell = LLTMCell(100, 64)
    names = {name: tuple(p.shape) for name, p in cell.named_parameters()}
    assert names == {"weights": (192, 164), "bias": (192,)}
    for parameter in cell.parameters():
        assert parameter.requires_grad
        bound = 1 / math.sqrt(64)
        assert parameter.abs().max() <= bound
        # Initial values have the standard deviation of a uniform distribution and nearly reach its
        # bounds.
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert parameter.max() > 0.95 * bound and parameter.min() < -0.95 * bound
    before = copy.deepcopy(cell.state_dict())
    cell.reset_parameters()
    assert not torch.equal(cell.weights, before["weights"])
    torch.manual_seed(3)
    again = LLTMCell(100, 64)
    assert all(torch.equal(again.state_dict()[name], before[name]) for name in before)


def test_without_bias_there_is_no_parameter() -> None:
    cell = LLTMCell(I, H, bias=False)
    assert cell.bias is None
    assert list(cell.state_dict()) == ["weights"]


@pytest.mark.parametrize("sizes", [(0, H), (I, 0), (0, 0)])
def test_sizes_of_zero(sizes: tuple[int, int]) -> None:
    h, c = LLTMCell(*sizes)(torch.randn(B, sizes[0]))
    assert h.shape == c.shape == (B, sizes[1])


def test_meta_device() -> None:
    with torch.device("meta"):
        inside = LLTMCell(I, H)
    cell = LLTMCell(I, H, device="meta", dtype=torch.bfloat16)
    assert inside.weights.is_meta and cell.weights.is_meta and cell.bias.is_meta
    h, c = cell(torch.empty(B, I, device="meta", dtype=torch.bfloat16))
    assert h.is_meta and c.shape == (B, H)
    cell.to_empty(device="cpu").reset_parameters()
    assert cell(torch.randn(B, I).bfloat16())[0].isfinite().all()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_loads_the_state_dict_of_the_tutorial(assign: bool, detached: bool) -> None:
    tutorial = TutorialLLTM(I, H)
    saved = tutorial.state_dict(keep_vars=not detached)
    cell = LLTMCell(I, H)
    net = nn.ModuleDict({"cell": LLTMCell(I, H)})
    assert str(cell.load_state_dict(saved, assign=assign)) == "<All keys matched successfully>"
    net.load_state_dict({f"cell.{name}": value for name, value in saved.items()}, assign=assign)
    for loaded in (cell, net["cell"]):
        assert loaded.bias.shape == (3 * H,) and loaded.bias.is_leaf and loaded.bias.requires_grad
        x, h, c = torch.randn(B, I), torch.randn(B, H), torch.randn(B, H)
        expected = treadle.reference.lltm_cell(x, tutorial.weights, tutorial.bias, h, c)
        torch.testing.assert_close(loaded(x, (h, c)), expected)
    # Loading does not change the caller's dict.
    assert saved["bias"].shape == (1, 3 * H)


def test_a_bias_of_another_size_does_not_load() -> None:
    state = LLTMCell(I, H).state_dict()
    for shape in [(1, 3 * H - 1), (3, H), (2, 3 * H), (3 * H + 1,)]:
        with pytest.raises(RuntimeError, match="size mismatch for bias"):
            LLTMCell(I, H).load_state_dict({**state, "bias": torch.zeros(shape)})
    with pytest.raises(RuntimeError, match='Unexpected key.*"bias"'):
        LLTMCell(I, H, bias=False).load_state_dict({**state, "bias": torch.zeros(1, 3 * H)})


@pytest.mark.parametrize("bias", [True, False])
def test_copies_and_files_keep_everything(bias: bool) -> None:
    cell = LLTMCell(I, H, bias)
    file = io.BytesIO()
    torch.save(cell.state_dict(), file)
    file.seek(0)
    loaded = LLTMCell(I, H, bias)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(B, I)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), loaded):
        assert other.weights is not cell.weights
        assert repr(other) == repr(cell)
        assert all(torch.equal(a, b) for a, b in zip(other(x), cell(x), strict=True))


def test_says_what_it_is() -> None:
    assert repr(LLTMCell(8, 64)) == "LLTMCell(8, 64)"
    assert repr(LLTMCell(8, 64, bias=False)) == "LLTMCell(8, 64, bias=False)"


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(dynamic: bool) -> None:
    # NumPy integers as sizes must not cause a graph break.
    cell = LLTMCell(np.int64(I), np.int32(H), dtype=torch.float64)
    compiled = torch.compile(cell, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x, h, c = (torch.randn(B, n, dtype=torch.float64) for n in (I, H, H))
    same(compiled(x, (h, c)), cell(x, (h, c)))
    same(compiled(x), cell(x))
    same(compiled(x[0]), cell(x[0]))


def test_an_ensemble_by_vmap() -> None:
    cells = [LLTMCell(I, H, dtype=torch.float64) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(cells)
    x = torch.randn(B, I, dtype=torch.float64)

    def call(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(cells[0], (params, buffers), (x,))

    outs = torch.func.vmap(call)(params, buffers)
    for index, cell in enumerate(cells):
        same(tuple(out[index] for out in outs), cell(x))


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


ERRORS = {
    "features": (zeros(4, 6), None, "input must have shape [B, I] or [I] with I = 5, got [4, 6]"),
    "3-D": (zeros(2, 4, 5), None, "input must have shape [B, I] or [I] with I = 5, got [2, 4, 5]"),
    "0-D": (zeros(), None, "input must have shape [B, I] or [I] with I = 5, got []"),
    "not a pair": (zeros(4, 5), zeros(4, 7), "hx must be a pair of tensors (h, c), got Tensor"),
    "three": (
        zeros(4, 5),
        (zeros(4, 7),) * 3,
        "hx must be a pair of tensors (h, c), got tuple of length 3",
    ),
    "no tensor": (zeros(4, 5), (zeros(4, 7), None), "c must be a tensor, got NoneType"),
    "h": (zeros(4, 5), (zeros(4, 6), zeros(4, 7)), "h must have shape [B, H] = [4, 7], got [4, 6]"),
    "c": (zeros(4, 5), (zeros(4, 7), zeros(1, 7)), "c must have shape [B, H] = [4, 7], got [1, 7]"),
    "unbatched": (zeros(5), (zeros(1, 7), zeros(1, 7)), "h must have shape [H] = [7], got [1, 7]"),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_errors(case: str, device: str) -> None:
    x, hx, message = ERRORS[case]
    x = x.to(device)
    if isinstance(hx, tuple):
        hx = tuple(t.to(device) if isinstance(t, Tensor) else t for t in hx)
    kind = TypeError if "tensor" in message else ValueError
    with pytest.raises(kind, match=f"^{re.escape('LLTMCell: ' + message)}$"):
        LLTMCell(I, H, device=device)(x, hx)


@pytest.mark.parametrize("size", [-1, 2.0, "3", True, None])
@pytest.mark.parametrize("name", ["input_size", "hidden_size"])
def test_errors_of_construction(name: str, size: object) -> None:
    sizes = {"input_size": 2, "hidden_size": 3, name: size}
    message = f"LLTMCell: {name} must be an integer of at least 0, got {size!r}"
    kind = ValueError if size == -1 else TypeError
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        LLTMCell(**sizes)
