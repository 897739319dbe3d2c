"""An LSTM and a GRU through the algorithm "cluster": engine_cells.cu, compiled, on the GPU. As a
process, so that a hang can be ended from outside:

    python -m tests.recurrent.engine_cells LIBRARY CELL
"""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tests.recurrent.persistent_calls import Cases, Draw

GATES = 4
Shape = tuple[int, int, int]  # units, blocks, tiles: persistent_args.h
Cell = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Step = Callable[[int, int, Tensor, Tensor], tuple[Tensor, Tensor]]  # direction, t, h, c

# Those that a block has the memory for, with four gates; backward, of one tile.
SHAPES: tuple[Shape, ...] = (
    *((16, blocks, tiles) for blocks in (4, 8, 16) for tiles in (1, 2)),
    *((32, blocks, tiles) for blocks in (8, 16) for tiles in (1, 2)),
    (64, 8, 1),
)
TOO_LARGE: dict[str, tuple[Shape, ...]] = {
    "forward": ((64, 8, 2), (48, 16, 1)),
    "backward": ((64, 8, 1), (48, 16, 1)),
}
INVALID_VALUE = 1  # cudaErrorInvalidValue


def lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """new_h and new_c, of gates [..., 4, H] in torch's order."""
    i, f, g, o = gates.unbind(-2)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru(gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """new_h, twice: the state is h. The candidate's gate is two, of the input and of h."""
    r, z, of_input, of_h = gates.unbind(-2)
    n = (of_input + r.sigmoid() * of_h).tanh()
    h = n + z.sigmoid() * (h - n)
    return h, h


@dataclass(frozen=True)
class Kind:
    functor: str
    dtype: torch.dtype
    formula: Cell
    bound: float  # of a result's error, in norm, against its norm

    @property
    def type(self) -> str:
        return "BFloat16" if self.dtype == torch.bfloat16 else "Half"


KINDS = {
    "lstm": Kind("Lstm", torch.bfloat16, lstm, 1e-2),
    "gru": Kind("Gru", torch.float16, gru, 1.5e-3),
}


@dataclass(frozen=True)
class Layer:
    """Arguments, D directions; sequences [D, S, ...] hold the rows of all steps, of which there are
    fewer and fewer where rows are of different lengths."""

    formula: Cell
    valid: Tensor  # [T, B]: whether a row has this step
    products: Tensor  # [D, S, 4, H]
    weight: Tensor  # [D, 4H, H]
    bias: Tensor  # [D, 4H]
    h0: Tensor  # [D, B, H]
    c0: Tensor  # [D, B, H] float

    def padded(self, t: Tensor) -> Tensor:
        """[D, T, B, ...] of a sequence, 0 where a row has no step."""
        full = t.new_zeros(t.shape[0], self.valid.numel(), *t.shape[2:])
        return full.index_copy(1, self.places, t).unflatten(1, self.valid.shape)

    def rows(self, t: Tensor) -> Tensor:
        return t.flatten(1, 2)[:, self.places]

    @property
    def places(self) -> Tensor:
        return self.valid.flatten().nonzero().flatten()

    @property
    def starts(self) -> Tensor | None:
        counts = self.valid.sum(1)
        return None if self.valid.all() else torch.cat([counts[:1] * 0, counts.cumsum(0)])

    def walk(self, step: Step) -> list[Tensor]:
        """h after and c before each step [D, S, H], and both at the end."""
        all_h, all_c, last_h, last_c = [], [], [], []
        for d in range(len(self.h0)):
            h, c = self.h0[d], self.c0[d]
            steps = range(len(self.valid))
            hs, cs = {}, {}
            for t in steps if d == 0 else reversed(steps):
                new_h, new_c = step(d, t, h, c)
                going = self.valid[t, :, None]
                cs[t] = c
                hs[t] = h = torch.where(going, new_h, h)
                c = torch.where(going, new_c, c)
            all_h.append(torch.stack([hs[t] for t in steps]))
            all_c.append(torch.stack([cs[t] for t in steps]))
            last_h.append(h)
            last_c.append(c)
        h, c, h_n, c_n = (torch.stack(x) for x in (all_h, all_c, last_h, last_c))
        return [self.rows(h), self.rows(c), h_n, c_n]

    def run(self) -> list[Tensor]:
        """The layer in PyTorch, in the dtype of its arguments."""
        products = self.padded(self.products)

        def step(d: int, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            sums = (h @ self.weight[d].t() + self.bias[d]).unflatten(-1, (GATES, -1))
            return self.formula(products[d, t] + sums, c)

        return self.walk(step)

    def cells_of(self, gates: Tensor) -> Tensor:
        """c before each step [D, S, H], of gates as they were saved."""
        known = self.padded(gates).float()
        return self.walk(lambda d, t, _, c: self.formula(known[d, t], c))[1]

    def double(self) -> Layer:
        """The same numbers, which ask for gradients."""
        names = "products", "weight", "bias", "h0", "c0"
        return replace(
            self, **{n: getattr(self, n).detach().double().requires_grad_() for n in names}
        )


def draw(name: str, kind: Kind, lengths: list[int], hidden: int, directions: int) -> Layer:
    """An input of the GRU's fourth gate, and weights of its third, as there are none."""
    of, wide = Draw(name, kind.dtype), Draw(name + " c", torch.float32)
    valid = torch.arange(max(lengths))[:, None] < torch.tensor(lengths)
    d, batch = directions, len(lengths)
    products = of(d, int(valid.sum()), GATES, hidden)
    weight = of(d, GATES, hidden, hidden, by=hidden**-0.5)
    if kind.formula is gru:
        products[:, :, 3] = 0
        weight[:, 2] = 0
    return Layer(
        formula=kind.formula,
        valid=valid.to(products.device),
        products=products,
        weight=weight.flatten(1, 2),
        bias=of(d, GATES * hidden, by=0.5),
        h0=of(d, batch, hidden, by=0.5),
        c0=wide(d, batch, hidden),
    )


class Engine:
    """The kernels, with plans given by hand."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))

    def __call__(self, name: str, sizes: list[int], *tensors: Tensor | None) -> None:
        pointers = [ctypes.c_void_p(0 if t is None else t.data_ptr()) for t in tensors]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = self.call(name, sizes, *pointers, stream)
        assert error == 0, f"{name}: CUDA error {error}"

    def call(self, name: str, sizes: list[int], *pointers: ctypes.c_void_p) -> int:
        return int(getattr(self.library, name)((ctypes.c_int64 * len(sizes))(*sizes), *pointers))


def in_pieces(t: Tensor, padded: int) -> Tensor:
    """Rows of a multiple of 8, what is beyond a row poisoned."""
    wide = t.new_full((*t.shape[:-1], padded), torch.nan)
    wide[..., : t.shape[-1]] = t
    return wide


def check(
    engine: Engine, name: str, kind: Kind, lengths: list[int], hidden: int, shape: Shape, rows: int
) -> None:
    """Forward with this shape; backward with that of one tile, or of a layer as wide that fits."""
    layer = draw(name, kind, lengths, hidden, directions=2)
    d, batch, _ = layer.h0.shape
    total, padded = layer.products.shape[1], -(-hidden // 8) * 8
    sizes = [d, len(layer.valid), total, batch, hidden, padded]
    starts = layer.starts

    def nothing(*of: int, dtype: torch.dtype = kind.dtype) -> Tensor:
        return torch.full(of, torch.nan, dtype=dtype, device=layer.h0.device)

    output, gates = nothing(total, d * hidden), nothing(d, total, GATES, hidden)
    h_n, c_n = nothing(d, batch, hidden), torch.full_like(layer.c0, torch.nan)
    products = in_pieces(layer.products, padded)
    engine(
        *("forward", [*sizes, *shape, rows], starts, products, layer.weight, layer.bias),
        *(layer.h0, layer.c0, h_n, c_n, output, gates),
    )

    exact = layer.double()
    h, _, *last = exact.run()
    expected = [h.transpose(0, 1).flatten(1), *last]
    of = Draw(name + " gradients", kind.dtype)
    grad_output, grad_h_n = of(total, d * hidden), of(d, batch, hidden)
    grad_c_n = of(d, batch, hidden, dtype=torch.float32)
    wanted = torch.autograd.grad(
        expected, [exact.products, exact.h0, exact.c0], [grad_output, grad_h_n, grad_c_n]
    )

    cells = in_pieces(layer.cells_of(gates), padded)
    saved = in_pieces(gates, padded)
    by_direction = in_pieces(grad_output.unflatten(-1, (d, hidden)).transpose(0, 1), padded)
    grad_h0, grad_c0 = torch.full_like(grad_h_n, torch.nan), torch.full_like(grad_c_n, torch.nan)
    grad_gates = nothing(d, total, GATES, hidden)
    backward_shape, most = ((32, 16, 1) if shape[0] == 64 else (*shape[:2], 1)), min(rows, 8)
    engine(
        *("backward", [*sizes, *backward_shape, most], starts, saved, cells, by_direction),
        *(layer.weight, grad_h_n, grad_c_n, grad_h0, grad_c0, grad_gates),
    )

    found = {"output": output, "h_n": h_n, "c_n": c_n, "grad h0": grad_h0, "grad c0": grad_c0}
    pairs = {n: (found[n], e) for n, e in zip(found, [*expected, *wanted[1:]], strict=True)}
    for m in range(GATES):
        pairs[f"grad of gate {m}"] = grad_gates[:, :, m], wanted[0][:, :, m]
    far = [(a.double() - e).norm() / e.norm() for a, e in pairs.values()]
    for what, error in zip(pairs, torch.stack(far).tolist(), strict=True):
        print(f"  {what}: {error:.2e}")
        assert error <= kind.bound, f"{name}, {what}: {error:.2e} of its norm"


def cases(engine: Engine, cell: str) -> Cases:
    one = partial(check, engine, kind=KINDS[cell])
    packed = [17, 17, 16, 9, 9, 8, 5, 3, 3, 2, 1, 1, 1]
    for hidden, shape in ((96, (32, 8, 1)), (96, (16, 8, 2)), (256, (16, 16, 1))):
        name = f"{hidden} units, {shape}"
        yield name, partial(one, name, lengths=[17] * 5, hidden=hidden, shape=shape, rows=5)
    for shape in SHAPES:
        widest, most = shape[0] * shape[1], 8 * shape[2]
        name = f"all of {shape}"
        dense = [9] * (most + 3)
        yield name, partial(one, name, lengths=dense, hidden=widest, shape=shape, rows=most)
        name = f"{shape}, packed"
        rows, narrow = most - 5, widest - 5
        yield name, partial(one, name, lengths=packed, hidden=narrow, shape=shape, rows=rows)


def main(library: str, cell: str) -> int:
    from tests.recurrent.persistent_worker import SECONDS, run

    faulthandler.dump_traceback_later(SECONDS - 5)  # where it hangs, if it does
    return 1 if run(cases(Engine(Path(library)), cell)) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
