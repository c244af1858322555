"""Trainers in which there is nothing to find, each written in another way."""

import torch
from laws_faults_loss import finish

from tinytrain.config import TrainConfig
from tinytrain.course.laws.plain_trainer import PlainTrainer
from tinytrain.step import evaluate
from tinytrain.train import Trainer


class Adapted:
    """The package's own Trainer, as the laws call it."""

    def __init__(self, model, data, *, total_steps, max_lr, warmup_steps, max_grad_norm, folder, precision="fp32"):
        config = TrainConfig(
            total_steps=total_steps, max_lr=max_lr, warmup_steps=warmup_steps, max_grad_norm=max_grad_norm,
            out=folder, checkpoint_every=1, precision=precision,
        )  # fmt: skip
        self.log, self.model = [], model
        self.trainer = Trainer(model, data, config, [self.log.append])
        self.fit, self.resume = self.trainer.fit, self.trainer.resume

    def evaluate(self, batches):
        return evaluate(self.model, batches).loss


class WrittenOtherwise(PlainTrainer):
    """Gradients of sums, divided at the end; a fused optimizer; the first rate 1 / (warmup + 1); no precision."""

    def __init__(self, model, data, *, total_steps, max_lr, warmup_steps, max_grad_norm, folder):
        super().__init__(model, data, total_steps=total_steps, max_lr=max_lr, warmup_steps=warmup_steps,
                         max_grad_norm=max_grad_norm, folder=folder)  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.groups(), lr=max_lr, fused=True)

    def rate(self):
        rising = (self.step + 1) / (self.warmup_steps + 1)
        return self.max_lr * min(rising, 1.0) * (1 if self.step <= self.warmup_steps else 0.999**self.step)

    def update(self, micro_batches):
        self.optimizer.zero_grad()
        parts = [self.loss_sum(batch) for batch in micro_batches]
        sum(parts).backward()
        targets = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
        for p in self.model.parameters():
            p.grad /= targets
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm).item()
        finish(self, sum(parts).item() / targets, norm, self.rate())


class Bare:
    """Only ``fit``, and no log."""

    def __init__(self, *args, **settings):
        self.fit = PlainTrainer(*args, **settings).fit


class AsksAhead(PlainTrainer):
    """Has the next batch at hand before the update with this one, as a data loader does."""

    def fit(self):
        ahead, data = {}, self.data

        def take(n):
            for at in (n, n + 1):
                ahead.setdefault(at, data[at]) if at not in ahead else None
            return ahead.pop(n)

        self.data = type("Ahead", (), {"__getitem__": lambda _self, n: take(n)})()
        super().fit()


class TwoOptimizers(PlainTrainer):
    """AdamW for matrices, SGD for the rest."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        matrices, rest = self.groups()
        self.optimizer = torch.optim.AdamW([matrices], lr=self.max_lr)
        self.other = torch.optim.SGD([rest], lr=self.max_lr, momentum=0.9)
        self.optimizer.register_step_post_hook(lambda *_: self.step_the_other())

    def update(self, micro_batches):
        self.other.zero_grad()
        super().update(micro_batches)

    def step_the_other(self):
        for group in self.other.param_groups:
            group["lr"] = self.rate()
        self.other.step()

    def state(self):
        return super().state() | {"other": self.other.state_dict()}

    def load(self, state):
        super().load(state)
        self.other.load_state_dict(state["other"])


class RefusesAtOnce(PlainTrainer):
    """What it asks of its settings is more than most do, and no more than the contract grants."""

    def __init__(self, *args, total_steps, warmup_steps, max_grad_norm, **settings):
        assert 1 <= warmup_steps < total_steps and 0 < max_grad_norm <= 100
        settings |= {"total_steps": total_steps, "warmup_steps": warmup_steps, "max_grad_norm": max_grad_norm}
        super().__init__(*args, **settings)


HONEST = (AsksAhead, TwoOptimizers, RefusesAtOnce)
