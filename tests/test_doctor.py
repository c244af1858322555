"""What the doctor names: runs made sick on purpose, healthy ones, and logs made of a few numbers."""

import math

import numpy as np
import pytest

from tinytrain.course.sick import HEALTHY, SICK, make
from tinytrain.runlog import read_run
from tinytrain.schedule import warmup_stable_decay
from tinytrain.train import TrainConfig
from tinytrain.watch.doctor import diagnose

BY_THE_CLOCK = {"slow: waiting for data", "slow: exchange", "throughput falls", "memory grows"}
"""findings that another program on the machine can bring about; a run that draws one is made again, twice at most"""


@pytest.fixture(scope="module")
def run_called(tmp_path_factory):
    """Trains a run of the two lists, once for all tests."""
    made = {}

    def run_called(name, attempt=0):
        if (name, attempt) not in made:
            made[name, attempt] = make(name, tmp_path_factory.mktemp("run") / "out")
        return made[name, attempt]

    return run_called


def findings_of(run_called, name, wanted):
    for attempt in range(3):
        found = diagnose(run_called(name, attempt)).names()
        if found[:1] == wanted or not {*found, *wanted} & BY_THE_CLOCK:
            break
    return found


@pytest.mark.parametrize("name", SICK)
def test_the_table_each_injected_fault_is_named_first(name, run_called):
    wanted = [SICK[name].finding] if SICK[name].finding else []
    found = findings_of(run_called, name, wanted)
    print(f"| {name} | {SICK[name].row} | {', '.join(found) or '-'} |")
    assert found[:1] == wanted


@pytest.mark.parametrize("name", HEALTHY)
def test_the_table_healthy_runs_draw_nothing(name, run_called):
    found = findings_of(run_called, name, [])
    print(f"| {name} | healthy | {', '.join(found) or '-'} |")
    assert found == []


def test_there_are_at_least_twelve_healthy_runs_and_every_row_of_the_two_tables_has_one():
    rows = " ".join(sick.row for sick in SICK.values())
    wanted = [
        "lr too large",
        "FP16 overflow",
        "data",
        "bad embedding init",
        "lr too small",
        "mask wrong",
        "clipped to 0",
    ]
    wanted += ["ignore_index", "out of memory", "slow: padding", "slow: data loader", "several GPUs", "eval rises"]
    wanted += ["R4.1", "R4.2", "R4.3", "R4.4 mask", "R4.4 embedding scale", "R4.4 decay", "R4.5"]
    assert [row for row in wanted if row not in rows] == [] and len(HEALTHY) >= 12


@pytest.mark.parametrize("name", [name for name, sick in SICK.items() if sick.beside])
def test_what_a_log_alone_cannot_show_is_seen_beside_a_healthy_run(name, run_called, tmp_path):
    found = diagnose(run_called(name), beside=run_called("small"))
    assert found.names()[:1] == [SICK[name].beside]
    other_seed = make("small", tmp_path / "out", seed=1)
    assert diagnose(run_called("small"), beside=other_seed).names() == []
    assert diagnose(other_seed, beside=run_called("small")).names() == []


UNSEEN = ["mask lets see", "mask inverted", "labels not shifted", "labels shuffled", "embedding init", "much decay"]


@pytest.mark.parametrize("name", UNSEEN)
def test_a_cause_that_no_log_can_show_is_sent_on_to_preflight(name, run_called):
    first = diagnose(run_called(name), beside=run_called("small"))[0]
    assert any("preflight" in check for check in first.checks)


def test_the_place_is_that_of_the_fault(run_called):
    def since(name):
        return diagnose(run_called(name))[0].since

    assert abs(since("bad batch") - 121) <= 2 and since("all labels ignored") == 41 and since("NaN in the data") == 91
    assert since("some batches without labels") == 81 and since("lr stays 0") == 1
    assert 95 <= since("lr jumps") <= 105 and since("embedding init") == 1


# Logs of a few numbers.


def lines(losses, **columns):
    """A log with these losses; other columns are a number or one for each line."""
    n = len(losses)
    columns = {"grad_norm": 1.0, "lr": 1e-3} | columns
    rows = {k: [v] * n if not isinstance(v, (list, np.ndarray)) else v for k, v in columns.items()}
    return [
        {"batch": i + 1, "step": i + 1, "loss": losses[i]} | {k: v[i] for k, v in rows.items() if v[i] is not None}
        for i in range(n)
    ]


