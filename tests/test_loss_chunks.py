"""The loss in chunks: the same loss, the same gradient, and none of the memory."""

import copy

import pytest
import torch
from torch import nn

from tinytrain.loss import chunked_loss_sum, cross_entropy
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.step import evaluate, train_step
from tinytrain.watch.tensor_memory import TensorMemory

CONFIG = ModelConfig(vocab_size=2000, d_model=32, n_layers=1, n_heads=2, max_positions=64)


def batch_of(rows=4):
    ids = torch.randint(0, 2000, (rows, 65), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1:].clone()
    labels[:, 50:] = -100
    return {"input_ids": ids[:, :-1], "labels": labels}


def stepped(chunk, precision="fp32", batch=None):
    torch.manual_seed(0)
    model = GPT(CONFIG)
    model.loss_chunk = chunk
    report = train_step(
        model, [batch or batch_of()], build_adamw(model, lr=0.0), lr=0.0, precision=Precision(precision)
    )
    return report, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 10_000])
def test_loss_and_gradient_are_those_of_all_logits_at_once(chunk):
    hidden, head = torch.randn(3, 20, 8, dtype=torch.float64), nn.Linear(8, 30).double()
    labels = torch.randint(0, 30, (3, 20))
    labels[1] = -100
    results = []
    for make in (
        lambda x, h: chunked_loss_sum(x, h, labels, chunk),
        lambda x, h: cross_entropy(h(x), labels, reduction="sum"),
    ):
        x, h = hidden.clone().requires_grad_(), copy.deepcopy(head)
        loss = make(x, h)
        loss.backward()
        results.append((loss, x.grad, h.weight.grad, h.bias.grad))
    for ours, whole in zip(*results, strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-12)


def test_a_head_learns_over_states_that_do_not():
    hidden, head, labels = torch.randn(2, 5, 8), nn.Linear(8, 30), torch.randint(0, 30, (2, 5))
    chunked_loss_sum(hidden, head, labels, 3).backward()
    ours, head.weight.grad = head.weight.grad, None
    cross_entropy(head(hidden), labels, reduction="sum").backward()
    torch.testing.assert_close(ours, head.weight.grad)


def test_labels_for_half_of_the_positions_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        chunked_loss_sum(torch.zeros(1, 4, 2), nn.Linear(2, 3), torch.zeros(1, 2, dtype=torch.long), 2)


@pytest.mark.filterwarnings("ignore:this CPU has no hardware")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 1e-2), ("fp16", 1e-2)])
def test_an_update_in_chunks_is_the_same_update(precision, tolerance):
    (whole, expected), (ours, gradient) = stepped(None, precision), stepped(48, precision)
    assert ours.loss == pytest.approx(whole.loss, rel=max(tolerance / 10, 1e-6)) and ours.tokens == whole.tokens
    assert (gradient - expected).norm() <= tolerance * expected.norm()


def test_an_evaluation_in_chunks_is_the_same_evaluation():
    model = GPT(CONFIG)
    whole = evaluate(model, [batch_of()])
    model.loss_chunk = 48
    assert evaluate(model, [batch_of()]).loss == pytest.approx(whole.loss, rel=1e-6)


def test_the_logits_of_one_chunk_are_all_that_is_held():
    def peak(chunk):
        with TensorMemory() as memory:
            stepped(chunk, batch=batch_of(rows=16))
        return memory.peak

    logits = 4 * 16 * 64 * 2000  # bytes
    assert peak(None) > 2 * logits > logits > peak(64)


def test_labels_of_another_shape_are_refused():
    batch, model = batch_of(), GPT(CONFIG)
    with pytest.raises(ValueError, match=r"labels \[4, 63\] does not have the shape of input_ids \[4, 64\]"):
        model(batch["input_ids"], labels=batch["labels"][:, :-1])


def test_a_bad_label_is_named_in_chunks_too():
    batch = batch_of()
    batch["labels"][2, 3] = 2000
    with pytest.raises(ValueError, match=r"label 2000 at position \[2, 3\]"):
        stepped(48, batch=batch)
    with pytest.raises(ValueError, match="loss_chunk=-1"):
        stepped(-1)
