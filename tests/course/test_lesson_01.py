"""The runs behind notebook 01: what is masked, what is measured, and that a run can be repeated."""

import math

import pytest
import torch

from tinytrain.batches import collate
from tinytrain.corpus import Corpus, Document
from tinytrain.course import lesson_01
from tinytrain.course.lesson_01 import (
    END,
    LABELS,
    TEMPERATURES,
    V,
    lines_of,
    lr_at,
    on_held_out,
    rows_of_text,
    small_model,
    train_on_lines,
    train_smoothed,
    unmixed,
)


@pytest.fixture
def few_lines(monkeypatch):
    """A corpus of two short plays in place of Shakespeare."""
    text = "\n".join(f"line {i} of a play" for i in range(600))
    corpus = Corpus("toy", (Document("a", text), Document("b", text)))
    monkeypatch.setattr(lesson_01, "load_corpus", lambda: corpus)
    monkeypatch.setattr(Corpus, "split", lambda self, validation_fraction: (self, self))
    return corpus


def test_lines_carry_the_end_before_and_behind_and_empty_and_long_ones_are_left_out(few_lines):
    corpus = Corpus("toy", (Document("a", "To be\n\nor é\n" + "x" * 47),))
    assert lines_of(corpus) == [[END, *b"To be", END], [END, *"or é".encode(), END]]
    assert END not in few_lines.text.encode()


def test_the_three_ways_to_mask_differ_in_the_real_end_and_in_padding():
    batch = collate([[END, 5, END], [END, 6, 7, 8, END]], pad_id=END)
    ways = {name: labels_of(batch)["labels"].tolist() for name, labels_of in LABELS.items()}
    assert ways["by length"] == [[5, END, -100, -100], [6, 7, 8, END]]
    assert ways["by value"] == [[5, -100, -100, -100], [6, 7, 8, -100]]
    assert ways["not at all"] == [[5, END, END, END], [6, 7, 8, END]]
    assert all(labels_of(batch)["input_ids"] is batch["input_ids"] for labels_of in LABELS.values())


def test_unmixing_undoes_the_mixture_and_leaves_chances_that_add_up_to_one():
    p = torch.rand(3, V).softmax(-1)
    assert torch.allclose(unmixed(0.9 * p + 0.1 / V, 0.1), p, atol=1e-4)
    assert torch.allclose(unmixed(torch.full((2, V), 1 / V), 0.1).sum(-1), torch.ones(2), atol=1e-5)
    assert torch.allclose(unmixed(p, 0.0), p, atol=1e-4)
    sure = torch.eye(V)[:2]  # its zeros are below the even part, so they are lifted to what is possible
    assert torch.allclose(unmixed(sure, 0.1).sum(-1), torch.ones(2), atol=1e-5)


def test_held_out_numbers_leave_out_what_is_no_target():
    _, held_out = rows_of_text(32)
    (batch,) = held_out.batches(4, limit=4)
    model = small_model(0, 32)
    whole = on_held_out(model, iter([batch]), 0.1)
    emptied = {"input_ids": batch["input_ids"], "labels": torch.full_like(batch["labels"], -100)}
    with_padding = on_held_out(model, iter([batch, emptied]), 0.1)
    for name in ("loss", "unmixed", "accuracy", "confidence"):
        assert whole[name] == pytest.approx(with_padding[name], rel=1e-6), name
    assert tuple(whole["by_temperature"]) == TEMPERATURES
    assert abs(whole["loss"] - math.log(V)) < 0.5


def test_the_lr_rises_over_50_updates_and_ends_at_a_tenth():
    assert lr_at(0, 400) == pytest.approx(lesson_01.MAX_LR / 50)
    assert lr_at(49, 400) == lesson_01.MAX_LR and lr_at(50, 400) == pytest.approx(lesson_01.MAX_LR)
    assert lr_at(400, 400) == pytest.approx(lesson_01.MAX_LR / 10)


def test_a_smoothed_run_repeats_itself_and_reports_its_own_scale_in_training():
    setting = {"smoothing": 0.1, "seed": 3, "steps": 60, "n_bytes": 4_000}
    first, again = train_smoothed(**setting), train_smoothed(**setting)
    assert first == again
    assert first["loss"] == first["by_temperature"][1.0]
    assert first["train_loss"] > first["loss"] - 1 and first["wobble"] > 0
    assert 0 < first["accuracy"] < 1 and 1 / V < first["confidence"] < 1


def test_a_model_that_never_had_to_predict_an_end_does_not_stop(few_lines):
    by_length, by_value = (train_on_lines(way, 60) for way in ("by length", "by value"))
    assert by_length["at_ends"] > 20 * by_value["at_ends"]
    assert by_length["mixed"] == pytest.approx(by_length["alike"], abs=1e-4)
    assert len(by_length["samples"]) == 3 and "\0" not in "".join(by_length["samples"])
