import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tinytrain.forward
from tinytrain.device import device_of, to_device
from tinytrain.forward import forward_logits
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate, train_step


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def batch_of(rows=4, length=16, seed=0):
    ids = torch.randint(0, 256, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:].clone()}


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def test_a_step_reports_what_it_did_and_the_loss_falls(model):
    optimizer, batch = build_adamw(model, lr=1.0), batch_of()
    reports = [train_step(model, [batch], optimizer, lr=3e-3) for _ in range(20)]
    assert reports[0].loss == pytest.approx(math.log(256), abs=0.1)
    assert (reports[0].tokens, reports[0].lr, reports[0].skipped) == (64, 3e-3, False)
    assert reports[-1].loss < reports[0].loss - 1.0


def test_the_learning_rate_given_is_the_one_used(model):
    optimizer = build_adamw(model, lr=123.0, weight_decay=0.0)
    before = weights(model)
    train_step(model, [batch_of()], optimizer, lr=1e-3)
    moves = torch.cat([(b - a).abs().flatten() for b, a in zip(before, weights(model), strict=True)])
    assert moves.max().item() == pytest.approx(1e-3, rel=1e-3)  # AdamW's first move is the learning rate


def test_the_norm_is_that_before_clipping_and_the_gradient_is_clipped(model):
    optimizer, batch = build_adamw(model, lr=1e-3), batch_of()
    report = train_step(model, [batch], optimizer, lr=0.0, max_grad_norm=0.01)
    clipped = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    unclipped = train_step(model, [batch], optimizer, lr=0.0, max_grad_norm=math.inf)
    assert report.grad_norm == pytest.approx(unclipped.grad_norm, rel=1e-6)
    assert report.grad_norm > 0.01
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_somebody_left_behind_does_not_join_in(model):
    optimizer, batch = build_adamw(model, lr=1e-3), batch_of()
    clean = train_step(model, [batch], optimizer, lr=0.0).grad_norm
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    assert train_step(model, [batch], optimizer, lr=0.0).grad_norm == clean


class OneWeight(nn.Module):
    """Its loss on the target token is what a test says: logits whose gradient is not finite, or whose value is not."""

    def __init__(self, factor):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(1)), factor

    def forward(self, input_ids):
        return torch.zeros(*input_ids.shape, 5) + self.weight * self.factor * torch.arange(5.0)


@pytest.mark.parametrize(("factor", "reason"), [(math.nan, "the loss is nan"), (1e38, "the loss is")])
def test_a_loss_that_is_not_finite_changes_nothing(factor, reason):
    model = OneWeight(factor)
    optimizer = build_adamw(model, lr=0.5)
    report = train_step(
        model, [{"input_ids": torch.zeros(1, 2).long(), "labels": torch.tensor([[0, 1]])}], optimizer, lr=1.0
    )
    assert report.skipped and reason in report.reason
    assert model.weight.item() == 1.0
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert not optimizer.state


def test_a_gradient_that_is_not_finite_changes_nothing(model):
    optimizer = build_adamw(model, lr=1e-3)
    before = weights(model)
    model.blocks[0].attention.out.weight.register_hook(lambda grad: grad * math.inf)
    report = train_step(model, [batch_of()], optimizer, lr=1e-3)
    assert report.skipped and "gradient's norm" in report.reason
    assert math.isfinite(report.loss)
    assert all(torch.equal(b, a) for b, a in zip(before, weights(model), strict=True))


def test_an_update_without_any_target_changes_nothing_and_reports_no_nan(model):
    optimizer, batch = build_adamw(model, lr=1e-3), batch_of()
    before = weights(model)
    report = train_step(model, [batch | {"labels": torch.full_like(batch["labels"], -100)}], optimizer, lr=1e-3)
    assert (report.skipped, report.loss, report.tokens) == (True, 0.0, 0)
    assert all(torch.equal(b, a) for b, a in zip(before, weights(model), strict=True))


def test_a_bad_label_in_a_batch_is_named(model):
    batch = batch_of()
    batch["labels"][2, 5] = 256
    with pytest.raises(ValueError, match=r"label 256 at position \[2, 5\]"):
        train_step(model, [batch], build_adamw(model, lr=1e-3), lr=1e-3)


