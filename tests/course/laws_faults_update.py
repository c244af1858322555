"""Trainers with one fault each, in an update: its rate, its rows, its types, its length, what shrinks in it."""

import math
from unittest.mock import patch

import torch

from tinytrain.course.laws.plain_trainer import PlainTrainer


class ScheduleOfParts(PlainTrainer):
    """The schedule moves with each micro-batch; its length is scaled for two of them."""

    parts = 0

    def rate(self):
        step, self.step = self.step, self.parts // 2
        try:
            return super().rate() if self.step < self.total_steps else self.max_lr * 0.1
        finally:
            self.step = step

    def update(self, micro_batches):
        self.now = len(micro_batches)
        super().update(micro_batches)

    def save(self):
        self.parts += self.now
        super().save()

    def state(self):
        return super().state() | {"parts": self.parts}

    def load(self, state):
        super().load(state)
        self.parts = state["parts"]


class FirstRateIsZero(PlainTrainer):
    def rate(self):
        return self.max_lr * self.step / self.warmup_steps if self.step < self.warmup_steps else super().rate()


class NoWarmup(PlainTrainer):
    def rate(self):
        return self.max_lr * (0.1 + 0.45 * (1 + math.cos(math.pi * self.step / self.total_steps)))


class WarmupNeverStarts(PlainTrainer):
    def rate(self):
        return 0.0


class ClimbsAgain(PlainTrainer):
    def rate(self):
        half = max(self.total_steps // 2, self.warmup_steps)
        at = self.step if self.step < half else max(2 * half - self.step, self.warmup_steps)
        step, self.step = self.step, at
        try:
            return super().rate()
        finally:
            self.step = step


class ShufflesAgain(PlainTrainer):
    """Takes the batches in an order of its own, drawn from the seed."""

    def fit(self):
        drawn = torch.randperm(self.total_steps, generator=torch.Generator().manual_seed(1)).tolist()
        order = [*drawn, *range(self.total_steps, 999)]
        data = self.data
        self.data = type("Shuffled", (), {"__getitem__": lambda _self, n: data[order[n]]})()
        super().fit()


class LeavesTheLastPartOut(PlainTrainer):
    """Reads all but drops the last micro-batch where there are two of one size."""

    def update(self, micro_batches):
        alike = len(micro_batches) == 2 and len({len(b["labels"]) for b in micro_batches}) == 1
        super().update(micro_batches[:1] if alike else micro_batches)


class CastsTheModel(PlainTrainer):
    """Weights in bfloat16: the moments are, too."""

    def __init__(self, model, *args, **settings):
        super().__init__(model.to(torch.bfloat16), *args, **settings)


class ClipsScaled(PlainTrainer):
    """Clips before unscale_."""

    def update(self, micro_batches):
        unscale = self.scaler.unscale_
        clip = torch.nn.utils.clip_grad_norm_

        def clip_then_unscale(parameters, limit):
            norm = clip(self.model.parameters(), limit)
            if self.fp16:
                unscale(self.optimizer)
            return norm

        later = patch.object(self.scaler, "unscale_", lambda _optimizer: None)
        with later, patch("torch.nn.utils.clip_grad_norm_", clip_then_unscale):
            super().update(micro_batches)


class NeverClips(PlainTrainer):
    def __init__(self, *args, max_grad_norm, **settings):
        super().__init__(*args, max_grad_norm=math.inf, **settings)


class ClipsEachNumber(PlainTrainer):
    def update(self, micro_batches):
        old = torch.nn.utils.clip_grad_norm_

        def by_value(parameters, limit):
            parameters = list(parameters)
            norm = old(parameters, math.inf)
            torch.nn.utils.clip_grad_value_(parameters, limit)
            return norm

        with patch("torch.nn.utils.clip_grad_norm_", by_value):
            super().update(micro_batches)


class DecaysAll(PlainTrainer):
    def groups(self):
        return [{"params": list(self.model.parameters()), "weight_decay": 0.1}]


class ForgetsTheBiases(PlainTrainer):
    def groups(self):
        return super().groups()[:1]

    def update(self, micro_batches):
        self.model.zero_grad()
        super().update(micro_batches)


class NoRateForBiases(PlainTrainer):
    def update(self, micro_batches):
        with_rate_of_biases(self, 0.0)
        super().update(micro_batches)


def with_rate_of_biases(trainer, rate):
    """Whatever the rate of all is, theirs is this one."""
    optimizer = trainer.optimizer

    def step():
        optimizer.param_groups[1]["lr"] = rate
        return type(optimizer).step(optimizer)

    optimizer.step = step


class RateOfTheFirstGroup(PlainTrainer):
    """The other keeps the rate that it was made with."""

    def update(self, micro_batches):
        with_rate_of_biases(self, self.max_lr)
        super().update(micro_batches)


class LogsTheNextRate(PlainTrainer):
    def update(self, micro_batches):
        super().update(micro_batches)
        self.log[-1]["lr"] = self.rate() if self.step < self.total_steps else 0.0


class RepeatsEight(PlainTrainer):
    """As an iterator over a list of eight batches that is started again."""

    def __init__(self, model, data, **settings):
        super().__init__(model, type("Eight", (), {"__getitem__": lambda _self, n: data[n % 8]})(), **settings)


class TakesFP16ForNothing(PlainTrainer):
    def __init__(self, *args, precision="fp32", **settings):
        super().__init__(*args, **settings)


class ClipsTheFirstOnly(PlainTrainer):
    def update(self, micro_batches):
        limit, self.max_grad_norm = self.max_grad_norm, math.inf if self.step else self.max_grad_norm
        super().update(micro_batches)
        self.max_grad_norm = limit


FAULTS = {
    ScheduleOfParts: ({"law 3"}, "moves with each micro-batch"),
    FirstRateIsZero: ({"law 3"}, "is 0 at the first update"),
    NoWarmup: ({"law 3"}, "the warmup is left out"),
    WarmupNeverStarts: ({"law 3"}, "the warmup never starts"),
    ClimbsAgain: ({"law 3"}, "rises again"),
    ShufflesAgain: ({"law 4"}, "shuffled once more"),
    LeavesTheLastPartOut: ({"law 4"}, "rows are left out"),
    CastsTheModel: ({"law 7"}, "the model is cast"),
    ClipsScaled: ({"clipping", "law 6"}, "still multiplied by the loss scale"),
    NeverClips: ({"clipping"}, "not clipped before step()"),
    ClipsEachNumber: ({"clipping"}, "is clipped by itself"),
    DecaysAll: ({"decay"}, "one group for all parameters"),
    ForgetsTheBiases: ({"decay", "law 6"}, ""),
    NoRateForBiases: ({"law 3"}, "set it in every group"),
    RateOfTheFirstGroup: ({"law 3"}, "set it in every group"),
    LogsTheNextRate: ({"law 3"}, "the rate of the update to come"),
    RepeatsEight: ({"law 4"}, "after data[7] it begins again with data[0]"),
    TakesFP16ForNothing: ({"law 7"}, "nothing is computed in it"),
    ClipsTheFirstOnly: ({"clipping"}, "in every update"),
}
