"""A recurrent layer of kernels.h: its arrays, its forward and backward calls on CPU and CUDA, and
the matrix products that the caller computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.c_api import native

CELLS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")  # in the order of kernels.h
GATES = {"lltm": 3, "lstm": 4, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}
# The number of blocks of `hidden` rows in weight_ih, which is the same in weight_hh.
PRODUCTS = {"lltm": 3, "lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
PADDING = 0x5A


@dataclass(frozen=True)
class Sizes:
    steps: int
    batch: int
    hidden: int
    inputs: int = 5
    directions: int = 1


@dataclass(frozen=True)
class Workspace:
    """Memory of `size` bytes at an address that is a multiple of 256."""

    memory: Tensor
    size: int

    @staticmethod
    def of(size: int, place: torch.device, filled: bool) -> Workspace:
        memory = torch.empty(size + 256, dtype=torch.uint8, device=place)
        return Workspace(memory.fill_(0xA5) if filled else memory, size)

    @property
    def address(self) -> int:
        return -(-self.memory.data_ptr() // 256) * 256

    def kept_to_it(self) -> bool:
        """Whether the memory around the workspace is unchanged."""
        start = self.address - self.memory.data_ptr()
        around = torch.cat([self.memory[:start], self.memory[start + self.size :]])
        return bool((around == 0xA5).all())


@dataclass
class Layer:
    """The arguments of a layer."""

    cell: str
    sizes: Sizes
    input: Tensor
    h0: Tensor
    c0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    filled: bool = True  # fill results and workspaces with a pattern before the call

    @staticmethod
    def random(cell: str, s: Sizes, dtype: torch.dtype, biases: bool = True) -> Layer:
        generator = torch.Generator().manual_seed(s.steps + 7 * s.batch + 31 * s.hidden)

        def make(*shape: int, by: float = 1.0) -> Tensor:
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
            return (numbers * by).to(dtype)

        d, rows = s.directions, PRODUCTS[cell] * s.hidden
        h0 = make(d, s.batch, s.hidden)
        return Layer(
            cell,
            s,
            make(s.steps, s.batch, s.inputs),
            h0,
            h0.clone() if cell not in ("lltm", "lstm") else make(d, s.batch, s.hidden),
            make(d, rows, s.inputs, by=s.inputs**-0.5),
            make(d, rows, s.hidden, by=s.hidden**-0.5),
            make(d, rows) if biases else None,
            make(d, rows) if biases and cell != "lltm" else None,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.input.dtype

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Layer:
        """The same layer with `change` applied to each tensor."""
        tensors = {n: x for n, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **{name: change(x) for name, x in tensors.items()})

    def on_cuda(self) -> Layer:
        """The layer on a GPU. With a half type, cells without a cell state have c0 in float32."""
        made = self.mapped(lambda x: x.cuda())
        if self.cell not in ("lltm", "lstm") and self.dtype.itemsize == 2:
            made.c0 = made.c0.float()
        return made

    def with_exact_products(self) -> Layer:
        """The layer with input and weight_ih rounded to eighths, so that products are exact."""
        input, weight = ((8 * x).round() / 8 for x in (self.input, self.weight_ih))
        return replace(self, input=input, weight_ih=weight)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the torch op."""
        return (
            self.input,
            None,
            self.h0,
            self.c0,
            self.weight_ih,
            self.weight_hh,
            self.bias_ih,
            self.bias_hh,
        )

    @property
    def struct(self) -> native.Recurrent:
        dtypes = native.DTYPES[self.dtype], native.DTYPES[self.c0.dtype]
        s, cell = self.sizes, CELLS.index(self.cell)
        return native.Recurrent(cell, s.directions, *dtypes, s.steps, s.batch, s.hidden)

    def products(self) -> Tensor:
        """The products input W_ih^T, [D, T, B, Gi H]. kernels.h defines Gi."""
        return torch.stack([self.input @ w.t() for w in self.weight_ih])

    def empty(self, *shape: int, like: Tensor | None = None) -> Tensor:
        """Memory for a result, with the shape and dtype of `like` if given. If `filled`, it
        contains a pattern that no result has."""
        dtype = self.dtype if like is None else like.dtype
        shape = shape if like is None else tuple(like.shape)
        if not self.filled:
            return torch.empty(shape, dtype=dtype, device=self.input.device)
        made = {"dtype": torch.uint8, "device": self.input.device}
        return torch.full((*shape, dtype.itemsize), PADDING, **made).view(dtype).squeeze(-1)

    def gates_shape(self) -> tuple[int, ...]:
        s = self.sizes
        return s.directions, s.steps, s.batch, GATES[self.cell] * s.hidden


