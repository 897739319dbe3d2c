"""Ways to make a valid call of kernels.h invalid, and checks of the resulting errors. The ways are
derived from native.py, the ctypes mirror of the header.

A `Spoiler` changes one argument or field so that the function must refuse the call. As a program
(`python -m tests.c_api.hostile SEED COUNT PLACE`), this file makes random calls, so that a crash
ends only that program.
"""

from __future__ import annotations

import ctypes
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.c_api import native
from tests.c_api.calls import OPTIONAL, Call, good
from tests.support.inputs import on_hopper

GRAMMAR = re.compile(r"[a-z_]\w*(\.\w+)? must [^\n]+, got [^\n]+")


@dataclass(frozen=True)
class Spoiler:
    what: str
    names: str  # the error text must begin with it
    spoil: Callable[[Call], None]

    def __str__(self) -> str:
        return self.what


def setting(argument: str, field: str, value: Any, names: str | None = None) -> Spoiler:
    return Spoiler(
        f"{argument}.{field} = {value}",
        names or f"{argument}.{field}",
        lambda call: setattr(call.arguments[argument], field, value),
    )


def replacing(argument: str, value: Any) -> Spoiler:
    return Spoiler(
        f"{argument} = {value}", argument, lambda call: call.arguments.update({argument: value})
    )


def moving(argument: str, field: str, by: int, names: str) -> Spoiler:
    def spoil(call: Call) -> None:
        struct = call.arguments[argument]
        setattr(struct, field, getattr(struct, field) + by)

    return Spoiler(f"{argument}.{field} += {by}", names, spoil)


def numbers(argument: str, field: str, values: list[int], names: str) -> Spoiler:
    def spoil(call: Call) -> None:
        struct = call.arguments[argument]
        count = struct.ndim
        array = (ctypes.c_int64 * count)(*(values * count)[:count])
        call.kept.append(array)
        setattr(struct, field, array)

    return Spoiler(f"{argument}.{field} = {values}", names, spoil)


DTYPES = (0, 1, 0x12001, 0x22002, 0x14005, 0x12002 | 1 << 24, 0xFFFFFFFF, 0x10802)
BIG = (2**62, 2**63 - 1)


def of_array(call: Call, name: str) -> Iterator[Spoiler]:
    size = ctypes.sizeof(native.Array)
    for value in (0, size - 8, size + 8, 2**64 - 1):
        yield setting(name, "struct_size", value)
    for value in DTYPES:
        yield setting(name, "dtype", value)
    for value in (-1, 26, 2**31 - 1, -(2**31)):
        yield setting(name, "ndim", value)
    yield setting(name, "sizes", None)
    yield setting(name, "data", None)
    yield moving(name, "data", 1, f"{name}.data")
    yield setting(name, "data", 2**64 - 16, f"{name}.data")
    yield numbers(name, "sizes", [-1], f"{name}.sizes")
    yield numbers(name, "sizes", [3, -(2**63)], name)
    for value in BIG:
        yield numbers(name, "sizes", [value], name)
        yield numbers(name, "strides", [value], name)
        yield numbers(name, "strides", [-value], name)
    yield numbers(name, "strides", [-(2**63)], name)


def of_device(call: Call, name: str) -> Iterator[Spoiler]:
    size = ctypes.sizeof(native.Device)
    for value in (0, size - 8, size + 8):
        yield setting(name, "struct_size", value)
    for value in (0, 3, -1, 2**31 - 1):
        yield setting(name, "type", value)
    gpus = torch.cuda.device_count()
    for value in (1 if call.place == "cpu" else gpus, -1, 2**31 - 1):
        yield setting(name, "index", value)
    for value in (-1, -(2**31)):
        yield setting(name, "threads", value)


def of_layer(call: Call, name: str) -> Iterator[Spoiler]:
    size = ctypes.sizeof(native.Recurrent)
    for value in (0, size - 8, size + 8):
        yield setting(name, "struct_size", value)
    for value in (-1, 5, 2**31 - 1):
        yield setting(name, "cell", value)
    for value in (0, -1, 3):
        yield setting(name, "directions", value)
    for value in (*DTYPES, native.DTYPES[torch.int64]):
        yield setting(name, "dtype", value)
        yield setting(name, "c_dtype", value)
    for field in ("steps", "batch", "hidden"):
        for value in (0, -1, -(2**63), 2**31, 2**63 - 1):
            yield setting(name, field, value)


