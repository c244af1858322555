"""How the doctor speaks: the order of findings, what it could not see, and how that reads."""

import json
import math
import random

import numpy as np
import pytest
from doctor_logs import CONFIG, falling, fp16, full, lines, names, once, places

from tinytrain.runlog import FIELDS, Run
from tinytrain.watch.doctor import diagnose
from tinytrain.watch.doctor.catalogue import CATALOGUE
from tinytrain.watch.doctor.finding import STAGES


def test_causes_stand_in_the_order_of_updates_and_before_what_they_bring_about():
    columns = {
        "padding": lambda i: 0.5,
        "lr": lambda i: CONFIG.lr(i if i < 100 else i - 100),
        "tokens": lambda i: 0 if i == 20 else 500,
        "skipped": lambda i: i == 20,
    }
    late = full(grad_norm=once(0.5, 60, math.inf), **columns)
    assert names(late) == ["updates skipped", "loss not finite", "lr off its plan", "slow: padding"]
    early = full(grad_norm=once(0.5, 10, math.inf), **columns)
    assert names(early) == ["loss not finite", "updates skipped", "lr off its plan", "slow: padding"]


def test_an_event_is_not_explained_by_a_rate_that_went_wrong_after_it():
    records = full(lr=lambda i: CONFIG.lr(i if i < 100 else i - 100), loss=lambda i: math.nan if i >= 50 else 5.0)
    assert places(records) == [("loss not finite", 51), ("lr off its plan", 101)]


def test_at_the_same_update_what_was_given_stands_before_what_happened():
    records = full(60, lr=lambda i: 0.0, loss=lambda i: 5.5, grad_norm=lambda i: 0.0)
    assert places(records) == [("lr off its plan", 1), ("no gradient", 1), ("loss hardly moves", 1)]


def test_a_log_without_a_field_says_what_could_not_be_looked_for():
    found = diagnose([{"loss": 5.5 - 0.01 * n} for n in range(100)])
    assert list(found) == [] and "the log has no grad_norm" in str(found)
    assert str(found).startswith("Nothing found. 100 lines of the log looked at for: initial loss, swings, spike")
    assert found.not_seen["unstable in warmup"] == "the log has no lr" and "slow: padding" in found.not_seen
    with_nan = diagnose([{"loss": 5.5}] * 5 + [{"loss": math.nan}])
    assert (with_nan[0].name, with_nan[0].since, with_nan[0].unit) == ("loss not finite", 6, "line")


def sparse(column, value, every):
    return lines(falling(200), **{column: [value if i % every == 0 else None for i in range(200)]})


WHY = {
    "loss stuck": (full(10), "fewer than 40 updates"),
    "loss hardly moves": (full(60, lr=lambda i: 1e-3 * (i + 1)), "fewer than 40 updates behind the warmup"),
    "overfitting": (sparse("eval_loss", 3.0, 100), "fewer than 3 evaluations"),
    "evaluation apart": (
        lines(falling(200), eval_loss=[3.0 if i == 199 else None for i in range(200)], epoch=3),
        "no evaluation in the first epoch, next to a training loss",
    ),
    "gradients clipped away": (sparse("clip_factor", 1.0, 20), "fewer than 20 updates with clip_factor"),
    "memory grows": (sparse("memory_bytes", 1e9, 10), "fewer than 40 updates with memory_bytes"),
    "throughput falls": (sparse("tokens_per_second", 1e5, 3), "fewer than 85 updates with tokens_per_second"),
    "slow: exchange": (full(processes=lambda i: 1, seconds_communication=lambda i: 0.0), "there was one process"),
    "loss scale soars": (fp16([], 1), "fewer than 2 lines with loss_scale"),
    "swings": (
        lines([1e-3 - n for n in range(60)], lr=[1e-6 * 1.3**n for n in range(60)]),
        "the learning rate is a sweep",
    ),
    "memorising": (lines([-1.0 - n for n in range(60)]), "a loss below 0 is not measured in nats"),
    "initial loss": (lines(falling(60))[1:], "the log does not hold the first update"),
    "too good to be true": (
        lines([20.0, *falling(59)]),
        "a first loss of 20 is no measure of a low one: tell vocab_size",
    ),
}


@pytest.mark.parametrize("name", WHY)
def test_what_was_not_examined_is_not_said_to_have_been_looked_for(name):
    records, why = WHY[name]
    found = diagnose(records)
    assert name not in found.looked_for and found.not_seen[name] == why


