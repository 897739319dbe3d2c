"""Train a small convolutional network with sine activations for one epoch on real digits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import treadle
from device_check import pick_device


class SineCNN(nn.Module):
    """Two convolutions and a linear layer: maps pictures [B, 1, 8, 8] to scores [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = treadle.sine(self.conv1(x))
        x = F.max_pool2d(treadle.sine(self.conv2(x)), 2)
        return self.head(x.flatten(1))


def main(seed: int = 0) -> float:
    torch.manual_seed(seed)
    device = pick_device()
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32, device=device).unsqueeze(1)
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(images))
    test, train = order[:360].to(device), order[360:].to(device)

    model = SineCNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for batch in train.split(16):
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    print(f"{accuracy:.1%} of {len(test)} unseen digits are right after one epoch on {device}.")
    return accuracy


if __name__ == "__main__":
    main()
