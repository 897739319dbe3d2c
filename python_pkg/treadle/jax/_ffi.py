"""The library of XLA handlers that treadle.jax calls, and the sizes of their workspaces."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from .. import _build

try:
    import jax
    import numpy as np
except ModuleNotFoundError as error:
    raise ImportError(f"treadle.jax needs {error.name}: pip install jax") from error

_NAMES = (
    *("sine", "cosine", "sine_backward", "cosine_backward", "scale", "vector_add"),
    *("recurrent_forward", "recurrent_backward"),
)
CELLS = {"lstm": 1, "gru": 2, "rnn_tanh": 3, "rnn_relu": 4}  # TREADLE_LSTM and so on
DTYPES = {"float16": 0x11002, "bfloat16": 0x11004, "float32": 0x12002, "float64": 0x14002}
_INVALID = 1  # TREADLE_INVALID
# The alignment of a workspace in bytes. XLA's buffers may be aligned to less, so the handler skips
# to the next multiple.
_ALIGNMENT = 256


class Layer(NamedTuple):
    """The properties that decide how a recurrent layer runs. JAX's transforms do not trace them."""

    cell: str  # a key of CELLS
    directions: int
    dtype: str
    c_dtype: str
    steps: int
    batch: int
    hidden: int
    biases: bool


class _Device(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("cell", ctypes.c_int32),
        ("directions", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("c_dtype", ctypes.c_uint32),
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
    ]


def register() -> None:
    """Register the handlers with XLA, under the names that `call` uses.

    Raises:
        ImportError: if this package has no libtreadle_jax.so.
    """
    path = _build.LIB / "libtreadle_jax.so"
    if not path.exists():
        raise ImportError(
            f"treadle was built without JAX: {path} is missing. Install JAX, and then build "
            f"treadle with: {_build.rebuild_command()}"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"treadle's handlers for JAX could not be opened ({error}). Build them again with: "
            f"{_build.rebuild_command()}"
        ) from error
    platforms = {"cpu": "cpu"} | ({"cuda": "CUDA"} if _build.kernels_info()["cuda"] else {})
    for name in _NAMES:
        for suffix, platform in platforms.items():
            handler = jax.ffi.pycapsule(getattr(library, f"treadle_jax_{name}_{suffix}"))
            jax.ffi.register_ffi_target(f"treadle_{name}", handler, platform=platform)


def call(name: str, results: Any, *arguments: Any, vmap_method: str, **attributes: Any) -> Any:
    """Calls the handler `name` with these arrays; `results` are jax.ShapeDtypeStruct."""
    made = jax.ffi.ffi_call(f"treadle_{name}", results, vmap_method=vmap_method)
    return made(*arguments, **attributes)


def number(value: float) -> dict[str, Any]:
    """Attributes that pass a Python number to a handler with all its bits."""
    integer = isinstance(value, int)
    return {
        "real": np.float64(value),
        "integer": np.int64(value if integer else 0),
        "is_integer": np.bool_(integer),
    }


def platform_of(x: Any) -> str:
    """The platform of `x`, "cpu" or "gpu"; for a traced array, that of JAX's default device."""
    if not isinstance(x, jax.core.Tracer):
        return str(next(iter(x.devices())).platform)
    device = jax.config.jax_default_device or jax.default_backend()
    name = str(getattr(device, "platform", device))
    return "gpu" if name == "cuda" else name


@cache
def workspace(layer: Layer, backward: bool, platform: str) -> int | None:
    """Bytes of workspace that the kernels need for this layer, or None if they cannot run it.

    Raises:
        ValueError: the layer is invalid on every device.
    """
    library = ctypes.CDLL(_build.kernels_path())
    library.treadle_error_text.restype = ctypes.c_char_p
    device = _Device(struct_size=ctypes.sizeof(_Device), type={"cpu": 1, "gpu": 2}[platform])
    asked = _Layer(
        ctypes.sizeof(_Layer),
        CELLS[layer.cell],
        layer.directions,
        DTYPES[layer.dtype],
        DTYPES[layer.c_dtype],
        layer.steps,
        layer.batch,
        layer.hidden,
    )
    needed = ctypes.c_size_t()
    status = library.treadle_recurrent_workspace(
        ctypes.byref(device), ctypes.byref(asked), int(backward), ctypes.byref(needed)
    )
    if status == _INVALID:
        raise ValueError(f"{layer.cell}: {library.treadle_error_text().decode()}")
    return None if status else needed.value


def has_kernel(layer: Layer, platform: str) -> bool:
    """Whether both passes of this layer have kernels on this platform."""
    if platform not in ("cpu", "gpu") or 0 in (layer.steps, layer.batch, layer.hidden):
        return False
    return all(workspace(layer, backward, platform) is not None for backward in (False, True))


def workspace_result(layer: Layer, backward: bool) -> Any:
    """The workspace of a pass. It is large enough for each platform of this process, because code
    that was traced for one platform may run on another."""
    sizes = [workspace(layer, backward, platform) for platform in ("cpu", "gpu")]
    most = max(size for size in sizes if size is not None)
    return jax.ShapeDtypeStruct((most + _ALIGNMENT,), np.uint8)
