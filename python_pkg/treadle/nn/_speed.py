"""Finds modules that may be slower than torch's: layers with launches at each step, and cells on
GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import _build
from .._check.tensors import dtype_name

# The planner is called for this batch, because replace() does not know the model's batch.
STEPS, BATCH = 128, 16
# In these dtypes cuDNN runs all steps in one launch. In bfloat16 it does not, so cuDNN is slower.
DTYPES = (torch.float32, torch.float16)


def why_maybe_slower(module: nn.RNNBase | nn.RNNCellBase) -> str | None:
    """The reason why the module may be slower than torch's on its GPU, or None."""
    weight = next(module.parameters())
    if isinstance(module, nn.RNNCellBase):
        slower = weight.device.type == "cuda"  # benchmarks/results/h200/h200-single-steps.json
        reason = (
            "on a GPU, inference of more than 32 rows may be slower with treadle's cells than with "
            "torch's"
        )
        return reason if slower else None
    if weight.device.type != "cuda" or weight.dtype not in DTYPES:
        return None
    properties = torch.cuda.get_device_properties(weight.device)
    if "step" not in _algorithms(module, weight.dtype, properties):
        return None
    return (
        f"on {properties.name}, a {dtype_name(weight.dtype)} layer with hidden_size "
        f"{module.hidden_size} launches a matrix product and a kernel at each step, which may be "
        "slower than cuDNN"
    )


def _algorithms(module: nn.RNNBase, dtype: torch.dtype, properties: Any) -> set[str]:
    """The algorithms that the planner chooses, forward and backward, for STEPS and BATCH."""
    facts = {
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "architecture": 10 * properties.major + properties.minor,
        "shared_bytes": properties.shared_memory_per_block_optin,
        "tf32": torch.backends.cudnn.allow_tf32,
    }
    sizes = module.mode.lower(), STEPS, BATCH, module.hidden_size, dtype.itemsize
    directions = 2 if module.bidirectional else 1
    plans = (
        _build.bindings().plan_recurrence(
            *sizes, cuda=True, forced="auto", directions=directions, backward=backward, **facts
        )
        for backward in (False, True)
    )
    return {plan.algorithm for plan in plans}