@pytest.mark.parametrize(
    ("micro_batches", "error", "words"),
    [
        (batch_of(), TypeError, r"micro_batches is a dict; it must be a list of batches, \[batch\] if there is one"),
        (iter([batch_of()]), TypeError, "micro_batches is a list_iterator"),
        ([], ValueError, "micro_batches is empty"),
        (
            [batch_of(), {"input_ids": torch.zeros(1, 1)}],
            ValueError,
            r"micro-batch 1 has no labels, only \['input_ids'\]",
        ),
    ],
)
def test_what_is_no_list_of_micro_batches_is_refused(model, micro_batches, error, words):
    with pytest.raises(error, match=words):
        train_step(model, micro_batches, build_adamw(model, lr=1e-3), lr=1e-3)


def test_evaluation_is_the_sum_of_losses_over_the_number_of_targets():
    model = SimpleLosses()
    batches = [SimpleLosses.batch([1.0]), SimpleLosses.batch([2.0, 2.0, 2.0])]
    result = evaluate(model, batches)
    assert result.tokens == 4
    assert result.loss == pytest.approx(1.75, abs=1e-6)  # the mean of the batches' means would be 1.5


class SimpleLosses(nn.Module):
    """Returns logits over two tokens under which token 0 costs as many nats as the id says (in thousandths)."""

    @staticmethod
    def batch(nats):
        ids = torch.tensor([[round(1000 * n) for n in nats]])
        return {"input_ids": ids, "labels": torch.zeros_like(ids)}

    def forward(self, input_ids):
        p = torch.exp(-input_ids.double() / 1000)
        return SimpleNamespace(logits=torch.stack([p, 1 - p], dim=-1).log())


def test_an_evaluation_without_targets_is_nan_and_counts_none(model):
    batch = batch_of()
    result = evaluate(model, [batch | {"labels": torch.full_like(batch["labels"], -100)}])
    assert math.isnan(result.loss) and result.tokens == 0


def test_a_parameter_outside_the_optimizer_neither_grows_nor_counts(model):
    batch, optimizer = batch_of(), torch.optim.AdamW(model.blocks[1].parameters())
    norms = [train_step(model, [batch], optimizer, lr=0.0).grad_norm for _ in range(3)]
    assert norms[0] == norms[1] == norms[2]
    own = torch.cat([p.grad.flatten() for p in model.blocks[1].parameters()]).norm().item()
    unclipped = train_step(model, [batch], optimizer, lr=0.0, max_grad_norm=math.inf)
    assert own <= 1.0 + 1e-4
    assert unclipped.grad_norm == pytest.approx(norms[0])


@pytest.mark.parametrize(
    "wrong", [{"lr": math.nan}, {"lr": -1.0}, {"max_grad_norm": math.nan}, {"max_grad_norm": -1.0}]
)
def test_numbers_that_would_ruin_the_weights_are_refused(model, wrong):
    before = weights(model)
    with pytest.raises(ValueError, match="must be finite and 0 or more, max_grad_norm="):
        train_step(model, [batch_of()], build_adamw(model, lr=1e-3), **({"lr": 1e-3} | wrong))
    assert all(torch.equal(b, a) for b, a in zip(before, weights(model), strict=True))


def test_a_batch_is_fitted_to_the_model_once(model, monkeypatch):
    fitted, calls = tinytrain.forward._taken, []
    monkeypatch.setattr(tinytrain.forward, "_taken", lambda *given: calls.append(given) or fitted(*given))
    batch = batch_of()
    batch |= {"attention_mask": torch.ones_like(batch["input_ids"])}
    train_step(model, [batch, batch], build_adamw(model, lr=1e-3), lr=1e-3)
    assert len(calls) == 2


def test_a_batch_goes_to_the_models_device(model):
    """Seen on the meta device, where tensors have no values: a batch that stayed behind would not fit."""
    logits = forward_logits(model.to("meta"), to_device(batch_of(), device_of(model.to("meta"))))
    assert logits.device.type == "meta"
