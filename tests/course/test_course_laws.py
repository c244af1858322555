"""The laws, run on trainers: one that keeps them all, many with one fault each, and some that only look busy."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tinytrain.config import TrainConfig
from tinytrain.course.laws import CannotUseError, load, run_laws
from tinytrain.course.laws.plain_trainer import PlainTrainer
from tinytrain.course.laws.probe import MISTAKES
from tinytrain.step import evaluate
from tinytrain.train import Trainer

PLAIN = "tinytrain.course.laws.plain_trainer"


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
        before = self.step
        super().update(micro_batches)
        self.parts += len(micro_batches) * (self.step - before)

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
        half = self.total_steps // 2
        at = self.step if self.step < half else max(self.total_steps - self.step, self.warmup_steps)
        step, self.step = self.step, at
        try:
            return super().rate()
        finally:
            self.step = step


class ShufflesAgain(PlainTrainer):
    """Takes the batches in an order of its own, drawn from the seed."""

    def fit(self):
        order = torch.randperm(self.total_steps, generator=torch.Generator().manual_seed(1)).tolist() + [
            *range(self.total_steps, 999)
        ]
        data = self.data
        self.data = type("Shuffled", (), {"__getitem__": lambda _self, n: data[order[n]]})()
        super().fit()


class LeavesTheLastPartOut(PlainTrainer):
    """Reads all but drops the last micro-batch where there are two of one size."""

    def update(self, micro_batches):
        alike = len(micro_batches) == 2 and len({len(b["labels"]) for b in micro_batches}) == 1
        super().update(micro_batches[:1] if alike else micro_batches)


class ResumesWithout(PlainTrainer):
    """``part`` is not taken up."""

    part = ""

    def load(self, state):
        fresh = self.state()
        super().load(state | {self.part: fresh[self.part]})


class WithoutMoments(ResumesWithout):
    part = "moments"


class WithoutWeights(ResumesWithout):
    part = "weights"


class WithoutScaler(ResumesWithout):
    part = "scaler"


class WithoutGenerators(ResumesWithout):
    part = "generators"


class WithoutDataPosition(PlainTrainer):
    def load(self, state):
        step, _, bad = state["counts"]
        super().load(state | {"counts": (step, 0, bad)})


class WithoutStep(PlainTrainer):
    def load(self, state):
        _, batch, bad = state["counts"]
        super().load(state | {"counts": (0, batch, bad)})


class PositionFromStep(PlainTrainer):
    """Batches and updates are one number, until a batch is skipped."""

    def load(self, state):
        step, _, bad = state["counts"]
        super().load(state | {"counts": (step, step, bad)})


class GeneratorsTooEarly(PlainTrainer):
    """Restored, and then moved by something that draws before the first update."""

    def set_generators(self, states):
        super().set_generators(states)
        torch.rand(1)


class SavesStraight(PlainTrainer):
    def save(self):
        torch.save(self.state(), self.path)


class StartsAnewSilently(PlainTrainer):
    def resume(self):
        if self.path.is_file():
            super().resume()


class TakesWhatFits(PlainTrainer):
    def load(self, state):
        own = self.model.state_dict()
        fits = {k: v for k, v in state["weights"].items() if own[k].shape == v.shape}
        super().load(state | {"weights": own | fits})


class TakesAnyWarmup(PlainTrainer):
    def __init__(self, model, data, *, warmup_steps, total_steps, **settings):
        super().__init__(model, data, warmup_steps=min(warmup_steps, total_steps), total_steps=total_steps, **settings)


class UpdatesAfterNaN(PlainTrainer):
    def update(self, micro_batches):
        self.optimizer.zero_grad()
        targets = sum(int((b["labels"] != -100).sum()) for b in micro_batches)
        loss = 0.0
        for batch in micro_batches:
            part = self.loss_sum(batch) / max(targets, 1)
            self.scaler.scale(part).backward()
            loss += part.item()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm).item()
        finish(self, loss, norm, self.rate(), check=False)


class LooksAtTheLossOnly(PlainTrainer):
    def update(self, micro_batches):
        old = torch.nn.utils.clip_grad_norm_

        def norm(*args):
            value = old(*args)
            return value if value.isfinite() else torch.tensor(1.0)

        torch.nn.utils.clip_grad_norm_ = norm
        try:
            super().update(micro_batches)
        finally:
            torch.nn.utils.clip_grad_norm_ = old


class ScheduleOfSkipped(PlainTrainer):
    """What a scheduler's step() in every round of the loop does."""

    def rate(self):
        step, self.step = self.step, min(self.batch, self.total_steps - 1)
        try:
            return super().rate()
        finally:
            self.step = step


class CountsBatches(PlainTrainer):
    def update(self, micro_batches):
        super().update(micro_batches)
        self.step = self.batch


class ZeroInPlaceOfNaN(PlainTrainer):
    """A bad gradient becomes 0, and the update is made: weights decay and moments shrink."""

    def update(self, micro_batches):
        super().update(micro_batches)
        if self.log[-1]["skipped"]:
            for p in self.model.parameters():
                p.grad = torch.zeros_like(p)
            self.optimizer.step = self.optimizer.__class__.step.__get__(self.optimizer)
            self.optimizer.step()


