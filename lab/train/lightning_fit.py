"""Lightning's Trainer over the tiny language model."""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from tinylm import TinyLM, Windows
from torch.nn import functional
from torch.utils.data import DataLoader


class LitLM(lightning.LightningModule):
    def __init__(self, lr: float, width: int) -> None:
        super().__init__()
        self.model = TinyLM(width)
        self.lr = lr

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        tokens, target = batch
        loss = functional.cross_entropy(self.model(tokens), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--bar", choices=("tqdm", "rich"), default="tqdm")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--resume", default=None)
    args = parser.parse_args()
    lightning.seed_everything(0)
    bar = RichProgressBar() if args.bar == "rich" else TQDMProgressBar(refresh_rate=5)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=args.devices,
        strategy=args.strategy,
        precision=args.precision,
        callbacks=[bar],
        logger=CSVLogger("lightning_logs", name=None),
        log_every_n_steps=5,
    )
    loader = DataLoader(Windows("data/train.jsonl"), batch_size=16, drop_last=True)
    trainer.fit(LitLM(args.lr, args.width), loader, ckpt_path=args.resume)


if __name__ == "__main__":
    main()
