"""Group A: the loss, its labels, and evaluation.

The kind of fault: a token that weighs too much or too little. An ignored position that still counts, a label that is
masked although it is meant, a pair of input and target that is one place off, a mean of means. All of them train, none
of them crashes, and the curve looks plausible. Each test shows the wrong number beside the right one.
"""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from paper import OnPaper, costs, no_targets
from torch import nn

from tinytrain.batches import collate, pack
from tinytrain.data import TokenRows
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate, train_step
from tinytrain.train import TrainConfig, Trainer


def nano():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def documents_of(*lengths, vocab_size=256):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def mean_by_tokens(records):
    return sum(r["loss"] * r["tokens"] for r in records) / sum(r["tokens"] for r in records)


def test_A01_a_batch_without_targets_is_left_out_of_the_mean_and_is_no_nan():
    """pytorch/pytorch#70348: torch's mean over no targets is 0/0."""
    logits, ignored = torch.zeros(2, 3, requires_grad=True), torch.tensor([-100, -100])
    naive = F.cross_entropy(logits, ignored)
    naive.backward()
    assert naive.isnan() and not logits.grad.any(), "the loss is NaN, the gradient 0: training goes on unharmed,"
    assert math.isnan(0.9 * naive.item() + 0.1 * 2.0), "but a running mean of the losses is NaN for ever"

    assert cross_entropy(logits, ignored, reduction="sum").item() == 0.0
    assert cross_entropy(logits, ignored).item() == 0.0
    assert count_targets(ignored).item() == 0


