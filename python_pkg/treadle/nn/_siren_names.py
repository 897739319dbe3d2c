"""State dicts of sine networks: renames entries of other implementations, and checks omega_0."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import torch
from torch import Tensor

# This matches layers.{k}.weight and net.{k}.weight of siren-pytorch, and net.{k}.0.weight of the
# SIREN paper's FCBlock. SirenWrapper and SingleBVPNet contain such modules and prepend "net.".
_LAYER = re.compile(r"(?:net\.)?(?:layers|net)\.(\d+)\.(?:0\.)?(weight|bias)")
# This matches siren-pytorch's last layer, which has a different name, and its final activation.
_LAST = re.compile(r"(?:net\.)?last_layer\.(?:(weight|bias)|(activation\..+))")
_WRAPPER = re.compile(r"net\.(?:layers|net)\.0\.weight")


def rename(state_dict: dict[str, Any], old: str, new: str) -> None:
    # If both names are present, load_state_dict reports one as unexpected.
    if old in state_dict and new not in state_dict:
        state_dict[new] = state_dict.pop(old)


def rename_layers(state_dict: dict[str, Any], prefix: str, last: int) -> None:
    """Renames the entries below ``prefix`` to those of a Siren whose last layer has the index
    ``last``."""
    names = [key[len(prefix) :] for key in state_dict if key.startswith(prefix)]
    if any(_WRAPPER.fullmatch(name) for name in names):
        # The pixel coordinates of a SirenWrapper, which are not weights.
        state_dict.pop(f"{prefix}grid", None)
    for name in names:
        if match := _LAYER.fullmatch(name):
            rename(state_dict, prefix + name, f"{prefix}net.{match[1]}.{match[2]}")
        elif match := _LAST.fullmatch(name):
            own = f"{last}.{match[1]}" if match[1] else match[2]
            rename(state_dict, prefix + name, f"{prefix}net.{own}")


def saved_omega(state: object) -> float | None:
    """The omega_0 of a state dict, or None if its tensor has no values (fake or meta)."""
    if isinstance(state, Tensor):
        if state.numel() != 1:
            raise TypeError(
                f"SineLinear: the extra state must be one number, omega_0, got {list(state.shape)}"
            )
        # If a fake tensor exists, this module has been imported.
        fakes: Any = sys.modules.get("torch._subclasses.fake_tensor")
        if state.is_meta or (fakes and isinstance(state, fakes.FakeTensor)):
            return None
        return float(state.item())
    if isinstance(state, (int, float)):
        return float(state)
    raise TypeError(
        f"SineLinear: the extra state must be one number, omega_0, got {type(state).__name__}"
    )


def check_saved_omega(state: object, omega: float) -> None:
    """Raises unless ``state`` is the number ``omega``, rounded to the state's own dtype."""
    saved = saved_omega(state)
    if saved is None or saved == omega or math.isclose(saved, omega, rel_tol=1e-5):
        return
    if isinstance(state, Tensor) and torch.tensor(omega, dtype=state.dtype).item() == saved:
        return
    raise ValueError(f"SineLinear: omega_0 must be {saved}, that of the state dict, got {omega}")
