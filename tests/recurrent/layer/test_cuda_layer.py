"""recurrent_layer on a GPU: no synchronisation, first calls, TF32, size limits, repeatability."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import TENSORS, Lengths, batch_sizes, layer_arguments
from tests.support import installed
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import FLOATING, GPU, HOPPER, SM80, Call, Make, requiring_grad
from tests.support.rule import obeys

pytestmark = GPU
FORMS: tuple[Lengths, ...] = (None, (5, 5, 3, 1))
# The planner's choice, and "step", which every GPU and dtype supports.
ALGORITHMS = pytest.mark.parametrize("algorithm", ["auto", "step"])
Run = Callable[[], list[Tensor]]


def runner(call: Call, **options: Any) -> Run:
    """Prepares all arguments, and returns a function that runs the forward and backward pass."""
    leaves = call.map(lambda t: t.detach().requires_grad_())
    sizes, inputs = batch_sizes(call.args[1]), [leaves.args[i] for i in TENSORS]
    options = {**call.kwargs, **options}

    def run() -> list[Tensor]:
        x, _, *rest = leaves.args
        results = torch.ops.treadle.recurrent_layer(x, sizes, *rest, **options)
        ones = [torch.ones_like(t) for t in results]
        return [*(t.detach() for t in results), *torch.autograd.grad(results, inputs, ones)]

    return run


def call_of(dtype: torch.dtype, lengths: Lengths) -> Call:
    make = Make("cuda layer", "cuda", dtype)
    return layer_arguments(make, (5, 48, 17, 65), directions=2, lengths=lengths)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("lengths", FORMS, ids=str)
@pytest.mark.parametrize("dtype", FLOATING)
@ALGORITHMS
def test_nothing_waits_for_the_gpu(
    algorithm: str, dtype: torch.dtype, lengths: Lengths, recompute: bool
) -> None:
    run = runner(call_of(dtype, lengths), recompute=recompute, algorithm=algorithm)
    expected = run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device="cuda").item()
        found = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, theirs in zip(found, expected, strict=True):
        same_bits(ours, theirs)


FIRST_CAPTURE = """
import sys
import torch, treadle
# Initialises cuBLAS and the threads of autograd. None of treadle's kernels has run yet.
w = torch.randn(7, 7, device="cuda", requires_grad=True)
(torch.randn(9, 7, device="cuda") @ w).sum().backward()
torch.cuda.synchronize()

def arguments(packed, dtype):
    torch.manual_seed(0)
    shapes = [(12, 7) if packed else (4, 5, 7), (2, 5, 16), (2, 5, 16), (2, 48, 7), (2, 48, 16)]
    made = [torch.randn(s, device="cuda", dtype=dtype) * 0.5 for s in (*shapes, (2, 48))]
    return [t.requires_grad_(sys.argv[1] == "training") for t in made]

for recompute in (False, True):
    for dtype in (torch.float32, torch.bfloat16):
        for packed in (False, True):
            sizes = torch.tensor([5, 4, 2, 1]) if packed else None
            given = arguments(packed, dtype)

            def call():
                x, *rest = given
                options = {"cell": "lltm", "recompute": recompute, "algorithm": sys.argv[2]}
                results = torch.ops.treadle.recurrent_layer(x, sizes, *rest, None, **options)
                if not x.requires_grad:
                    return results
                total = [torch.ones_like(t) for t in results]
                return *(t.detach() for t in results), *torch.autograd.grad(results, given, total)

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call()
            for factor in (1.0, -0.5):
                with torch.no_grad():
                    for t in given:
                        t.mul_(factor)
                graph.replay()
                torch.cuda.synchronize()
                found = [t.clone() for t in captured]
                for ours, eager in zip(found, call(), strict=True):
                    assert torch.equal(ours, eager), (recompute, dtype, packed, factor)
                    assert ours.isfinite().all() and ours.any()
print("all captured")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["inference", "training"])
@ALGORITHMS
def test_graph_capture_as_the_first_call_of_all(algorithm: str, mode: str) -> None:
    done = installed.python("-c", FIRST_CAPTURE, mode, algorithm)
    assert done.returncode == 0 and "all captured" in done.stdout, done.stderr


