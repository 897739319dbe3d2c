"""Jets: value, gradient and Laplacian in one forward pass, for networks that take coordinates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._check.numbers import as_number
from .._check.tensors import check_tensor
from . import _parts as parts
from ._map import mapped

__all__ = ["Jet", "jet_linear"]


class Jet(NamedTuple):
    """Values at points, and the values' derivatives with respect to the points' d coordinates.

    :meth:`treadle.nn.Siren.jet` returns a Jet. In your own network, begin with :meth:`of`, pass
    jets through :meth:`treadle.nn.SineLinear.jet` and :func:`treadle.jet_linear`, and read the
    parts at the end. A part that was not requested is None.

    The operators +, -, * and / combine jets with each other, with numbers and with tensors. A
    tensor is always treated as a constant, so anything that depends on the coordinates must itself
    be a jet.

    Attributes:
        value: [..., O].
        gradient: [..., O, d].
        laplacian: [..., O], the sum of the second derivatives with respect to each coordinate.
        hessian_diagonal: [..., O, d], these second derivatives themselves.

    Example::

        h = first.jet(treadle.Jet.of(x))            # x [N, d], first a treadle.nn.SineLinear
        h = h + second.jet(h * scale + shift)       # a residual layer, modulated
        u = treadle.jet_linear(h, last.weight, last.bias)
        loss = (u.laplacian - f).square().mean()    # an ordinary backward pass
    """

    value: Tensor
    gradient: Tensor | None = None
    laplacian: Tensor | None = None
    hessian_diagonal: Tensor | None = None

    @staticmethod
    def of(x: Tensor, *, laplacian: bool = True, hessian_diagonal: bool = False) -> Jet:
        """The jet of coordinates x [..., d] themselves.

        Args:
            x: [..., d], of a floating-point dtype. If it requires grad, autograd can also
                differentiate the values and the jet's derivatives with respect to x.
            laplacian, hessian_diagonal: what layers compute in addition to value and gradient.
                Request only one: with both, each layer computes the diagonal and also its sum.

        Raises:
            TypeError, ValueError: ``x`` is not as above.
            RuntimeError: ``x`` is nested or sparse.
        """
        x = parts.check_coordinates("Jet.of", "x", x)
        return _coordinates(x, parts.identity(x), laplacian, hessian_diagonal)

    @staticmethod
    def affine(
        x: Tensor,
        scale: Tensor | float,
        shift: Tensor | float = 0.0,
        *,
        laplacian: bool = True,
        hessian_diagonal: bool = False,
    ) -> Jet:
        """The jet of scale * x + shift, with derivatives with respect to x.

        For example, scale and shift map coordinates in metres to the range ±1 that a network
        expects. Derivatives are still taken with respect to metres.

        Args:
            x: [..., d], as for :meth:`of`.
            scale, shift: numbers, or tensors [d].
            laplacian, hessian_diagonal: as for :meth:`of`.

        Raises:
            TypeError, ValueError, RuntimeError: an argument is not as above.
        """
        x = parts.check_coordinates("Jet.affine", "x", x)
        count = x.shape[-1]
        for name, term in (("scale", scale), ("shift", shift)):
            if isinstance(term, Tensor) and term.dim() and list(term.shape) != [count]:
                raise ValueError(
                    f"Jet.affine: {name} must be a number or have shape [d] = [{count}], "
                    f"got {list(term.shape)}"
                )
        slope = (parts.identity(x) * scale).to(x.dtype)
        return _coordinates((x * scale + shift).to(x.dtype), slope, laplacian, hessian_diagonal)

    @staticmethod
    def cat(jets: Sequence[Jet | Tensor]) -> Jet:
        """Concatenate in the last dimension: [..., O1] and [..., O2] to [..., O1 + O2].

        Tensors, such as a latent code, are treated as constants and expanded to the jets' points.

        Raises:
            TypeError, ValueError, RuntimeError: ``jets`` contains no jet, or the parts of the jets
                do not match.
        """
        jets = list(jets)
        first = next((jet for jet in jets if isinstance(jet, Jet)), None)
        if first is None:
            raise TypeError("Jet.cat: jets must hold a treadle.Jet, got none")
        parts.check_parts("Jet.cat", first, Jet)
        packed = []
        for jet in jets:
            if not isinstance(jet, Jet):
                check_tensor("Jet.cat", "jets", jet)
                jet = first._beside(jet)
            parts.check_alike("Jet.cat", "jets", first, jet)
            packed.append(parts.pack(jet))
        return first._like(torch.cat(packed, dim=-1))

    def split(self, sizes: Sequence[int]) -> tuple[Jet, ...]:
        """The inverse of :meth:`cat`: returns one jet, with values [..., n], for each n in
        ``sizes``."""
        parts.check_parts("Jet.split", self, Jet)
        return tuple(map(self._like, parts.pack(self).split_with_sizes(sizes, dim=-1)))

    def map(self, function: Callable[[Tensor], Tensor]) -> Jet:
        """Apply any smooth function to the values of each point.

        Use it for functions without a jet, such as ``torch.tanh``, a norm or a module. The function
        must be deterministic, because ``torch.func`` calls it again to differentiate it with
        respect to each coordinate. torch.compile supports this method, and so does torch.export
        with ``strict=False``. torch's second derivatives of ``torch.nn.functional.layer_norm`` are
        wrong, so write that function in simpler ops.

        Args:
            function: from values [..., O] to values [..., O'].

        Raises:
            TypeError, ValueError, RuntimeError: a part is missing or does not match the others.
        """
        parts.check_parts("Jet.map", self, Jet)
        return self._like(mapped(function, *parts.split(self)))

    def __add__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            constant = _constant(other)
            return NotImplemented if constant is None else self._around(self.value + constant)
        if self.gradient is None:
            parts.check_alike("Jet", "other", self, other)
            pairs = zip(self, other, strict=True)
            return Jet._make(p if p is None else p + q for p, q in pairs)  # type: ignore[operator]
        a, b = _both(self, other)
        return self._like(parts.pack(a) + parts.pack(b))

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            factor = _constant(other)
            return NotImplemented if factor is None else self._times(operator.mul, factor)
        a, b = _both(self, other)
        (u, du, ddu), (v, dv, ddv) = parts.split(a), parts.split(b)
        found = [u * v, du * v + u * dv]
        if len(ddu):
            cross = du * dv
            if self.hessian_diagonal is None:
                cross = parts.total(cross, 0, keepdim=True)
            found.append(ddu * v + 2 * cross + u * ddv)
        return self._like(torch.cat(found))

    def __truediv__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return self.__mul__(other.map(torch.reciprocal))
        divisor = _constant(other)
        return NotImplemented if divisor is None else self._times(operator.truediv, divisor)

    def __rtruediv__(self, other: Any) -> Jet:
        return self.map(torch.reciprocal).__mul__(other)

    def __radd__(self, other: Any) -> Jet:
        return self.__add__(other)

    def __rmul__(self, other: Any) -> Jet:
        return self.__mul__(other)

    def __neg__(self) -> Jet:
        return self._times(operator.mul, -1.0)

    def __sub__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return self.__add__(other.__neg__())
        # Adding the negated constant would be wrong for unsigned integers.
        constant = _constant(other)
        return NotImplemented if constant is None else self._around(self.value - constant)

    def __rsub__(self, other: Any) -> Jet:
        return self.__neg__().__add__(other)

    def _around(self, value: Tensor) -> Jet:
        """A jet of ``value`` with this jet's derivatives, expanded and cast to match ``value``."""
        before, *rest = self
        return Jet(value, *(parts.beside(part, before, value) for part in rest))

    def _times(self, product: Callable[[Any, Any], Any], factor: Tensor | float) -> Jet:
        wide = self
        if isinstance(factor, Tensor):
            wide = self._expanded(parts.broadcast(self.value.shape, factor.shape))
        if self.gradient is not None:
            return self._like(product(parts.pack(wide), factor))
        # There is no gradient to pack, because the caller did not request it.
        value, _, laplacian, diagonal = wide
        by_coordinate = factor[..., None] if isinstance(factor, Tensor) and factor.dim() else factor
        return Jet(
            product(value, factor),
            None,
            laplacian if laplacian is None else product(laplacian, factor),
            diagonal if diagonal is None else product(diagonal, by_coordinate),
        )

    def _expanded(self, shape: Sequence[int]) -> Jet:
        if self.value.shape == torch.Size(shape):
            return self
        return self._around(self.value.expand(shape))

    def _beside(self, constant: Tensor) -> Jet:
        """The jet of a constant, at the points of this jet."""
        if constant.dim() == 0:
            raise ValueError("Jet.cat: jets must have shape [..., O], got []")
        shape = (*self.value.shape[:-1], constant.shape[-1])
        value = constant.to(self.value.dtype).expand(shape)
        zero = value.new_zeros(())
        tails = (p if p is None else p.shape[value.dim() :] for p in self[1:])
        return Jet(value, *(t if t is None else zero.expand(*shape, *t) for t in tails))

    def _like(self, packed: Tensor) -> Jet:
        """Unpacks ``packed`` into a jet with the same fields as this one."""
        assert self.gradient is not None
        wanted = self.laplacian is not None, self.hessian_diagonal is not None
        return Jet(*parts.unpack(packed, self.gradient.shape[-1], *wanted))


# With this, a NumPy number times a jet calls the jet's method.
Jet.__array_ufunc__ = None  # type: ignore[attr-defined]


def jet_linear(jet: Jet, weight: Tensor, bias: Tensor | None = None) -> Jet:
    """Applies ``torch.nn.functional.linear`` to a jet, with one product for all parts.

    Args:
        jet: a :class:`treadle.Jet` whose value is [..., I].
        weight: [O, I], as in :class:`torch.nn.Linear`.
        bias: [O] or None.

    Returns:
        A jet whose value is [..., O]. It has the same parts as ``jet``.

    Raises:
        TypeError, ValueError, RuntimeError: ``jet`` is not a jet, its parts do not match, or the
            shape of weight or bias is wrong.
    """
    parts.check_parts("jet_linear", jet, Jet)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None or name == "weight":
            check_tensor("jet_linear", name, value)
    width = jet.value.shape[-1]
    if weight.dim() != 2 or weight.shape[-1] != width:
        raise ValueError(
            f"jet_linear: weight must have shape [O, I] with I = {width}, got {list(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"jet_linear: bias must have shape [O] = {list(weight.shape[:1])}, "
            f"got {list(bias.shape)}"
        )
    return jet._like(parts.linear(parts.pack(jet), weight, bias))


def _constant(other: Any) -> Tensor | float | None:
    """``other`` as a constant for a jet's arithmetic, or None if it cannot be one."""
    if isinstance(other, (Tensor, float, int, torch.SymInt, torch.SymFloat)):
        return other  # type: ignore[return-value]
    try:
        return as_number("Jet", "other", other, real=True)  # type: ignore[return-value]
    except TypeError:
        return None


def _coordinates(x: Tensor, slope: Tensor, laplacian: bool, hessian_diagonal: bool) -> Jet:
    packed = parts.of_coordinates(x, slope, parts.second_named(laplacian, hessian_diagonal))
    return Jet(*parts.unpack(packed, x.shape[-1], laplacian, hessian_diagonal))


def _both(one: Jet, other: Jet) -> tuple[Jet, Jet]:
    """Both jets, expanded to one shape. Raises unless they have the same parts."""
    parts.check_parts("Jet", one, Jet)
    parts.check_parts("Jet", other, Jet)
    parts.check_alike("Jet", "other", one, other)
    shape = parts.broadcast(one.value.shape, other.value.shape)
    return one._expanded(shape), other._expanded(shape)
