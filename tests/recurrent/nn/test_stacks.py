"""Calls of several layers without derivatives: the layers run below the dispatcher, start from
zeros if the caller gives no states, and write their last states into the results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.recurrent.support.layer_cases import layer_arguments
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, GPU, Make
from tests.support.rule import obeys

ONE_STATE = ("GRU", "RNN")
EACH_CELL = pytest.mark.parametrize("cell", ["LLTM", "LSTM", "GRU", "RNN"])
# T, B, I, H. With the first sizes, the last states of all layers are aligned to 16 bytes; with the
# second sizes they are not. The others have a single step, sizes of 1, or no elements.
SIZES = ((7, 4, 8, 16), (5, 3, 5, 7), (1, 3, 6, 8), (3, 1, 1, 1), (0, 2, 3, 4), (4, 0, 3, 4))


class Seen(TorchDispatchMode):
    """Counts ops. This mode intercepts every op, so each layer runs as a separate op."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.name()] += 1
        return func(*args, **(kwargs or {}))


def net_of(
    cell: str, sizes: tuple[int, ...], device: str, dtype: torch.dtype, **options: Any
) -> Any:
    torch.manual_seed(3)
    net = getattr(treadle.nn, cell)(*sizes[2:], **{"num_layers": 3} | options)
    return net.to(device, dtype).requires_grad_(False)


def flat(found: Any) -> list[Tensor]:
    """All tensors in a module's result."""
    if isinstance(found, PackedSequence):
        return [found.data]
    if isinstance(found, Tensor):
        return [found]
    return [t for each in found for t in flat(each)]


def same_below_the_dispatcher(net: Any, *args: Any, **options: Any) -> list[Tensor]:
    found = flat(net(*args, **options))
    with Seen() as seen:
        expected = flat(net(*args, **options))
    assert seen.names["treadle::recurrent_layer"] == net.num_layers
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        same_bits(ours, theirs)
    return found