def of_pointers(call: Call, name: str) -> Iterator[Spoiler]:
    struct = call.arguments[name]
    for value in (0, ctypes.sizeof(struct) - 8, ctypes.sizeof(struct) + 8):
        yield setting(name, "struct_size", value)
    for field, *_ in struct._fields_[1:]:
        if (call.name, f"{name}.{field}") not in OPTIONAL:
            yield setting(name, field, None)
        yield moving(name, field, 1, f"{name}.{field}")
        yield setting(name, field, 2**64 - 16)


def of_workspace(call: Call, _: str) -> Iterator[Spoiler]:
    size, address = call.arguments["workspace_bytes"], call.arguments["workspace"]
    if size == 0:  # some CUDA kernels need no workspace
        return
    for value in (0, 1, size - 1):
        yield replacing("workspace_bytes", value)
    for place in (None, address + 1, address + 64, 2**64 - 256):
        yield replacing("workspace", place)


def of_launch(call: Call, name: str) -> Iterator[Spoiler]:
    for value in (0, 8, 2**63):
        yield setting(name, "struct_size", value)


KINDS: dict[Any, Callable[[Call, str], Iterator[Spoiler]]] = {
    ctypes.POINTER(native.Array): of_array,
    ctypes.POINTER(native.Device): of_device,
    ctypes.POINTER(native.Recurrent): of_layer,
    ctypes.POINTER(native.Launch): of_launch,
    **{
        ctypes.POINTER(kind): of_pointers
        for kind in (native.Inputs, native.Outputs, native.Saved, native.Grads)
    },
    ctypes.c_void_p: of_workspace,
}


def spoilers(name: str, place: str = "cpu") -> list[Spoiler]:
    """All spoilers of a function, from its parameters."""
    call, found = good(name, place), []
    for parameter, kind in native.FUNCTIONS[name].items():
        if hasattr(kind, "contents") and (name, parameter) not in OPTIONAL:
            found.append(replacing(parameter, None))
        if kind in KINDS:
            found += KINDS[kind](call, parameter)
    return found


def functions(place: str) -> list[str]:
    """Functions that have kernels on the CPU, or on this GPU if `place` is "cuda"."""
    return [f for f in native.FUNCTIONS if place == "cpu" or on_hopper() or "recurrent" not in f]


def complaint(call: Call, names: str | None = None) -> str:
    """Runs a bad call. Returns what is wrong with its failure, or "" if it fails as it should."""
    before, text = call.bytes(), ""
    status = call.run()
    text = native.error_text()
    if status not in (native.INVALID, native.UNSUPPORTED):
        return f"status {status}"
    if not GRAMMAR.fullmatch(text):
        return f"the error text is not 'NAME must ..., got ...': {text!r}"
    if names is not None and not re.match(re.escape(names) + r"(?!\w)", text):
        return f"the error text does not name {names}: {text!r}"
    if any(not torch.equal(a, b) for a, b in zip(before, call.bytes(), strict=True)):
        return f"the call changed memory: {text!r}"
    return ""


def storm(seed: int, count: int, place: str = "cpu") -> str:
    """Makes random calls, each spoilt in one to three ways. Returns the first complaint, or ""."""
    generator = random.Random(seed)
    found = {name: spoilers(name, place) for name in functions(place)}
    for n in range(count):
        name = generator.choice([*found])
        call = good(name, place)
        chosen = generator.sample(found[name], generator.randint(1, 3))
        applied = []
        for spoiler in chosen:
            if _possible(call, spoiler):
                spoiler.spoil(call)
                applied.append(spoiler.what)
        said = complaint(call)
        if said:
            return f"call {n} of seed {seed}: {name} with {applied}: {said}"
    return ""


def _possible(call: Call, spoiler: Spoiler) -> bool:
    """Whether the struct and the field that this spoiler changes still exist."""
    owner = spoiler.what.split(" ")[0].split(".")
    struct = call.arguments[owner[0]]
    if len(owner) == 1:
        return True
    counts = isinstance(struct, native.Array) and not 0 <= struct.ndim <= native.MAX_DIMS
    lost = struct is None or (" += " in spoiler.what and getattr(struct, owner[1]) is None)
    return not counts and not lost


if __name__ == "__main__":
    complaints = storm(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print(complaints)
    sys.exit(bool(complaints))
