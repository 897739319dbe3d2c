"""Finds the sizes at which torch.nn.LSTM and GRU give wrong results in float16 on this GPU.

    python examples/torch_float16.py [--json FILE] [--hidden 256]

With cuDNN 9.19, which comes with torch 2.11 for CUDA 13, results and gradients of float16 layers
are silently wrong if the batch size B is a multiple of 8, and the hidden size H is a multiple of 8
but not of 32. Large H are not affected. For each size, this program compares torch's layer and
treadle's with a float64 layer of torch that does not use cuDNN. All three have the same weights.
The program prints the largest errors of the output and of the gradient of the input, relative to
the largest value of each. Rounding to float16 causes errors of only about 1e-3.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import treadle

CELLS = ("LSTM", "GRU")
WRONG = 0.02  # a relative error 20 times as large as that of rounding to float16
STEPS, FEATURES = 12, 24


def pass_through(layer: nn.Module, x: Tensor, grad: Tensor, autocast: bool) -> list[Tensor]:
    """The output [T, B, H] and the gradient of the input [T, B, I], in float64."""
    x = x.detach().requires_grad_()
    with torch.autocast("cuda", torch.float16, enabled=autocast):
        output = layer(x)[0]
    output.backward(grad.to(output.dtype))
    assert x.grad is not None
    return [output.detach().double(), x.grad.double()]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    pairs = zip(found, exact, strict=True)
    return [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]


def compare(
    cell: str,
    batch: int,
    hidden: int,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float16,
    autocast: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """For one size, the errors of output and gradient of torch's layer and of treadle's."""
    torch.manual_seed(0)
    own = torch.float32 if autocast else dtype
    theirs = getattr(nn, cell)(FEATURES, hidden, device="cuda", dtype=own, **options)
    ours = getattr(treadle.nn, cell)(FEATURES, hidden, device="cuda", dtype=own, **options)
    exact = getattr(nn, cell)(FEATURES, hidden, device="cuda", dtype=torch.float64, **options)
    for other in (ours, exact):
        other.load_state_dict(theirs.state_dict())
    x = torch.randn(steps, batch, FEATURES, device="cuda").to(dtype).to(own)
    grad = torch.randn_like(theirs(x)[0], dtype=torch.float32).to(dtype)
    with torch.backends.cudnn.flags(enabled=False):
        right = pass_through(exact, x.double(), grad.double(), autocast=False)
    return {
        "cell": cell,
        "batch": batch,
        "hidden": hidden,
        "steps": steps,
        "dtype": str(dtype).removeprefix("torch."),
        "autocast": autocast,
        **options,
        "torch": errors(pass_through(theirs, x, grad, autocast), right),
        "treadle": errors(pass_through(ours, x, grad, autocast), right),
    }


def sizes(most: int) -> list[dict[str, Any]]:
    """The sizes to try: every multiple of 8 as H, and a few H with other batches and options."""
    wide = [{"batch": b, "hidden": h} for h in range(8, most + 1, 8) for b in (8, 12)]
    other: list[dict[str, Any]] = []
    for hidden in (40, 64, 104, 136, 200):
        other += [{"batch": batch, "hidden": hidden} for batch in (1, 64, 512)]
        for more in (
            {"steps": 1},
            {"steps": 300},
            {"bidirectional": True},
            {"num_layers": 2},
            {"autocast": True},
            {"dtype": torch.bfloat16},
        ):
            other.append({"batch": 16, "hidden": hidden, **more})
    return wide + other


def versions() -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "treadle": treadle.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all errors there")
    parser.add_argument("--hidden", type=int, default=256, help="largest H (default 256)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch_float16.py needs a GPU, because the fault is in cuDNN")
    print(versions())
    rows = [compare(cell, **size) for cell in CELLS for size in sizes(options.hidden)]
    for row in rows:
        if max(row["torch"] + row["treadle"]) > WRONG:
            settings = {k: v for k, v in row.items() if k not in ("torch", "treadle")}
            shown = {k: " / ".join(f"{e:.1g}" for e in row[k]) for k in ("torch", "treadle")}
            print(*(f"{k} {v}" for k, v in settings.items()), "|", shown)
    for name in ("torch", "treadle"):
        wrong = sum(max(row[name]) > WRONG for row in rows)
        print(f"{name}: {wrong} of {len(rows)} wrong, worst {max(max(r[name]) for r in rows):.1e}")
    if options.json:
        options.json.write_text(json.dumps({**versions(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
