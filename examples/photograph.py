"""Fit a Siren to one photograph, and draw the fit's derivatives.

    python examples/photograph.py                 fit, compare with plain PyTorch, draw a sheet
    python examples/photograph.py --pixels 512    another width of the picture

The photograph shows Grace Hopper and comes with matplotlib. The network maps positions to colours.
It is a smooth function, so it has a gradient and a Laplacian. Two copies of it start from the same
weights: one with treadle's layer and one with the same layer in plain PyTorch. On a GPU the network
is larger and learns every pixel of the file.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import treadle

try:
    from rich.console import Console
    from rich.table import Table
    from tqdm import tqdm

    from device_check import pick_device
    from photograph_pictures import Maps, draw_sheet, load_photograph
except ImportError as error:
    sys.exit(
        f"photograph.py: {error.name} is missing; it comes with pip install -r requirements.txt"
    )

SHEET = "photograph.png"
FIRST_OMEGA = 50.0
WARM_UP = 0.1
# The weights of red, green and blue in the brightness, from Rec. 709.
LUMINANCE = 0.2126, 0.7152, 0.0722
PIECE = 1 << 14


@dataclass
class Settings:
    """The settings of a fit. The defaults suit two CPU cores and one minute for both networks."""

    pixels: int = 256
    hidden: int = 128
    layers: int = 2
    batch: int = 2048
    steps: int = 2000
    target: float = 30.0
    learning_rate: float = 1e-3
    seed: int = 0


LARGE = Settings(
    pixels=512, hidden=512, layers=3, batch=1 << 16, steps=4000, target=40.0, learning_rate=5e-4
)


class PlainSiren(treadle.nn.Siren):
    """A Siren that is computed by plain PyTorch ops."""

    def forward(self, input: Tensor) -> Tensor:
        for layer in self.net:
            z = F.linear(input, layer.weight, layer.bias)
            sine = isinstance(layer, treadle.nn.SineLinear)
            input = torch.sin(layer.omega_0 * z) if sine else z
        return input


@dataclass
class Curve:
    """The curve of a fit: PSNR in dB over seconds of learning."""

    seconds: list[float] = field(default_factory=list)
    psnr: list[float] = field(default_factory=list)


class Fit:
    """One network with its optimizer, its random generator and its curve."""

    def __init__(self, net: treadle.nn.Siren, settings: Settings, image: Tensor) -> None:
        self.net, self.settings = net.to(image.device), settings
        self.points, self.colours = places(*image.shape[:2], image.device), image.flatten(0, 1)
        self.random = torch.Generator(image.device).manual_seed(settings.seed)
        self.optimizer = torch.optim.Adam(self.net.parameters(), settings.learning_rate)
        self.steps, self.spent, self.step_seconds = 0, 0.0, []
        self.curve = Curve()
        self.measure()

    def learn(self, steps: int) -> None:
        """Take some steps, and record the PSNR afterwards."""
        start = time.perf_counter()
        for _ in range(steps):
            done = self.steps / self.settings.steps
            rate = min(1, (done + 1 / self.settings.steps) / WARM_UP)
            rate *= (1 + math.cos(math.pi * done)) / 2
            self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * rate
            shape = (self.settings.batch,)
            device = self.points.device
            at = torch.randint(len(self.points), shape, generator=self.random, device=device)
            self.optimizer.zero_grad()
            loss = (self.net(self.points[at]) - self.colours[at]).square().mean()
            loss.backward()
            self.optimizer.step()
            self.steps += 1
        # item() waits for the GPU, so the time includes the work and not only its launch.
        loss.item()
        seconds = time.perf_counter() - start
        self.spent += seconds
        self.step_seconds.append(seconds / steps)
        self.measure()

    @torch.no_grad()
    def picture(self) -> Tensor:
        """The network's picture: [H * W, 3] in ±1."""
        return torch.cat([self.net(piece) for piece in self.points.split(PIECE)]).clamp(-1, 1)

    def measure(self) -> None:
        error = (self.picture() - self.colours).square().mean().item()
        self.curve.seconds.append(self.spent)
        # The peak is 2: colours go from -1 to 1.
        self.curve.psnr.append(10 * math.log10(4 / error))


def places(height: int, width: int, device: torch.device) -> Tensor:
    """The positions of the pixels, row by row: [H * W, 2], the longer side from -1 to 1."""
    longest = max(height, width) - 1
    y, x = ((2 * torch.arange(n, device=device) - n + 1) / longest for n in (height, width))
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)


