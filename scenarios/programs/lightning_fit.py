"""Lightning with shuffle, dropout and a checkpoint within the epoch; expected verdict: violated (RNG, order)."""

import argparse
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        print("step", self.global_step + 1, "loss", loss.item(), flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    L.seed_everything(0)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(256, 32, generator=data)
    y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        default_root_dir=args.out,
        callbacks=[
            ModelCheckpoint(
                dirpath=os.path.join(args.out, "checkpoints"),
                every_n_train_steps=10,
                save_last=True,
            )
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # "last" starts from nothing when nothing has been saved yet.
    trainer.fit(model, loader, ckpt_path="last")
    torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))


if __name__ == "__main__":
    main()
