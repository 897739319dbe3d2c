"""The calls that layer.py times: lltm, nn.LSTM and a loop of cells, as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness.cases import ours
from benchmarks.harness.verify import Refused, verify, verify_baseline
from treadle import reference

Args = tuple[Any, ...]
LSTM, LOOP = "nn.LSTM", "loop of lltm_cell"
TORCHS: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}
RNNS = {"rnn_tanh": "tanh", "rnn_relu": "relu"}
# Only the first steps are compared, because rounding errors grow from step to step, and faster in
# lower precision. We divided the difference between two equally accurate float32 computations by
# the limit of `verify`. The result was up to 0.6 over 32 steps with H 128, but 1.6 over 100 steps
# (25 seeds, B 1 and 8). With H 1024 on CUDA, it was 1.1 over 32 steps (once 1.2 over 16 steps).
STEPS = 8
MANY_ROWS = 1024  # with fewer rows, libraries may compute a product in another way


@dataclass(frozen=True)
class Shape:
    b: int
    t: int
    i: int
    h: int
    name: str  # for keys and labels: the full sizes, even in quick runs, which use smaller ones

    @staticmethod
    def of(sizes: tuple[int, ...], quick: bool) -> Shape:
        b, t, i, h = sizes if len(sizes) == 4 else (*sizes, sizes[-1])
        name = ",".join(map(str, sizes))
        if quick:
            return Shape(min(b, 4), min(t, 20), min(i, 16), min(h, 32), name)
        return Shape(b, t, i, h, name)


def arguments(
    shape: Shape,
    device: str,
    dtype: torch.dtype,
    backward: bool,
    layers: int = 1,
    both: bool = False,
) -> Args:
    """Returns input, h0, c0, weight_ih, weight_hh, bias. Weights are drawn like those of nn.LSTM.

    With `backward`, the input and all parameters require grad. There are three parameters for each
    layer and, with `both`, for each of its two directions.
    """
    b, t, i, h = shape.b, shape.t, shape.i, shape.h
    directions = 2 if both else 1
    states = (layers * directions, b, h)
    made = [torch.randn(s, device=device) for s in ((t, b, i), states, states)]
    for number in range(layers * directions):
        columns = i if number < directions else directions * h
        parameters = ((3 * h, columns), (3 * h, h), (3 * h,))
        made += [torch.rand(s, device=device) * 2 - 1 for s in parameters]
    for weight in made[3:]:
        weight *= h**-0.5
    return tuple(
        t.to(dtype).requires_grad_(backward and index not in (1, 2)) for index, t in enumerate(made)
    )


def cell_arguments(
    cell: str, shape: Shape, device: str, dtype: torch.dtype, backward: bool
) -> Args:
    """Returns input, h0, c0 if the cell has a c, and the parameters of torch's module for it."""
    x, *states = arguments(shape, device, dtype, backward)[:3]
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    if cell in RNNS:
        net: nn.Module = nn.RNN(shape.i, shape.h, nonlinearity=RNNS[cell], **options)
    else:
        net = TORCHS[cell](shape.i, shape.h, **options)
    net.requires_grad_(backward)
    return x, *(states if cell == "lstm" else states[:1]), *net.parameters()


def packed_arguments(shape: Shape, padded: Args) -> Args:
    """Returns the arguments `padded` with another input: the data of a packed batch, and a tuple
    that contains its batch_sizes."""
    x, sizes = padded[0], batch_sizes(shape)
    data = torch.randn(int(sizes.sum()), x.shape[-1], device=x.device).to(x.dtype)
    return data.requires_grad_(x.requires_grad), (sizes,), *padded[1:]


def lstm_arguments(args: Args, layers: int = 1, both: bool = False) -> Args:
    """Returns `args` with other parameters: those of a new nn.LSTM, in one buffer for cuDNN."""
    x, *middle, h0, c0 = args[: -3 * layers * (2 if both else 1)]
    kind = {"num_layers": layers, "bidirectional": both, "device": x.device, "dtype": x.dtype}
    net = torch.nn.LSTM(x.shape[-1], h0.shape[-1], **kind)
    return x, *middle, h0, c0, *net.requires_grad_(x.requires_grad).parameters()


def layer(
    op: Callable[..., Any],
    train: bool = True,
    layers: int = 1,
    both: bool = False,
    states: int = 2,
    **options: Any,
) -> Callable[..., Any]:
    """A function of tensors that calls `op`, which has the arguments of torch.lstm or torch.gru."""

    def call(x: Tensor, *rest: Tensor) -> Any:
        hx = list(rest[:states]) if states > 1 else rest[0]
        weights = list(rest[states:])
        return op(x, hx, weights, True, layers, 0.0, train, both, False, **options)

    return call


def torch_layer(cell: str, train: bool) -> Callable[..., Any]:
    """torch's own layer for a cell of TORCHS or RNNS."""
    return layer(getattr(torch, cell), train, states=2 if cell == "lstm" else 1)


def without_cudnn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without cuDNN, because some of cuDNN's float16 kernels are wrong."""

    def call(*args: Any) -> Any:
        if torch.backends.flags_frozen():
            return function(*args)
        before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        try:
            return function(*args)
        finally:
            torch.backends.cudnn.enabled = before

    return call


def plain_layer(cell: str, dtype: torch.dtype, train: bool) -> Callable[..., Any]:
    """torch's layer, with which treadle's results are compared. In float32 it uses cuDNN, which is
    correct there and, like treadle, computes the input products of all steps at once. In half types
    it does not use cuDNN."""
    own = torch_layer(cell, train)
    return own if dtype == torch.float32 else without_cudnn(own)


