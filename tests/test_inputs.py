"""Preflight's lines on the batch and on the first loss: what lies in any row, and a band that fits usual models."""

import pytest
import torch
from torch import nn

from tinytrain.watch.preflight import preflight
from tinytrain.watch.preflight.inputs import shapes_line
from tinytrain.watch.preflight.subject import subject_of

V, T = 61, 100


class Plain(nn.Module):
    """A causal model with torch's own first weights: a norm before the head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(V, 64), nn.LayerNorm(64), nn.Linear(64, V)

    def forward(self, input_ids):
        return self.head(self.norm(self.tokens(input_ids).cumsum(1)))


@pytest.fixture
def batch():
    ids = torch.randint(0, V, (8, T + 1), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def test_an_id_or_a_label_that_the_model_does_not_know_is_found_in_any_row_and_place(batch):
    for name, said in (("input_ids", "ids run from"), ("labels", "labels run from")):
        odd = {**batch, name: batch[name].clone()}
        odd[name][7, 99] = V + 5
        line = preflight(Plain(), odd)["shapes and dtypes"]
        assert line.passed is False and said in line.measured and str(V + 5) in line.measured
    minus = {**batch, "labels": batch["labels"].clone()}
    minus["labels"][7, 99] = -1
    assert "labels run from -1 to" in preflight(Plain(), minus)["shapes and dtypes"].measured


def test_rows_that_are_not_shifted_are_found_behind_those_that_are_cut_out(batch):
    batch["labels"][5:] = batch["input_ids"][5:]
    line = preflight(Plain(), batch)["labels shifted once"]
    assert line.passed is False and line.measured.endswith(f"of {8 * (T - 1)} labels are the next token")


def padded(lengths, end=1, padding=0):
    """Rows that end with ``end`` and are padded, without a mask that says where."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.cat([torch.randint(2, V, (n,), generator=draw), torch.tensor([end])]) for n in lengths]
    ids = torch.full((len(rows), max(lengths)), padding)
    labels = torch.full_like(ids, -100)
    for row, (i, given) in zip(rows, enumerate(lengths), strict=True):
        ids[i, :given], labels[i, :given] = row[:-1], row[1:]
    return {"input_ids": ids, "labels": labels}


def test_the_end_of_a_padded_row_is_no_mismatch_where_no_mask_says_what_is_padding():
    line = preflight(Plain(), padded([3, 6, 20]))["labels shifted once"]
    assert line.passed is True
    assert line.measured.startswith("26 of 26 labels are the next token; without attention_mask, id 0 behind")


@pytest.mark.parametrize("spoil", [lambda b: b["labels"][1, :1].fill_(1), lambda b: b["input_ids"][0, 5:6].add_(9)])
def test_but_a_wrong_label_is_one_and_so_are_other_tokens_behind_the_end(spoil):
    spoil(batch := padded([3, 6, 20]))
    line = preflight(Plain(), batch)["labels shifted once"]
    assert line.passed is False and "Were rows and labels shuffled apart" in str(line)


def test_a_batch_without_any_target_fails(batch):
    report = preflight(Plain(), {**batch, "labels": torch.full_like(batch["labels"], -100)})
    assert report["labels shifted once"].passed is False and not report.passed
    assert "no position of the whole batch is a target" in str(report)


def test_a_model_that_needs_contiguous_ids_can_be_called_on_what_is_cut_out(batch):
    class Flat(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids.view(-1).view(input_ids.shape))

    assert preflight(Flat(), batch)["shapes and dtypes"].passed is True


@pytest.mark.parametrize("targets", [16, 128])
def test_torchs_own_first_weights_are_no_fault_whatever_the_seed(targets, batch):
    labels = batch["labels"].clone()
    labels.view(-1)[targets:] = -100
    for seed in range(20):
        torch.manual_seed(seed)
        assert preflight(Plain(), {**batch, "labels": labels})["initial loss"].passed is True


def test_a_head_that_is_three_times_too_large_is_one(batch):
    torch.manual_seed(0)
    model = Plain()
    with torch.no_grad():
        model.head.weight.mul_(3)
    assert preflight(model, batch)["initial loss"].passed is False


