"""Bad cases for every elementwise op: the first argument, out=, and in-place calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.inputs import Bad, Make, elsewhere, of_dtype, without_storage


def halves_of_nine(make: Make) -> tuple[Tensor, Tensor]:
    """Two tensors [8] of one storage, one element apart."""
    buffer = make(9)
    return buffer[:8], buffer[1:]


def elementwise(op: str, call: Callable[..., Any], first: str, computed: str) -> list[Bad]:
    """Calls that break a rule for the first argument or the result of an elementwise op."""
    real_devices = ("cpu", "cuda")
    result = f"{op}: {computed} must give a result of an integer or floating-point dtype, got "
    layout = f"{op}: tensors must be dense and on a CPU or CUDA device, got a "
    return [
        Bad(
            f"{op} complex",
            lambda m: call(m, of_dtype(m, torch.complex64, 4)),
            result + "complex64",
        ),
        Bad(
            f"{op} float8",
            lambda m: call(m, of_dtype(m, torch.float8_e5m2, 4)),
            result + "Float8_e5m2",
        ),
        Bad(
            f"{op} sparse",
            lambda m: call(m, m(4, 4).to_sparse()),
            layout + "Sparse tensor of float32 on {device}",
            real_devices,
            NotImplementedError,
        ),
        Bad(
            f"{op} mkldnn",
            lambda m: call(m, m(4, 4).to_mkldnn()),
            layout + "Mkldnn tensor of float32 on cpu",
            ("cpu",),
            NotImplementedError,
        ),
        Bad(
            f"{op} quantized",
            lambda m: call(m, torch.quantize_per_tensor(m(4), 0.1, 0, torch.qint8)),
            layout + "Strided tensor of QInt8 on cpu",
            ("cpu",),
            NotImplementedError,
        ),
        Bad(
            f"{op} storage",
            lambda m: call(m, without_storage(m(4))),
            f"{op}: {first} must have a storage of at least 16 bytes, got 0 bytes",
            real_devices,
        ),
    ]


def writing(op: str, call: Callable[..., Any], inplace: Callable[..., Any], x: str) -> list[Bad]:
    """Calls that break a rule for out= or for in-place calls."""
    memory = "must have memory of its own for every element, got shape [4] and strides [0]"
    apart = "got one that partly overlaps it"
    leaf = "a leaf Variable that requires grad is being used in an in-place operation."
    return [
        Bad(
            f"{op} out dtype",
            lambda m: call(m, m(4), out=of_dtype(m, torch.int64, 4)),
            f"{op}: out must have a dtype that a float32 result can be cast to, got int64",
        ),
        Bad(
            f"{op} out complex",
            lambda m: call(m, m(4), out=of_dtype(m, torch.complex64, 4)),
            f"{op}: out must have a dtype that a float32 result can be cast to, got complex64",
        ),
        Bad(
            f"{op} out device",
            lambda m: call(m, m(4), out=elsewhere(m, 4)),
            f"{op}: out must be on {{device}}, got {{other}}",
        ),
        Bad(
            f"{op} out expanded",
            lambda m: call(m, m(4), out=m(1).expand(4)),
            f"{op}: out {memory}",
        ),
        Bad(
            f"{op} out overlaps",
            lambda m: call(m, (pair := halves_of_nine(m))[0], out=pair[1]),
            f"{op}: out must be {x} or share no memory with it, {apart}",
        ),
        Bad(
            f"{op} out with grad",
            lambda m: call(m, m(4).requires_grad_(), out=m(4)),
            f"{op}: out must be used without autograd, got an argument that requires grad",
        ),
        Bad(
            f"{op} out requires grad",
            lambda m: call(m, m(4), out=m(4).requires_grad_()),
            f"{op}: out must be used without autograd, got an argument that requires grad",
        ),
        Bad(
            f"{op} out storage",
            lambda m: call(m, m(4), out=without_storage(m(4))),
            f"{op}: out must have a storage of at least 16 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
        Bad(f"{op}_ expanded", lambda m: inplace(m, m(1).expand(4)), f"{op}_: {x} {memory}"),
        Bad(f"{op}_ leaf", lambda m: inplace(m, m(4).requires_grad_()), leaf),
        Bad(
            f"{op}_ storage",
            lambda m: inplace(m, without_storage(m(4))),
            f"{op}_: {x} must have a storage of at least 16 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
    ]


def integers_refused(op: str, inplace: Callable[..., Any], x: str) -> Bad:
    """An in-place call, on integers, of an op whose result is always floating-point."""
    return Bad(
        f"{op}_ integers",
        lambda m: inplace(m, m(4, dtype=torch.int32)),
        f"{op}_: {x} must have a dtype that a float32 result can be cast to, got int32",
    )
