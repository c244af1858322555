import json
import random

import pytest
import torch

from tinytrain.course import lesson_12
from tinytrain.course.lesson_12 import (
    ExperimentLog,
    Samples,
    alone,
    compared,
    dirt_alone,
    dirtied,
    held,
    in_wrong_order,
    model_of,
    parts,
    record,
    recorded,
    result_of,
    same_text,
    scrambled,
    share_of_dirt,
    show_recorded,
    speeches,
    tokenizer_of,
    word_shares,
)
from tinytrain.runlog import RunLog

CHARACTERS = 6_000


def test_a_scrambled_speech_keeps_its_letters_and_its_spaces():
    speech = "Now is the winter\nof our discontent"
    mixed = scrambled(speech, random.Random(0))
    assert mixed != speech and sorted(mixed) == sorted(speech)
    assert [i for i, c in enumerate(mixed) if c.isspace()] == [i for i, c in enumerate(speech) if c.isspace()]


def test_the_chosen_speeches_are_always_the_same_and_as_many_as_asked():
    assert speeches(CHARACTERS, 0.3) == speeches(CHARACTERS, 0.3)
    many = [bad for _, bad in speeches(200_000, 0.2)]
    assert sum(many) / len(many) == pytest.approx(0.2, abs=0.03)
    few, more = ([bad for _, bad in speeches(CHARACTERS, share)] for share in (0.1, 0.4))
    assert all(b for a, b in zip(few, more, strict=True) if a)


def test_clean_text_is_the_text_and_dirty_text_differs_in_its_dirt_alone():
    tokenizer = tokenizer_of()
    assert tokenizer.decode(dirtied(CHARACTERS, 0.0).ids) == parts()[0].text[:CHARACTERS]
    dirty = tokenizer.decode(dirtied(CHARACTERS, 0.3).ids)
    clean = [speech for speech, bad in speeches(CHARACTERS, 0.3) if not bad]
    assert dirty != parts()[0].text[:CHARACTERS] and all(speech in dirty for speech in clean)


def test_dirt_alone_is_the_dirt_of_the_text_and_with_another_seed_other_dirt_of_the_same_letters():
    tokenizer = tokenizer_of()
    dirty = tokenizer.decode(dirtied(CHARACTERS, 0.3).ids)
    seen, new = (tokenizer.decode(dirt_alone(CHARACTERS, 0.3, seed).ids) for seed in (1, 2))
    assert all(speech in dirty for speech in seen.split("\n\n"))
    assert seen != new and sorted(seen) == sorted(new)
    assert 0.3 < share_of_dirt(200_000, 0.2) / 0.2 < 2


def test_the_arms_of_a_comparison_differ_in_what_was_asked_for():
    small = {"seed": 1, "steps": 25, "characters": CHARACTERS}
    first, again = compared(**small), compared(**small)
    assert first == again and set(first["evals"]) == set(lesson_12.LOOKS)
    for change in ({"dirt": 0.3}, {"d_model": 72}, {"lr_times": 1.25}, {"warmup": 0.4}, {"length": 0.8}):
        assert compared(**(small | change))["held_out"] != first["held_out"], change
    looked = compared(**small, look_at_dirt=0.3)
    assert looked["held_out"] == first["held_out"] and looked["dirt_seen"] != looked["dirt_new"]


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


def test_pairs_in_another_order_than_at_the_end_are_counted():
    one, two, three = ({"evals": {0.5: now}, "held_out": end} for now, end in ((1.0, 3.0), (2.0, 2.0), (3.0, 4.0)))
    assert in_wrong_order([(one, two), (one, three), (two, three)], 0.5) == pytest.approx(1 / 3)
    assert in_wrong_order([(two, one)], 0.5) == 1 and in_wrong_order([(one, three)], 0.5) == 0


def test_what_lies_within_three_spreads_is_not_seen():
    assert [held(gain, 0.1) for gain in (0.29, -0.29, 0.31, -0.31)] == ["not seen", "not seen", "yes", "no"]


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


def test_the_log_has_a_date_and_keeps_what_was_written(tmp_path):
    log = ExperimentLog(tmp_path / "log.jsonl")
    log.add(hypothesis="a", change="b", result="c", held="not seen", kept=False)
    log.add(hypothesis="d", change="e", result="f", held="yes", kept=True)
    lines = [json.loads(line) for line in log.path.read_text(encoding="utf-8").splitlines()]
    assert lines == log.entries and [line["kept"] for line in lines] == ["no", "yes"]
    assert [line["held"] for line in lines] == ["not seen", "yes"]
    assert all(len(line["date"]) == 10 for line in lines)
    shown = log._repr_markdown_()
    assert shown.count("\n") == 3 and "| d | e | f | yes | yes |" in shown
    assert lines[0]["date"] not in shown and lines[0]["date"].replace("-", "\u2011") in shown, "a date is not broken"
    with pytest.raises(ValueError, match="held='perhaps' must be one of yes, no, not seen"):
        log.add(hypothesis="a", change="b", result="c", held="perhaps", kept=False)


def test_a_long_run_is_recorded_at_its_place(tmp_path, monkeypatch, capsys):
    with RunLog(tmp_path / "run") as run_log:
        for step in range(1, 101):
            line = {"batch": step, "step": step, "tokens_seen": 10 * step, "seconds_step": 1.5, "seconds_data": 0.3}
            run_log.write(line | {"eval_loss": 5 - step / 50, "eval_bits_per_byte": 4 - step / 50})
    monkeypatch.setattr(lesson_12, "sample_run", lambda _options: "ROMEO\nO, speak\n")
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps([{"name": n, "command": f"make {n}", "result": None} for n in ("one", "two")]))
    record(tmp_path / "run", "two", path)
    one, two = recorded(path)
    assert one["result"] is None and two["result"] == result_of(tmp_path / "run")
    found = two["result"]
    assert (found["updates"], found["tokens"], found["minutes"]) == (100, 1000, 3.0)
    assert len(found["curve"]) <= 40 and found["curve"][-1] == [3.0, 2.0] and found["bits_per_byte"] == 2.0
    show_recorded([one, two])
    printed = capsys.readouterr().out
    assert "not recorded yet" in printed and "2.000 bits a byte" in printed and "ROMEO / O, speak" in printed
    with pytest.raises(KeyError, match="no run called 'three'; it has one, two"):
        record(tmp_path / "run", "three", path)


def test_the_file_beside_the_notebooks_names_commands_that_the_command_line_knows():
    import tyro

    from tinytrain.commands.run_options import Train

    for run in recorded(lesson_12.Path(__file__).parents[2] / "notebooks/recorded_12.json"):
        words = run["command"].split()
        assert words[:4] == ["python", "-m", "tinytrain", "train"]
        assert tyro.cli(Train, args=words[4:]).steps > 0