class Positions(Plain):
    """Knows 64 places."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(64, 64)

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids) + self.head(self.positions(torch.arange(input_ids.shape[1])))


def test_a_row_that_is_longer_than_the_model_bears_is_told_with_both_numbers(batch):
    report = preflight(Positions(), batch)
    line = report["shapes and dtypes"]
    assert line.passed is False and "a whole row of 100 tokens raises IndexError" in line.measured
    assert "tables have 61, 64 rows" in line.measured and "as many positions as rows have tokens" in line.advice
    assert report["no future leak (train, without padding mask)"].passed, "the first 64 were tested"

    class Cuts(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids[:, :64])

    line = preflight(Cuts(), batch)["shapes and dtypes"]
    assert line.passed is False and "a whole row of 100 tokens gives logits [1, 64, 61]" in line.measured


def test_what_cannot_be_called_says_how_it_could_be(batch):
    class Tuple(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids), None

    class Wants(Plain):
        def forward(self, input_ids, lengths):
            return super().forward(input_ids)

    class Raises(Plain):
        def forward(self, input_ids):
            raise ValueError("as it likes")

    for kind, said in (
        (Tuple, "forward=lambda"),
        (Wants, "Put what it asks for into the batch"),
        (Raises, "on this batch."),
    ):
        assert said in preflight(kind(), batch)["shapes and dtypes"].advice
    assert "forward=" not in preflight(Raises(), batch)["shapes and dtypes"].advice
    line = preflight(Plain(), batch, forward=lambda model, batch: None)["shapes and dtypes"]
    assert line.passed is False and "forward(model, batch) must return the logits" in line.advice


def test_ids_of_odd_kinds_are_told_what_to_become(batch):
    for kind in (torch.uint8, torch.int16, torch.uint16):
        line = preflight(Plain(), {name: ids.to(kind) for name, ids in batch.items()})["shapes and dtypes"]
        assert line.passed is False and "input_ids.long()" in str(line)
    lists = {name: ids.tolist() for name, ids in batch.items()}
    assert "it holds input_ids (list), labels (list)" in str(preflight(Plain(), lists))


def test_weights_may_be_wider_and_not_narrower_than_float32(batch):
    line = preflight(Plain().double(), batch)["shapes and dtypes"]
    assert line.passed and line.measured.endswith("float64; weights float64")
    line = preflight(Plain().bfloat16(), batch)["shapes and dtypes"]
    assert line.passed is False and "narrower than float32" in line.measured


def test_two_shapes_may_differ_by_the_rounding_of_what_is_returned(batch):
    class Narrow(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids).bfloat16()

    for kind, tolerance in ((Plain, 1e-5), (Narrow, 8 * torch.finfo(torch.bfloat16).eps)):
        subject = subject_of(kind(), batch, None, None)
        assert shapes_line(subject).passed and subject.tolerance == tolerance


def test_layers_without_a_shape_and_a_mode_without_gradients_are_refused(batch):
    class Lazy(Plain):
        def __init__(self):
            super().__init__()
            self.head = nn.LazyLinear(V)

    class LazyBuffers(Plain):
        def __init__(self):
            super().__init__()
            self.between = nn.LazyBatchNorm1d(affine=False)

    for kind, said in ((Lazy, "no shape yet: head.weight"), (LazyBuffers, "no shape yet: between.running_mean")):
        report = preflight(kind(), batch)
        assert report.failed == ("shapes and dtypes",) and said in str(report)
    with torch.inference_mode():
        report = preflight(Plain(), batch)
    assert report.failed == ("shapes and dtypes",) and "Call preflight outside" in str(report)


def test_a_batch_whose_labels_have_their_tokens_elsewhere_is_not_judged(batch):
    alone = {"input_ids": batch["input_ids"][:, :1], "labels": batch["labels"][:, :1]}
    report = preflight(Plain(), alone)
    assert report["labels shifted once"].passed is None
    assert "no target of this batch has its token in the same row" in str(report["labels shifted once"])
    leak = report["no future leak (train, without padding mask)"]
    assert leak.passed is None and "rows of two tokens or more" in str(leak)