def test_A01_a_run_through_a_batch_without_targets_logs_the_mean_of_the_others():
    batches = [collate(documents_of(9, 5), pad_id=0), collate(documents_of(7, 4), pad_id=0)]
    empty = batches[0] | {"labels": torch.full_like(batches[0]["labels"], -100)}
    runs = []
    for data in (batches, [batches[0], empty, batches[1]]):
        model, records = nano(), []
        Trainer(model, [[batch] for batch in data], TrainConfig(total_steps=2, max_lr=1e-3), [records.append]).fit()
        runs.append((mean_by_tokens(records), torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert [r["loss"] for r in records if r["skipped"]] == [0.0]
    assert runs[0][0] == runs[1][0]
    assert runs[1][1].isfinite().all() and torch.equal(runs[0][1], runs[1][1])

    model = nano()
    assert evaluate(model, [batches[0], empty, batches[1]]) == evaluate(model, batches)


def test_A02_label_smoothing_leaves_ignored_rows_out_of_its_uniform_part():
    """pytorch/pytorch#73205: the ignored row's logits must not matter, however bad they are."""
    logits, labels = torch.tensor([[2.0, 0, 0, 0], [0, 0, 0, 9.0]]), torch.tensor([0, -100])
    log_p = logits.log_softmax(-1)
    naive = 0.8 * F.nll_loss(log_p, labels) + 0.2 * -log_p.mean()  # this last mean is over both rows
    assert naive.item() == pytest.approx(1.131715, abs=1e-6)

    right = cross_entropy(logits, labels, label_smoothing=0.2).item()
    assert right == pytest.approx(0.640753, abs=1e-6)
    assert right == pytest.approx(cross_entropy(logits[:1], labels[:1], label_smoothing=0.2).item(), abs=1e-7)


@pytest.mark.parametrize("bad", [-4, -1, 5])
def test_A05_a_label_that_is_neither_a_token_nor_the_ignore_value_is_named(bad):
    """karpathy/nanoGPT#323: some data marks ignored positions with -1, and must say so."""
    labels = torch.tensor([[2, bad, -100]])
    words = rf"label {bad} at position \[0, 1\] is outside the vocabulary 0\.\.4.*-100.*ignore_index"
    with pytest.raises(ValueError, match=words):
        cross_entropy(torch.zeros(1, 3, 5), labels)

    model = nn.Embedding(5, 5)
    batch = {"input_ids": torch.tensor([[0, 1, 2]]), "labels": labels}
    with pytest.raises(ValueError, match=words):
        train_step(model, [batch], build_adamw(model, lr=0.1), lr=0.1)
    with pytest.raises(ValueError, match=words):
        evaluate(model, [batch])


def test_A05_another_ignore_value_is_an_explicit_setting():
    assert cross_entropy(torch.zeros(2, 5), torch.tensor([2, -1]), ignore_index=-1).item() == pytest.approx(math.log(5))
    with pytest.raises(ValueError, match=r"label -100 .*carry -1"):
        cross_entropy(torch.zeros(2, 5), torch.tensor([2, -100]), ignore_index=-1)


def test_A06_an_end_token_that_is_also_the_padding_token_stays_a_target():
    """huggingface/transformers#23530: mask by value, and the model never learns to stop."""
    pad = eos = 2
    batch = collate([[5, 6, eos], [5, 6, 7, 8, eos]], pad_id=pad)
    assert batch["labels"].tolist() == [[6, 2, -100, -100], [6, 7, 8, 2]]
    assert count_targets(batch["labels"]).item() == 6

    padded = torch.tensor([[5, 6, 2, 2, 2], [5, 6, 7, 8, 2]])
    naive = padded[:, 1:].masked_fill(padded[:, 1:] == pad, -100)
    assert count_targets(naive).item() == 4, "no end of a sentence among them"


class Perfect(nn.Module):
    """Puts 50 on the token after its input, in the sequence 1, 2, 3, 4; knows nothing after the 4."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(5, 5))
        with torch.no_grad():
            for token, following in pairwise((1, 2, 3, 4)):
                self.table[token, following] = 50.0

    def forward(self, input_ids, labels=None):
        if labels is not None:  # as many library models do
            raise AssertionError("a model that is given labels shifts them, and they have been shifted")
        return self.table[input_ids]


def test_A07_a_perfect_predictor_has_loss_0_so_labels_are_shifted_exactly_once():
    """huggingface/transformers#44642, KempnerInstitute/KempnerForge#155: none, or two shifts."""
    model, ids = Perfect(), torch.tensor([[1, 2, 3, 4]])
    logits = model(ids)
    assert cross_entropy(logits, ids).item() == pytest.approx(37.90, abs=5e-3), "not shifted: a copier would win"
    assert cross_entropy(logits[:, :2], ids[:, 2:]).item() == pytest.approx(50.0, abs=1e-6), "shifted twice"

    for batch in (collate(ids.tolist(), pad_id=0), pack(list(ids), 3).batch([0])):
        batch = {name: batch[name] for name in ("input_ids", "labels")}
        assert evaluate(model, [batch]).loss == pytest.approx(0.0, abs=1e-6)
        report = train_step(model, [batch], build_adamw(model, lr=0.1), lr=0.1)
        assert report.loss == pytest.approx(0.0, abs=1e-6)


def test_A07_every_label_is_the_token_after_its_input():
    ids = torch.arange(40)
    rows = TokenRows(ids, 6, vocab_size=40).batches(4)
    padded = collate([ids[:7], ids[10:14]], pad_id=0)
    packed = pack([ids[:7], ids[10:14], ids[20:23]], 8)
    for batch in (*rows, padded, packed.batch(range(len(packed)))):
        told = batch["labels"] != -100
        assert told.any() and torch.equal(batch["labels"][told], batch["input_ids"][told] + 1)


def test_A07_labels_that_are_not_shifted_make_random_tokens_look_learnable():
    def trained(labels_of):
        model, generator = nano(), torch.Generator().manual_seed(2)
        optimizer = build_adamw(model, lr=1e-2)
        for _ in range(30):
            ids = torch.randint(0, 256, (8, 17), generator=generator)
            batch = {"input_ids": ids[:, :-1], "labels": labels_of(ids)}
            loss = train_step(model, [batch], optimizer, lr=1e-2).loss
        return loss

    assert trained(lambda ids: ids[:, :-1]) < 0.8 * math.log(256), "copying the input"
    assert trained(lambda ids: ids[:, 1:]) > math.log(256) - 0.05, "fresh noise cannot be predicted"


def test_A08_evaluation_weighs_by_tokens_and_not_by_batches():
    """kimiyoung/transformer-xl#131: perplexity that depends on the batch size."""
    model, batches = OnPaper(), [costs(1), costs(2, 2, 2)]
    naive = sum(evaluate(model, [batch]).loss for batch in batches) / 2
    assert (naive, math.exp(naive)) == (pytest.approx(1.5, abs=1e-6), pytest.approx(4.4817, abs=1e-4))

    right = evaluate(model, [*batches, no_targets(9, 9)])
    assert (right.loss, right.tokens) == (pytest.approx(1.75, abs=1e-6), 4)
    assert math.exp(right.loss) == pytest.approx(5.7546, abs=1e-4)


@pytest.mark.parametrize("length", [None, 40])
def test_A08_evaluation_is_the_same_for_every_batch_size_and_padding(length):
    model, documents = nano(), documents_of(3, 30, 8, 15, 2, 24, 1, 11)

    def at(size):
        cut = [documents[i : i + size] for i in range(0, len(documents), size)]
        return evaluate(model, [collate(part, pad_id=0, length=length) for part in cut])

    results = [at(size) for size in (1, 2, 4, 8)]
    assert {result.tokens for result in results} == {sum(len(d) - 1 for d in documents)}
    assert [result.loss for result in results] == pytest.approx([results[0].loss] * 4, abs=1e-6)
