"""Trainers with one fault each, in a whole run: resumed, hit by a bad batch, looked at, handed what cannot work."""

from unittest.mock import patch

import torch

from tinytrain.course.laws.plain_trainer import PlainTrainer


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
        loss, norm, _ = self.gradients(micro_batches)
        self.finish(loss, norm, self.rate(), True)


class LooksAtTheLossOnly(PlainTrainer):
    def update(self, micro_batches):
        old = torch.nn.utils.clip_grad_norm_

        def norm(*args):
            value = old(*args)
            return value if value.isfinite() else torch.tensor(1.0)

        with patch("torch.nn.utils.clip_grad_norm_", norm):
            super().update(micro_batches)


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


class TakesTheLastName(PlainTrainer):
    """Checkpoints with a number in their names, sorted as text."""

    def save(self):
        self.path = self.path.parent / f"step_{self.step}.pt"
        super().save()

    def resume(self):
        found = sorted(map(str, self.path.parent.glob("step_*.pt")))
        if not found:
            raise FileNotFoundError("no checkpoint")
        self.load(torch.load(found[-1], weights_only=True))


class SavesParametersOnly(PlainTrainer):
    """Not the buffers."""

    def state(self):
        return super().state() | {"weights": dict(self.model.named_parameters())}

    def load(self, state):
        self.model.load_state_dict(state["weights"], strict=False)
        super().load(state | {"weights": self.model.state_dict()})


class OneMoreAfterTheEnd(PlainTrainer):
    def fit(self):
        if self.generators is not None and self.step == self.total_steps:
            self.step -= 1
        super().fit()


class LosesPatience(PlainTrainer):
    """Saves after a bad batch as well, and counts anew once resumed."""

    def update(self, micro_batches):
        super().update(micro_batches)
        if self.log[-1]["skipped"]:
            self.save()

    def load(self, state):
        super().load(state)
        self.bad_in_a_row = 0


class OneModeForAll(PlainTrainer):
    def evaluate(self, batches):
        training = self.model.training
        found = super().evaluate(batches)
        self.model.train(training)
        return found


class EvaluateClearsGradients(PlainTrainer):
    def evaluate(self, batches):
        found = super().evaluate(batches)
        self.optimizer.zero_grad()
        return found


FAULTS = {
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
    StaysInEvalMode: ({"law 8"}, "left in eval mode"),
    EvaluatesInTrainMode: ({"law 8"}, "torch's generator moves: is the model in eval mode"),
    EvaluatesShuffled: ({"law 8"}, "torch's generator moves"),
    MovesPythons: ({"law 8"}, "Python's generator moves: does it shuffle"),
    StartsAnewSilently: ({"law 10"}, "begins anew"),
    TakesWhatFits: ({"law 10"}, "or are shapes passed over"),
    TakesAnyWarmup: ({"law 10"}, "check the settings"),
    TakesTheLastName: ({"law 5"}, "As text, step_9 comes after step_11"),
    SavesParametersOnly: ({"law 5"}, "a buffer is not"),
    OneMoreAfterTheEnd: ({"law 5"}, "a finished run, resumed: 1 updates more"),
    LosesPatience: ({"law 5"}, "count of bad batches in a row is not restored"),
    OneModeForAll: ({"law 8"}, "one was in eval mode before: keep the mode of each"),
    EvaluateClearsGradients: ({"law 8"}, "evaluate changes gradients"),
}
