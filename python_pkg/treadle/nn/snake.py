"""Snake: the snake activation as a module, with parameters for each channel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._check.tensors import check_tensor
from ..snake import snake
from ._check import check_bool, check_count, check_dtype, check_omega
from ._tracers import NotScripted, differs

__all__ = ["Snake"]

_EPS = 1e-9  # the eps of BigVGAN's SnakeBeta


class Snake(NotScripted, nn.Module):
    """x + sin(alpha x)² / alpha (or / beta) for each channel. See :func:`treadle.snake`.

    It replaces ``Snake1d`` of DAC, ``Snake`` of BigVGAN and, with ``beta=True``, BigVGAN's
    ``SnakeBeta``. It loads their state dicts, in which alpha and beta may be [1, C, 1]. Those
    modules add 1e-9 to the divisor. If the divisor is alpha ≥ 0, this changes no result by more
    than 1e-9 x². But if alpha reaches 0 or below, their gradients are wrong or NaN. The gradients
    of this module are correct, unless ``eps=1e-9`` or ``beta=True`` selects their formula.

    Args:
        channels: C, the number of channels.
        alpha: the initial value of alpha and beta.
        beta: whether sin² is divided by a separate parameter, beta, instead of alpha.
        logscale: whether the parameters are the logarithms of alpha and beta, like BigVGAN's
            ``alpha_logscale``, so that both stay positive. A state dict that is loaded must then
            also have logarithms.
        trainable: whether the parameters require grad.
        eps: a number added to the divisor of sin². None means 1e-9 with ``beta``, as in BigVGAN.
            Without ``beta``, None adds nothing, and the result for alpha = 0 is the limit, x.
        device: where the parameters are created; ``"meta"`` creates them without memory.
        dtype: the dtype of the parameters: float64, float32, float16 or bfloat16.

    Attributes:
        alpha: [C].
        beta: [C] or None.

    Under autocast the parameters and the result stay in float32, as in the modules of DAC and
    BigVGAN.

    Raises:
        TypeError, ValueError: an argument is not as above, or ``logscale`` is True and alpha ≤ 0.

    Example::

        act = treadle.nn.Snake(512, beta=True, logscale=True)  # SnakeBeta(512, alpha_logscale=True)
        y = act(x)                                             # [N, 512, T] -> [N, 512, T]
    """

    channels: int
    logscale: bool
    eps: float | None
    alpha: nn.Parameter
    beta: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        alpha: float = 1.0,
        beta: bool = False,
        logscale: bool = False,
        trainable: bool = True,
        eps: float | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = check_count("Snake", "channels", channels)
        self.logscale = check_bool("Snake", "logscale", logscale)
        check_bool("Snake", "beta", beta)
        default = _EPS if beta else None
        self.eps = default if eps is None else check_omega("Snake", "eps", eps, zero=True)
        self._begin = check_omega("Snake", "alpha", alpha, zero=True)
        if logscale and self._begin <= 0:
            raise ValueError(f"Snake: alpha must be positive with logscale, got {alpha!r}")
        check_dtype("Snake", dtype)
        grad = check_bool("Snake", "trainable", trainable)

        def parameter() -> nn.Parameter:
            return nn.Parameter(torch.empty(self.channels, device=device, dtype=dtype), grad)

        self.alpha = parameter()
        if beta:
            self.beta = parameter()
        else:
            self.register_parameter("beta", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all parameters to their initial value."""
        begin = math.log(self._begin) if self.logscale else self._begin
        for parameter in self.parameters(recurse=False):
            nn.init.constant_(parameter, begin)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the activation.

        Args:
            input: [N, C, ...].

        Returns:
            [N, C, ...] of the dtype that input and the parameters promote to.

        Raises:
            TypeError, ValueError: ``input`` is not a tensor, or its shape is not as above.
        """
        if not isinstance(input, Tensor):
            check_tensor("Snake", "input", input)
        elif input.dim() < 2 or differs(input.shape[1], self.channels):
            raise ValueError(
                f"Snake: input must have shape [N, {self.channels}, ...], got {list(input.shape)}"
            )
        return snake(input, self.alpha, self.beta, eps=self.eps, logscale=self.logscale)

    def extra_repr(self) -> str:
        default = None if self.beta is None else _EPS
        return (
            f"{self.channels}"
            + ("" if self.beta is None else ", beta=True")
            + (", logscale=True" if self.logscale else "")
            + ("" if self.alpha.requires_grad else ", trainable=False")
            + ("" if self.eps == default else f", eps={self.eps}")
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # state_dict is a copy made by load_state_dict, so it may be changed.
        for name in ("alpha", "beta"):
            found = state_dict.get(prefix + name)
            if isinstance(found, Tensor) and found.shape == (1, self.channels, 1):
                state_dict[prefix + name] = found.reshape(self.channels)
        super()._load_from_state_dict(state_dict, prefix, *args)
