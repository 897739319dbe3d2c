"""Comparisons on the GPU whose results the host reads once, at the end. Many processes share the
GPU, so a process that waits for the GPU also waits for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.support.compare import differing, same_layout


def first_of(wrong: Tensor, actual: Tensor, expected: Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} differ, the first at {at}: "
        f"{actual[at].item()!r} where {expected[at].item()!r} was expected"
    )


class Checks:
    """Collects comparisons. Raises an error for the first one that failed."""

    def __init__(self) -> None:
        self.failed: list[Tensor] = []
        self.stories: list[Callable[[], str]] = []

    def __enter__(self) -> Checks:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.end()

    def end(self) -> None:
        found = torch.stack(self.failed).tolist() if self.failed else []
        stories, self.failed, self.stories = self.stories, [], []
        for failed, story in zip(found, stories, strict=True):
            if failed:
                raise AssertionError(story())

    def no(self, wrong: Tensor, what: str, actual: Tensor, expected: Tensor) -> None:
        """Checks that no element is wrong."""
        self.failed.append(wrong.any())
        self.stories.append(lambda: f"{what}: {first_of(wrong, actual, expected)}")

    def bits(self, actual: Tensor, expected: Tensor, what: str) -> None:
        """Checks that the bits are equal, except that all NaNs count as equal."""
        same_layout(actual, expected, what)
        self.no(differing(actual, expected), what, actual, expected)

    def all_bits(self, actual: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
        for n, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            self.bits(ours, theirs, f"{what}, {n}")

    def finite(self, t: Tensor, what: str) -> None:
        self.no(~t.isfinite(), f"{what}, finite", t, t)

    def close(self, actual: Tensor, expected: Tensor, slack: Tensor, what: str) -> None:
        """Checks that a result was rounded once to its dtype, after sums with errors of up to
        ``slack``."""
        assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
        info = torch.finfo(actual.dtype)
        error = (actual.double() - expected).abs()
        bound = 0.51 * info.eps * expected.abs() + info.eps * info.smallest_normal + slack
        self.no(~(error <= bound), what, actual, expected)

    def close_as(self, actual: Tensor, expected: Tensor, theirs: Tensor, what: str) -> None:
        """Like close_in_norm, but allows rounding errors plus twice torch's own error.

        Torch's error is large if sums over many rows cancel.
        """
        assert actual.dtype == theirs.dtype and actual.shape == theirs.shape, what
        error, other = ((t.double() - expected).norm() for t in (actual, theirs))
        bound = 4 * torch.finfo(actual.dtype).eps * expected.norm() + 2 * other + 1e-6
        self.no(~(error <= bound), f"{what}, error against its bound", error, bound)

    def close_in_norm(self, actual: Tensor, expected: Tensor, bound: float, what: str) -> None:
        """Checks that the norm of the error is at most ``bound`` times the norm of the expected
        value."""
        assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
        error, size = (actual.double() - expected).norm(), expected.double().norm()
        self.no(~(error <= bound * size + 1e-6), f"{what}, error against norm", error, size)
