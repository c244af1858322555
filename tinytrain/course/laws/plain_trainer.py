"""A trainer that keeps the laws, in about a hundred lines of torch and nothing else: the capstone's solution."""

import math
import os
import random
from pathlib import Path

import torch
import torch.nn.functional as F


class PlainTrainer:
    """What ``python -m tinytrain.course laws`` asks for; see the contract there."""

    def __init__(
        self, model, data, *, total_steps, max_lr, warmup_steps, max_grad_norm, folder, precision="fp32", patience=20
    ):
        if not 0 <= warmup_steps <= total_steps:
            raise ValueError(f"warmup_steps={warmup_steps} must be from 0 to total_steps={total_steps}")
        self.model, self.data, self.total_steps, self.max_lr = model, data, total_steps, max_lr
        self.warmup_steps, self.max_grad_norm, self.patience = warmup_steps, max_grad_norm, patience
        self.path, self.fp16 = Path(folder) / "checkpoint.pt", precision == "fp16"
        self.optimizer = torch.optim.AdamW(self.groups(), lr=max_lr, betas=(0.9, 0.95))
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.fp16)
        self.step = self.batch = self.bad_in_a_row = 0  # updates made; batches taken
        self.generators, self.log = None, []

    def groups(self):
        """Matrices decay; what has one dimension (norms, biases) does not."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ]

    def rate(self):
        """The learning rate, from the number of updates that are made and nothing else."""
        if self.step < self.warmup_steps:
            return self.max_lr * (self.step + 1) / self.warmup_steps
        progress = (self.step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.max_lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))

    def loss_sum(self, batch):
        """The sum of the token losses of one batch. The labels stay here; everything else goes to the model."""
        given = {name: value for name, value in batch.items() if name != "labels"}
        with torch.autocast("cpu", torch.float16, enabled=self.fp16):
            logits = self.model(**given)
        return F.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def fit(self):
        self.model.train()
        if self.generators is not None:  # last, since making a model and a trainer draws as well
            self.set_generators(self.generators)
            self.generators = None
        while self.step < self.total_steps:
            self.update(self.data[self.batch])

    def update(self, micro_batches):
        loss, norm, targets = self.gradients(micro_batches)
        good = targets > 0 and math.isfinite(loss) and math.isfinite(norm)
        self.finish(loss, norm, self.rate(), good)

    def gradients(self, micro_batches):
        """The clipped gradient of the whole update, with (loss, norm before clipping, number of targets)."""
        self.optimizer.zero_grad()
        targets = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
        loss = 0.0
        for batch in micro_batches:
            part = self.loss_sum(batch) / max(targets, 1)
            self.scaler.scale(part).backward()
            loss += part.item()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm).item()
        return loss, norm, targets

    def finish(self, loss, norm, rate, good):
        """Move the weights, or nothing; count, log and save."""
        if good:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.scaler.update()
        self.batch, self.step = self.batch + 1, self.step + good
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        self.log.append({"batch": self.batch, "loss": loss, "grad_norm": norm, "lr": rate, "skipped": not good})
        if self.bad_in_a_row >= self.patience:
            raise RuntimeError(f"{self.bad_in_a_row} bad batches in a row, the last is {self.batch - 1}: loss {loss}")
        if good:
            self.save()

    def state(self):
        """All that the rest of the run depends on. NumPy draws nothing here; with it, it would belong to this."""
        return {
            "weights": self.model.state_dict(),
            "moments": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "counts": (self.step, self.batch, self.bad_in_a_row),
            "log": self.log,
            "generators": (torch.get_rng_state(), random.getstate()),
        }

    def save(self):
        """Aside, then renamed in one step: a kill leaves the old file or the new one."""
        beside = self.path.with_suffix(".new")
        with open(beside, "wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)

    def resume(self):
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: there is nothing to resume from")
        self.load(torch.load(self.path, weights_only=True))

    def load(self, state):
        self.model.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["moments"])
        self.scaler.load_state_dict(state["scaler"])
        self.step, self.batch, self.bad_in_a_row = state["counts"]
        self.log, self.generators = state["log"], state["generators"]

    def set_generators(self, states):
        torch.set_rng_state(states[0])
        random.setstate(states[1])

    def evaluate(self, batches):
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with torch.no_grad():
                total = sum(self.loss_sum(batch).item() for batch in batches)
        finally:
            for module, training in modes:
                module.training = training
        return total / sum(int((batch["labels"] != -100).sum()) for batch in batches)