def inputs(net: Any, sizes: tuple[int, ...], form: str) -> tuple[Any, dict[str, Any]]:
    t, b, i, h = sizes
    weight = net.weight_ih_l0
    x = torch.randn(t, b, i).to(weight)
    if form == "packed":
        lengths = torch.arange(t + b, t, -1).clamp_max(t)
        lengths = torch.linspace(t, 1, b).long() if b > 1 else lengths
        return torch.nn.utils.rnn.pack_padded_sequence(x, lengths), {}
    if form != "reset":
        return x.transpose(0, 1).contiguous() if net.batch_first else x, {}
    marks = (torch.rand(t, b) < 0.3).to(weight.device)
    states = [torch.randn(net.num_layers * (1 + net.bidirectional), b, h).to(weight)] * 2
    return x, {"reset": marks, "reset_hx": states[0] if len(net._front.states) == 1 else states}


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("form", ["rows", "batch_first", "packed", "reset"])
@pytest.mark.parametrize("device", DEVICES)
@EACH_CELL
def test_results_are_those_of_single_layers(
    cell: str, device: str, form: str, bidirectional: bool
) -> None:
    for sizes in SIZES:
        if (form == "packed" and 0 in sizes) or (cell != "LLTM" and sizes[0] == 0):
            continue  # torch refuses these sizes
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            options = {"batch_first": form == "batch_first", "bidirectional": bidirectional}
            net = net_of(cell, sizes, device, dtype, **options)
            x, given = inputs(net, sizes, form)
            output, *last = same_below_the_dispatcher(net, x, **given)
            shape = (3 * (1 + bidirectional), sizes[1], sizes[3])
            zeros = torch.zeros(shape, device=device, dtype=dtype)
            hx = zeros if cell in ONE_STATE else (zeros, zeros)
            for ours, theirs in zip((output, *last), flat(net(x, hx, **given)), strict=True):
                same_bits(ours, theirs)
            h, c = (torch.randn(shape).to(zeros) for _ in range(2))
            for begin in (h, h.transpose(0, 2).contiguous().transpose(0, 2)):
                same_below_the_dispatcher(
                    net, x, begin if cell in ONE_STATE else (begin, c), **given
                )
            if cell not in ONE_STATE and dtype == torch.bfloat16 and form != "reset":
                same_below_the_dispatcher(net, x, (h, c.float()), **given)


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
def test_results_have_memory_of_their_own(cell: str, device: str) -> None:
    net = net_of(cell, SIZES[0], device, torch.float32)
    x = torch.randn(*SIZES[0][:3], device=device)
    output, *last = flat(net(x))
    assert all(t.is_contiguous() for t in last)
    results = [output, *last]
    assert all(t.untyped_storage().nbytes() == 4 * t.numel() for t in results)
    assert len({t.untyped_storage().data_ptr() for t in results}) == len(results)
    hx = [t.clone() for t in last]
    net(x, hx[0] if cell in ONE_STATE else hx)
    for ours, theirs in zip(hx, last, strict=True):
        same_bits(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@EACH_CELL
def test_zeros_in_fresh_memory(
    cell: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch fills new memory with NaN, which shows elements that are not written."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        for sizes in SIZES:
            if sizes[0] == 0 and cell != "LLTM":
                continue  # torch's modules refuse empty sequences
            net = net_of(cell, sizes, device, dtype)
            x = torch.randn(*sizes[:3]).to(device, dtype)
            zeros = x.new_zeros(3, sizes[1], sizes[3])
            expected = flat(net(x, zeros if cell in ONE_STATE else (zeros, zeros)))
            for ours, theirs in zip(flat(net(x)), expected, strict=True):
                assert not ours.isnan().any()
                same_bits(ours, theirs)
    finally:
        torch.use_deterministic_algorithms(False)


def names_of(run: Any) -> Counter[str]:
    run()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return Counter(e.name for e in seen.events())


@EACH_CELL
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("device", DEVICES)
def test_no_op_of_torch_joins_the_layers(cell: str, device: str, bidirectional: bool) -> None:
    sizes = (6, 4, 8, 16)
    net = net_of(cell, sizes, device, torch.float32, bidirectional=bidirectional)
    x = torch.randn(*sizes[:3], device=device)
    found = names_of(lambda: net(x))
    assert found["treadle::recurrent_layer"] == 3
    refused = ("aten::stack", "aten::narrow", "aten::slice", "aten::zeros", "aten::clone")
    assert not any(found[name] for name in refused), found
    # In each of 3 layers, a cat joins the parameters of two directions. h_n and c_n need none.
    assert found["aten::cat"] == (6 if bidirectional else 0) / 2, found
    # Memory is filled at most once for all layers, with or without initial states.
    assert found["aten::zero_"] + found["aten::fill_"] <= 1, found


@EACH_CELL
def test_derivatives_and_transforms_see_every_layer(cell: str) -> None:
    sizes = (4, 2, 3, 5)
    net = net_of(cell, sizes, "cpu", torch.float64)
    x = torch.randn(*sizes[:3], dtype=torch.float64)
    plain = flat(net(x))

    wanted = x.clone().requires_grad_()
    assert all(t.requires_grad for t in flat(net(wanted)))
    with torch.no_grad():
        assert not any(t.requires_grad for t in flat(net(wanted)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with torch.no_grad():  # forward-mode AD ignores no_grad
            tangents = [torch.autograd.forward_ad.unpack_dual(t).tangent for t in flat(net(dual))]
    assert all(t is not None and t.abs().sum() > 0 for t in tangents)
    mapped = torch.func.vmap(lambda rows: tuple(flat(net(rows))))(torch.stack([x, 2 * x]))
    for ours, theirs in zip(mapped, plain, strict=True):
        torch.testing.assert_close(ours[0], theirs)
    by_input = torch.func.jacrev(lambda rows: flat(net(rows))[0].sum())(x)
    assert by_input.shape == x.shape and by_input.abs().sum() > 0


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
def test_lower_precision_under_autocast(cell: str, device: str) -> None:
    net = net_of(cell, SIZES[0], device, torch.float32)
    x = torch.randn(*SIZES[0][:3], device=device)
    with torch.autocast(device, torch.bfloat16):
        found = same_below_the_dispatcher(net, x)
    assert found[0].dtype == (
        torch.float32 if device == "cpu" and cell == "GRU" else torch.bfloat16
    )


def test_errors_without_states_are_those_of_the_layer() -> None:
    net = net_of("LSTM", SIZES[0], "cpu", torch.float32)
    x = torch.randn(*SIZES[0][:3])
    zeros = x.new_zeros(3, 4, 16)
    texts = []
    for shape in ((64, 3), (64,), ()):
        net.weight_hh_l1 = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
        for hx in (None, (zeros, zeros)):
            with pytest.raises(RuntimeError, match="lstm: weight_hh must have shape") as error:
                net(x, hx)
            texts.append(str(error.value))
    assert texts[::2] == texts[1::2]


@GPU
@pytest.mark.parametrize("steps", [1, 5, 70])  # 70 steps run as CUDA graphs (StepGraphs)
@pytest.mark.parametrize("algorithm", ["step", "warp"])
@EACH_CELL
def test_only_the_first_step_reads_the_states_that_are_given(
    cell: str, algorithm: str, steps: int
) -> None:
    name = "rnn_tanh" if cell == "RNN" else cell.lower()
    call = layer_arguments(Make("first", "cuda", torch.float32), (steps, 3, 5, 16), cell=name)
    obeys(OPS[f"recurrent_layer {name}"], call.with_options(algorithm=algorithm))


@GPU
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
def test_a_stack_of_narrow_layers_launches_products_and_layers_alone(given: bool) -> None:
    sizes = (100, 128, 24, 40)
    net = net_of("LSTM", sizes, "cuda", torch.float32)
    x = torch.randn(*sizes[:3], device="cuda")
    hx = (torch.randn(3, 128, 40, device="cuda"),) * 2 if given else None
    net(x, hx)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        net(x, hx)
        torch.cuda.synchronize()
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    names = [e.name for e in sorted(kernels, key=lambda e: e.time_range.start)]
    assert len(names) == 6 and all("block_forward" in name for name in names[1::2]), names
