"""Draws the error of sine and cosine over their arguments, and writes the figures of docs/sine.md.

    python docs/figures/sine_error.py                 write sine_error.png and .json here
    python docs/figures/sine_error.py --output DIR    write both files to another folder

It runs for half a minute on the CPU and uses the same random numbers every time. In float32 it
draws random floats in each quarter of a decade, and computes the largest error in each quarter with
mpmath. In half types it tries all numbers. treadle's results have the same bits on every machine.
torch's results depend on its version and on the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import treadle  # noqa: E402
from benchmarks.harness import machine  # noqa: E402
from benchmarks.pages import sine_page  # noqa: E402
from tests.support.compare import ulp  # noqa: E402

PER_PIECE = 200_000
PIECES_A_DECADE = 4
LOWEST = 1e-6
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, dict[str, Function]] = {
    "sine": {"treadle": treadle.sine, "torch": torch.sin},
    "cosine": {"treadle": treadle.cosine, "torch": torch.cos},
}
COLORS = {"treadle": "C0", "torch": "C1"}
LABELS = {"treadle": "treadle", "torch": "torch on the CPU"}


def edges() -> list[float]:
    """The ends of the pieces: from 1e-6 to the largest float, equidistant on a logarithmic axis."""
    largest = torch.finfo(torch.float32).max
    count = math.floor(math.log10(largest / LOWEST) * PIECES_A_DECADE)
    return [LOWEST * 10 ** (i / PIECES_A_DECADE) for i in range(count + 1)] + [largest]


def random_floats(low: float, high: float, generator: torch.Generator) -> Tensor:
    """Random floats of both signs, all equally likely. They are drawn as bits, so they are the same
    on every machine."""
    first, last = torch.tensor([low, high]).view(torch.int32).tolist()
    drawn = torch.randint(first, last + 1, (PER_PIECE,), generator=generator)
    sign = torch.randint(0, 2, (PER_PIECE,), generator=generator) * 2 - 1
    return drawn.to(torch.int32).view(torch.float32) * sign


def exact_error(name: str, x: float, y: float) -> float:
    """The error of y as sin(x) or cos(x), in ulp of the exact result."""
    with mpmath.workprec(400):
        truth = {"sine": mpmath.sin, "cosine": mpmath.cos}[name](mpmath.mpf(x))
        at = torch.tensor([float(truth)], dtype=torch.float64)
        return float(abs(mpmath.mpf(y) - truth) / float(ulp(at, torch.float32)))


def curves() -> tuple[list[float], dict[str, dict[str, list[float]]], dict[str, Any]]:
    """The edges of the pieces, the largest error in each piece, and the largest error of all with
    its argument."""
    generator = torch.Generator().manual_seed(0)
    limits = edges()
    curve = {name: {who: [] for who in pair} for name, pair in FUNCTIONS.items()}
    worst: dict[str, Any] = {name: {who: {"ulp": 0.0} for who in c} for name, c in curve.items()}
    for low, high in zip(limits, limits[1:], strict=False):
        x = random_floats(low, high, generator)
        for name, pair in FUNCTIONS.items():
            truth = pair["torch"](x.double())
            for who, function in pair.items():
                y = function(x)
                at = int(((y.double() - truth).abs() / ulp(truth, torch.float32)).argmax())
                error = exact_error(name, float(x[at]), float(y[at]))
                curve[name][who].append(error)
                if error > worst[name][who]["ulp"]:
                    worst[name][who] = {"ulp": round(error, 4), "at": float(x[at])}
    return limits, curve, worst


def misrounded(name: str, who: str, dtype: torch.dtype) -> int:
    """For how many finite numbers of a half type the result is not correctly rounded."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = every[every.isfinite()]
    # float64 is accurate enough: no result is so close to the middle between two numbers of a half
    # type that the error of float64 could change the rounding.
    correct = FUNCTIONS[name]["torch"](x.double()).to(dtype)
    return int((FUNCTIONS[name][who](x) != correct).sum())


def halves() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for label, dtype in HALVES.items():
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        found[label] = {"numbers": int(every.isfinite().sum())}
        for name, pair in FUNCTIONS.items():
            found[label][name] = {who: misrounded(name, who, dtype) for who in pair}
    return found


def nearest() -> dict[str, float]:
    """The float of at least 1 that is nearest to a multiple of pi / 2, found by trying all floats.

    Let x = m 2^e. The position of the angle x within a quarter turn, in units of 2^-64 quarter
    turns, is m times the first 64 bits of 2^e 2 / pi after the point, modulo 2^64.
    """
    m = np.arange(2**23, 2**24, dtype=np.uint64)
    found = {"x": 1.0, "distance": 1.0}
    with mpmath.workprec(400):
        for e in range(-23, 105):
            digits = int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, e + 64))) & (2**64 - 1)
            place = m * np.uint64(digits)
            at = int(np.minimum(place, -place).argmin())
            x = mpmath.ldexp(int(m[at]), e)
            quarters = mpmath.nint(x * 2 / mpmath.pi)
            distance = float(abs(x - quarters * mpmath.pi / 2))
            if distance < found["distance"]:
                found = {"x": float(x), "distance": distance}
    return found


def draw(limits: list[float], curve: dict[str, dict[str, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(8, 5), sharex=True, sharey=True)
    figure.set_layout_engine("constrained")
    limit = sine_page.float32_limit()
    for axes, (name, lines) in zip(panels, curve.items(), strict=True):
        for who in ("torch", "treadle"):
            axes.stairs(
                lines[who], limits, baseline=None, color=COLORS[who], label=LABELS[who], lw=1.4
            )
        axes.axhline(0.5, color="gray", lw=0.9, ls="--", label="rounded correctly")
        axes.axvline(limit, color="gray", lw=0.9, ls=":", label="treadle's table from here on")
        axes.set_xscale("log")
        axes.set_xlim(limits[0], limits[-1])
        axes.set_ylim(0, 2)
        axes.set_ylabel("largest error in ulp", fontsize=9)
        axes.set_title(f"{name}, float32", fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    panels[0].legend(fontsize=8, loc="upper left", ncols=4)
    panels[-1].set_xlabel("argument", fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "figures", metavar="DIR")
    output = parser.parse_args().output
    limits, curve, worst = curves()
    facts = machine.facts("cpu")
    figures = {
        "machine": {key: facts[key] for key in ("cpu", "cpu_capability", "torch", "treadle")},
        "arguments": {
            "from": LOWEST,
            "pieces_a_decade": PIECES_A_DECADE,
            "numbers_a_piece": PER_PIECE,
        },
        "float32": worst,
        "halves": halves(),
        "nearest": nearest(),
    }
    draw(limits, curve, output / "sine_error.png")
    (output / "sine_error.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
