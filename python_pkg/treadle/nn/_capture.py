"""Captures CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch


class _Collection:
    """Turns garbage collection off while at least one thread captures."""

    def __init__(self) -> None:
        self._lock, self._captures, self._was_on = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._captures:
                self._was_on = gc.isenabled()
                gc.disable()
            self._captures += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._captures -= 1
            if not self._captures and self._was_on:
                gc.enable()


_no_collection = _Collection()


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """Like ``torch.cuda.graph``, but other threads may call CUDA during the capture.

    Garbage collection is off during the capture, because destroying an old CUDA graph would make
    the capture fail.
    """
    with _no_collection, torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
        yield
