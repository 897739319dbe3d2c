"""kernels.h on CUDA, with memory that torch owns, compared with the torch ops, which run the same
kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import GATES, Layer, Sizes, backward, forward
from tests.c_api.native import cuda
from tests.support.inputs import GPU, HALVES, HOPPER

pytestmark = GPU


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize(
    "view",
    [lambda x: x, lambda x: x.t(), lambda x: x[::2, 1::3], lambda x: x[:1].expand(37, -1)],
    ids=["dense", "transposed", "sliced", "expanded"],
)
def test_elementwise_has_the_bits_of_the_ops(
    dtype: torch.dtype, view: Callable[[Tensor], Tensor]
) -> None:
    x = view(random(37, 53, dtype=dtype))
    y = random(*x.shape, dtype=dtype)
    out = torch.empty_like(y)
    array = native.array
    native.call("treadle_sine", cuda(), array(x), array(out))
    assert torch.equal(out, torch.ops.treadle.sine(x))
    native.call("treadle_cosine_backward", cuda(), array(y), array(x), array(out))
    assert torch.equal(out, torch.ops.treadle.cosine_backward(y, x))
    native.call("treadle_vector_add", cuda(), array(x), array(y), native.number(0.5), array(out))
    assert torch.equal(out, torch.ops.treadle.vector_add(x, y, alpha=0.5))


@pytest.mark.usefixtures("much_memory")
def test_more_bytes_than_32_bits_reach() -> None:
    x = random(3, 1).expand(3, (1 << 29) + 5)
    out = torch.empty((1 << 29) + 5, 3, device="cuda").t()
    native.call("treadle_scale", cuda(), native.array(x), native.number(2.0), native.array(out))
    assert torch.equal(out[:, -1], 2 * x[:, -1]) and torch.equal(out[:, 1 << 28], 2 * x[:, 0])


def test_in_place_on_a_stream() -> None:
    stream = torch.cuda.Stream()
    x = random(1 << 20)
    expected = 2 * x
    torch.cuda.synchronize()
    native.call("treadle_scale", cuda(stream), native.array(x), native.number(2.0), native.array(x))
    stream.synchronize()
    assert torch.equal(x, expected)


def test_in_a_captured_graph() -> None:
    x, out = random(1000), torch.zeros(1000, device="cuda")
    native.call("treadle_sine", cuda(), native.array(x), native.array(out))  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream()
        native.call("treadle_sine", cuda(stream), native.array(x), native.array(out))
    x.fill_(1.0)
    graph.replay()
    assert torch.equal(out, torch.ops.treadle.sine(x))


def close(actual: Tensor, expected: Tensor) -> None:
    half = expected.dtype in HALVES
    scale = expected.float().abs().max().item() + 1e-3
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=0, atol=scale * (2e-2 if half else 2e-5)
    )


@HOPPER
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("hidden", [64, 1024], ids=["cluster", "grid"])
def test_layers_are_those_of_the_ops(
    cell: str, dtype: torch.dtype, hidden: int, allow_tf32: Callable[..., None]
) -> None:
    allow_tf32(False)
    sizes = Sizes(6, 11, hidden, 16, 2 if hidden < 512 else 1)
    layer = Layer.random(cell, sizes, dtype).on_cuda()
    output, h_n, c_n, gates = forward(layer, on=cuda())
    op = torch.ops.treadle
    expected = op.recurrent_layer_forward(*layer.arguments, cell=cell)
    for mine, other in zip((output, h_n, c_n), expected[:3], strict=True):
        close(mine, other)

    grads = torch.randn_like(output), torch.randn_like(h_n), torch.randn_like(c_n)
    found = backward(layer, gates, grads, on=cuda())
    mask = [True] * 3 + [False] * 6
    reference = op.recurrent_layer_backward(
        *grads, *layer.arguments, expected[0], expected[3], cell, False, "auto", mask
    )
    close(found[1], reference[1])
    close(found[2], reference[2])
    first = 1 if cell == "gru" else 0
    of_input = found[0].float()[..., first * hidden :]
    grad_input = torch.einsum("dtbg,dgi->tbi", of_input, layer.weight_ih.float())
    close(grad_input.to(dtype), reference[0])


@HOPPER
def test_a_layer_that_does_not_fit_is_told_before() -> None:
    size = ctypes.c_size_t()
    for hidden, dtype in ((20, torch.bfloat16), (64, torch.float64), (4096, torch.bfloat16)):
        layer = native.Recurrent(
            native.LSTM, 1, native.DTYPES[dtype], native.DTYPES[dtype], 8, 4, hidden
        )
        status = native.status_of(
            "treadle_recurrent_workspace", cuda(), layer, 0, ctypes.byref(size)
        )
        assert status == native.UNSUPPORTED
        assert "layer must run in one launch, got one that does not: " in native.error_text()


@HOPPER
@pytest.mark.parametrize("cell", [native.LLTM, native.LSTM, native.GRU])
def test_a_layer_whose_weights_fit_runs_whatever_else_is_faster(cell: int) -> None:
    """kernels.h accepts single steps and thousands of rows, for which the torch ops would launch a
    kernel per step."""
    size, half = ctypes.c_size_t(), native.DTYPES[torch.bfloat16]
    c_dtype = native.DTYPES[torch.float32] if cell == native.GRU else half
    for steps, batch in ((1, 4), (24, 8192)):
        for backward_pass in (0, 1):
            layer = native.Recurrent(cell, 1, half, c_dtype, steps, batch, 256)
            status = native.status_of(
                "treadle_recurrent_workspace", cuda(), layer, backward_pass, ctypes.byref(size)
            )
            assert status == native.OK, native.error_text()


def test_memory_of_the_host_and_gpus_that_are_not_there() -> None:
    x, host = random(8), torch.zeros(8)
    for device, arrays, words in (
        (cuda(), (host, x), "x.data must be memory of GPU 0, got memory of the host"),
        (cuda(), (x, host), "out.data must be memory of GPU 0, got memory of the host"),
        (cuda(index=99), (x, x), "device.index must be"),
        (native.cpu(), (x, host), "x.data must be memory of the CPU"),
        (native.cpu(), (host, x), "out.data must be memory of the CPU"),
    ):
        status = native.status_of("treadle_sine", device, *map(native.array, arrays))
        assert status == native.INVALID and words in native.error_text()
    assert torch.equal(host, torch.zeros(8))


def test_launches_are_recorded_with_what_they_use() -> None:
    x = random(1000)
    native.library().treadle_clear_launches()
    native.library().treadle_record_launches(1)
    try:
        native.call("treadle_sine", cuda(), native.array(x), native.array(x))
    finally:
        native.library().treadle_record_launches(0)
    assert native.library().treadle_launch_count() == 1
    launch = native.Launch()
    native.call("treadle_get_launch", 0, launch)
    assert launch.registers > 0 and launch.block[0] > 0 and 0 < launch.occupancy <= 1
    native.library().treadle_clear_launches()
