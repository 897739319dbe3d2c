"""Trains a net with Lightning. many_gpus.py imports this only if Lightning is installed."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.interop.nets import MOST_NORM, loss_of, optimizer_of

for logger in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(logger).setLevel(logging.ERROR)


class Module(LightningModule):
    """An epoch is one step, so that a second Trainer continues with the next batch."""

    def __init__(self, net: nn.Module, parts: list[Tensor]) -> None:
        super().__init__()
        self.net, self.parts = net, parts
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []

    def train_dataloader(self) -> DataLoader[Tensor]:
        batch = self.parts[self.current_epoch]
        return DataLoader([batch], batch_size=None)  # type: ignore[arg-type]

    def training_step(self, batch: Tensor) -> Tensor:
        loss = loss_of(self.net, batch)
        self.losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # Lightning calls this before it clips gradients.
        grads = [p.grad for p in self.net.parameters() if p.grad is not None]
        self.norms.append(nn.utils.get_total_norm(grads))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.net)


def fit(
    module: Module, world: int, backend: str, epochs: int, checkpoint: Path | None = None
) -> Trainer:
    """Trains in the process group that already exists."""
    os.environ["WORLD_SIZE"] = str(world)  # each Trainer removes this variable at its end
    environment = LightningEnvironment()
    trainer = Trainer(
        accelerator="gpu" if backend == "nccl" else "cpu",
        devices=world,
        strategy=DDPStrategy(cluster_environment=environment, process_group_backend=backend),
        max_epochs=epochs,
        gradient_clip_val=MOST_NORM,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
        **dict.fromkeys(("enable_model_summary", "barebones"), False),
    )
    with warnings.catch_warnings():
        # Lightning warns about too few data loader workers, which one batch does not need.
        warnings.simplefilter("ignore")
        trainer.fit(module, ckpt_path=checkpoint)
    return trainer
