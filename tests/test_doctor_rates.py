"""The doctor on learning rates: plans that people use, and slips."""

import math

import pytest
from doctor_logs import CONFIG, falling, full, lines, names, places

from tinytrain.config import TrainConfig
from tinytrain.schedule import warmup_cosine, warmup_stable_decay
from tinytrain.watch.doctor import diagnose

NAME = "lr off its plan"


def schedule(kind, n=200):
    config = TrainConfig(total_steps=n, max_lr=1e-3, warmup_steps=20)
    decay = {"max_lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 20, "total_steps": n, "decay_steps": 60}
    return {
        "cosine": lambda s: config.lr(s),
        "constant": lambda s: 1e-3,
        "linear": lambda s: 1e-3 * (1 - s / n),
        "stable": lambda s: warmup_stable_decay(s, **decay),
        "stable, down to 0 within three updates": lambda s: warmup_stable_decay(
            s, **decay | {"min_lr": 0.0, "decay_steps": 3}
        ),
        "steps": lambda s: 1e-3 * 0.1 ** (s // 70),
        "inverse root": lambda s: 1e-3 / math.sqrt(1 + s),
        "only warmup": lambda s: 1e-5 * (s + 1),
        "sweep": lambda s: 1e-6 * 1.06**s,
        "first 0": lambda s: 1e-3 * min(1.0, s / 20),
        "climbs": lambda s: 1e-3 * (0.55 + 0.45 * math.cos(2 * math.pi * s / n)),
        "restarts": lambda s: config.lr(2 * (s % (n // 2))),
        "four times": lambda s: config.lr(4 * s),
        "zero": lambda s: 0.0,
        "zero from the middle": lambda s: config.lr(s) if s < 100 else 0.0,
        "half from the middle": lambda s: config.lr(s) * (1 if s < 100 else 0.45),
        "below 0": lambda s: 1e-3 * (1 - s / 150),
        "infinite": lambda s: math.inf if s == 7 else 1e-3,
        "NaN": lambda s: math.nan if s == 7 else 1e-3,
    }[kind]


IMPOSSIBLE = "the learning rate is below 0, infinite or NaN"
PLANNED = ["cosine", "constant", "linear", "stable", "stable, down to 0 within three updates", "steps"]
PLANNED += ["inverse root", "only warmup", "sweep"]
OFF_PLAN = {
    "first 0": "the first update has a learning rate of 0",
    "climbs": "the learning rate climbs again after it had come down",
    "restarts": "the learning rate jumps",
    "four times": "the learning rate is at its floor long before the end",
    "zero": "the learning rate never leaves 0",
    "zero from the middle": "the learning rate jumps",
    "half from the middle": "the learning rate jumps",
    "below 0": IMPOSSIBLE,
    "infinite": IMPOSSIBLE,
    "NaN": IMPOSSIBLE,
}


@pytest.mark.parametrize("kind", [*PLANNED, *OFF_PLAN])
def test_usual_schedules_are_plans_and_slips_are_not(kind):
    records = lines(falling(200), lr=[schedule(kind)(s) for s in range(200)])
    expected = [(NAME, OFF_PLAN[kind])] if kind in OFF_PLAN else []
    assert [(finding.name, finding.symptom) for finding in diagnose(records)] == expected


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("min_lr", [0.0, 1e-4])
def test_a_cosine_of_any_length_is_a_plan(warmup, min_lr):
    for n in [*range(1, 60), 333]:
        config = TrainConfig(total_steps=n, max_lr=1e-3, min_lr=min_lr, warmup_steps=min(warmup, n // 2))
        assert names(lines(falling(n), lr=[config.lr(step) for step in range(n)])) == [], n


def test_down_to_0_within_20_updates_is_a_plan():
    rates = [warmup_cosine(i, max_lr=1, min_lr=0, warmup_steps=0, total_steps=20) for i in range(20)]
    assert names(lines(falling(20), lr=rates)) == []


def test_a_first_rate_of_0_is_told_last_and_hides_nothing():
    first_0 = schedule("first 0")
    records = full(
        lr=first_0,
        tokens=lambda i: 500,
        padding=lambda i: 0.5,
        loss=lambda i: math.nan if i == 50 else 5.5 - i / 100,
    )
    assert places(records) == [("loss not finite", 51), (NAME, 1), ("slow: padding", 1)]
    restarts = lines(falling(200), lr=[first_0(i % 100) * (1 - i % 100 / 200) for i in range(200)])
    (told,) = diagnose(restarts)
    assert (told.name, told.since, told.stage) == (NAME, 101, "input") and told.symptom == "the learning rate jumps"


def test_with_its_config_every_rate_is_compared():
    config = TrainConfig(total_steps=100, max_lr=1e-3, warmup_steps=10)
    rates = [config.lr(step) for step in range(100)]
    assert names(lines(falling(100), lr=rates), config=config) == []
    rates[50] *= 1.001
    found = diagnose(lines(falling(100), lr=rates), config=config)
    assert found.names() == [NAME] and found[0].since == 51 and "1 of 100 differ" in found[0].evidence
    twice = lines(falling(100), lr=[config.lr(2 * step) for step in range(100)])
    assert diagnose(twice, config=config)[0].cause == "the schedule is moved on 2 times in each update"
    first_0 = lines(falling(100), lr=[config.lr(step) if step else 0.0 for step in range(100)])
    assert diagnose(first_0, config=config)[0].stage == "input"


def test_a_skipped_update_does_not_move_the_plan_on():
    records, step = [], 0
    for n, loss in enumerate(falling(60)):
        bad = n in (5, 6, 30)
        records.append({"batch": n + 1, "step": step + (not bad), "loss": loss, "lr": CONFIG.lr(step), "skipped": bad})
        step += not bad
    assert NAME not in names(records, config=CONFIG)


def test_rates_without_a_step_cannot_be_compared_with_a_config():
    records = [{"loss": loss, "lr": 1e-3} for loss in falling(60)]
    assert diagnose(records, config=CONFIG).not_seen[NAME] == "lines with lr have no step"


def test_few_rates_show_no_shape():
    records = lines(falling(100), lr=[1e-3 if i < 15 else None for i in range(100)])
    assert diagnose(records).not_seen[NAME] == "fewer than 20 updates with lr"
