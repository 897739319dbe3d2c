"""Train recurrent networks with treadle's LSTM, GRU and LLTM to read handwritten digits.

    python examples/digits.py                        train, compare with plain PyTorch, save
    python examples/digits.py --predict IMAGE.png    read one picture with the saved network

The data are the 1,797 handwritten digits that come with scikit-learn. The network reads a picture
as a sequence, one row of 8 pixels per step, and classifies the digit after the eighth row. Networks
with an LSTM and with a GRU are trained twice: with treadle's layer and with torch's. A network with
an LLTM, which torch does not have, is trained with treadle's layer (one call for all rows), with
treadle's cell (called row by row) and with the same cell in plain PyTorch. All versions of a
network start from the same weights.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import treadle

try:
    from PIL import Image, ImageOps
    from rich.console import Console
    from rich.table import Table
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import tqdm

    from device_check import pick_device
    from digits_pictures import draw_curve, draw_sheet, prepare
except ImportError as error:
    sys.exit(f"digits.py: {error.name} is missing; it comes with pip install -r requirements.txt")

HIDDEN, BATCH, LEARNING_RATE = 64, 64, 1e-2
TEST_DIGITS, TARGET = 360, 0.95
MODEL = "digits.pt"


class ReferenceCell(treadle.nn.LLTMCell):
    """treadle's LLTM cell, computed by plain PyTorch ops."""

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        if hx is None:
            zeros = input.new_zeros(len(input), self.hidden_size)
            hx = zeros, zeros
        return treadle.reference.lltm_cell(input, self.weights, self.bias, *hx)


class Reader(nn.Module):
    """Reads [B, 8, 8] pictures row by row and scores ten classes: [B, 10]."""

    def __init__(self, cell: type[treadle.nn.LLTMCell] = treadle.nn.LLTMCell) -> None:
        super().__init__()
        self.cell = cell(8, HIDDEN)
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, images: Tensor) -> Tensor:
        hx = None
        for row in images.unbind(1):
            hx = self.cell(row, hx)
        return self.head(hx[0])


class LayerReader(nn.Module):
    """The network of `Reader` with a layer instead of a cell. The layer reads all rows at once."""

    def __init__(self, layer: type[nn.Module] = treadle.nn.LLTM) -> None:
        super().__init__()
        self.layer = layer(8, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 10)

    def forward(self, images: Tensor) -> Tensor:
        _, last = self.layer(images)
        # The state of a GRU is h. The other layers return (h, c).
        h = last if isinstance(last, Tensor) else last[0]
        return self.head(h[0])

    def load_reader(self, reader: Reader) -> LayerReader:
        """Load the weights of a Reader. Its cell has one weight matrix; a layer has two."""
        hh, ih = reader.cell.weights.split([HIDDEN, 8], dim=1)
        layer = {"weight_ih_l0": ih, "weight_hh_l0": hh, "bias_l0": reader.cell.bias}
        self.layer.load_state_dict(layer)
        self.head.load_state_dict(reader.head.state_dict())
        return self


def vary(images: Tensor, random: torch.Generator) -> Tensor:
    """Slants and shifts images [N, 8, 8] and adds noise, to imitate other people's handwriting."""
    moves = torch.eye(2, 3) + 0.1 * torch.randn(len(images), 2, 3, generator=random)
    noise = 0.1 * torch.randn(images.shape, generator=random)
    shape = [len(images), 1, 8, 8]
    grid = F.affine_grid(moves.to(images.device), shape, align_corners=False)
    moved = F.grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)
    return moved + noise.to(images.device)


class Training:
    """One network with its optimizer, its random generator, and the record of its epochs."""

    def __init__(
        self, model: Reader | LayerReader, seed: int, steps: int, device: torch.device
    ) -> None:
        self.model = model.to(device)
        self.random = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, LEARNING_RATE, total_steps=steps
        )
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.step_seconds: list[float] = []

    def epoch(self, images: Tensor, labels: Tensor) -> None:
        # New variations in each epoch and label smoothing keep the network from memorizing.
        images = vary(images, self.random)
        order = torch.randperm(len(images), generator=self.random).to(images.device)
        total = torch.zeros((), device=images.device)
        start = time.perf_counter()
        for batch in order.split(BATCH):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images[batch]), labels[batch], label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach() * len(batch)
        # item() waits for the GPU, so the time includes the work and not only its launch.
        self.losses.append(total.item() / len(images))
        self.step_seconds.append((time.perf_counter() - start) / -(-len(images) // BATCH))

    @torch.no_grad()
    def examine(self, images: Tensor, labels: Tensor) -> None:
        right = self.model(images).argmax(dim=1) == labels
        self.accuracies.append(right.float().mean().item())


def load_data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Image.Image]]:
    """Training and test images [N, 8, 8] in 0..1, their labels [N], and the test pictures."""
    digits = load_digits()
    greys = (digits.images * (255 / 16)).round().astype("uint8")
    pictures = [Image.fromarray(grey) for grey in greys]
    train, test = train_test_split(
        range(len(pictures)), test_size=TEST_DIGITS, random_state=seed, stratify=digits.target
    )
    # The pictures for --predict are prepared in the same way.
    images = torch.stack([torch.from_numpy(prepare(picture)) for picture in pictures])
    labels = torch.from_numpy(digits.target)
    return images[train], images[test], labels[train], labels[test], [pictures[i] for i in test]