# This program skips Python's shutdown. Autograd starts a thread for each GPU. If such a thread
# takes the GIL during shutdown, Python kills the thread, which ends the process (pytorch issue
# 38228).
FIRST_BACKWARD = """
import os, sys, warnings
import torch, treadle
torch.manual_seed(0)
shapes = [(4, 5, 7), (1, 5, 16), (1, 5, 16), (1, 48, 7), (1, 48, 16), (1, 48)]
x, *rest = [torch.randn(s, device="cuda", requires_grad=True) for s in shapes]
recompute = sys.argv[1] == "True"
options = {"cell": "lltm", "recompute": recompute, "algorithm": sys.argv[2]}
output, *_ = torch.ops.treadle.recurrent_layer(x, None, *rest, None, **options)
grad = torch.ones_like(output)
torch.cuda.synchronize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.autograd.grad(output, [x, *rest], grad)
    torch.cuda.synchronize()
assert not caught, [str(w.message) for w in caught]
print("quiet", flush=True)
os._exit(0)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("recompute", [False, True])
@ALGORITHMS
def test_first_backward_is_quiet(algorithm: str, recompute: bool) -> None:
    """There is no warning, although the autograd thread of the backward pass has no CUDA context
    yet."""
    done = installed.python("-c", FIRST_BACKWARD, str(recompute), algorithm)
    assert done.returncode == 0 and "quiet" in done.stdout, done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("batch", [64, 17])  # 17: transposed products unless TF32 is allowed
@ALGORITHMS
def test_tf32_as_torch_says(algorithm: str, batch: int, allow_tf32: Callable[[bool], None]) -> None:
    call = layer_arguments(Make("tf32", "cuda", torch.float32), (5, batch, 64, 256))
    call = call.with_options(algorithm=algorithm)
    found = []
    for allowed in (False, True):
        allow_tf32(allowed)
        found.append(runner(call, algorithm=algorithm)())
        # obeys() runs the composition with the same setting, and computes the truth in float64.
        obeys(OPS["recurrent_layer lltm"], call)
    for exact, rounded in zip(*found, strict=True):
        assert not torch.equal(exact, rounded)
    error = (found[0][0] - found[1][0]).abs().max()
    assert 1e-6 < float(error) < 1e-2


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@ALGORITHMS
def test_tf32_as_torchs_layers_have_it(
    algorithm: str, cell: str, allow_tf32: Callable[..., None]
) -> None:
    """torch's TF32 switch for recurrent layers applies, not its switch for matrix products."""
    call = layer_arguments(Make("tf32", "cuda", torch.float32), (5, 17, 64, 256), cell=cell)
    call = call.with_options(algorithm=algorithm)
    found = {}
    for of_products, in_layers in itertools.product((False, True), repeat=2):
        allow_tf32(of_products, in_layers)
        found[of_products, in_layers] = runner(call, algorithm=algorithm)()
    allow_tf32(True)
    obeys(OPS[f"recurrent_layer {cell}"], call)
    for n, exact in enumerate(found[False, False]):
        same_bits(found[True, False][n], exact, f"result {n}")
        assert not torch.equal(found[False, True][n], exact), n
        error = (found[False, True][n] - found[True, True][n]).abs().max()
        assert float(error) < 1e-2 * float(exact.abs().max()), n


@pytest.mark.parametrize("batch", [64, 17])
@pytest.mark.parametrize("algorithm", [pytest.param("cluster", marks=HOPPER), "step"])
def test_products_of_h_and_tf32(
    algorithm: str, batch: int, allow_tf32: Callable[[bool], None]
) -> None:
    """In "cluster", products with h have full precision whatever torch's setting. Only the products
    with the input follow this setting, and they are zero here."""
    call = layer_arguments(Make("tf32", "cuda", torch.float32), (5, batch, 64, 256))
    call = call.with_args({0: torch.zeros_like(call.args[0])})
    found = []
    for allowed in (False, True):
        allow_tf32(allowed)
        results = runner(call, algorithm=algorithm)()
        # Selects output, h_n, c_n, and the gradients of h0 and c0.
        found.append([*results[:3], *results[4:6]])
    for n, (exact, other) in enumerate(zip(*found, strict=True)):
        if algorithm == "cluster":
            same_bits(other, exact, f"result {n}")
        else:
            assert not torch.equal(other, exact), n


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("much_memory")
@pytest.mark.parametrize(
    ("algorithm", "rows", "hidden"),
    [("auto", 1 << 30, 2), pytest.param("cluster", 1 << 22, 512, marks=HOPPER)],
)
def test_more_units_than_32_bits_count(algorithm: str, rows: int, hidden: int) -> None:
    """Only one row has a step, so that only the states are large."""
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of memory")
    one = torch.zeros((), device="cuda", dtype=torch.float16)
    state, sizes = one.expand(1, rows, hidden), torch.tensor([1])
    weights = one.expand(1, 3 * hidden, 1), one.expand(1, 3 * hidden, hidden)
    words = rf"^recurrent_layer: B \* H must be less than 2\^31 on CUDA, got {rows} \* {hidden}"
    with pytest.raises(RuntimeError, match=words):
        given = one.expand(1, 1), sizes, state, state, *weights, None, None
        torch.ops.treadle.recurrent_layer(*given, cell="lltm", algorithm=algorithm)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("much_memory")
@pytest.mark.parametrize("apart", [1 << 31, 1 << 32])
@pytest.mark.parametrize(
    "algorithm", ["step", *(pytest.param(one, marks=SM80) for one in ("cluster", "grid"))]
)
def test_gradients_further_apart_than_32_bits_count(algorithm: str, apart: int) -> None:
    """The gradient of the output has one row, and a stride of ``apart`` elements between steps."""
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of memory")
    call = layer_arguments(Make("apart", "cuda", torch.bfloat16), (2, 1, 5, 8))
    call = requiring_grad(OPS["recurrent_layer lltm"], call.with_options(algorithm=algorithm))
    output, *_ = call.run(OPS["recurrent_layer lltm"].function)
    leaves = [t for t in call.args if isinstance(t, Tensor) and t.requires_grad]
    far = torch.empty(2, apart, device="cuda", dtype=torch.bfloat16)[:, :8].view(2, 1, 8)
    far.copy_(torch.randn(2, 1, 8))
    expected = torch.autograd.grad(output, leaves, far.contiguous(), retain_graph=True)
    for ours, theirs in zip(torch.autograd.grad(output, leaves, far), expected, strict=True):
        same_bits(ours, theirs)


@pytest.mark.parametrize("lengths", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@ALGORITHMS
def test_a_hundred_times_the_same_bits(
    algorithm: str, dtype: torch.dtype, lengths: Lengths
) -> None:
    run = runner(call_of(dtype, lengths), algorithm=algorithm)
    expected = run()
    for _ in range(100):
        for ours, theirs in zip(run(), expected, strict=True):
            same_bits(ours, theirs)
