"""Two users of the kernels in one process: torch, through its ops, and a framework without torch,
through kernels.h. Both must get the same bits, whether they run one after the other, interleaved or
in two threads.

As a program (python -m tests.c_api.two_users CELL DTYPE HIDDEN), this file uses CUDA. Its process
can be killed if kernels wait for each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import Layer, Sizes, backward, forward
from tests.c_api.operands import Op
from tests.support.compare import same_bits

User = Callable[[native.Device], list[Tensor]]


@dataclass(frozen=True)
class Work:
    """The same work for both users, each with its own results. `by_torch` ignores the device."""

    what: str
    by_torch: User
    by_kernels_h: User


def elementwise(op: Op, inputs: list[Tensor], arrays: list[native.Array]) -> Work:
    """`arrays` describe `inputs`, or another framework's memory with the same values."""
    first = inputs[0]

    def by_kernels_h(device: native.Device) -> list[Tensor]:
        out = torch.empty_like(first)
        op.run(device, arrays, native.array(out))
        return [out]

    return Work(
        op.name, lambda _: [op.expected(inputs, tuple(first.shape), first.dtype)], by_kernels_h
    )


def recurrent(layer: Layer) -> Work:
    """A layer's forward and backward pass. The products with the input must be exact, because
    torch's op computes them itself."""
    layer = layer.with_exact_products()
    s = layer.sizes
    output = torch.zeros(s.steps, s.batch, s.directions * s.hidden, dtype=layer.dtype)
    waves = (torch.cos(torch.arange(x.numel())) for x in (output, layer.h0, layer.c0))
    like = (output.to(layer.h0.device), layer.h0, layer.c0)
    first, second, third = (w.to(x).view_as(x) for w, x in zip(waves, like, strict=True))
    grads = first, second, third

    def by_torch(_: native.Device) -> list[Tensor]:
        ops, cell = torch.ops.treadle, layer.cell
        results = ops.recurrent_layer_forward(*layer.arguments, cell=cell)
        mask = [False, True, True, *[False] * 6]
        saved = (*layer.arguments, results[0], results[3], cell, False, "auto", mask)
        return [*results, *ops.recurrent_layer_backward(*grads, *saved)[1:3]]

    def by_kernels_h(device: native.Device) -> list[Tensor]:
        results = forward(layer, on=device)
        return [*results, *backward(layer, results[3], grads, on=device)[1:]]

    return Work(f"{layer.cell} {s}", by_torch, by_kernels_h)


@dataclass(frozen=True)
class Place:
    """The device of both users, and on CUDA the stream of each."""

    first: native.Device
    second: native.Device
    streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None

    @staticmethod
    def cpu() -> Place:
        return Place(native.cpu(2), native.cpu(2))

    @staticmethod
    def cuda() -> Place:
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        return Place(native.cuda(streams[0]), native.cuda(streams[1]), streams)

    @contextmanager
    def of(self, user: int) -> Iterator[native.Device]:
        device = self.second if user else self.first
        if self.streams is None:
            yield device
        else:
            with torch.cuda.stream(self.streams[user]):
                yield device

    def wait(self) -> None:
        if self.streams is not None:
            torch.cuda.synchronize()


def in_turn(work: Work, place: Place, rounds: int, waits: bool = True) -> list[list[Tensor]]:
    found = []
    for _ in range(rounds):
        for number, user in enumerate((work.by_torch, work.by_kernels_h)):
            with place.of(number) as device:
                found.append(user(device))
            if waits:
                place.wait()
    place.wait()
    return found


def interleaved(work: Work, place: Place, rounds: int) -> list[list[Tensor]]:
    """Calls both from one thread without waiting. On the CPU each call is synchronous."""
    return in_turn(work, place, rounds, waits=False)


def in_two_threads(work: Work, place: Place, rounds: int) -> list[list[Tensor]]:
    """Runs both until each has done its rounds, so that they overlap even if one starts late."""
    counts = [0, 0]

    def all_of(number: int) -> list[list[Tensor]]:
        user, found = (work.by_torch, work.by_kernels_h)[number], []
        with place.of(number) as device:
            try:
                while min(counts) < rounds:
                    found.append(user(device))
                    counts[number] += 1
            finally:
                counts[number] = rounds
        return found

    with ThreadPoolExecutor(2) as pool:
        found = [results for both in pool.map(all_of, (0, 1)) for results in both]
    place.wait()
    return found


WAYS = {"in turn": in_turn, "interleaved": interleaved, "two threads": in_two_threads}


def same_as_alone(work: Work, place: Place, way: str, rounds: int) -> None:
    place.wait()  # until the inputs of both have been written
    with place.of(0) as device:
        alone = [x.clone() for x in work.by_torch(device)]
    place.wait()
    for results in WAYS[way](work, place, rounds):
        for number, (found, expected) in enumerate(zip(results, alone, strict=True)):
            same_bits(found, expected, (work.what, way, number))


def on_cuda(cell: str, dtype: torch.dtype, hidden: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._C._set_cudnn_allow_tf32(False)
    sizes = Sizes(24, 20, hidden, 16)
    layer = Layer.random(cell, sizes if hidden > 512 else replace(sizes, directions=2), dtype)
    work = recurrent(layer.on_cuda())
    for way in WAYS:
        same_as_alone(work, Place.cuda(), way, rounds=12)


if __name__ == "__main__":
    on_cuda(sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3]))
    print("the same bits")