def address(x: Tensor | np.ndarray | None) -> int | None:
    if x is None:
        return None
    return x.data_ptr() if isinstance(x, Tensor) else x.ctypes.data


def workspace(layer: Layer, backward: bool, device: native.Device) -> Workspace:
    size = native.c_size_t()
    arguments = device, layer.struct, int(backward), native.ctypes.byref(size)
    native.call("treadle_recurrent_workspace", *arguments)
    return Workspace.of(size.value, layer.input.device, layer.filled)


def run(
    name: str, layer: Layer, given: native.Sized, results: native.Sized, device: native.Device
) -> None:
    """Calls a function with a workspace of exactly the size that the function requests. On the CPU,
    checks that nothing outside the workspace is written. On CUDA this check would wait for the
    kernels, so it is skipped."""
    space = workspace(layer, name.endswith("backward"), device)
    native.call(name, device, layer.struct, given, results, space.address, space.size)
    if device.type == native.CPU_TYPE and layer.filled:
        assert space.kept_to_it()


def forward(
    layer: Layer, save: bool = True, threads: int = 1, on: native.Device | None = None
) -> list[Tensor]:
    """Returns output, h_n, c_n and the gates. On CUDA they are allocated on torch's current stream,
    which must be the stream of `on`."""
    s = layer.sizes
    products = layer.products()
    results = [
        layer.empty(s.steps, s.batch, s.directions * s.hidden),
        layer.empty(like=layer.h0),
        layer.empty(like=layer.c0),
        layer.empty(*layer.gates_shape()),
    ]
    given = (products, layer.weight_hh, layer.bias_ih, layer.bias_hh, layer.h0, layer.c0)
    inputs = native.Inputs(*map(address, given))
    outputs = native.Outputs(*map(address, results if save else results[:3]))
    run("treadle_recurrent_forward", layer, inputs, outputs, on or native.cpu(threads))
    return results


Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


def backward(
    layer: Layer, gates: Tensor, grads: Grads, threads: int = 1, on: native.Device | None = None
) -> list[Tensor]:
    """The gradients of the gates, of h0 and of c0, as the call returns them."""
    results = [layer.empty(like=x) for x in (gates, layer.h0, layer.c0)]
    saved = native.Saved(*map(address, (gates, layer.weight_hh, layer.c0, *grads)))
    written = native.Grads(*map(address, results))
    run("treadle_recurrent_backward", layer, saved, written, on or native.cpu(threads))
    return results


def h_before(layer: Layer, output: Tensor) -> np.ndarray:
    """The h before each step, [D, T, B, H]."""
    s, h0 = layer.sizes, layer.h0.numpy()
    own = output.numpy().reshape(s.steps, s.batch, s.directions, s.hidden)
    found = [np.concatenate([h0[:1], own[:-1, :, 0]])]
    if s.directions == 2:
        found.append(np.concatenate([own[1:, :, 1], h0[1:]]))
    return np.stack(found)


def completed(layer: Layer, output: Tensor, found: list[Tensor]) -> list[np.ndarray]:
    """The gradients of input, h0, c0, weight_ih, weight_hh, bias_ih and bias_hh, computed from the
    gradients of the gates as kernels.h describes."""
    s, width = layer.sizes, PRODUCTS[layer.cell] * layer.sizes.hidden
    gates, grad_h0, grad_c0 = (x.numpy() for x in found)
    if layer.cell not in ("lltm", "lstm"):
        grad_h0, grad_c0 = grad_h0 + grad_c0, np.zeros_like(grad_c0)
    of_input, of_h = gates[..., -width:], gates[..., :width]
    if layer.cell == "gru":  # from the order n, r, z to torch's r, z, n
        of_h = np.roll(of_h, -s.hidden, axis=-1)
    x, weights = layer.input.numpy(), layer.weight_ih.numpy()
    before = h_before(layer, output)
    sums = "dtbg,dtbk->dgk"
    return [
        np.einsum("dtbg,dgi->tbi", of_input, weights),
        grad_h0,
        grad_c0,
        np.einsum(sums, of_input, np.broadcast_to(x, (s.directions, *x.shape))),
        np.einsum(sums, of_h, before),
        of_input.sum((1, 2)),
        of_h.sum((1, 2)),
    ]
