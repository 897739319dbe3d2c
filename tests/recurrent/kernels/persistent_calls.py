"""Calls of recurrent_layer on the GPU with a forced algorithm, for tests of persistent kernels.
csrc/recurrent/layer/layer.h explains the sizes, such as T and S."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import (
    BLOCKS,
    C_PARTS,
    CHANGES,
    FORMULAS,
    Lengths,
    batch_sizes,
)
from tests.support import gpus
from tests.support.compare import differing
from tests.support.inputs import HALVES
from treadle import _build

DEVICE = "cuda"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
NAMES = ("input", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
Sizes = tuple[int, int, int]  # T, B, H
Cases = Iterator[tuple[str, Callable[[], None]]]  # (the name, printed before the run; the case)


def most_hidden(
    algorithm: str,
    dtype: torch.dtype,
    cell: str = "lltm",
    *,
    dense: bool = True,
    resets: bool = False,
) -> int:
    """The largest H that the algorithm supports; smaller for LSTM, which has four gates, and for
    "cluster" with resets or if the batch is not dense (``is_dense``)."""
    if algorithm in ("step", "warp"):
        return 1 << 20
    several = C_PARTS.get(cell, 1) > 1
    # With several parts of c, only dense batches in half types run in clusters of several blocks.
    blocks = several and not (dense and dtype in HALVES and gpus.any_clusters())
    if algorithm == "cluster" and blocks:
        return {torch.float64: 0, torch.float32: 96 if BLOCKS[cell] == 4 else 128}.get(dtype, 64)
    if not gpus.any_clusters():
        return most_hidden_of_other_gpus(algorithm, dtype, cell)
    if algorithm == "tiles":
        return 0 if dtype == torch.float64 else 1 << 20
    if dtype not in HALVES:
        return {"cluster": 512, "grid": 1024}[algorithm] if dtype == torch.float32 else 0
    if algorithm == "grid":
        return 2048
    four = BLOCKS[cell] == 4
    return (512 if four or several or resets else 768) if dense else 256 if four else 512


def is_dense(cell: str, hidden: int, packed: bool, resets: bool) -> bool:
    """Whether the dense cluster kernels support a batch: all rows take all steps, and H is a
    multiple of 8. Only some cells have dense kernels with resets."""
    gates = 4 if cell == "gru" else BLOCKS[cell]
    return not packed and hidden % 8 == 0 and (not resets or gates == 4 or C_PARTS.get(cell, 1) > 1)


def most_hidden_of_other_gpus(algorithm: str, dtype: torch.dtype, cell: str) -> int:
    """The largest H, on GPUs without clusters of several blocks, at which all cells run both passes
    with any number of directions. Some cells also support larger H."""
    if dtype == torch.float64 or algorithm == "tiles":
        return 0
    if algorithm == "cluster":  # clusters of one block
        return 96 if cell == "lstm" else 128
    processors = gpus.multiprocessors()
    if processors < 32:
        return 256
    return 1024 if dtype in HALVES and processors >= 64 else 512


def fits(
    algorithm: str,
    dtype: torch.dtype,
    hidden: int,
    cell: str = "lltm",
    lengths: Sequence[int] | None = None,
    resets: bool = False,
) -> bool:
    """Whether the algorithm supports a layer of this dtype, H and cell, and rows of these lengths,
    or with these numbers of rows per step. "tiles" needs whole tiles of 64 units."""
    if algorithm == "tiles" and (hidden % 64 != 0 or hidden == 0):
        return False
    if algorithm in ("tiles", "warp") and cell in FORMULAS:
        return False
    if algorithm in ("step", "warp"):
        return True
    dense = is_dense(cell, hidden, len(set(lengths or ())) > 1, resets)
    return 1 <= hidden <= most_hidden(algorithm, dtype, cell, dense=dense, resets=resets)


def backward_of(algorithm: str, dtype: torch.dtype, hidden: int) -> str:
    """Returns the algorithm that runs the backward pass if ``algorithm`` is forced."""
    alone = algorithm == "grid" and hidden > 1024
    if algorithm == "cluster" and not gpus.any_clusters():
        alone = dtype in HALVES and hidden > 96
    return "step" if alone or algorithm in ("tiles", "warp") else algorithm


def fitting(algorithm: str, hidden: int) -> int:
    """An H near ``hidden`` that the algorithm supports."""
    return max(64, hidden // 64 * 64) if algorithm == "tiles" else hidden


def rounds(algorithm: str, dtype: torch.dtype) -> bool:
    """Whether the algorithm rounds this dtype to TF32, so that it runs only if TF32 is allowed."""
    return algorithm == "tiles" and dtype == torch.float32


@contextmanager
def rounding(allowed: bool) -> Iterator[None]:
    """Allows or forbids TF32 in float32 products."""
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, layers.allow_tf32
    products.allow_tf32 = layers.allow_tf32 = allowed
    try:
        yield
    finally:
        products.allow_tf32, layers.allow_tf32 = before


def allowing(algorithm: str, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Allows TF32 if the algorithm needs it; otherwise changes nothing."""
    return rounding(True) if rounds(algorithm, dtype) else nullcontext()