def test_a_shape_means_something_only_in_a_run_from_its_first_weights_on():
    late = diagnose([record | {"step": record["step"] + 500} for record in lines(falling(60))])
    assert late.not_seen["loss stuck"] == late.not_seen["loss hardly moves"] == "the log begins late"
    trained = diagnose(lines(falling(60, start=2.5, end=2.0)))
    assert "is not that of a model that knows nothing" in trained.not_seen["loss stuck"]
    assert "loss stuck" in diagnose(lines(falling(60, start=2.5, end=2.0)), vocab_size=12).looked_for


ODD = [0, -1, 0.5, 1e300, math.nan, math.inf, None, "x", True]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_log_holds_it_is_looked_at(seed):
    dice = random.Random(seed)
    names = [name for name in FIELDS if name not in ("skipped", "reason", "where") and dice.random() < 0.6]
    odd = {name: dice.choice([[value] for value in ODD] + [ODD]) for name in names}
    records = [
        {name: dice.choice(values) for name, values in odd.items()}
        | {"loss": dice.choice([5.5 - 0.01 * i, 5 * dice.random()]), "skipped": dice.random() < 0.1}
        for i in range(dice.choice([1, 3, 20, 60, 130]))
    ]
    found = diagnose(records, vocab_size=dice.choice([None, 256]), beside=dice.choice([None, records]))
    assert found.lines == len(records) and str(found) and found._repr_html_()


def test_two_runs_that_share_no_update_are_not_compared():
    ahead = [record | {"step": record["step"] + 1000} for record in lines(falling(60))]
    found = diagnose(lines(falling(60)), beside=ahead)
    assert found.not_seen["behind the other run"] == "the two runs share 0 updates, fewer than 20"
    higher = [loss + 0.4 for loss in falling(60)]
    assert names(lines(higher), beside=lines(falling(60))) == ["behind the other run"]


def test_a_run_that_falls_behind_is_told_from_where_on_also_if_a_step_is_logged_twice():
    healthy = lines(falling(100))
    fallen = lines([loss + (0.5 if i >= 61 else 0.0) for i, loss in enumerate(falling(100))])
    (found,) = diagnose(fallen, beside=healthy)
    assert (found.name, found.since) == ("behind the other run", 62)
    again = diagnose([*fallen[:30], *fallen[20:]], beside=healthy)
    assert [(f.name, f.since) for f in again] == [("behind the other run", 62)]


def test_every_name_has_its_words():
    found = diagnose(full(), beside=full())
    assert {*found.looked_for, *found.not_seen} == set(CATALOGUE)
    assert all(words.stage in STAGES and words.checks for words in CATALOGUE.values())


def test_a_log_without_a_line_or_a_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the list of records has no line"):
        diagnose([])
    with pytest.raises(ValueError, match=r"none of its 2 lines has a number under 'loss', only \['step'\]"):
        diagnose([{"step": 1}, {"step": 2}])
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"log\.jsonl has no line: the run ended before its first update"):
        diagnose(tmp_path)
    with pytest.raises(ValueError, match=r"log\.jsonl has no line"):
        diagnose(Run(tmp_path, []))
    with pytest.raises(FileNotFoundError, match="no log there"):
        diagnose(tmp_path / "none")


def test_findings_read_well_in_a_terminal_and_in_a_notebook():
    losses, norm = falling(100), np.full(100, 1.0)
    losses[71], norm[70] = 6.0, 50.0
    found = diagnose(lines(losses, grad_norm=norm))
    text = str(found)
    assert text.startswith(
        "1. spike, since update 71: the gradient's norm jumps, and the loss with it\n    seen  norm 50"
    )
    assert "\n    next  1. print the rows of that batch\n          2. clip" in text
    html = found._repr_html_()
    assert html.startswith("<table") and "since update 71" in html and html.count("<tr>") == 2
    assert "Nothing found" in diagnose(lines(falling(9)))._repr_html_()
    assert str(diagnose(full(1))).startswith("Nothing found. 1 line of the log looked at")
    assert isinstance(found, list) and len(found) == 1


def test_a_text_in_a_log_cannot_become_markup():
    records = lines([5.5, math.nan], where="<script>alert(1)</script>")
    assert "<script>" not in diagnose(records)._repr_html_()


def test_the_records_are_left_as_they_are():
    records = full(seed=3)
    before = json.dumps(records)
    diagnose(records, beside=records)
    assert json.dumps(records) == before