class NeverGivesUp(PlainTrainer):
    def __init__(self, *args, **settings):
        super().__init__(*args, patience=10**9, **settings)


class SaysNothingOfSkips(PlainTrainer):
    def update(self, micro_batches):
        super().update(micro_batches)
        self.log[-1]["skipped"] = False


class StaysInEvalMode(PlainTrainer):
    def evaluate(self, batches):
        found = super().evaluate(batches)
        self.model.eval()
        return found


class EvaluatesInTrainMode(PlainTrainer):
    """Dropout is on, and draws from torch's generator."""

    def evaluate(self, batches):
        with torch.no_grad():
            total = sum(self.loss_sum(b).item() for b in batches)
        return total / sum(int((b["labels"] != -100).sum()) for b in batches)


class EvaluatesShuffled(PlainTrainer):
    def evaluate(self, batches):
        return super().evaluate([batches[i] for i in torch.randperm(len(batches))])


class MovesPythons(PlainTrainer):
    def evaluate(self, batches):
        import random

        return super().evaluate(random.sample(batches, len(batches)))


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


FAULTS = {
    MeanOfMeans: ({"law 1", "law 2"}, "averages the means of the micro-batches"),
    Undivided: ({"law 1", "law 2"}, "without dividing by all targets"),
    DividesByPositions: ({"law 1", "law 2"}, "padding counts in the divisor: it divides by positions"),
    PaddingCounts: ({"law 1", "law 2"}, "padding counts as a target"),
    DivisorOfPieces: ({"law 1", "law 2"}, "padding counts in the divisor, and the micro-batches' means"),
    EmptyPartIsNaN: ({"law 1"}, "0 / 0"),
    ShiftsAgain: ({"law 1"}, "the labels are shifted once more"),
    NeverZeroes: ({"law 1"}, "the update before is still in it"),
    LogsTheLastPart: ({"law 1"}, "times the loss that was optimized"),
    EvaluatesMeans: ({"law 1"}, "averages the means of batches"),
    ScheduleOfParts: ({"law 3"}, "moves with each micro-batch"),
    FirstRateIsZero: ({"law 3"}, "is 0 at the first update"),
    NoWarmup: ({"law 3"}, "the warmup is left out"),
    WarmupNeverStarts: ({"law 3"}, "the warmup never starts"),
    ClimbsAgain: ({"law 3"}, "rises again"),
    ShufflesAgain: ({"law 4"}, "shuffled once more"),
    LeavesTheLastPartOut: ({"law 4"}, "rows are left out"),
    WithoutMoments: ({"law 5"}, "moments are not restored"),
    WithoutWeights: ({"law 5"}, "weights are not those of the checkpoint"),
    WithoutScaler: ({"law 5"}, "loss scale is not restored"),
    WithoutGenerators: ({"law 5"}, "generators are not restored"),
    GeneratorsTooEarly: ({"law 5"}, "generators are not restored"),
    WithoutDataPosition: ({"law 5"}, "begins again with data[0]"),
    WithoutStep: ({"law 5"}, "count of updates is not restored"),
    PositionFromStep: ({"law 5"}, "its place in the data is lost"),
    UpdatesAfterNaN: ({"law 6"}, "step() is called though"),
    LooksAtTheLossOnly: ({"law 6"}, "step() is called though"),
    ScheduleOfSkipped: ({"law 6"}, "schedule moves on in a skipped update"),
    CountsBatches: ({"law 6"}, "counts batches, and not updates"),
    ZeroInPlaceOfNaN: ({"law 6"}, ""),
    NeverGivesUp: ({"law 6"}, "count those in a row"),
    SaysNothingOfSkips: ({"law 6"}, "a line for each batch"),
    CastsTheModel: ({"law 7"}, "the model is cast"),
    StaysInEvalMode: ({"law 8"}, "left in eval mode"),
    EvaluatesInTrainMode: ({"law 8"}, "torch's generator moves: is the model in eval mode"),
    EvaluatesShuffled: ({"law 8"}, "torch's generator moves"),
    MovesPythons: ({"law 8"}, "Python's generator moves: does it shuffle"),
    DropsTheMask: ({"law 9"}, "attention_mask does not reach the model"),
    StartsAnewSilently: ({"law 10"}, "begins anew"),
    TakesWhatFits: ({"law 10"}, "shapes are passed over"),
    TakesAnyWarmup: ({"law 10"}, "check the settings"),
    ClipsScaled: ({"clipping"}, "still multiplied by the loss scale"),
    NeverClips: ({"clipping"}, "not clipped before step()"),
    ClipsEachNumber: ({"clipping"}, "is clipped by itself"),
    DecaysAll: ({"decay"}, "one group for all parameters"),
    ForgetsTheBiases: ({"decay"}, ""),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_single_fault_breaks_the_law_it_should_and_the_cause_is_named(fault):
    laws, cause = FAULTS[fault]
    verdicts = run_laws(fault)
    assert set(verdicts.broken) == laws, f"\n{verdicts}"
    assert cause in " ".join(str(verdicts[law]) for law in sorted(laws)[:1]).replace("\n            ", " "), verdicts