def as_tf32(t: Tensor) -> Tensor:
    """A float32 tensor without the bits that TF32 does not keep."""
    return (t.view(torch.int32) & ~0x1FFF).view(torch.float32)


def as_multiplied(t: Tensor, algorithm: str) -> Tensor:
    """The operand as the product reads it, in float64. TF32 keeps 10 of 23 mantissa bits."""
    exact = t.double()
    if not rounds(algorithm, t.dtype):
        return exact
    kept = torch.frexp(exact).exponent - 11
    rounded = torch.ldexp(torch.ldexp(exact, -kept).round(), kept)
    return torch.where(exact.isfinite(), rounded, exact)


def dtypes_of(algorithm: str) -> tuple[torch.dtype, ...]:
    """The dtypes that an algorithm supports."""
    return tuple(dtype for dtype in DTYPES.values() if most_hidden(algorithm, dtype))


@dataclass(frozen=True)
class Given:
    """The arguments of a call, and gradients of its results output, h_n and c_n."""

    cell: str
    input: Tensor
    sizes: Tensor | None
    h0: Tensor
    c0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    grads: tuple[Tensor | None, Tensor, Tensor]
    valid: Tensor  # [T, B]: whether the row has the step
    places: Tensor  # [S]: flat indices into [T, B] where `valid` is true

    @property
    def arguments(self) -> tuple[Any, ...]:
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        return self.input, self.sizes, self.h0, self.c0, *weights

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of NAMES and of `grads` that are not None."""
        found = (*(getattr(self, name) for name in NAMES), *self.grads)
        return [t for t in found if t is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Given:
        changed = {n: getattr(self, n) for n in NAMES}
        changed = {n: t if t is None else change(t) for n, t in changed.items()}
        output, h_n, c_n = self.grads
        grads = (None if output is None else change(output), change(h_n), change(c_n))
        return replace(self, **changed, grads=grads)

    def padded(self, t: Tensor) -> Tensor:
        """A sequence padded to [T, B, ...], with 0 where a row has no step."""
        if self.sizes is None:
            return t
        full = t.new_zeros(self.valid.numel(), *t.shape[1:])
        full[self.places] = t
        return full.unflatten(0, self.valid.shape)


class Draw:
    """Draws normally distributed values. The seed depends on the name."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.generator = torch.Generator(DEVICE).manual_seed(zlib.crc32(name.encode()))

    def __call__(self, *shape: int, by: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        t = torch.randn(shape, generator=self.generator, device=DEVICE) * by
        return t.to(dtype or self.dtype)


def rows_of(sizes: Sizes, lengths: Lengths, idle_steps: int) -> Tensor:
    steps, batch, _ = sizes
    reach = [steps] * batch if lengths is None else list(lengths)
    steps = steps if lengths is None else max(lengths) + idle_steps
    return torch.arange(steps)[:, None] < torch.tensor(reach)


def given(
    name: str,
    dtype: torch.dtype,
    sizes: Sizes,
    *,
    cell: str = "lltm",
    directions: int = 2,
    lengths: Lengths = None,
    idle_steps: int = 0,
    features: int | None = None,
    bias: bool = True,
    state: torch.dtype | None = None,
    grad_output: bool = True,
) -> Given:
    """Draws a call's arguments. `lengths` replaces T and B; `idle_steps` adds steps without rows.

    Without `features`, weight_ih is the identity, so each gate has an input of its own. Then the
    products with weight_ih equal the input, and the gradient of the input equals that of the gates,
    without rounding.
    """
    assert cell == "lltm" or features is not None
    draw, d, h, gates = Draw(name, dtype), directions, sizes[2], BLOCKS[cell]
    valid = rows_of(sizes, lengths, idle_steps)
    steps, batch = valid.shape
    packed = batch_sizes(lengths)
    if packed is not None:
        packed = torch.cat([packed, packed.new_zeros(idle_steps)])
    rows = (steps, batch) if packed is None else (int(valid.sum()),)
    if features is None:
        x = draw(*rows, d, gates, h)
        # Gate i stays mostly closed, so c stays small and tanh(c) depends on every step.
        x[..., 0, :] -= 3
        x = x.flatten(-3)
        weight_ih = torch.eye(d * gates * h, dtype=dtype, device=DEVICE).view(d, gates * h, -1)
    else:
        x = draw(*rows, features)
        weight_ih = draw(d, gates * h, features, by=features**-0.5)
    weight_hh = draw(d, gates * h, h, by=(2.0 if features is None else 1.0) * h**-0.5)
    one = Given(
        cell=cell,
        input=x,
        sizes=packed,
        h0=draw(d, batch, h),
        c0=draw(d, batch, C_PARTS.get(cell, 1) * h, dtype=state),
        weight_ih=weight_ih,
        weight_hh=weight_hh,
        bias_ih=draw(d, gates * h, by=0.5) if bias else None,
        bias_hh=draw(d, gates * h, by=0.5) if bias and cell != "lltm" else None,
        grads=(
            draw(*rows, d * h) if grad_output else None,
            draw(d, batch, h),
            draw(d, batch, C_PARTS.get(cell, 1) * h, dtype=state),
        ),
        valid=valid.to(DEVICE),
        places=valid.flatten().nonzero().flatten().to(DEVICE),
    )
    if cell in CHANGES:
        CHANGES[cell](vars(one))
    return one


def forward(one: Given, algorithm: str) -> list[Tensor]:
    """output, h_n, c_n and gates."""
    options = {"cell": one.cell, "algorithm": algorithm}
    with allowing(algorithm, one.input.dtype):
        return list(torch.ops.treadle.recurrent_layer_forward(*one.arguments, **options))


def backward(one: Given, saved: list[Tensor], algorithm: str) -> list[Tensor]:
    """Gradients in the order of NAMES, without those of missing biases. They are never computed in
    TF32: for an algorithm that rounds to TF32, "step" runs the backward pass."""
    output, _, _, gates = saved
    if rounds(algorithm, one.input.dtype):
        algorithm = "step"
    # reset_h and reset_c get no gradients here.
    mask = [getattr(one, name) is not None for name in NAMES] + [False] * 2
    found = torch.ops.treadle.recurrent_layer_backward(
        *one.grads, *one.arguments, output, gates, one.cell, False, algorithm, mask
    )
    return [t for t, wanted in zip(found, mask, strict=True) if wanted]


def both(one: Given, algorithm: str) -> list[Tensor]:
    saved = forward(one, algorithm)
    return [*saved, *backward(one, saved, algorithm)]


def inference(one: Given, algorithm: str) -> list[Tensor]:
    """output, h_n and c_n; nothing is saved."""
    with torch.no_grad(), allowing(algorithm, one.input.dtype):
        return list(
            torch.ops.treadle.recurrent_layer(*one.arguments, cell=one.cell, algorithm=algorithm)
        )


def training(one: Given, algorithm: str, recompute: bool = False) -> Callable[[], list[Tensor]]:
    """A function that runs forward and backward, always with the same tensors."""
    leaves = one.map(lambda t: t.detach().requires_grad_())
    inputs = [t for t in (getattr(leaves, name) for name in NAMES) if t is not None]
    grads = [t.detach() for t in leaves.grads if t is not None]

    def run() -> list[Tensor]:
        with allowing(algorithm, one.input.dtype):
            results = torch.ops.treadle.recurrent_layer(
                *leaves.arguments, cell=one.cell, recompute=recompute, algorithm=algorithm
            )
            found = torch.autograd.grad(results[-len(grads) :], inputs, grads)
        return [*(t.detach() for t in results), *found]

    return run


def count_differing(found: list[Tensor], expected: list[Tensor], total: Tensor) -> None:
    """Adds to `total` the number of elements whose bits differ, without waiting for the GPU."""
    for ours, theirs in zip(found, expected, strict=True):
        total.add_(differing(ours, theirs).sum())


def launches(run: Callable[[], Any]) -> list[Any]:
    """The launches of a call and its backward pass."""
    bindings = _build.bindings()
    bindings.take_launches()
    bindings.record_launches(True)
    try:
        # Launches are recorded per thread, so the backward pass must run in this thread.
        with torch.autograd.set_multithreading_enabled(False):
            run()
    finally:
        bindings.record_launches(False)
    return list(bindings.take_launches())


def kernels(run: Callable[[], Any]) -> dict[str, list[str]]:
    """The kernels of each algorithm, in the order of their launches."""
    found: dict[str, list[str]] = {}
    for launch in launches(run):
        found.setdefault(launch.algorithm, []).append(launch.kernel)
    return found
