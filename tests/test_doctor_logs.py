"""Logs written by hand: what the doctor must call each of them, and what is unusual and draws nothing."""

import math

import numpy as np
import pytest
from doctor_logs import CONFIG, falling, fp16, full, lines, names, once, places

from tinytrain.schedule import lr_sweep
from tinytrain.watch.doctor import diagnose


def noisy(values, noise=0.03, seed=3):
    return (np.asarray(values, dtype=float) + noise * np.random.default_rng(seed).normal(size=len(values))).tolist()


def converging(n, start=5.5, end=1.5, tau=150):
    """A loss that has reached its end long before that of the run."""
    return noisy(end + (start - end) * np.exp(-np.arange(n) / tau))


def with_jumps(at, height=6.0, n=300):
    return [height if i in at else loss for i, loss in enumerate(falling(n))]


STEP_UP = [1.5 + (0.8 if i >= 4000 else 0.0) for i in range(5000)]
STEP_AND_OUTLIER = [100.0 if i == 3950 else value for i, value in enumerate(STEP_UP)]

SICK = {
    "NaN from the first line": (full(30, loss=lambda i: math.nan, skipped=lambda i: True), "loss not finite", 2),
    "NaN in the evaluation": (full(eval_loss=lambda i: math.nan), "loss not finite", 1),
    "infinite norm without a loss scale": (full(grad_norm=once(0.5, 80, math.inf)), "loss not finite", 81),
    "a rate that starts anew": (full(lr=lambda i: CONFIG.lr(i if i < 60 else i - 60)), "lr off its plan", 61),
    "memory at its limit": (full(memory_bytes=once(10**9, 120, 95 * 10**8, 80)), "memory near its limit", 121),
    "memory that grows by a thousandth in each update": (
        full(memory_bytes=lambda i: 10**9 + 10**6 * i),
        "memory grows",
        41,
    ),
    "a loss of 0": (full(loss=lambda i: 0.0), "too good to be true", 1),
    "away at once": (full(lr=lambda i: 1e-3, loss=lambda i: 5.5 if i == 0 else 60 - i / 5), "swings", 1),
    "above its first loss for good": (lines(noisy([5.5, 5.6, 5.5] + [7.0] * 297, 0.1)), "swings", 1),
    "a step up late in a long run": (lines(noisy(STEP_UP, 0.05), grad_norm=None), "swings", 4001),
    "one wild batch, and then a step up": (lines(noisy(STEP_AND_OUTLIER, 0.05), lr=None), "spike", 3951),
    "0 for a while": (lines([5.5] * 40 + [0.0] * 20 + [5.0] * 140), "swings", 61),
    "up and down after a bad start": (
        lines(noisy([40.0 - 0.6 * i for i in range(60)] + [2.0 + (i // 60 % 2) * 2.0 for i in range(240)])),
        "initial loss",
        1,
    ),
    "slower and slower": (
        full(tokens_per_second=lambda i: 1e5 / (1 + i / 200) + i % 7 * 2000),
        "throughput falls",
        30,
    ),
    "waits": (full(seconds_data=lambda i: 0.004 + i % 3 / 1000), "slow: waiting for data", 1),
    "every twentieth batch is waited for": (
        lines(falling(300), seconds_step=0.1, seconds_data=[4.0 if i % 20 == 0 else 0.001 for i in range(300)]),
        "slow: waiting for data",
        1,
    ),
    "exchange": (full(processes=lambda i: 4, seconds_communication=lambda i: 0.0045), "slow: exchange", 1),
    "no gradient": (full(grad_norm=lambda i: 0.0, loss=lambda i: 5.5 + i % 2 / 100), "no gradient", 1),
    "all skipped in FP16": (fp16(range(17), 17), "loss scale collapses", 1),
    "six overflows in a row": (fp16(range(100, 106)), "loss scale collapses", 101),
    "an overflow in every 30 updates": (fp16(range(60, 200, 30)), "loss scale collapses", 61),
    "an overflow in every 60 updates, down to under 1": (
        fp16(range(60, 1200, 60), 1200),
        "loss scale collapses",
        61,
    ),
    "overflows whose norm is not logged": (
        [{k: v for k, v in record.items() if k != "grad_norm"} for record in fp16(range(60, 200, 30))],
        "loss scale collapses",
        61,
    ),
    "first loss above that of any vocabulary": (full(loss=lambda i: 2.5 + 20 / (1 + i / 9)), "initial loss", 1),
    "loss jumps, no norm logged": (lines(with_jumps({150}), grad_norm=None), "spike", 151),
    "loss jumps again and again with a norm 8 times as large": (
        lines(with_jumps({120, 150}), grad_norm=[8.0 if i in (120, 150) else 1.0 for i in range(300)]),
        "spike",
        121,
    ),
    "flat from first weights": (lines([5.5 - i / 2000 for i in range(60)]), "loss hardly moves", 1),
    "flat behind a short warmup": (
        lines([5.5 - i / 2000 for i in range(60)], lr=[min(1.0, (i + 1) / 20) for i in range(60)]),
        "loss hardly moves",
        1,
    ),
    "knows frequencies and nothing more": (lines(noisy([3.3 + 2.2 * 0.8**i for i in range(200)])), "loss stuck", 41),
    "every batch without a target, its loss null": (
        [{"batch": i, "step": 0, "loss": None, "skipped": True, "tokens": 0} for i in range(1, 31)],
        "updates skipped",
        1,
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_what_each_sick_log_is_called_first_and_since_when(name):
    records, finding, since = SICK[name]
    found = diagnose(records)
    assert [(f.name, f.since) for f in found][:1] == [(finding, since)], str(found)


def resumed():
    """A run that went on the next day, from another machine: slower data once, other memory."""
    records = full(memory_bytes=lambda i: 10**9 if i < 90 else 9 * 10**8)
    records[90] |= {"seconds_data": 40.0, "tokens_per_second": 25.0}
    return records


HEALTHY = {
    "one line": full(1),
    "two lines": full(2),
    "ten lines": full(10),
    "healthy": full(),
    "stopped in its warmup": full(60, lr=lambda i: 1e-3 * (i + 1) / 200),
    "stopped in its warmup, rates of two digits": lines(
        noisy([5.545 - i / 1000 for i in range(60)], 0.01),
        lr=[float(f"{6e-4 * (i + 1) / 2000:.1e}") for i in range(60)],
    ),
    "stopped soon after its warmup": lines(
        [5.545 - i / 1000 for i in range(60)], lr=[min(50, i + 1) / 1000 for i in range(60)]
    ),
    "a sweep that ends where training breaks": full(
        lr=lambda i: lr_sweep(i, min_lr=1e-6, max_lr=1.0, total_steps=200),
        loss=lambda i: 5.5 - i / 60 if i < 170 else 2.7 + (i - 170) ** 2 / 10,
    ),
    "a loss that wavers by a tenth": full(loss=lambda i: 3.0 + 3.0 / (1 + i / 12) + 0.3 * math.sin(i / 15)),
    "waves far under the first loss": full(loss=lambda i: 5.5 if i < 2 else 0.6 + 0.2 * math.sin(i / 15)),
    "other programs that come and go": full(tokens_per_second=lambda i: 1e5 / (1 + i // 50 % 4)),
    "one step down in speed": full(tokens_per_second=lambda i: (1e5 if i < 100 else 4e4) - 10 * i),
    "one step down in speed inside an eighth": full(
        tokens_per_second=lambda i: (1e5 if i < 105 else 7e4 if i < 125 else 3e4) - 10 * i
    ),
    "an exchange of a third": full(processes=lambda i: 4, seconds_communication=lambda i: 0.003),
    "resumed": resumed(),
    "FP16 that settles": fp16(range(5)),
    "FP16, one gradient 16 times too large": fp16(range(30, 34)),
    "FP16, an overflow in every 300 updates": fp16(range(150, 3000, 300), 3000),
    "FP16, an overflow after each growth": fp16(range(20, 200, 21), growth=20),
    "FP16, a scale that grows quickly and comes back": fp16(
        [41, 63, 65, 86, 93, 108, 124, 145, 156, 168, 179, 190], growth=10
    ),
    "evaluated once": full(eval_loss=lambda i: 2.8 if i == 199 else None),
    "another text from update 100 on": full(
        loss=lambda i: 2.5 + 3.0 / (1 + i / 12) + (0.3 if i >= 100 else 0) + i % 7 / 100
    ),
    "a large batch, hardly any noise": full(loss=lambda i: 2.5 + 3.0 / (1 + i / 12)),
    "memory that grows by 2 % in all": full(memory_bytes=lambda i: 10**9 + 10**5 * i),
    "memory that doubles once": full(memory_bytes=lambda i: 10**9 if i < 120 else 2 * 10**9),
    "memory on a GPU, the same to the byte": full(
        memory_bytes=lambda i: 123_456_789, memory_limit_bytes=lambda i: 10**11
    ),
    "every update clipped": full(clip_factor=lambda i: 0.05, grad_norm=lambda i: 20.0 + i % 3),
    "norms that fall to a twentieth": full(grad_norm=lambda i: 0.5 if i < 100 else 0.025),
    "norms that jump without the loss": full(grad_norm=once(0.5, 60, 60.0)),
    "converged": lines(converging(2000)),
    "fine-tuned: 3.2 then 2.9": lines(noisy([2.85 + 0.35 * math.exp(-i / 30) for i in range(400)])),
    "trained further: 2.1 then 2.06": lines(noisy([2.06 + 0.04 * math.exp(-i / 30) for i in range(400)], 0.1)),
    "fine-tuned, rows of which each has another loss": lines(
        np.abs(noisy([1.05 + 0.15 * math.exp(-i / 20) for i in range(300)], 0.5)).tolist()
    ),
    "the second half of a run": [
        r | {"step": r["step"] + 2500} for r in lines(noisy([4.5 - i / 2e4 for i in range(200)]))
    ],
    "rows of which each has another loss, an easy one first": lines(
        [0.4, *np.abs(noisy([1.05] * 299, 0.5))], grad_norm=None
    ),
    "a loss under 0 that wavers": lines([-1.5 + 0.3 * math.sin(i / 15) for i in range(300)]),
    "a loss under 0": lines([-0.5 - 0.01 * i for i in range(100)]),
    "a jump by four fifths in one small batch": lines(with_jumps({150}, 4.5), grad_norm=None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_unusual_and_no_fault_draws_nothing(name):
    found = diagnose(HEALTHY[name])
    assert found.names() == [], str(found)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 19, 40, 200, 5000])
def test_a_plain_falling_loss_draws_nothing_however_long_it_is(n):
    assert names(lines(falling(n))) == []


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.15])
def test_noise_is_no_finding(noise):
    assert [names(lines(falling(400, noise=noise, seed=seed))) for seed in range(8)] == [[]] * 8


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


def test_what_moved_first_is_told_of_a_nan_and_stands_before_it():
    records = full(
        150,
        grad_norm=lambda i: 0.5 if i < 120 else 0.5 * 1.4 ** (i - 120),
        loss=lambda i: math.nan if i == 149 else 3.0 - i / 1000 if i < 140 else 3.0 * 1.3 ** (i - 139),
        skipped=lambda i: i == 149,
    )
    found = diagnose(records)
    (told,) = [f for f in found if f.name == "loss not finite"]
    assert "the norm rose to" in told.evidence.split("before it, ")[1].split(", then the loss rose")[0]
    assert found[0].name in ("spike", "swings") and found[0].since < told.since


def test_where_a_nan_was_found_is_told_as_the_log_has_it():
    records = full()
    records[70] |= {"loss": math.nan, "skipped": True, "where": "the weight tokens.weight holds NaN"}
    told = diagnose(records)[0]
    assert told.name == "loss not finite" and "tokens.weight holds NaN" in told.evidence and "a weight" in told.cause


def test_a_norm_that_jumps_counts_if_the_loss_follows():
    losses, norm = falling(100), np.full(100, 1.0)
    norm[70], losses[71] = 50.0, 6.0
    found = diagnose(lines(losses, grad_norm=norm))
    assert found.names() == ["spike"] and found[0].since == 71 and "50 times its median of 1" in found[0].evidence
    losses[71] = 3.1  # a fifth above what it was: less than the 0.3 of a climb
    assert names(lines(losses, grad_norm=norm)) == []


def test_a_loss_that_stays_up_is_a_climb_and_no_spike():
    records = lines(noisy([2.0] * 100 + [5.0] * 100), grad_norm=None)
    assert places(records) == [("swings", 101)]


def test_a_climb_in_the_warmup_begins_with_the_spike_that_announced_it():
    lr = [(i + 1) / 150 for i in range(150)] + [1.0] * 50
    losses = noisy([5.5 - i / 40 for i in range(80)] + [3.5 + (i - 80) / 8 for i in range(80, 200)])
    assert names(lines(losses, lr=lr)) == ["unstable in warmup"]
    alone = diagnose(lines(losses, lr=lr))[0].since
    assert 80 <= alone <= 95
    losses[60] = 9.0
    norm = [40.0 if i == 60 else 1.0 for i in range(200)]
    assert places(lines(losses, lr=lr, grad_norm=norm))[:2] == [("unstable in warmup", 61), ("spike", 61)]
    losses[20], norm[20] = 12.0, 40.0  # more than 50 updates before: another matter
    assert places(lines(losses, lr=lr, grad_norm=norm))[:2] == [("spike", 21), ("unstable in warmup", 61)]


def test_one_wild_batch_does_not_move_the_place_of_a_climb():
    found = diagnose(lines(noisy(STEP_AND_OUTLIER, 0.05)))
    assert [finding.since for finding in found if finding.name == "swings"] == [4001]


def test_overflows_whose_norm_is_not_logged_are_no_other_skips():
    assert names(SICK["overflows whose norm is not logged"][0]) == ["loss scale collapses"]


def test_batches_without_targets_are_no_overflows_where_no_norm_is_logged():
    lost = [40 <= n < 52 for n in range(100)]
    losses = [0.0 if bad else loss for bad, loss in zip(lost, falling(100), strict=True)]
    tokens = [0 if bad else 1000 for bad in lost]
    records = lines(losses, grad_norm=None, skipped=lost, tokens=tokens, loss_scale=65536.0)
    assert names(records) == ["updates skipped"]


def test_a_place_is_exact_where_the_windows_of_the_smoothed_curve_do_not_come_out_even():
    losses = [5.5 if i < 1987 else 0.1 for i in range(2039)]  # 39 windows, of which the last begins with update 1,988
    found = {finding.name: finding.since for finding in diagnose(lines(losses, epoch=3))}
    assert found["memorising"] == 1988


def test_after_a_bad_start_a_climb_is_measured_against_what_a_vocabulary_can_have():
    climbs = [name for name, _ in places(SICK["up and down after a bad start"][0])]
    assert climbs == ["initial loss", "swings"]


def test_a_loss_scale_that_grows_without_end():
    growing = [65536.0 * 2.0 ** (n // 20) for n in range(200)]
    assert names(lines(falling(200), loss_scale=growing)) == ["loss scale soars"]
    assert names(lines(falling(140), loss_scale=growing[:140])) == []  # six doublings


def test_a_nan_loss_in_fp16_is_not_taken_for_an_overflow_of_gradients():
    scale = [65536.0 * 0.5 ** max(0, n - 30) for n in range(60)]
    bad = [n >= 30 for n in range(60)]
    losses = [math.nan if b else loss for b, loss in zip(bad, falling(60), strict=True)]
    norm = [math.nan if b else 1.0 for b in bad]
    records = lines(losses, grad_norm=norm, loss_scale=scale, skipped=bad, where="the weight tokens.weight holds NaN")
    assert names(records)[0] == "loss not finite"


def test_a_log_in_which_every_update_was_skipped():
    records = lines([math.nan] * 20, skipped=True, grad_norm=math.nan, reason="the loss is nan")
    assert names(records) == ["loss not finite"]
    assert names(lines([0.0] * 20, skipped=True, tokens=0, reason="no position of this batch is a target")) == [
        "updates skipped"
    ]


def test_updates_that_are_skipped_for_another_reason_are_told_with_it():
    skipped = [40 <= n < 55 for n in range(100)]
    found = diagnose(lines(falling(100), skipped=skipped, reason="the loss is far above its mean"))
    assert found.names() == ["updates skipped"] and "15 of 100 batches, up to 15 in a row" in found[0].evidence
    assert "the loss is far above its mean" in found[0].cause


def test_with_a_vocabulary_the_first_loss_is_compared_with_its_logarithm():
    assert names(lines(falling(50)), vocab_size=256) == []
    assert diagnose(lines(falling(50)), vocab_size=50_000)[0].symptom.startswith("the first loss is far below")
    assert names(lines(falling(50, start=20.0))) == ["initial loss"]


def test_a_log_that_begins_late_says_nothing_of_the_first_loss():
    late = [record | {"step": record["step"] + 2500, "batch": record["batch"] + 2500} for record in lines(falling(50))]
    assert names(late, vocab_size=50_000) == []
    every_tenth = [record for record in lines(falling(300)) if record["step"] % 10 == 0]
    assert names(every_tenth, vocab_size=256) == []


def test_a_log_of_every_tenth_update_begins_at_the_start():
    flat = [record for record in lines([5.5 - i / 20000 for i in range(600)]) if record["step"] % 10 == 0]
    assert places(flat) == [("loss hardly moves", 10)]


def test_a_bad_start_is_no_measure_of_a_low_loss():
    records = lines([40.0 - 0.64 * i for i in range(60)] + falling(240, start=3.0, end=1.8))
    found = diagnose(records)
    assert found.names() == ["initial loss"] and "tell vocab_size" in found.not_seen["memorising"]
    told = diagnose(records, vocab_size=256)
    assert told.names() == ["initial loss"] and "memorising" in told.looked_for
    low = lines([40.0 - 0.66 * i for i in range(60)] + falling(240, start=0.4, end=0.1))
    assert "memorising" in names(low, vocab_size=256)


def test_numbers_of_numpy_are_numbers():
    losses = np.array(falling(60), dtype=np.float32)
    assert list(diagnose([{"loss": loss} for loss in losses])) == []
    assert diagnose([{"loss": np.float32(5)}, {"loss": np.float32("nan")}]).names() == ["loss not finite"]


def test_evaluation_that_turns_and_one_that_is_apart():
    turning = [None if n % 20 else 4.0 + 0.3 * abs(n - 60) / 60 for n in range(200)]
    assert "overfitting" in names(lines(falling(200), eval_loss=turning, epoch=[n // 40 for n in range(200)]))
    apart = [None if n % 20 != 19 else 4.5 for n in range(200)]
    for epoch in (0, 0.7):  # some count whole epochs, others shares of one
        assert names(lines(falling(200), eval_loss=apart, epoch=epoch)) == ["evaluation apart"]
    assert names(lines(falling(200), eval_loss=apart, epoch=1)) == []


@pytest.mark.parametrize(("epoch", "finding"), [(0.7, "too good to be true"), (3, "memorising"), (None, "memorising")])
def test_a_loss_next_to_0_on_rows_that_came_once_is_no_memory(epoch, finding):
    assert names(lines(falling(200, end=0.1), epoch=epoch)) == [finding]


def test_without_epochs_only_the_first_evaluation_is_before_anything_could_be_learnt_by_heart():
    rising = {39: 3.0, 79: 4.5, 119: 6.0, 159: 8.0}  # one batch again and again: apart from the second on
    losses = noisy([5.5 * math.exp(-i / 90) for i in range(160)], 0.01)
    assert names(lines(losses, eval_loss=[rising.get(i) for i in range(160)])) == ["overfitting"]
