"""Times elementwise ops as in real programs: views, broadcasting, mixed dtypes and `out=`.

On CUDA the tensors have 2^25 elements, which do not fit in the L2 cache. On the CPU they have 2^20
elements, and only add and scale are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.elementwise.dense import EXACT, MEAN, dtype_name, functions_of
from benchmarks.elementwise.overhead import FACTOR, OPS, twin_name
from benchmarks.harness.cases import OURS, Case, Plan, Settings, at_least

FLOAT, BFLOAT, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float16, torch.float64
INT = torch.int32
SHORT = {BFLOAT: "bf16", HALF: "fp16", DOUBLE: "fp64"}
ALL = (FLOAT, BFLOAT, DOUBLE)
Args = tuple[Any, ...]


class Maker:
    """Makes random tensors of rows × columns elements. Each method is named after its layout."""

    def __init__(self, device: str, rows: int, columns: int) -> None:
        self.device, self.rows, self.columns = device, rows, columns

    def random(self, dtype: torch.dtype, *shape: int) -> Tensor:
        if not dtype.is_floating_point:
            return torch.randint(-1000, 1000, shape, device=self.device, dtype=dtype)
        return torch.randn(shape, device=self.device, dtype=dtype)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.rows, self.columns)

    def transposed(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.columns, self.rows).t()

    def every_second_column(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.rows, 2 * self.columns)[:, ::2]

    def every_second_row(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, 2 * self.rows, self.columns)[::2]

    def slice_of_rows(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.rows + 2, self.columns)[1:-1]

    def slice_of_columns(self, dtype: torch.dtype) -> Tensor:
        """The rows have different alignments."""
        return self.random(dtype, self.rows, self.columns + 3)[:, 1:-2]

    def misaligned(self, dtype: torch.dtype) -> Tensor:
        """The tensor begins one element after an aligned address."""
        return self.random(dtype, self.rows * self.columns + 1)[1:].view(self.rows, self.columns)

    def channels_last(self, dtype: torch.dtype) -> Tensor:
        image = self.random(dtype, self.rows // 32, 32, self.columns // 32, 32)
        return image.to(memory_format=torch.channels_last)

    def row(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.columns)

    def column(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, self.rows, 1)

    def expanded_row(self, dtype: torch.dtype) -> Tensor:
        return self.row(dtype).expand(self.rows, self.columns)

    def expanded_column(self, dtype: torch.dtype) -> Tensor:
        return self.column(dtype).expand(self.rows, self.columns)

    def number(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype)

    def small(self, dtype: torch.dtype) -> Tensor:
        return self.random(dtype, 1 << 20)


Layout = Callable[[Maker, torch.dtype], Tensor]

# The layout of each operand of an op, and the dtypes to time.
UNARY: dict[str, tuple[Layout, tuple[torch.dtype, ...]]] = {
    "transposed": (Maker.transposed, ALL),
    "every second column": (Maker.every_second_column, ALL),
    "every second row": (Maker.every_second_row, (FLOAT,)),
    "slice of rows": (Maker.slice_of_rows, (FLOAT,)),
    "slice of columns": (Maker.slice_of_columns, ALL),
    "misaligned": (Maker.misaligned, (*ALL, HALF)),
    "channels_last": (Maker.channels_last, ALL),
    "broadcast row": (Maker.expanded_row, ALL),
    "broadcast column": (Maker.expanded_column, ALL),
    "out=": (Maker.dense, ALL),
}
BINARY: dict[str, tuple[Layout, Layout, tuple[torch.dtype, ...]]] = {
    "both transposed": (Maker.transposed, Maker.transposed, ALL),
    "transposed to dense": (Maker.dense, Maker.transposed, ALL),
    "every second column": (Maker.every_second_column, Maker.every_second_column, ALL),
    "every second row": (Maker.every_second_row, Maker.every_second_row, (FLOAT,)),
    "slice of rows": (Maker.slice_of_rows, Maker.slice_of_rows, (FLOAT,)),
    "slice of columns": (Maker.slice_of_columns, Maker.slice_of_columns, ALL),
    "both misaligned": (Maker.misaligned, Maker.misaligned, (*ALL, HALF)),
    "misaligned to dense": (Maker.dense, Maker.misaligned, ALL),
    "channels_last": (Maker.channels_last, Maker.channels_last, ALL),
    "broadcast row": (Maker.dense, Maker.row, ALL),
    "broadcast column": (Maker.dense, Maker.column, (*ALL, HALF)),
    "broadcast row and column": (Maker.column, Maker.row, ALL),
    "0-dim": (Maker.dense, Maker.number, ALL),
    "out=": (Maker.dense, Maker.dense, ALL),
}
# Calls with two dtypes, or with integer dtypes.
MIXED: dict[str, tuple[str, Callable[[Maker], Args]]] = {
    "add, bf16 to fp32": ("vector_add", lambda m: (m.dense(FLOAT), m.dense(BFLOAT))),
    "add, fp16 to bf16": ("vector_add", lambda m: (m.dense(HALF), m.dense(BFLOAT))),
    "add, transposed bf16 to fp32": (
        "vector_add",
        lambda m: (m.dense(FLOAT), m.transposed(BFLOAT)),
    ),
    "add, fp64 row to fp16": ("vector_add", lambda m: (m.dense(HALF), m.row(DOUBLE))),
    "add, fp64 row to misaligned": ("vector_add", lambda m: (m.misaligned(FLOAT), m.row(DOUBLE))),
    "add, fp64 row to misaligned fp16": (
        "vector_add",
        lambda m: (m.misaligned(HALF), m.row(DOUBLE)),
    ),
    "add, 0-dim fp64 to fp32": ("vector_add", lambda m: (m.dense(FLOAT), m.number(DOUBLE))),
    "add, int32 to fp32": ("vector_add", lambda m: (m.dense(FLOAT), m.dense(INT))),
    "add, int32 to fp16": ("vector_add", lambda m: (m.dense(HALF), m.dense(INT))),
    "scale, int32 by a float": ("scale", lambda m: (m.dense(INT), FACTOR)),
    "sine, int32": ("sine", lambda m: (m.dense(INT),)),
    "cosine, int32": ("cosine", lambda m: (m.dense(INT),)),
}
# Tensors of 2^20 elements. They would fit in the cache, but are timed with cold caches.
SMALL: dict[str, tuple[str, Callable[[Maker], Args]]] = {
    "add, 2^20 elements": ("vector_add", lambda m: (m.small(FLOAT), m.small(FLOAT))),
    "add, 2^20 elements, bf16 to fp32": (
        "vector_add",
        lambda m: (m.small(FLOAT), m.small(BFLOAT)),
    ),
}


class View(NamedTuple):
    name: str  # such as "add, both misaligned, fp16"
    op: str
    make: Callable[[Maker], Args]
    layout: str  # the name without op and dtype


def views() -> Iterator[View]:
    """Yields the views of BINARY and UNARY for all dtypes, and then those of MIXED and SMALL."""
    for layout, (a, b, dtypes) in BINARY.items():
        for dtype in dtypes:
            name = ", ".join(["add", layout, *filter(None, [SHORT.get(dtype)])])
            yield View(name, "vector_add", partial(_two, a, b, dtype), layout)
    for op in OPS:
        if op == "vector_add":
            continue
        for layout, (of, dtypes) in UNARY.items():
            for dtype in dtypes:
                name = " ".join([f"{op}, {layout}", *filter(None, [SHORT.get(dtype)])])
                yield View(name, op, partial(_one, op, of, dtype), layout)
    for name, (op, make) in (MIXED | SMALL).items():
        yield View(name, op, make, name.split(", ", 1)[1])


def _two(a: Layout, b: Layout, dtype: torch.dtype, maker: Maker) -> Args:
    return a(maker, dtype), b(maker, dtype)


def _one(op: str, of: Layout, dtype: torch.dtype, maker: Maker) -> Args:
    return (of(maker, dtype), *([FACTOR] if op == "scale" else []))


def plans(settings: Settings) -> Iterator[Plan]:
    if settings.device == "cuda":
        for view in views():
            yield Plan(f"cuda/views/{view.name}", partial(view_case, settings, view))
        return
    for count in settings.threads:
        for view in views():
            if view.op in EXACT and view.name not in SMALL:
                key = f"cpu/views/{view.name}/{count} threads"
                yield Plan(key, partial(view_case, settings, view, count))


def maker(settings: Settings) -> Maker:
    if settings.quick:
        return Maker(settings.device, 64, 128)
    return Maker(settings.device, *((8192, 4096) if settings.device == "cuda" else (1024, 1024)))


def into(function: Callable[..., Any], result: Tensor) -> Callable[..., Tensor]:
    """Returns a function that calls `function` with an `out=` tensor and returns that tensor. At
    first the tensor contains NaN, to show elements that are not written."""
    out = torch.full_like(result, torch.nan)

    def call(*args: Any) -> Tensor:
        function(*args, out=out)
        return out

    return call


def view_case(settings: Settings, view: View, count: int | None = None) -> Case:
    copies = 1
    if settings.device == "cuda":
        # A small tensor fits in the cache; this many copies of it do not.
        copies = 24 if view.name in SMALL and not settings.quick else 2
    inputs = [view.make(maker(settings)) for _ in range(copies)]
    tensors = [a for a in inputs[0] if isinstance(a, Tensor)]
    functions = functions_of(view.op)
    if view.layout == "out=":
        in_place_of = {OURS: getattr(torch.ops.treadle, view.op).out}
        functions = {
            name: into(in_place_of.get(name, function), tensors[0])
            for name, function in functions.items()
        }
    where = "CUDA" if count is None else f"CPU, {count} thread{'s' * (count > 1)}"
    facts = {
        "group": f"{view.op} on views, {where}",
        "label": view.name,
        "series": "layout",
        "layout": view.layout,
        "dtype": dtype_name(tensors[0].dtype),
        "shape": list(torch.broadcast_shapes(*(t.shape for t in tensors))),
    }
    if settings.device == "cuda":
        facts["mean_target"] = MEAN | {"part": "views"}
    # On the CPU, torch rounds half types once in full SIMD vectors but twice in strided tensors, so
    # not all bits need to be equal.
    halves = any(t.dtype in (BFLOAT, HALF) for t in tensors)
    return Case(
        op=view.op,
        functions=functions,
        inputs=inputs,
        timer=settings.brief(),
        target=at_least(0.98, twin_name(view.op)),
        bits=view.op in EXACT and not (halves and settings.device == "cpu"),
        threads=count,
        facts=facts,
    )
