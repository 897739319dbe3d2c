"""Elementwise ops in every form: with a new result, in place, and with out=.

The forms are made from ``OPS``, so every test includes new ops. A form is called with x and with a
second tensor y of the same shape, from which ``Op.rest`` makes the arguments after the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.cases import OPS
from tests.support.inputs import Call, Op


@dataclass(frozen=True)
class Form:
    op: Op
    variant: str  # a key of Op.rest; "" for the plain call
    rest: Callable[[Tensor], Call]

    @property
    def reads_y(self) -> bool:
        return any(isinstance(a, Tensor) for a in self.rest(torch.ones(1, 1)).args)

    def _call(self, function: Callable[..., Any], x: Tensor, y: Tensor, **options: Any) -> Tensor:
        rest = self.rest(y)
        result: Tensor = function(x, *rest.args, **rest.kwargs, **options)
        return result

    def new(self, x: Tensor, y: Tensor) -> Tensor:
        return self._call(self.op.function, x, y)

    def reference(self, x: Tensor, y: Tensor) -> Tensor:
        return self._call(self.op.reference, x, y)

    def torch_new(self, x: Tensor, y: Tensor) -> Tensor:
        return self._call(self.op.torch_function or self.op.reference, x, y)

    def inplace(self, x: Tensor, y: Tensor) -> Tensor:
        assert self.op.inplace is not None
        return self._call(self.op.inplace, x, y)

    def torch_inplace(self, x: Tensor, y: Tensor) -> Tensor:
        """torch's function, or a copy of the reference's result if torch has none."""
        if self.op.torch_inplace is None:
            return x.copy_(self.torch_new(x, y))
        return self._call(self.op.torch_inplace, x, y)

    def out(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return self._call(self.op.function, x, y, out=out)

    def torch_out(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        if self.op.torch_function is None:
            return torch.mul(self.torch_new(x, y), 1, out=out)
        return self._call(self.op.torch_function, x, y, out=out)


FORMS: dict[str, Form] = {
    f"{op.name} {variant}".strip(): Form(op, variant, rest)
    for op in OPS.values()
    for variant, rest in (op.rest or {}).items()
}
# The ops that users call; backward ops have neither an out= form nor an in-place one.
NEW = {name: form for name, form in FORMS.items() if form.op.has_out}
INPLACE = {
    f"{form.op.name}_ {form.variant}".strip(): form for form in FORMS.values() if form.op.inplace
}
OUT = {name: form for name, form in NEW.items() if not form.variant}
