"""Trainers with one fault each, in an update: its loss, its rate, its rows, its types, its length."""

import math

import torch
import torch.nn.functional as F

from tinytrain.course.laws.plain_trainer import PlainTrainer


def undivided(self, micro_batches, loss_of, after=lambda total: total):
    """``update`` of the plain trainer, with the loss of each micro-batch as ``loss_of`` has it."""
    self.optimizer.zero_grad()
    loss = 0.0
    for batch in micro_batches:
        part = loss_of(batch)
        self.scaler.scale(part).backward()
        loss += part.item()
    self.scaler.unscale_(self.optimizer)
    norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm).item()
    finish(self, loss, norm, self.rate())


def finish(self, loss, norm, rate, *, check=True):
    good = math.isfinite(loss) and math.isfinite(norm) if check else True
    if good:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
    self.scaler.update()
    self.batch, self.step = self.batch + 1, self.step + good
    self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
    self.log.append({"batch": self.batch, "loss": loss, "grad_norm": norm, "lr": rate, "skipped": not good})
    if self.bad_in_a_row >= self.patience:
        raise RuntimeError("too many bad batches")
    if good:
        self.save()


class MeanOfMeans(PlainTrainer):
    def update(self, micro_batches):
        def loss_of(batch):
            n = (batch["labels"] != -100).sum().clamp(min=1)
            return self.loss_sum(batch) / n / len(micro_batches)

        undivided(self, micro_batches, loss_of)


class Undivided(PlainTrainer):
    """The micro-batches' means, added up."""

    def update(self, micro_batches):
        undivided(self, micro_batches, lambda b: self.loss_sum(b) / (b["labels"] != -100).sum().clamp(min=1))


class DividesByPositions(PlainTrainer):
    def update(self, micro_batches):
        positions = sum(batch["labels"].numel() for batch in micro_batches)
        undivided(self, micro_batches, lambda b: self.loss_sum(b) / positions)


class PaddingCounts(PlainTrainer):
    """Padding is token 0, and a target like any other."""

    def update(self, micro_batches):
        filled = [batch | {"labels": batch["labels"].clamp(min=0)} for batch in micro_batches]
        super().update(filled)


class EmptyPartIsNaN(PlainTrainer):
    """A sound divisor, but the mean of each micro-batch on the way to it."""

    def update(self, micro_batches):
        counts = [int((b["labels"] != -100).sum()) for b in micro_batches]
        share = {id(b): n / sum(counts) for b, n in zip(micro_batches, counts, strict=True)}

        def loss_of(batch):
            logits = self.model(**{k: v for k, v in batch.items() if k != "labels"})
            return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) * share[id(batch)]

        undivided(self, micro_batches, loss_of)


class ShiftsAgain(PlainTrainer):
    def update(self, micro_batches):
        moved = [b | {"labels": F.pad(b["labels"][:, 1:], (0, 1), value=-100)} for b in micro_batches]
        super().update(moved)


class NeverZeroes(PlainTrainer):
    def update(self, micro_batches):
        self.optimizer.zero_grad, old = lambda: None, self.optimizer.zero_grad
        super().update(micro_batches)
        if self.log[-1]["skipped"]:
            old()


class LogsTheLastPart(PlainTrainer):
    def update(self, micro_batches):
        super().update(micro_batches)
        with torch.no_grad():
            last = micro_batches[-1]
            if not self.log[-1]["skipped"]:
                n = max(int((last["labels"] != -100).sum()), 1)
                states = torch.get_rng_state()
                self.log[-1]["loss"] = self.loss_sum(last).item() / n
                torch.set_rng_state(states)


class EvaluatesMeans(PlainTrainer):
    def evaluate(self, batches):
        whole = [b for b in batches if (b["labels"] != -100).any()]
        return sum(super(EvaluatesMeans, self).evaluate([b]) for b in whole) / len(whole)


class DivisorOfPieces(PlainTrainer):
    """Divides by so many micro-batches, each counted as full: right where they are alike."""

    def update(self, micro_batches):
        undivided(self, micro_batches, lambda b: self.loss_sum(b) / (len(micro_batches) * b["labels"].numel()))


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


class DropsTheMask(PlainTrainer):
    def loss_sum(self, batch):
        return super().loss_sum({name: batch[name] for name in ("input_ids", "labels")})


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

        self.scaler.unscale_ = lambda _optimizer: None
        torch.nn.utils.clip_grad_norm_ = clip_then_unscale
        try:
            super().update(micro_batches)
        finally:
            torch.nn.utils.clip_grad_norm_, self.scaler.unscale_ = clip, unscale


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

        torch.nn.utils.clip_grad_norm_ = by_value
        try:
            super().update(micro_batches)
        finally:
            torch.nn.utils.clip_grad_norm_ = old


class DecaysAll(PlainTrainer):
    def groups(self):
        return [{"params": list(self.model.parameters()), "weight_decay": 0.1}]


