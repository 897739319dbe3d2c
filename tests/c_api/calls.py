"""A valid call of each function of kernels.h, which hostile.py changes into invalid calls. The
calls are generated from native.py, the ctypes mirror of the header."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from tests.c_api import native
from tests.c_api.layers import Layer, Sizes, workspace

# These may be NULL; all other pointers are required.
OPTIONAL = {
    ("treadle_lltm_cell", "bias"),
    ("treadle_lltm_cell_backward", "bias"),
    ("treadle_lltm_cell_backward", "grad_h"),
    ("treadle_lltm_cell_backward", "grad_cell"),
    ("treadle_lltm_cell_backward", "grad_old_cell"),
    ("treadle_sine_linear", "bias"),
    ("treadle_sine_linear", "phase"),
    ("treadle_recurrent_forward", "inputs.bias_ih"),
    ("treadle_recurrent_forward", "inputs.bias_hh"),
    ("treadle_recurrent_forward", "outputs.gates"),
    ("treadle_recurrent_backward", "saved.grad_output"),
    ("treadle_recurrent_backward", "saved.grad_h_n"),
    ("treadle_recurrent_backward", "saved.grad_c_n"),
}


class Call:
    """A good call: its arguments by name, which hostile.py changes, and all its memory."""

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place
        self.arguments: dict[str, Any] = {}
        self.memory: list[Tensor] = []
        self.kept: list[Any] = []

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor in larger memory, so that tests can move it by a few bytes."""
        size = torch.Size(shape).numel()
        memory = (torch.arange(size + 64) % 97).to(dtype).to(self.place)
        self.memory.append(memory)
        return memory[:size].view(shape)

    @property
    def device(self) -> native.Device:
        return native.cpu() if self.place == "cpu" else native.cuda()

    def arrays(self, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            self.arguments[name] = native.array(self.tensor(*shape))

    def bytes(self) -> list[Tensor]:
        return [memory.view(torch.uint8).clone() for memory in self.memory]

    def run(self) -> int:
        names = native.FUNCTIONS[self.name]
        return native.status_of(self.name, *(self.arguments[name] for name in names))

    def structs(self) -> dict[str, native.Sized]:
        return {n: a for n, a in self.arguments.items() if isinstance(a, native.Sized)}


def elementwise(name: str, place: str) -> Call:
    call = Call(name, place)
    parameters = native.FUNCTIONS[name]
    call.arguments["device"] = call.device
    arrays = [n for n, kind in parameters.items() if kind is ctypes.POINTER(native.Array)]
    call.arrays(**{n: (4, 6) for n in arrays})
    call.arguments |= {n: native.number(2) for n, k in parameters.items() if k is native.Number}
    return call


def lltm_cell(name: str, place: str) -> Call:
    call = Call(name, place)
    call.arguments["device"] = call.device
    wide = ("gates", "grad_gates")
    for parameter in [*native.FUNCTIONS[name]][1:]:
        shape = (12,) if parameter == "bias" else (3, 12 if parameter in wide else 4)
        call.arrays(**{parameter: shape})
    return call


def sine_linear(name: str, place: str) -> Call:
    call = Call(name, place)
    call.arguments |= {"device": call.device, "omega": 30.0}
    for parameter in native.FUNCTIONS[name]:
        if parameter == "phase":
            call.arguments["phase"] = native.array(call.tensor(3, 5, dtype=torch.int16))
        elif parameter not in call.arguments:
            call.arrays(**{parameter: (5,) if parameter == "bias" else (3, 5)})
    return call


def recurrent(name: str, place: str) -> Call:
    call = Call(name, place)
    layer = Layer.random("lstm", Sizes(3, 2, 8, directions=2), torch.float32)
    layer = layer.mapped(lambda x: x.to(place))
    call.arguments |= {"device": call.device, "layer": layer.struct}
    if name.endswith("workspace"):
        size = torch.zeros(1, dtype=torch.int64)  # always on the host
        call.memory.append(size)
        pointer = ctypes.cast(size.data_ptr(), ctypes.POINTER(ctypes.c_size_t))
        call.arguments |= {"backward": 1, "bytes": pointer}
        return call
    backward = name.endswith("backward")
    size = {"products": 384, "weight_hh": 512, "gates": 384, "output": 96, "grad_output": 96}
    size |= {"bias_ih": 64, "bias_hh": 64}
    kinds = {"saved": native.Saved, "grads": native.Grads}
    if not backward:
        kinds = {"inputs": native.Inputs, "outputs": native.Outputs}
    for argument, kind in kinds.items():
        fields = [field for field, *_ in kind._fields_][1:]
        memory = [call.tensor(size.get(field, 32)) for field in fields]
        call.arguments[argument] = kind(*(t.data_ptr() for t in memory))
    space = workspace(layer, backward, call.device)
    call.memory.append(space.memory)
    call.arguments |= {"workspace": space.address, "workspace_bytes": space.size}
    return call


def get_launch(name: str, place: str) -> Call:
    call = Call(name, place)
    call.arguments |= {"index": 0, "launch": native.Launch()}
    return call


MAKERS = {"lltm": lltm_cell, "sine_linear": sine_linear, "recurrent": recurrent, "get": get_launch}


def good(name: str, place: str = "cpu") -> Call:
    for part, make in MAKERS.items():
        if name.removeprefix("treadle_").startswith(part):
            return make(name, place)
    return elementwise(name, place)