def derivatives(net: treadle.nn.Siren, height: int, width: int, device: torch.device) -> Maps:
    """Gradient magnitude and Laplacian of the brightness at each pixel, [H, W] each."""
    weights = torch.tensor(LUMINANCE, device=device)
    # The distance between pixels in the network's coordinates.
    step = 2 / (max(height, width) - 1)
    slopes, laplacians = [], []
    with torch.no_grad():
        for piece in places(height, width, device).split(PIECE):
            jet = net.jet(piece)
            slopes.append((jet.gradient.mT @ weights).norm(dim=1) * step)
            laplacians.append((jet.laplacian @ weights) * step**2)
    maps = [torch.cat(parts).reshape(height, width).cpu() for parts in (slopes, laplacians)]
    return Maps(maps[0].numpy(), maps[1].numpy())


def own_derivatives(image: Tensor) -> Maps:
    """The same maps of the photograph [H, W, 3], from differences of neighbouring pixels."""
    grey = (image.cpu() @ torch.tensor(LUMINANCE)).numpy()
    return Maps.of_differences(grey)


def fit(out: Path, settings: Settings, device: torch.device) -> bool:
    """Fit both networks, and show and save the results. Returns False if a result is wrong."""
    # Two threads are faster on idle cores, but wait for each other if a core is busy.
    torch.set_num_threads(1)
    image = torch.from_numpy(load_photograph(settings.pixels)).to(device)
    height, width, _ = image.shape
    torch.manual_seed(settings.seed)
    sizes = 2, settings.hidden, settings.layers, 3
    start = treadle.nn.Siren(*sizes, outermost_linear=True, first_omega_0=FIRST_OMEGA)
    plain_start = PlainSiren(*sizes, outermost_linear=True, first_omega_0=FIRST_OMEGA)
    plain_start.load_state_dict(start.state_dict())
    ours, plain = (Fit(net, settings, image) for net in (start, plain_start))

    print(f"{width} x {height} pixels, {settings.steps:,} steps; on {device}.")
    every = max(1, settings.steps // 25)
    with tqdm(total=settings.steps, unit="step", desc="Fitting with both", disable=None) as bar:
        while ours.steps < settings.steps:
            steps = min(every, settings.steps - ours.steps)
            # The networks are trained alternately, so other programs slow both of them equally.
            for one in (ours, plain):
                one.learn(steps)
            bar.update(steps)
            bar.set_postfix(PSNR=f"{ours.curve.psnr[-1]:.1f} dB")

    twin = copy.deepcopy(plain)
    twin.net.load_state_dict(ours.net.state_dict())
    picture = ours.picture()
    apart = (twin.picture() - picture).abs().max().item()
    show_table({"treadle.nn.Siren": ours, "plain PyTorch, same start": plain}, apart)
    out.mkdir(parents=True, exist_ok=True)
    draw_sheet(
        out / SHEET,
        [t.reshape(height, width, 3).cpu().numpy() for t in (image, picture)],
        [own_derivatives(image), derivatives(ours.net, height, width, device)],
        {"treadle": ours.curve, "plain PyTorch": plain.curve},
    )
    print(f"The sheet is {out / SHEET}.")
    return report(ours.curve.psnr[-1], settings.target, apart)


def show_table(fits: dict[str, Fit], apart: float) -> None:
    table = Table("network", "PSNR", "learning took", "training step")
    for name, one in fits.items():
        step = 1e3 * statistics.median(one.step_seconds)
        table.add_row(name, f"{one.curve.psnr[-1]:.1f} dB", f"{one.spent:.1f} s", f"{step:.2f} ms")
    Console().print(table)
    print(
        "With the weights that treadle's network learnt, plain PyTorch paints the same picture: "
        f"colours\nfrom -1 to 1 differ by {apart:.1e} at most."
    )


def report(psnr: float, target: float, apart: float) -> bool:
    """Report failures on stderr. Returns whether there are none."""
    if psnr < target:
        print(f"photograph.py: PSNR {psnr:.1f} dB is below {target:g} dB", file=sys.stderr)
    if apart > 1e-2:
        print("photograph.py: treadle and plain PyTorch do not agree", file=sys.stderr)
    return psnr >= target and apart <= 1e-2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_name("out"), help="folder of the sheet"
    )
    for name, words in {
        "pixels": "width of the picture, up to 512",
        "hidden": "width of the network",
        "steps": "optimizer steps, for each network",
        "seed": "seed of the initial weights and of the order of pixels",
    }.items():
        parser.add_argument(f"--{name}", type=int, help=words)
    options = parser.parse_args(arguments)
    device = pick_device()
    settings = copy.copy(LARGE if device.type == "cuda" else Settings())
    for name in ("pixels", "hidden", "steps", "seed"):
        value = getattr(options, name)
        if value is None:
            continue
        least, most = {"pixels": (8, 512), "seed": (0, 1 << 62)}.get(name, (1, 1 << 20))
        if not least <= value <= most:
            parser.error(f"--{name} must be from {least} to {most}, got {value}")
        setattr(settings, name, value)
    return 0 if fit(options.out, settings, device) else 1


if __name__ == "__main__":
    sys.exit(main())