class ForgetsTheBiases(PlainTrainer):
    def groups(self):
        return super().groups()[:1]

    def update(self, micro_batches):
        self.model.zero_grad()
        super().update(micro_batches)


class Label0IsPadding(PlainTrainer):
    """Padding is token 0, so label 0 is taken for padding."""

    def loss_sum(self, batch):
        return super().loss_sum(batch | {"labels": without_0(batch["labels"])})

    def update(self, micro_batches):
        super().update([batch | {"labels": without_0(batch["labels"])} for batch in micro_batches])

    def evaluate(self, batches):
        return super().evaluate([batch | {"labels": without_0(batch["labels"])} for batch in batches])


def without_0(labels):
    return labels.masked_fill(labels == 0, -100)


class MaskFromIds(PlainTrainer):
    def loss_sum(self, batch):
        return super().loss_sum({"attention_mask": (batch["input_ids"] != 0).long()} | batch)


class OnlyTheMask(PlainTrainer):
    """Hands on what it knows by name."""

    def loss_sum(self, batch):
        known = ("input_ids", "labels", "attention_mask")
        return super().loss_sum({name: batch[name] for name in known if name in batch})


class EvaluatesWithoutTheMask(PlainTrainer):
    def evaluate(self, batches):
        return super().evaluate([{name: batch[name] for name in ("input_ids", "labels")} for batch in batches])


class NoRateForBiases(PlainTrainer):
    def update(self, micro_batches):
        biases = self.optimizer.param_groups[1]
        hook = self.optimizer.register_step_pre_hook(lambda *_: biases.update(lr=0.0))
        super().update(micro_batches)
        hook.remove()


class RateOfTheFirstGroup(PlainTrainer):
    """The other keeps the rate that it was made with."""

    def update(self, micro_batches):
        others = self.optimizer.param_groups[1]
        hook = self.optimizer.register_step_pre_hook(lambda *_: others.update(lr=self.max_lr))
        super().update(micro_batches)
        hook.remove()


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
    MeanOfMeans: ({"law 1", "law 2"}, "averages the means of the micro-batches"),
    Undivided: ({"law 1", "law 2"}, "without dividing by all targets"),
    DividesByPositions: ({"law 1", "law 2"}, "padding counts in the divisor: it divides by positions"),
    PaddingCounts: ({"law 1", "law 2"}, "padding counts as a target"),
    DivisorOfPieces: ({"law 1", "law 2"}, "padding counts in the divisor, and the micro-batches' means"),
    EmptyPartIsNaN: ({"law 1"}, "0 / 0"),
    ShiftsAgain: ({"law 1"}, "the labels are shifted once more"),
    NeverZeroes: ({"law 1", "law 5", "law 6"}, "the update before is still in it"),
    LogsTheLastPart: ({"law 1"}, "times the loss that was optimized"),
    EvaluatesMeans: ({"law 1"}, "averages the means of batches"),
    ScheduleOfParts: ({"law 3"}, "moves with each micro-batch"),
    FirstRateIsZero: ({"law 3"}, "is 0 at the first update"),
    NoWarmup: ({"law 3"}, "the warmup is left out"),
    WarmupNeverStarts: ({"law 3"}, "the warmup never starts"),
    ClimbsAgain: ({"law 3"}, "rises again"),
    ShufflesAgain: ({"law 4"}, "shuffled once more"),
    LeavesTheLastPartOut: ({"law 4"}, "rows are left out"),
    CastsTheModel: ({"law 7"}, "the model is cast"),
    DropsTheMask: ({"law 9"}, "attention_mask does not reach the model"),
    ClipsScaled: ({"clipping"}, "still multiplied by the loss scale"),
    NeverClips: ({"clipping"}, "not clipped before step()"),
    ClipsEachNumber: ({"clipping"}, "is clipped by itself"),
    DecaysAll: ({"decay"}, "one group for all parameters"),
    ForgetsTheBiases: ({"decay"}, ""),
    Label0IsPadding: ({"law 1"}, "label 0 is left out as if it were padding"),
    MaskFromIds: ({"law 1"}, "attention_mask is made from the ids"),
    OnlyTheMask: ({"law 9"}, "doc_ids does not reach the model"),
    EvaluatesWithoutTheMask: ({"law 9"}, "evaluate hands the model less"),
    NoRateForBiases: ({"law 3"}, "set it in every group"),
    RateOfTheFirstGroup: ({"law 3"}, "set it in every group"),
    LogsTheNextRate: ({"law 3"}, "the rate of the update to come"),
    RepeatsEight: ({"law 4"}, "after data[7] it begins again with data[0]"),
    TakesFP16ForNothing: ({"law 7"}, "nothing is computed in it"),
    ClipsTheFirstOnly: ({"clipping"}, "in every update"),
}
