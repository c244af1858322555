"""Padding of another length in each row, documents that begin elsewhere in each, and masks of ones."""

import pytest
import torch
from preflight_broken import always_dropped
from preflight_honest import hugging_face
from preflight_models import DOCUMENTS, DROPOUT, LEFT, RIGHT, ROWS, Plain, rows, variant

from tinytrain.watch.preflight import preflight


def line_of(model, name, **changes):
    return preflight(model, rows() | changes)[name]


@pytest.mark.parametrize("row", [0, -1])
def test_a_mask_of_one_row_that_is_used_for_all_is_found(row):
    def allowed(self, T, attention_mask):
        return Plain.allowed(self, T, None if attention_mask is None else attention_mask[[row]])

    torch.manual_seed(0)
    line = line_of(variant(allowed=allowed)(), LEFT)
    assert line.passed is False and "Real positions see padding" in line.advice


@pytest.mark.parametrize("row", [0, -1, None])
def test_documents_of_one_row_that_are_used_for_all_are_found(row):
    class Packed(Plain):
        """Documents apart and positions counted in each, by the rows that ``row`` names."""

        def forward(self, input_ids, attention_mask=None, doc_ids=None):
            own = torch.zeros_like(input_ids) if doc_ids is None else doc_ids
            self.same = (own[:, :, None] == own[:, None, :])[:, None]
            if row is not None:
                self.same = self.same[[row]]
            self.places = (self.same[:, 0].tril().sum(-1) - 1).expand(input_ids.shape)
            return super().forward(input_ids, attention_mask)

        def embed(self, input_ids, attention_mask):
            return self.tokens(input_ids) + self.positions(self.places)

        def allowed(self, T, attention_mask):
            return super().allowed(T, attention_mask) & self.same

    torch.manual_seed(0)
    assert line_of(Packed(), DOCUMENTS).passed is (row is None)


def test_a_mask_of_ones_must_say_nothing():
    class Counts(Plain):
        def embed(self, input_ids, attention_mask):
            places = torch.arange(input_ids.shape[1]) if attention_mask is None else attention_mask.long().cumsum(1)
            return self.tokens(input_ids) + self.positions(places)

    torch.manual_seed(0)
    line = line_of(Counts(), RIGHT)
    assert line.passed is False and "a mask of ones moves logits by" in line.measured
    assert line_of(Plain(), RIGHT).passed


def padded(side):
    mask = torch.ones_like(rows()["input_ids"])
    mask[:, :5] = 0
    if side == "right":
        mask = mask.flip(1)
    return {"attention_mask": mask, "labels": rows()["labels"].masked_fill(mask == 0, -100)}


def test_a_batch_padded_on_the_left_needs_the_positions_that_it_may_hold():
    torch.manual_seed(0)
    model, batch = hugging_face("gpt2"), padded("left")
    line = line_of(model, LEFT, **batch)
    assert line.passed is False and "Put positions into the batch" in line.advice
    places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    assert line_of(model, LEFT, **batch, positions=places).passed
    assert line_of(model, LEFT, **padded("right")).passed
    assert line_of(model, LEFT).passed


def test_a_row_of_nothing_but_padding_is_on_no_side():
    batch = padded("right")
    batch["attention_mask"][3] = 0
    batch["labels"][3] = -100
    torch.manual_seed(0)
    model = variant(embed=lambda s, ids, mask: Plain.embed(s, ids, None))()
    assert line_of(model, LEFT, **batch).passed is None
    batch["attention_mask"][:, 0] = 0
    assert line_of(model, LEFT, **batch).passed is False


def test_chance_in_eval_mode_leaves_shapes_uncompared_and_says_so():
    torch.manual_seed(0)
    report = preflight(variant(answer=always_dropped)(), rows())
    assert report[DROPOUT].passed is False
    assert "alone, not compared: chance is on in eval mode" in report[ROWS].measured


def test_padding_that_leaks_by_its_amount_alone_is_found():
    def by_share(self, x):
        return self.head(x * (1 + self.real.float().mean(1))[:, None, None])

    class Share(Plain):
        answer = by_share

        def forward(self, input_ids, attention_mask=None):
            self.real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            return super().forward(input_ids, attention_mask)

    torch.manual_seed(0)
    line = line_of(Share(), RIGHT)
    assert line.passed is False and "How much padding there is" in line.advice
