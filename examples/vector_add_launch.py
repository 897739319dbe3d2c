"""Add two vectors, and explain the kernel launch: how blocks and threads divide the elements."""

from __future__ import annotations

import torch

import treadle
from device_check import pick_device

ELEMENTS = 1_000_003


def main() -> list[dict]:
    device = pick_device()
    a = torch.rand(ELEMENTS, device=device)
    b = torch.rand(ELEMENTS, device=device)
    launches = treadle.launch_info("vector_add", a, b, alpha=2.0)
    if not launches:
        print(f"{ELEMENTS:,} elements were added by a C++ loop on the CPU: without a GPU that runs")
        print("treadle's kernels there is no launch, and so no grid, blocks or threads to show.")
        return launches

    for launch in launches:
        (blocks, *_), (threads, *_) = launch["grid"], launch["block"]
        each = launch["elements_per_thread"]
        print(f"{launch['kernel']}")
        print(f"  adds {ELEMENTS:,} elements with {blocks:,} blocks of {threads} threads.")
        print(f"  A thread adds up to {each} of them and reads {launch['vector_width']} at a time;")
        if (idle := blocks * threads * each - ELEMENTS) >= 0:
            print(f"  {blocks:,} x {threads} x {each} leaves room for {idle:,} more at the end.")
        else:
            print("  The grid is smaller than the vector, so each thread loops over several parts.")
        print(
            f"  The kernel needs {launch['registers']} registers a thread and "
            f"{launch['shared_bytes']} bytes of shared memory per block, so that "
            f"{launch['blocks_per_sm']} blocks\n  fit on a multiprocessor at once: "
            f"{launch['occupancy']:.0%} of the threads that it can hold."
        )
    return launches


if __name__ == "__main__":
    main()
