"""The HF Trainer told to ignore_data_skip, so that a resumed epoch starts again; expected verdict: violated (order)."""

import argparse
import os

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


class Tokens(torch.utils.data.Dataset):
    """Sixteen tokens a row, each the one before plus a step that the row fixes."""

    def __init__(self, rows):
        generator = torch.Generator().manual_seed(7)
        # 61 first tokens and 4 strides make 244 rows, no two of them alike.
        chosen = torch.randperm(244, generator=generator)[:rows, None]
        first, stride = chosen // 4, 1 + chosen % 4
        self.ids = (first + stride * torch.arange(16)) % 61

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=62,
        eos_token_id=63,
    )  # GPT2Config's own dropout of 0.1 stays on
    training = TrainingArguments(
        output_dir=args.out,
        num_train_epochs=3,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=5,
        lr_scheduler_type="cosine",
        save_strategy="steps",
        save_steps=10,
        ignore_data_skip=True,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=training, train_dataset=Tokens(128)
    )
    has_checkpoint = (
        os.path.isdir(args.out) and get_last_checkpoint(args.out) is not None
    )
    trainer.train(resume_from_checkpoint=has_checkpoint)
    torch.save(trainer.model.state_dict(), os.path.join(args.out, "final.pt"))


if __name__ == "__main__":
    main()
