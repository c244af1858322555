"""Trainers with one fault each, in the loss: what is summed, what divides it, what of a batch reaches the model."""

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


def finish(self, loss, norm, rate):
    self.finish(loss, norm, rate, math.isfinite(loss) and math.isfinite(norm))


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
            with torch.autocast("cpu", torch.float16, enabled=self.fp16):
                logits = self.model(**{k: v for k, v in batch.items() if k != "labels"}).float()
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
                self.model.eval()
                self.log[-1]["loss"] = self.loss_sum(last).item() / n
                self.model.train()


class EvaluatesMeans(PlainTrainer):
    def evaluate(self, batches):
        whole = [b for b in batches if (b["labels"] != -100).any()]
        return sum(super(EvaluatesMeans, self).evaluate([b]) for b in whole) / len(whole)


class DivisorOfPieces(PlainTrainer):
    """Divides by so many micro-batches, each counted as full: right where they are alike."""

    def update(self, micro_batches):
        undivided(self, micro_batches, lambda b: self.loss_sum(b) / (len(micro_batches) * b["labels"].numel()))


class DropsTheMask(PlainTrainer):
    def loss_sum(self, batch):
        return super().loss_sum({name: batch[name] for name in ("input_ids", "labels")})


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


FAULTS = {
    MeanOfMeans: ({"law 1", "law 2"}, "averages the means of the micro-batches"),
    Undivided: ({"law 1", "law 2"}, "without dividing by all targets"),
    DividesByPositions: ({"law 1", "law 2"}, "padding counts in the divisor: it divides by positions"),
    PaddingCounts: ({"law 1", "law 2"}, "padding counts as a target"),
    DivisorOfPieces: ({"law 1", "law 2"}, "padding counts in the divisor, and the micro-batches' means"),
    EmptyPartIsNaN: ({"law 1"}, "0 / 0"),
    ShiftsAgain: ({"law 1"}, "the labels are shifted once more"),
    NeverZeroes: ({"law 1", "law 5", "law 6"}, "the update before is still in it"),
    LogsTheLastPart: ({"law 1"}, "times the loss of all targets"),
    EvaluatesMeans: ({"law 1"}, "averages the means of batches"),
    DropsTheMask: ({"law 9"}, "attention_mask does not reach the model"),
    Label0IsPadding: ({"law 1"}, "label 0 is left out as if it were padding"),
    MaskFromIds: ({"law 1"}, "attention_mask is made from the ids"),
    OnlyTheMask: ({"law 9"}, "doc_ids does not reach the model"),
    EvaluatesWithoutTheMask: ({"law 9"}, "evaluate hands the model less"),
}