def falling(n, start=5.5, end=2.5, noise=0.03, seed=0):
    t = np.arange(n) / n
    return (end + (start - end) * np.exp(-6 * t) + noise * np.random.default_rng(seed).normal(size=n)).tolist()


def names(records, **settings):
    return diagnose(records, **settings).names()


@pytest.mark.parametrize("n", [1, 2, 3, 10, 19, 40, 200, 5000])
def test_a_plain_falling_loss_draws_nothing_however_long_it_is(n):
    assert names(lines(falling(n))) == []


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.15])
def test_noise_is_no_finding(noise):
    assert [names(lines(falling(400, noise=noise, seed=seed))) for seed in range(8)] == [[]] * 8


def test_only_a_loss_is_enough_and_what_is_missing_is_said():
    found = diagnose([{"loss": 5.5 - 0.01 * n} for n in range(100)])
    assert list(found) == [] and "the log has no grad_norm" in str(found)
    assert str(found).startswith("Nothing found. 100 lines of the log looked at for: initial loss")
    with_nan = diagnose([{"loss": 5.5}] * 5 + [{"loss": math.nan}])
    assert (with_nan[0].name, with_nan[0].since, with_nan[0].unit) == ("loss not finite", 6, "line")


def test_a_log_without_a_line_or_a_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the list of records has no line"):
        diagnose([])
    with pytest.raises(ValueError, match=r"none of its 2 lines has a number under 'loss', only \['step'\]"):
        diagnose([{"step": 1}, {"step": 2}])
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"log\.jsonl has no line: the run ended before its first update"):
        diagnose(tmp_path)
    with pytest.raises(FileNotFoundError, match="no log there"):
        diagnose(tmp_path / "none")


def test_nan_from_the_first_line_and_in_the_middle_and_in_evaluation_alone():
    assert "nothing was logged before it" in diagnose(lines([math.nan] * 30))[0].evidence
    losses = falling(100)
    losses[60] = math.inf
    found = diagnose(lines(losses))
    assert (found[0].name, found[0].since) == ("loss not finite", 61) and "nothing moved before it" in found[0].evidence
    norm = [1.0] * 57 + [40.0, 90.0] + [1.0] * 41
    assert "before it, the norm rose to 40 at update 58" in diagnose(lines(losses, grad_norm=norm))[0].evidence
    odd = diagnose(lines(falling(100), eval_loss=[None] * 49 + [math.nan] + [None] * 50))
    assert odd.names() == ["loss not finite"] and "training is finite and evaluation is not" in odd[0].cause


def test_a_norm_that_jumps_alone_is_no_spike_and_one_that_the_loss_follows_is():
    norm = np.full(100, 1.0)
    norm[70] = 50.0
    assert names(lines(falling(100), grad_norm=norm)) == []
    losses = falling(100)
    losses[71] = 6.0
    found = diagnose(lines(losses, grad_norm=norm))
    assert found.names() == ["spike"] and found[0].since == 71 and "50 times its median of 1" in found[0].evidence


def test_a_loss_that_leaps_away_with_its_first_update_is_no_loss_that_hardly_moves():
    noise = np.random.default_rng(0).normal(size=199)
    for level in (9.0, 60.0):
        found = diagnose(lines([5.5, *(level + 0.3 * noise)], lr=1.0))
        assert found.names() == ["swings"] and "from 5.5 up to" in found[0].evidence