def packed_layer(op: Callable[..., Any], train: bool = True) -> Callable[..., Any]:
    """Like `layer`, for a packed batch. The batch_sizes are in a tuple, which `verify` ignores."""

    def call(x: Tensor, sizes: tuple[Tensor], h0: Tensor, c0: Tensor, *params: Tensor) -> Any:
        return op(x, sizes[0], [h0, c0], list(params), True, 1, 0.0, train, False)

    return call


def loop(
    x: Tensor, h0: Tensor, c0: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop that users of LLTMCell write: it calls the cell's op step by step."""
    cell = ours("lltm_cell")
    weights = torch.cat([weight_hh, weight_ih], dim=1)
    h, c, found = h0[0], c0[0], []
    for step in x.unbind():
        h, c = cell(step, weights, bias, h, c)
        found.append(h)
    return torch.stack(found), h.unsqueeze(0), c.unsqueeze(0)


def as_tf32(x: Tensor) -> Tensor:
    """Clears the last 13 bits of float32 numbers, which tensor cores may ignore. Gradients pass
    through unchanged."""
    cut = (x.detach().view(torch.int32) & ~0x1FFF).view(torch.float32)
    return x + (cut - x).detach()


def in_two_products(input: Tensor, hx: Any, params: Any, *_: Any) -> tuple[Tensor, ...]:
    """An LLTM in plain PyTorch that multiplies the inputs of all steps by weight_ih in one product,
    as our layer and cuDNN's do. (In float32, cuBLAS is less accurate for many rows than for the few
    rows of a step.) If TF32 is allowed, operands are rounded here, because cuBLAS rounds them only
    at some sizes."""
    (h, c), (weight_ih, weight_hh, bias), found = (t[0] for t in hx), params, []
    rounds = input.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    read = as_tf32 if rounds else lambda x: x
    rows = input.flatten(0, 1)
    many = rows.repeat(-(-MANY_ROWS // max(len(rows), 1)), 1)
    parts = read(many).mm(read(weight_ih).t())[: len(rows)].unflatten(0, input.shape[:2])
    for part in parts:
        i, o, z = (part + bias + F.linear(read(h), read(weight_hh))).chunk(3, dim=1)
        c = c + F.elu(z) * torch.sigmoid(i)
        h = torch.tanh(c) * torch.sigmoid(o)
        found.append(h)
    return torch.stack(found), h.unsqueeze(0), c.unsqueeze(0)


def check(
    function: Callable[..., Any],
    args: Args,
    steps: int = STEPS,
    *,
    plain: Callable[..., Any] | None = None,
    poison: bool = False,
    rule: Callable[..., float] = verify,
    op: str = "lltm",
) -> float:
    """Runs a call on all steps and applies `verify`, or another rule, to the first steps.

    Later steps do not affect the outputs of the first steps. They do not affect gradients either,
    because the gradients of the later outputs are zero here. The last states that are compared come
    from a second call, on only the first steps. All outputs of the first call must be finite: where
    a kernel did not write, poisoned memory is NaN.
    """
    packed = isinstance(args[1], tuple)
    exact = args[0].dtype == torch.float32 and args[0].is_cuda and not packed
    if plain is None:
        plain = (packed_layer if packed else layer)(in_two_products if exact else reference.lltm)
    x, others, fewer = args[0].detach(), args[1:], args[1:]
    rows = steps
    if packed:
        rows = int(args[1][0][:steps].sum())
        fewer = ((args[1][0][:steps],), *args[2:])
    if rows >= len(x):
        return rule(function, op, args, plain=plain, poison=poison)

    def opening(x: Tensor, *fewer: Any) -> tuple[Tensor, ...]:
        output, *last = function(torch.cat([x, rest]), *others)
        check_finite(output, *last, op=op)
        return output[:rows], *function(x, *fewer)[1:]

    rest = x[rows:]
    first = x[:rows].clone().requires_grad_(args[0].requires_grad)
    return rule(opening, op, (first, *fewer), plain=plain, poison=poison)


def check_torch(
    function: Callable[..., Any],
    args: Args,
    cell: str,
    steps: int = STEPS,
    *,
    plain: Callable[..., Any] | None = None,
) -> float:
    """Checks a function that computes torch's layer of this cell."""
    plain = without_cudnn(plain or torch_layer(cell, args[0].requires_grad))
    name = f"nn.{cell.upper()}"
    return check(function, args, steps, plain=plain, rule=verify_baseline, op=name)


def check_finite(*results: Tensor, op: str = "lltm") -> None:
    if not all(bool(t.isfinite().all()) for t in results):
        raise Refused(f"{op}: not all results are finite")


def batch_sizes(shape: Shape) -> Tensor:
    """The number of rows in each step, for rows of random lengths up to T; the longest has T."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, shape.t + 1, (shape.b,), generator=generator)
    lengths[0] = shape.t
    return (lengths > torch.arange(shape.t).unsqueeze(1)).sum(dim=1)


def set_tf32(on: bool) -> None:
    """Sets TF32 for both matrix products and cuDNN. By default, torch allows TF32 only in cuDNN,
    which would make the comparison unfair."""
    torch.backends.cuda.matmul.allow_tf32 = on
    # The flags are frozen in a process that runs torch's own tests.
    if not torch.backends.flags_frozen():
        torch.backends.cudnn.allow_tf32 = on
