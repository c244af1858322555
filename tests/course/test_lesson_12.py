import pytest
import torch

from tinytrain.course import lesson_12
from tinytrain.course.lesson_12 import (
    Samples,
    alone,
    apart,
    model_of,
    over_seeds,
    parts,
    same_text,
    slopes,
    tokenizer_of,
    word_shares,
)


def test_accumulation_is_the_same_run_and_cleared_gradients_are_not():
    whole, pieces = alone(steps=3), alone(steps=3, micro_batch_size=4)
    assert whole["losses"] == pytest.approx(pieces["losses"], abs=1e-5)
    assert alone(steps=3, cleared=True) == whole, "with one micro-batch there is nothing to lose"


def test_a_run_whose_gradients_are_cleared_logs_the_loss_of_all_rows_and_learns_from_the_last_ones(monkeypatch):
    losses, norms, trainer_of = [], [], lesson_12.Trainer

    def watched(*given, **named):
        trainer = trainer_of(*given, **named)
        trainer.callbacks += (lambda record: norms.append(record["grad_norm"]),)
        return trainer

    monkeypatch.setattr(lesson_12, "Trainer", watched)
    for cleared in (False, True):
        losses.append(alone(steps=3, micro_batch_size=4, cleared=cleared)["losses"])
    sound, faulty = losses
    assert sound[0] == faulty[0] and all(abs(a - b) > 1e-4 for a, b in zip(sound[1:], faulty[1:], strict=True))
    assert norms[3] < 0.6 * norms[0], "the gradient is that of a quarter of the rows, over all targets"


def test_bytes_and_pieces_are_evaluated_on_the_same_text():
    def text(kind):
        batches = same_text(kind, 5_000)
        first, targets = batches[0]["input_ids"][0, :1], [b["labels"][b["labels"] >= 0] for b in batches]
        return tokenizer_of(kind).decode(torch.cat([first, *targets]))

    assert text("bpe") == text("bytes") == parts()[1].text[:5_000]


def test_samples_are_taken_at_evaluations_and_are_the_same_for_the_same_weights():
    samples = Samples(model_of(), tokenizer_of(), ["To be", "My"], new_tokens=4)
    for step in (1, 2, 3):
        samples({"step": step, "loss": 1.0} | ({"eval_loss": 1.0} if step > 1 else {}))
    assert list(samples.texts) == [2, 3] and samples.texts[2] == samples.texts[3]
    assert [text[:2] for text in samples.texts[2]] == ["To", "My"]


def test_shares_of_words_are_shares_and_draws_differ():
    torch.manual_seed(0)
    shares = word_shares(model_of(), [0, 0, 1], new_tokens=24)
    assert len(shares) == 3 and all(0 <= share <= 1 for share in shares) and len(set(shares)) > 1
    assert word_shares(model_of(), [0, 0, 1], new_tokens=24) == shares


def test_two_curves_are_apart_by_their_largest_difference_over_the_shorter_one():
    assert apart([1.0, 2.0, 3.0], [1.0, 2.5]) == 0.5 and apart([1.0], [1.0, 9.0]) == 0


def test_a_slope_is_what_the_loss_falls_by_in_an_update():
    assert slopes([(0, 6.0), (2, 5.0), (6, 4.0)]) == [0.5, 0.25]


def test_each_arm_gets_its_runs_seed_by_seed(monkeypatch):
    monkeypatch.setattr(lesson_12, "run_many", lambda function, asked: [function(**settings) for settings in asked])
    runs = over_seeds(dict, {"short": {"steps": 1}, "long": {"steps": 2, "seed": 9}}, (3, 4))
    assert runs == {name: [{"steps": n, "seed": seed} for seed in (3, 4)] for name, n in (("short", 1), ("long", 2))}