def test_the_first_halvings_of_an_fp16_run_are_no_fault_and_later_ones_are():
    def scaled(halvings):
        scale, skipped, norm, value = [], [], [], 65536.0
        for n in range(200):
            scale.append(value)
            skipped.append(n in halvings)
            norm.append(math.nan if n in halvings else 1.0)
            value /= 2 if n in halvings else 1
        return lines(falling(200), loss_scale=scale, skipped=skipped, grad_norm=norm)

    assert names(scaled({0, 1, 3})) == [] and names(scaled({0, 1, 120})) == []
    assert names(scaled({0, 1, 2, 3, 4, 5})) == ["loss scale collapses"]
    assert names(scaled({60, 80, 100, 120})) == ["loss scale collapses"]
    growing = [65536.0 * 2.0 ** (n // 20) for n in range(200)]
    assert names(lines(falling(200), loss_scale=growing)) == ["loss scale soars"]


def test_a_log_in_which_every_update_was_skipped():
    records = lines([math.nan] * 20, skipped=True, grad_norm=math.nan, reason="the loss is nan")
    assert names(records) == ["loss not finite"]
    assert names(lines([0.0] * 20, skipped=True, tokens=0, reason="no position of this batch is a target")) == [
        "updates skipped"
    ]


def test_a_nan_loss_in_fp16_is_not_taken_for_an_overflow_of_gradients():
    scale = [65536.0 * 0.5 ** max(0, n - 30) for n in range(60)]
    bad = [n >= 30 for n in range(60)]
    losses = [math.nan if b else loss for b, loss in zip(bad, falling(60), strict=True)]
    norm = [math.nan if b else 1.0 for b in bad]
    records = lines(losses, grad_norm=norm, loss_scale=scale, skipped=bad, where="the weight tokens.weight holds NaN")
    assert names(records)[0] == "loss not finite"


def test_updates_that_are_skipped_for_another_reason_are_told_with_it():
    skipped = [40 <= n < 55 for n in range(100)]
    found = diagnose(lines(falling(100), skipped=skipped, reason="the loss is far above its mean"))
    assert found.names() == ["updates skipped"] and "15 of 100 batches, up to 15 in a row" in found[0].evidence
    assert "the loss is far above its mean" in found[0].cause


def test_a_log_that_begins_late_says_nothing_of_the_first_loss():
    late = [record | {"step": record["step"] + 2500, "batch": record["batch"] + 2500} for record in lines(falling(50))]
    assert names(late, vocab_size=50_000) == []
    every_tenth = [record for record in lines(falling(300)) if record["step"] % 10 == 0]
    assert names(every_tenth, vocab_size=256) == []


def test_numbers_of_numpy_are_numbers():
    losses = np.array(falling(60), dtype=np.float32)
    assert list(diagnose([{"loss": loss} for loss in losses])) == []
    assert diagnose([{"loss": np.float32(5)}, {"loss": np.float32("nan")}]).names() == ["loss not finite"]


def schedule(kind, n=200):
    config = TrainConfig(total_steps=n, max_lr=1e-3, warmup_steps=20)
    decay = {"max_lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 20, "total_steps": n, "decay_steps": 60}
    return {
        "cosine": lambda s: config.lr(s),
        "constant": lambda s: 1e-3,
        "linear": lambda s: 1e-3 * (1 - s / n),
        "stable": lambda s: warmup_stable_decay(s, **decay),
        "steps": lambda s: 1e-3 * 0.1 ** (s // 70),
        "inverse root": lambda s: 1e-3 / math.sqrt(1 + s),
        "only warmup": lambda s: 1e-5 * (s + 1),
        "sweep": lambda s: 1e-6 * 1.06**s,
        "first 0": lambda s: 1e-3 * min(1.0, s / 20),
        "climbs": lambda s: 1e-3 * (0.55 + 0.45 * math.cos(2 * math.pi * s / n)),
        "restarts": lambda s: config.lr(2 * (s % (n // 2))),
        "four times": lambda s: config.lr(4 * s),
        "zero": lambda s: 0.0,
    }[kind]


PLANNED = ["cosine", "constant", "linear", "stable", "steps", "inverse root", "only warmup", "sweep"]
OFF_PLAN = ["first 0", "climbs", "restarts", "four times", "zero"]


@pytest.mark.parametrize("kind", PLANNED + OFF_PLAN)
def test_usual_schedules_are_plans_and_slips_are_not(kind):
    records = lines(falling(200), lr=[schedule(kind)(s) for s in range(200)])
    assert ("lr off its plan" in names(records)) == (kind in OFF_PLAN)


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("min_lr", [0.0, 1e-4])
def test_a_cosine_of_any_length_is_a_plan(warmup, min_lr):
    for n in [*range(1, 60), 333]:
        config = TrainConfig(total_steps=n, max_lr=1e-3, min_lr=min_lr, warmup_steps=min(warmup, n // 2))
        assert names(lines(falling(n), lr=[config.lr(step) for step in range(n)])) == [], n


def test_with_its_config_every_rate_is_compared():
    config = TrainConfig(total_steps=100, max_lr=1e-3, warmup_steps=10)
    rates = [config.lr(step) for step in range(100)]
    assert names(lines(falling(100), lr=rates), config=config) == []
    rates[50] *= 1.01
    found = diagnose(lines(falling(100), lr=rates), config=config)
    assert found.names() == ["lr off its plan"] and found[0].since == 51 and "1 of 100 differ" in found[0].evidence
    twice = lines(falling(100), lr=[config.lr(2 * step) for step in range(100)])
    assert diagnose(twice, config=config)[0].cause == "the schedule is moved on 2 times in each update"


def test_a_skipped_update_does_not_move_the_plan_on():
    config = TrainConfig(total_steps=100, max_lr=1e-3, warmup_steps=10)
    records, step = [], 0
    for n, loss in enumerate(falling(60)):
        bad = n in (5, 6, 30)
        records.append({"batch": n + 1, "step": step + (not bad), "loss": loss, "lr": config.lr(step), "skipped": bad})
        step += not bad
    assert "lr off its plan" not in names(records, config=config)


def test_with_a_vocabulary_the_first_loss_is_compared_with_its_logarithm():
    assert names(lines(falling(50)), vocab_size=256) == []
    assert diagnose(lines(falling(50)), vocab_size=50_000)[0].symptom.startswith("the first loss is far below")
    assert names(lines(falling(50, start=20.0))) == ["initial loss"]


def test_evaluation_once_or_seldom_is_not_compared():
    once = [None] * 99 + [2.6]
    assert names(lines(falling(100), eval_loss=once)) == []
    turning = [None if n % 20 else 4.0 + 0.3 * abs(n - 60) / 60 for n in range(200)]
    assert "overfitting" in names(lines(falling(200), eval_loss=turning))


def test_memory_near_its_limit_and_memory_that_stays():
    gib = 2**30
    stays = lines(falling(100), memory_bytes=10.0 * gib, memory_limit_bytes=80.0 * gib)
    assert names(stays) == []
    near = lines(falling(100), memory_bytes=[10.0 * gib] * 50 + [75.0 * gib] * 50, memory_limit_bytes=80.0 * gib)
    assert names(near) == ["memory near its limit"] and diagnose(near)[0].since == 51


def test_a_run_that_stopped_in_its_warmup_is_not_called_slow_to_learn():
    records = lines([5.54 - 0.001 * n for n in range(60)], lr=[1e-6 * (n + 1) for n in range(60)])
    assert names(records) == []


def test_a_loss_of_0_is_too_good_to_be_true():
    assert names(lines([0.0] * 100)) == ["too good to be true"]


def test_the_order_puts_causes_before_what_they_bring_about():
    records = lines([90.0] + [5.5] * 59 + [math.nan] * 40, lr=0.0, padding=0.9)
    assert names(records)[:2] == ["lr off its plan", "initial loss"] and names(records)[-1] == "slow: padding"
    assert "loss not finite" in names(records)


def test_findings_read_well_in_a_terminal_and_in_a_notebook():
    losses = falling(100)
    losses[71] = 6.0
    norm = np.full(100, 1.0)
    norm[70] = 50.0
    found = diagnose(lines(losses, grad_norm=norm))
    text = str(found)
    assert text.startswith(
        "1. spike, since update 71: the gradient's norm jumps, and the loss with it\n    seen  norm 50"
    )
    assert "\n    next  1. print the rows of that batch\n          2. clip" in text
    html = found._repr_html_()
    assert html.startswith("<table") and "since update 71" in html and "<script" not in html
    assert "Nothing found" in diagnose(lines(falling(9)))._repr_html_()


def test_a_text_in_a_log_cannot_become_markup():
    records = lines([5.5, math.nan], where="<script>alert(1)</script>")
    assert "<script>" not in diagnose(records)._repr_html_()


def test_a_resumed_run_and_its_folder(run_called):
    run = run_called("resumed")
    assert diagnose(run.folder).names() == diagnose(run).names() == diagnose(read_run(run.folder).records).names() == []
