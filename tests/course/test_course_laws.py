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

    def update(self, micro_batches):
        self.model.zero_grad()
        super().update(micro_batches)


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
    WithoutMoments: ({"law 5"}, "moments are not restored"),
    WithoutWeights: ({"law 5", "law 10"}, "weights are not those of the checkpoint"),
    WithoutScaler: ({"law 5"}, "loss scale is not restored"),
    WithoutGenerators: ({"law 5"}, "generators are not restored"),
    GeneratorsTooEarly: ({"law 5"}, "generators are not restored"),
    WithoutDataPosition: ({"law 5"}, "begins again with data[0]"),
    WithoutStep: ({"law 5"}, "count of updates is not restored"),
    PositionFromStep: ({"law 5"}, "counted in updates, and not in batches"),
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
    TakesWhatFits: ({"law 10"}, "or are shapes passed over"),
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
    first = min(laws, key=lambda law: int(law.split()[-1]) if law.startswith("law") else 0)
    assert cause in " ".join(str(verdicts[first]).split()), f"\n{verdicts}"


# Those that keep them


def test_the_plain_trainer_keeps_them_all_and_a_real_kill_shows_it():
    verdicts = run_laws(PLAIN)
    assert verdicts.broken == verdicts.untested == [], f"\n{verdicts}"
    assert "killed with signal 9 in the middle of its fifth save; resumed after update 4" in " ".join(
        str(verdicts).split()
    )


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


@pytest.mark.usefixtures("any_format_is_fast")
def test_the_packages_own_trainer_keeps_them_all():
    verdicts = run_laws(Adapted)
    assert verdicts.broken == verdicts.untested == [], f"\n{verdicts}"


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


def test_another_right_way_keeps_them_and_what_it_lacks_is_said():
    verdicts = run_laws(WrittenOtherwise)
    assert verdicts.broken == [], f"\n{verdicts}"
    assert "it takes no argument precision" in str(verdicts["law 7"])


class Bare:
    """Only ``fit``, and no log."""

    def __init__(self, *args, **settings):
        self.fit = PlainTrainer(*args, **settings).fit


def test_what_a_trainer_lacks_could_not_be_tested_and_is_not_held_to_hold():
    verdicts = run_laws(Bare)
    assert verdicts.broken == [], f"\n{verdicts}"
    assert set(verdicts.untested) == {"law 5", "law 8"}
    said = str(verdicts)
    assert all(words in said for words in ("no resume()", "no evaluate(batches)", 'no trainer.log with "loss"'))


# Those that only look busy


class DoesNothing(PlainTrainer):
    def fit(self):
        self.log = [{"batch": n, "loss": 2.0, "lr": 1e-3, "skipped": False} for n in range(self.total_steps)]

    def evaluate(self, batches):
        return 2.0


class MovesAtRandom(PlainTrainer):
    """Takes the data, ignores them, and takes steps with gradients that do not depend on them."""

    def update(self, micro_batches):
        for p in self.model.parameters():
            p.grad = torch.ones_like(p)
        finish(self, 2.0, 1.0, self.rate())

    def evaluate(self, batches):
        return math.log(23)


class TrainsOnItsOwn(PlainTrainer):
    """A batch of its own in place of those that it is given."""

    def update(self, micro_batches):
        ids = torch.arange(12)[None] % 20
        super().update([{"input_ids": ids, "labels": ids + 1}])


class StepsADecoy(PlainTrainer):
    """Its optimizer holds a copy of the weights; the model's own move by hand."""

    def __init__(self, model, *args, **settings):
        super().__init__(model, *args, **settings)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def update(self, micro_batches):
        self.model.zero_grad()
        self.loss_sum(micro_batches[0]).backward()
        with torch.no_grad():
            for p in self.model.parameters():
                p -= 1e-3 * p.grad
        self.step += 1
        self.batch += 1


BUSY = {
    DoesNothing: ({"law 1"}, {"law 10"}),
    MovesAtRandom: ({"law 1", "law 2"}, {"law 3", "law 7", "decay"}),
    TrainsOnItsOwn: ({"law 1", "law 2", "law 4"}, {"law 3", "law 7", "law 8", "decay"}),
    StepsADecoy: (set(), set()),
}


@pytest.mark.parametrize("busy", BUSY, ids=lambda busy: busy.__name__)
def test_no_law_holds_for_want_of_work(busy):
    """Besides those that must be broken, only those may hold which the trainer does keep."""
    broken, may_hold = BUSY[busy]
    verdicts = run_laws(busy)
    print(verdicts)
    assert broken <= set(verdicts.broken)
    if busy is not StepsADecoy:
        assert set(verdicts.held) <= may_hold, f"\n{verdicts}"
    else:
        assert {"law 1", "law 2", "law 3", "law 4", "clipping", "decay"} <= {*verdicts.untested, *verdicts.broken}


class NeverEnds(PlainTrainer):
    def fit(self):
        while True:
            self.update(self.data[self.batch])


