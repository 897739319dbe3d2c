"""Double a NumPy array in place, through a PyTorch tensor that shares its memory."""

from __future__ import annotations

import numpy as np
import torch

import treadle
from device_check import pick_device


def main() -> np.ndarray:
    array = np.arange(6, dtype=np.float32)
    address = array.ctypes.data

    # from_numpy makes a tensor that shares the array's memory.
    tensor = torch.from_numpy(array)
    assert tensor.data_ptr() == address
    treadle.scale_(tensor, 2.0)
    back = tensor.numpy()
    assert back.ctypes.data == address
    print(f"{array} at {address:#x}: the same memory as an array, a tensor and an array again.")

    if (device := pick_device()).type == "cuda":
        # A GPU has separate memory, so the array is copied to it and back; the op copies nothing.
        there = tensor.to(device)
        address = there.data_ptr()
        assert treadle.scale_(there, 2.0).data_ptr() == address
        print(f"{there.cpu().numpy()} after doubling again in place on {there.device}.")
    return array


if __name__ == "__main__":
    main()
