"""A first evening's trainer. It runs, its loss falls, and most laws are broken: copy it, and mend it law by law."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F


class FirstTrainer:
    """What ``python -m tinytrain.course laws`` asks for, as far as one gets in an evening."""

    def __init__(self, model, data, *, total_steps, max_lr, warmup_steps, max_grad_norm, folder, precision="fp32"):
        self.model, self.data, self.total_steps, self.max_grad_norm = model, data, total_steps, max_grad_norm
        self.path, self.fp16 = Path(folder) / "checkpoint.pt", precision == "fp16"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=max_lr, weight_decay=0.1)

        def factor(step):
            if step < warmup_steps:
                return step / warmup_steps
            progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
            return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.fp16)
        self.log = []

    def loss(self, batch):
        with torch.autocast("cpu", torch.float16, enabled=self.fp16):
            out = self.model(batch["input_ids"])
            logits = out["logits"] if isinstance(out, dict) else out
            return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def fit(self):
        self.model.train()
        for n in range(self.total_steps):
            micro_batches = self.data[n]
            self.optimizer.zero_grad()
            for batch in micro_batches:
                loss = self.loss(batch)
                self.scaler.scale(loss / len(micro_batches)).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.log.append({"loss": loss.item(), "lr": self.scheduler.get_last_lr()[0]})
            self.save()

    def save(self):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.path)

    def evaluate(self, batches):
        self.model.eval()
        with torch.no_grad():
            losses = [self.loss(batch).item() for batch in batches]
        return sum(losses) / len(losses)