def train(out: Path, epochs: int, seed: int) -> bool:
    """Train all networks, and show and save the results. Returns False if a result is wrong."""
    # A second thread does not help with matrices this small, and costs time on a busy machine.
    torch.set_num_threads(1)
    device = pick_device()
    *data, pictures = load_data(seed)
    images, test_images, labels, test_labels = (part.to(device) for part in data)
    steps = epochs * -(-len(images) // BATCH)
    torch.manual_seed(seed)
    start = Reader()
    plain_start = Reader(ReferenceCell)
    plain_start.load_state_dict(start.state_dict())
    models: dict[str, Reader | LayerReader] = {}
    for ours, torchs in ((treadle.nn.LSTM, nn.LSTM), (treadle.nn.GRU, nn.GRU)):
        models[f"treadle.nn.{ours.__name__}"] = first = LayerReader(ours)
        models[f"torch.nn.{torchs.__name__}"] = LayerReader(torchs)
        models[f"torch.nn.{torchs.__name__}"].load_state_dict(first.state_dict())
    models["treadle.nn.LLTM"] = LayerReader().load_reader(start)
    models["treadle.nn.LLTMCell"] = start
    models["plain LLTM cell"] = plain_start
    histories = {name: Training(model, seed, steps, device) for name, model in models.items()}
    cell = histories["treadle.nn.LLTMCell"]

    print(f"{len(images)} digits to learn from, {len(test_images)} to be tested on; on {device}.")
    with tqdm(range(epochs), unit="epoch", desc="Training all", disable=None) as bar:
        for _ in bar:
            # The networks are trained alternately, one epoch each, so other programs slow all of
            # them equally.
            for training in histories.values():
                training.epoch(images, labels)
                training.examine(test_images, test_labels)
            bar.set_postfix(loss=f"{cell.losses[-1]:.3f}", accuracy=f"{cell.accuracies[-1]:.1%}")

    twin = Reader(ReferenceCell).to(device)
    twin.load_state_dict(cell.model.state_dict())
    twins = {"plain cell": twin, "layer": LayerReader().to(device).load_reader(cell.model)}
    with torch.no_grad():
        read = cell.model(test_images).argmax(dim=1)
        same = {n: int((m(test_images).argmax(dim=1) == read).sum()) for n, m in twins.items()}
    show_table(histories, same)

    out.mkdir(parents=True, exist_ok=True)
    torch.save(cell.model.cpu().state_dict(), out / MODEL)
    draw_curve(
        out / "learning_curve.png",
        {name: (run.losses, run.accuracies) for name, run in histories.items()},
    )
    draw_sheet(
        out / "test_digits.png", test_images.cpu().numpy(), read.tolist(), test_labels.tolist()
    )
    for digit in range(10):
        # One picture of each digit, enlarged and dark on light, for trying --predict.
        picture = pictures[test_labels.tolist().index(digit)]
        ImageOps.invert(picture.resize((96, 96))).save(out / f"digit_{digit}.png")
    print(f"The model, the learning curve and the test digits are in {out}. Now read one back:")
    print(f"  python {Path(sys.argv[0])} --predict {out / 'digit_7.png'}")
    return report(min(run.accuracies[-1] for run in histories.values()), same)


def show_table(histories: dict[str, Training], same: dict[str, int]) -> None:
    table = Table("network", "test digits read right", "accuracy", "training step")
    for name, run in histories.items():
        right = round(run.accuracies[-1] * TEST_DIGITS)
        step = 1e3 * statistics.median(run.step_seconds)
        table.add_row(
            name, f"{right} of {TEST_DIGITS}", f"{run.accuracies[-1]:.1%}", f"{step:.2f} ms"
        )
    Console().print(table)
    print(
        f"A training step is an optimizer step: {BATCH} digits of 8 rows, forward, backward and "
        "update.\nLayers take the rows in one call, cells row by row. With the weights of "
        f"treadle's cell,\nthe plain cell reads {same['plain cell']} of {TEST_DIGITS} the same, "
        f"the layer {same['layer']}."
    )


def report(accuracy: float, same: dict[str, int]) -> bool:
    """Report failures on stderr. Returns whether there are none."""
    if accuracy < TARGET:
        print(f"digits.py: accuracy {accuracy:.1%} is below {TARGET:.0%}", file=sys.stderr)
    apart = [name for name, count in same.items() if count < TEST_DIGITS - 2]
    for name in apart:
        print(f"digits.py: treadle's cell and the {name} do not agree", file=sys.stderr)
    return accuracy >= TARGET and not apart


def predict(path: Path, out: Path) -> Tensor:
    """Read the picture of one digit. Returns the probabilities of the ten classes: [10]."""
    if not (out / MODEL).exists():
        sys.exit(f"digits.py: there is no model in {out} yet; train it: python {sys.argv[0]}")
    try:
        with Image.open(path) as picture:
            image = torch.from_numpy(prepare(picture))
    except FileNotFoundError:
        sys.exit(f"digits.py: there is no file {path}")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        sys.exit(f"digits.py: cannot read a digit from {path}: {error}")

    model = Reader()
    model.load_state_dict(torch.load(out / MODEL, weights_only=True))
    with torch.no_grad():
        chances = model(image[None]).softmax(dim=1)[0]
    for row in image.tolist():
        print("  " + "".join(2 * " .:-=+*#%@"[round(9 * pixel)] for pixel in row))
    first, second = chances.topk(2).indices.tolist()
    print(f"{path}: {first} ({chances[first]:.0%}; next {second}, {chances[second]:.0%})")
    return chances


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--predict", type=Path, metavar="IMAGE", help="read one picture and stop")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_name("out"), help="folder of the results"
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.predict:
        predict(options.predict, options.out)
        return 0
    return 0 if train(options.out, options.epochs, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
