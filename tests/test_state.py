"""What a model keeps beside its weights is as before, between two calls and at the end."""

from collections import deque

import pytest
import torch
from preflight_honest import Scaled, dropped, own_generator
from preflight_models import CALLS, Plain, rows, variant

from tinytrain.watch.preflight import preflight
from tinytrain.watch.preflight.state import as_before


class Keeps(Plain):
    """Leaves something behind in every way but by its weights."""

    fails = False

    def finish(self):
        self.draws, self.total = torch.Generator().manual_seed(0), torch.zeros(2)
        self.seen, self.by_name, self.last = [], {"inner": [torch.zeros(1)]}, deque(maxlen=2)
        self.hidden = [torch.nn.BatchNorm1d(1)]
        self.names = {"first"}

    def forward(self, input_ids, attention_mask=None):
        self.total.add_(torch.rand(2, generator=self.draws))
        self.seen.append(input_ids)
        self.by_name["inner"][0].add_(1)
        self.by_name["new"] = 1
        self.last.append(1)
        self.names.add("second")
        self.hidden[0](torch.randn(3, 1))
        self.register_buffer("made", torch.ones(1), persistent=False)
        if self.fails:
            raise RuntimeError("in the middle")
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize("fails", [False, True])
def test_tensors_lists_generators_and_hidden_modules_are_put_back(fails):
    model = Keeps()
    model.fails = fails
    drawn, hidden = model.draws.get_state(), model.hidden[0]
    preflight(model, rows())
    assert torch.equal(model.total, torch.zeros(2)) and torch.equal(model.draws.get_state(), drawn)
    assert model.seen == [] and model.by_name == {"inner": [torch.zeros(1)]} and list(model.last) == []
    assert model.names == {"first"} and model.hidden == [hidden] and hidden.training
    assert hidden.running_mean.item() == 0 and hidden.num_batches_tracked.item() == 0
    assert "made" not in dict(model.named_buffers()) and "made" not in model._non_persistent_buffers_set


@pytest.mark.parametrize(
    ("before", "left"), [(0.0, float("nan")), (0.0, -0.0), (torch.finfo(torch.float32).max, float("inf"))]
)
def test_a_number_that_is_left_behind_is_told_from_the_one_before(before, left):
    class Leaves(Plain):
        def forward(self, input_ids, attention_mask=None):
            self.kept.fill_(left)
            return super().forward(input_ids, attention_mask)

    model = Leaves()
    model.kept = torch.full((2,), before)
    with as_before(model, "eval"):
        model(rows()["input_ids"])
    assert torch.equal(model.kept.view(torch.int32), torch.full((2,), before).view(torch.int32))


def test_an_answer_that_becomes_nan_is_no_answer_of_zero():
    class Third(Plain):
        calls = 0

        def answer(self, x):
            self.calls += 1
            scores = self.head(x)
            scores[0, 0, 0] = float("nan") if self.calls == 3 else 0.0
            return scores

    torch.manual_seed(0)
    assert preflight(Third(), rows())[CALLS].passed is False


@pytest.mark.parametrize("kind", ["sparse", "nested", "meta"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_tensor_that_cannot_be_compared_costs_no_line(kind):
    make = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "meta": lambda: torch.ones(2, device="meta"),
    }[kind]
    torch.manual_seed(0)
    model, odd, buffer = Plain(), make(), make()
    model.odd = odd
    model.register_buffer("buffer", buffer)
    report = preflight(model, rows())
    assert report.failed == () and sum(line.passed is True for line in report.lines) >= 15, str(report)
    assert model.odd is odd and model.buffer is buffer


def test_the_next_call_starts_where_the_first_one_did():
    torch.manual_seed(0)
    model, ids = variant(finish=own_generator, answer=dropped)(), rows()["input_ids"]
    with as_before(model, "train") as again:
        first = model(ids)
        assert not torch.equal(model(ids), first)
        again()
        assert torch.equal(model(ids), first)


def test_running_statistics_may_move_in_training_and_not_in_evaluation():
    for mode, replaced, changed in (("train", 1.0, 1.0), ("eval", 0.5, 3.5)):
        model = Scaled()
        kept = model.size
        with as_before(model, mode) as again:
            model.size = torch.tensor(0.5)
            again()
            assert model.size.item() == replaced
            model.size.mul_(7)
            again()
            assert model.size.item() == changed
        assert model.size is kept and kept.item() == 1.0

    class Always(Scaled):
        def answer(self, x):
            self.size = self.size + 1
            return self.head(x / self.size)

    torch.manual_seed(0)
    assert preflight(Scaled(), rows())[CALLS].passed
    line = preflight(Always(), rows())[CALLS]
    assert line.passed is False and "(eval mode)" in line.measured
