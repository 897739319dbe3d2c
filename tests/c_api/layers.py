"""A recurrent layer of kernels.h: its arrays, its calls, and the products around them in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.c_api import native

CELLS = ("lltm", "lstm", "gru")  # by their numbers
GATES = {"lltm": 3, "lstm": 4, "gru": 4}
PRODUCTS = {"lltm": 3, "lstm": 4, "gru": 3}  # gates that have one with the input, and with h
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

    memory: np.ndarray
    size: int

    @staticmethod
    def of(size: int) -> Workspace:
        return Workspace(np.full(size + 256, 0xA5, np.uint8), size)

    @property
    def address(self) -> int:
        return -(-self.memory.ctypes.data // 256) * 256


@dataclass
class Layer:
    """What a layer is given."""

    cell: str
    sizes: Sizes
    input: Tensor
    h0: Tensor
    c0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

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
            h0.clone() if cell == "gru" else make(d, s.batch, s.hidden),
            make(d, rows, s.inputs, by=s.inputs**-0.5),
            make(d, rows, s.hidden, by=s.hidden**-0.5),
            make(d, rows) if biases else None,
            make(d, rows) if biases and cell != "lltm" else None,
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.input.dtype

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the torch ops take them."""
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
        number, s = native.DTYPES[self.dtype], self.sizes
        cell = CELLS.index(self.cell)
        return native.Recurrent(cell, s.directions, number, number, s.steps, s.batch, s.hidden)

    def products(self) -> np.ndarray:
        """input W_ih^T, [D, T, B, Gi H]."""
        x, weights = self.input.numpy(), self.weight_ih.numpy()
        return np.ascontiguousarray(np.stack([x @ w.T for w in weights]))

    def empty(self, *shape: int) -> Tensor:
        """Bytes of a pattern, which no result has."""
        bytes_ = torch.full((*shape, self.input.element_size()), PADDING, dtype=torch.uint8)
        return bytes_.view(self.dtype).squeeze(-1)

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
    return Workspace.of(size.value)


def run(
    name: str, layer: Layer, given: native.Sized, results: native.Sized, device: native.Device
) -> None:
    """Calls a function with a workspace that is not larger than it said, and sees it keep to it."""
    space = workspace(layer, name.endswith("backward"), device)
    native.call(name, device, layer.struct, given, results, space.address, space.size)
    start = space.address - space.memory.ctypes.data
    assert (space.memory[:start] == 0xA5).all() and (
        space.memory[start + space.size :] == 0xA5
    ).all()


def forward(layer: Layer, save: bool = True, threads: int = 1) -> list[Tensor]:
    """output, h_n, c_n, and the gates."""
    s = layer.sizes
    products = layer.products()
    results = [
        layer.empty(s.steps, s.batch, s.directions * s.hidden),
        layer.empty(*layer.h0.shape),
        layer.empty(*layer.c0.shape),
        layer.empty(*layer.gates_shape()),
    ]
    given = (products, layer.weight_hh, layer.bias_ih, layer.bias_hh, layer.h0, layer.c0)
    inputs = native.Inputs(*map(address, given))
    outputs = native.Outputs(*map(address, results if save else results[:3]))
    run("treadle_recurrent_forward", layer, inputs, outputs, native.cpu(threads))
    return results


Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


def backward(layer: Layer, gates: Tensor, grads: Grads, threads: int = 1) -> list[Tensor]:
    """The gradients of the gates, of h0 and of c0, as they come."""
    results = [layer.empty(*layer.gates_shape())]
    results += [layer.empty(*layer.h0.shape), layer.empty(*layer.c0.shape)]
    saved = native.Saved(*map(address, (gates, layer.weight_hh, layer.c0, *grads)))
    written = native.Grads(*map(address, results))
    run("treadle_recurrent_backward", layer, saved, written, native.cpu(threads))
    return results


def h_before(layer: Layer, output: Tensor) -> np.ndarray:
    """[D, T, B, H], the h before each step."""
    s, h0 = layer.sizes, layer.h0.numpy()
    own = output.numpy().reshape(s.steps, s.batch, s.directions, s.hidden)
    found = [np.concatenate([h0[:1], own[:-1, :, 0]])]
    if s.directions == 2:
        found.append(np.concatenate([own[1:, :, 1], h0[1:]]))
    return np.stack(found)


def completed(layer: Layer, output: Tensor, found: list[Tensor]) -> list[np.ndarray]:
    """The gradients of input, h0, c0, weight_ih, weight_hh, bias_ih and bias_hh, made of those of
    the gates as the header says."""
    s, width = layer.sizes, PRODUCTS[layer.cell] * layer.sizes.hidden
    gates, grad_h0, grad_c0 = (x.numpy() for x in found)
    if layer.cell == "gru":
        grad_h0, grad_c0 = grad_h0 + grad_c0, np.zeros_like(grad_c0)
    of_input, of_h = gates[..., -width:], gates[..., :width]
    if layer.cell == "gru":  # from n r z to torch's r z n
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
