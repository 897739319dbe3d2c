"""The backward pass of _siren_pull.py for one chunk of points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Params = Sequence["Tensor | None"]  # weight, and bias or None, of each layer

_slope = torch.ops.treadle.sine_linear_slope.default
_slope_backward = torch.ops.treadle.sine_linear_slope_backward.default


class Layer(NamedTuple):
    """A sine layer's arguments and saved values at some points."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor | None
    phase: Tensor
    omega: float

    def slope(self, grad: Tensor) -> Tensor:
        """The gradient with respect to the sine's argument, given the gradient of the output."""
        return _slope(grad, None, *self, 1)  # type: ignore[no-any-return]

    def slope_backward(self, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The VJP of ``slope`` with respect to ``grad`` and to the sine's argument."""
        by_grad, _, by_sum = _slope_backward(v, grad, None, *self, 1, [True, False, True])
        return by_grad, by_sum

    def value(self) -> Tensor:
        """The output. If it was not saved, it is recomputed from the phase as the fourth derivative
        of the sine, which is the sine again."""
        if self.output is not None:
            return self.output
        ones = self.input.new_ones(self.phase.shape)
        return _slope(ones, None, *self[:-1], 1.0, 4)  # type: ignore[no-any-return]


def weight_of(params: Params, layer: int) -> Tensor:
    weight = params[::2][layer]
    assert weight is not None
    return weight


class Gradients:
    """Sums gradients of x and the parameters over chunks of points, in float32 or float64."""

    def __init__(self, x: Tensor, params: Params, needed: Sequence[bool]) -> None:
        self.params, self.dtype = params, x.dtype
        self.of_x = torch.empty_like(x) if needed[0] else None
        wider = torch.promote_types(x.dtype, torch.float32)
        self.sums = [
            torch.zeros_like(t, dtype=wider) if t is not None and wanted else None
            for t, wanted in zip(params, needed[1:], strict=True)
        ]

    def add(
        self,
        layers: Sequence[Layer],
        pulls: Sequence[Tensor],
        rows: slice,
        of_value: Tensor | None,
        of_gradient: Tensor | None,
    ) -> None:
        """Adds the gradients at the points ``rows``. The other arguments are for these points."""
        by_sums: list[Tensor | None] = [None] * len(layers)
        if of_gradient is not None:
            self._through_gradient(layers, pulls, of_gradient, by_sums)
        last, grad = weight_of(self.params, -1), None
        if of_value is not None:
            self._add_layer(len(layers), of_value, layers[-1].value())
            grad = of_value @ last
        for k in range(len(layers) - 1, -1, -1):
            by_sum, layer = by_sums[k], layers[k]
            if grad is not None:
                slope = layer.slope(grad)
                by_sum = slope if by_sum is None else by_sum.add_(slope)
            assert by_sum is not None
            self._add_layer(k, by_sum, layer.input)
            if k > 0:
                grad = by_sum @ layer.weight
            elif self.of_x is not None:
                torch.mm(by_sum, layer.weight, out=self.of_x[rows])

    def _through_gradient(
        self,
        layers: Sequence[Layer],
        pulls: Sequence[Tensor],
        of_gradient: Tensor,
        by_sums: list[Tensor | None],
    ) -> None:
        """The backward pass of ``_pull``, from the first layer to the last. It fills ``by_sums``,
        the gradients with respect to the layers' sums (``input @ weight.T + bias``)."""
        inner = len(layers) - 1
        for number, along in enumerate(weight_of(self.params, -1)):
            v, seed = of_gradient[:, number], along.expand_as(layers[-1].phase).contiguous()
            grads = *pulls[number * inner : (number + 1) * inner], seed
            for k, (layer, grad) in enumerate(zip(layers, grads, strict=True)):
                self._add_product(2 * k, layer.slope(grad), v)
                v, by_sum = layer.slope_backward(v @ layer.weight.mT, grad)
                before = by_sums[k]
                by_sums[k] = by_sum if before is None else before.add_(by_sum)
            total = self.sums[-2]
            if total is not None:
                total[number] += v.sum(0, dtype=total.dtype)

    def _add_layer(self, k: int, by_sum: Tensor, input: Tensor) -> None:
        self._add_product(2 * k, by_sum, input)
        total = self.sums[2 * k + 1]
        if total is not None:
            total += by_sum.sum(0, dtype=total.dtype)

    def _add_product(self, index: int, a: Tensor, b: Tensor) -> None:
        total = self.sums[index]
        if total is None:
            return
        if total.dtype == a.dtype:
            # FlopCounterMode counts addmm, but not addmm_.
            torch.addmm(total, a.mT, b, out=total)
        else:
            total += a.mT @ b

    def results(self) -> Iterator[Tensor | None]:
        yield self.of_x
        for total in self.sums:
            yield None if total is None else total.to(self.dtype)
