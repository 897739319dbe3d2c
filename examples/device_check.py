"""Choose a device (the GPU if it works, otherwise the CPU) and make one call on it."""

from __future__ import annotations

import torch

import treadle


def pick_device() -> torch.device:
    """The GPU if there is one that treadle's kernels run on, else the CPU.

    A GPU is not enough: treadle may have been built without CUDA, or for other GPUs. Then a small
    call raises an error that says why.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    try:
        treadle.scale(torch.ones(1, device="cuda"), 1.0)
    except RuntimeError as error:
        print(f"There is a GPU, but it is not used: {error}")
        return torch.device("cpu")
    return torch.device("cuda")


def main() -> torch.Tensor:
    device = pick_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"Running on {name}.")

    # These ops need no device argument: PyTorch dispatches on the device of the tensors.
    a = torch.arange(4.0, device=device)
    b = torch.full((4,), 10.0, device=device)
    out = treadle.vector_add(a, b, alpha=0.5)
    print(f"{a.tolist()} + 0.5 * {b.tolist()} = {out.tolist()} on {out.device}")
    return out


if __name__ == "__main__":
    main()