def test_a_trainer_that_never_ends_is_ended():
    with pytest.raises(CannotUseError, match=r"fit\(\) ended with endless"):
        run_laws(NeverEnds)


# The tools of the laws


def test_generators_are_afterwards_as_they_were():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    run_laws(PlainTrainer, only=["law 8"])
    assert torch.equal(torch.rand(3), wanted)


def test_one_law_may_be_asked_alone_and_an_unknown_one_is_named():
    assert run_laws(PlainTrainer, only=["law 3"]).held == ["law 3"]
    with pytest.raises(ValueError, match=r"there is no law 11; the laws are law 1, law 2"):
        run_laws(PlainTrainer, only=["law 11"])


def test_every_mistake_that_is_known_gives_another_gradient():
    """Or its words could not be told from the right ones."""
    from tinytrain.course.laws.probe import distance, gradient_of, model_with, true_loss
    from tinytrain.course.laws.tape import weights_of
    from tinytrain.course.laws.update import uneven

    bench_model = model_with(weights_of(_fresh()))
    weights = weights_of(bench_model)
    right = gradient_of(weights, true_loss, uneven(0))
    wrong = {words: gradient_of(weights, loss, uneven(0)) for words, loss in MISTAKES.items()}
    for words, gradient in wrong.items():
        if "attention_mask" not in words:
            assert distance(gradient, right) > 0.05, words
        assert all(distance(gradient, other) > 1e-3 for name, other in wrong.items() if name != words), words


def _fresh():
    from tinytrain.course.laws.probe import Noting, ProbeModel

    torch.manual_seed(1)
    return ProbeModel(Noting())


# Finding a trainer, and the command


def test_a_trainer_is_found_by_module_by_name_in_a_file_and_by_make_trainer(tmp_path):
    source = Path(load(PLAIN).__init__.__code__.co_filename).read_text("utf-8")
    (tmp_path / "mine.py").write_text(source)
    assert load(PLAIN) is load(f"{PLAIN}:PlainTrainer") is PlainTrainer
    assert load(str(tmp_path / "mine.py")).__name__ == "PlainTrainer"
    assert load(f"{tmp_path / 'mine.py'}:PlainTrainer").__name__ == "PlainTrainer"
    (tmp_path / "made.py").write_text(source + "\n\ndef make_trainer(*args, **named):\n    pass\n")
    assert load(str(tmp_path / "made.py")).__name__ == "make_trainer"


UNUSABLE = {
    "no_such_module_anywhere": "could not be imported: ModuleNotFoundError",
    "nothing_here.py": "there is no file",
    f"{PLAIN}:Missing": "has no Missing",
    "json": "must have one class with fit\\(\\), and has none",
}


@pytest.mark.parametrize("spec", UNUSABLE)
def test_what_cannot_be_found_is_said(spec):
    with pytest.raises(CannotUseError, match=UNUSABLE[spec]):
        load(spec)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: None, "could not be called as the contract says: TypeError"),
        (lambda *_args, **_named: object(), r"gave a object, which has no fit\(\)"),
        (3, "cannot be called"),
    ],
)
def test_what_is_no_trainer_is_said(factory, words):
    with pytest.raises(CannotUseError, match=words):
        run_laws(factory)


def command(*args, cwd):
    line = [sys.executable, "-m", "tinytrain.course", "laws", *args]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_the_command_says_by_its_status_whether_a_law_is_broken(tmp_path):
    source = Path(sys.modules[PLAIN].__file__).read_text("utf-8")
    sick = source.replace('reduction="sum"', 'reduction="mean"').replace("/ max(targets, 1)", "/ len(micro_batches)")
    (tmp_path / "mine.py").write_text(sick)
    done = command("mine.py", cwd=tmp_path)
    assert done.returncode == 1 and "averages the means" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert done.stderr == ""
    done = command("nothing_of_the_kind", cwd=tmp_path)
    assert done.returncode == 2 and "could not be imported" in done.stderr


def test_the_command_finds_a_module_of_the_folder_it_is_called_in(tmp_path):
    (tmp_path / "my_module.py").write_text(Path(sys.modules[PLAIN].__file__).read_text("utf-8"))
    done = command("my_module:PlainTrainer", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 hold, 0 broken, 0 could not be tested" in done.stdout


def test_a_save_that_is_cut_off_takes_an_only_file_with_it(tmp_path):
    source = Path(sys.modules[PLAIN].__file__).read_text("utf-8")
    start, end = source.index("    def save(self):"), source.index("    def resume(self):")
    (tmp_path / "straight.py").write_text(
        source[:start] + "    def save(self):\n        torch.save(self.state(), self.path)\n\n" + source[end:]
    )
    verdicts = run_laws(tmp_path / "straight.py")
    assert verdicts.broken == ["law 5"], f"\n{verdicts}"
    assert "write to another name" in str(verdicts["law 5"])


def test_the_contract_fits_on_a_screen():
    from tinytrain.course.laws import OwnTrainer

    assert len(OwnTrainer.__doc__.splitlines()) < 30
